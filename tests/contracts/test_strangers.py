"""A folder from a stranger: whatever its files hold, reading it runs no code, and every command works or says why not.

The payload is a pickle that makes a file. It replaces every file of a run, a campaign, an ensemble and a store in turn, is
appended to it, and lies beside them under names that Python or a library might load by itself.
"""

import json
import os
import pickle
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hydragnn
from hydragnn.base import imports
from hydragnn.base.errors import InputError
from hydragnn.base.files import write_sealed
from tests.charged_rings import RUN, SEARCH, write_rings
from tests.forked import Forked

STORES = ("rings.h5", "rings.bp")
FOLDERS = (*STORES, "run", "campaign", "ensemble")
Ends = Callable[[list[object]], int]


class Payload:
    """Unpickled, it makes the file ``ran`` beside the folders."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return (os.system, (f"touch {self.marker}",))


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in both formats, a run, a campaign and an ensemble, as a stranger would send them."""
    folder = tmp_path_factory.mktemp("given")
    for name in STORES:
        write_rings(folder / name, 24)
    (folder / "run.toml").write_text(RUN)
    (folder / "search.toml").write_text(RUN + SEARCH)
    hydragnn.train(folder / "run.toml", folder / "run")
    hydragnn.search(folder / "search.toml", folder / "campaign", workers=1, quiet=True)
    hydragnn.build_ensemble(folder / "campaign", folder / "ensemble", top_k=2)
    return folder


@pytest.fixture
def received(given: Path, tmp_path: Path) -> Path:
    """A copy that knows its own store; the ensemble, with checksums of its files, finds it beside itself."""
    copy = tmp_path / "received"
    shutil.copytree(given, copy)
    for path in [*(copy / "run").rglob("*.json"), *(copy / "campaign").rglob("*.json")]:
        write_value(path, json.loads(path.read_text().replace(str(given), str(copy))))
    return copy


def commands(kind: str, folder: Path) -> Iterator[list[object]]:
    """Everything that reads such a folder; ``report`` comes first, because others go on where it ends."""
    here = folder / kind
    if kind in STORES:
        yield ["data", "info", here]
        yield ["data", "check", here]
        yield ["predict", folder / "run", here, "--out", folder / "said.h5"]
        return
    yield ["report", here, "--out", folder / "report.html"]
    if kind != "campaign":
        yield ["predict", here, folder / "rings.h5", "--out", folder / "said.h5"]
    if kind == "run":
        yield ["train", folder / "run.toml", "--out", here, "--resume"]
    if kind == "campaign":
        yield ["status", here]
        yield ["ensemble", here, "--out", folder / "new", "--top-k", 2]
        yield ["search", folder / "search.toml", "--out", here, "--resume", "--workers", 1]


@pytest.fixture
def ends_well(call: Callable[..., tuple[int, str, str]]) -> Ends:
    """Calls the command line; anything but success or one sentence on what is wrong fails the test. Gives the exit code."""

    def calling(words: list[object]) -> int:
        code, output, errors = call(*words)
        output += errors
        assert "Traceback" not in output, output
        assert code == 0 or "error: " in output or "problems" in output, (words, code, output)
        return code

    return calling


def files_of(kind: str, folder: Path) -> list[Path]:
    """Every file, of the trials, members and checkpoints only one."""
    others = ("trials/0001", "members/1", "checkpoints/000001")
    actual = sorted(path for path in (folder / kind).rglob("*") if path.is_file())
    return [path for path in actual if not any(other in path.as_posix() for other in others)]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("kind", FOLDERS)
def test_a_payload_in_any_file_never_runs(kind: str, received: Path, tmp_path: Path, ends_well: Ends) -> None:
    marker, sound = tmp_path / "ran", tmp_path / "sound"
    payload = pickle.dumps(Payload(marker))
    shutil.copytree(received, sound)
    assert [ends_well(words) for words in commands(kind, received)] == [0] * len(list(commands(kind, received)))
    for path in files_of(kind, sound):
        text = path.suffix in (".json", ".jsonl", ".txt", ".log", ".lock", "")
        for content in (payload,) if text else (payload, path.read_bytes() + payload):
            shutil.rmtree(received)
            shutil.copytree(sound, received)
            (received / path.relative_to(sound)).write_bytes(content)
            for words in commands(kind, received):
                if words[0] not in ("search", "train") or content == payload:  # which take seconds
                    ends_well(words)
                assert not marker.exists(), (path.name, words)


PICKLES = (".metadata", "model.pt", "weights.pt", "best.pth", "state.pkl", "data.pickle", "cache.joblib", "arrays.npy")
SOURCES = (
    *("__init__.py", "__main__.py", "sitecustomize.py", "usercustomize.py", "conftest.py", "setup.py"),
    *("hydragnn.py", "torch.py", "numpy.py", "json.py", "optuna.py", "matplotlib.py", "evil.py"),
)


NAMES = {
    "model of a run": ("run", "run/model/model.json", "model"),
    "configuration of a run": ("run", "run/config.json", "model"),
    "record of a run": ("run", "run/record.json", "config.model"),
    "model of a member": ("ensemble", "ensemble/members/0/model.json", "model"),
    "configuration of a member": ("ensemble", "ensemble/members/0/config.json", "model"),
    "configuration of a trial": ("campaign", "campaign/trials/0000/config.json", "model"),
    "settings of a campaign": ("campaign", "campaign/campaign.json", "model"),
    "rule of a store": ("ensemble", "ensemble/ensemble.json", "data.attributes.build"),
}
"""Files that name a class, and in which section they do."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed module that leaves a mark where it is imported."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "evil_code.py").write_text(
        f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\nclass X: ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(imports, "_allowed", set())
    return tmp_path / "site"


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", NAMES)
def test_files_run_no_installed_code(name: str, received: Path, site: Path, tmp_path: Path, ends_well: Ends) -> None:
    kind, file, section = NAMES[name]
    value = json.loads((received / file).read_text())
    *parents, last = section.split(".")
    table = value
    for key in parents:
        table = table[key]
    table[last] = {**table.get(last, {}), "kind": "evil_code:X"}
    write_value(received / file, value)
    codes = [ends_well(words) for words in commands(kind, received)]
    np.savez(received / "new.npz", n=np.ones(1))
    codes.append(ends_well(["predict", received / kind, received / "new.npz", "--out", received / "said.csv"]))
    assert any(codes) and not (tmp_path / "ran").exists()


def test_allowed_code_runs(received: Path, site: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    value = json.loads((received / "run" / "model" / "model.json").read_text())
    value["model"]["kind"] = "evil_code:X"
    write_sealed(received / "run" / "model" / "model.json", value)
    with pytest.raises(InputError, match=r"names code of evil_code, .* add --allow-code evil_code"):
        hydragnn.load(received / "run")
    assert not (tmp_path / "ran").exists()
    with pytest.raises(InputError, match="evil_code has no architecture X"):
        hydragnn.load(received / "run", allow_code=["evil_code"])
    assert (tmp_path / "ran").exists()
    with pytest.raises(InputError, match="--allow-code evil_code:X names no module"):
        hydragnn.load(received / "run", allow_code=["evil_code:X"])


OWN = """
from hydragnn.architectures.gin import GIN


class Settings(GIN.Settings):
    kind: str = "own_nets:Own"


class Own(GIN):
    Settings = Settings
"""


def test_own_classes_reach_trials_when_allowed(received: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers and their attempts are processes of the campaign; whoever reads its folder later is another."""
    monkeypatch.setattr(imports, "_allowed", set())
    (tmp_path / "own_nets.py").write_text(OWN)
    root = str(Path(hydragnn.__file__).resolve().parent.parent)
    search = (RUN + SEARCH).replace('"schnet"', '"own_nets:Own"')
    search = search.replace("trials = 2", "trials = 1").replace("epochs = 2", "epochs = 1")
    search = search.replace('num_radial = 4\nenvelope = "none"\n', "")
    (received / "own.toml").write_text(search)
    allow = ["--allow-code", "own_nets"]
    searched = ["search", "own.toml", "--out", "own", "--workers", "1"]
    read = [["ensemble", "own", "--out", "chosen", "--top-k", "1"], ["report", "own", "--out", "own.html"]]
    read += [["predict", "own/trials/0000", "rings.h5", "--out", "own.csv", "--workers", "2"]]
    environment = {**os.environ, "PYTHONPATH": f"{root}:{tmp_path}", "OMP_NUM_THREADS": "1"}
    (tmp_path / "program.py").write_text(ONE_AFTER_THE_OTHER)
    for lines, codes in (([searched], [0]), ([*read, *([*words, *allow] for words in read)], [2, 2, 2, 0, 0, 0])):
        words = [str(tmp_path / "program.py"), json.dumps([[str(received), *line] for line in lines])]
        said = Forked(words, environment).communicate(timeout=300)[0]
        assert "Traceback" not in said, said
        ends = [int(line.rpartition(" ")[2]) for line in said.splitlines() if " ended with " in line]
        assert ends == codes, said
        errors = [line for line in said.splitlines() if line.startswith("error:")]  # a worker may say the same
        assert len(errors) == codes.count(2) and all("names code of own_nets" in line for line in errors), said


def test_files_that_python_or_a_library_might_load_by_themselves_are_left_alone(received: Path, tmp_path: Path) -> None:
    """In the stranger's folder as the current one, too; this is how the installed command starts."""
    marker = tmp_path / "ran"
    for folder in [path for path in received.rglob("*") if path.is_dir()] + [received]:
        for name in PICKLES:
            (folder / name).write_bytes(pickle.dumps(Payload(marker)))
        for name in SOURCES:
            (folder / name).write_text(f"open({str(marker)!r}, 'w')\nclass Evil: ...\n")
        (folder / "evil.pth").write_text(f"import os; open({str(marker)!r}, 'w')\n")
        (folder / "matplotlibrc").write_text("backend: module://evil\ntext.usetex: True\n")
        (folder / "optuna.log").write_bytes(pickle.dumps(Payload(marker)))
    root = str(Path(hydragnn.__file__).resolve().parent.parent)
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    lines = [[str(received / kind), *map(str, words)] for kind in FOLDERS for words in commands(kind, received)]
    start = [sys.executable, "-P", "-c", ONE_AFTER_THE_OTHER, json.dumps(lines)]
    done = subprocess.run(start, cwd=received, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert done.stdout.count(" ended with ") == len(lines), done.stdout
    assert not marker.exists(), done.stdout


ONE_AFTER_THE_OTHER = """
import json, os, sys
from hydragnn.scripts.cli import main
for folder, *words in json.loads(sys.argv.pop()) if __name__ == "__main__" else ():
    os.chdir(folder)
    sys.argv[1:], code = words, 0
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    print(words, "ended with", code)
    if words[0] == "report":  # its pictures take seconds, and one report draws them
        from hydragnn.scripts.report import canvas, where
        canvas.picture = where.picture = lambda *_, **__: "<svg/>"
"""


HOSTILE: tuple[Any, ...] = (None, -1, 10**30, "x", "../../x", [], [[1]], {}, {"a": 1})
PROGRAM = "</text><script>alert(1)</script>"


def with_each(path: Path, values: Sequence[Any]) -> list[Any]:
    table = json.loads(path.read_text())
    return [{**table, key: value} for key in table for value in values]


def write_value(path: Path, value: Any) -> None:
    """Write a JSON value, with the checksum that it then needs."""
    if isinstance(value, dict) and "checksum" in value:
        write_sealed(path, value)
    else:
        path.write_text(json.dumps(value))


FILES = {"run": "model/model.json record.json", "campaign": "campaign.json trials/0000/record.json"}
FILES["ensemble"] = "ensemble.json evaluation.json"
each_file = pytest.mark.parametrize("kind, file", [(kind, file) for kind in FILES for file in FILES[kind].split()])


@pytest.mark.usefixtures("undrawn")
@each_file
def test_wrong_json_is_told_in_a_sentence(kind: str, file: str, received: Path, ends_well: Ends) -> None:
    path = received / kind / file
    changed = [*with_each(path, HOSTILE), [], "x", None, 3]
    for value in random.Random(0).sample(changed, 8):
        write_value(path, value)
        for words in commands(kind, received):
            if words[0] in ("train", "search", "ensemble"):
                continue  # they change the folder
            ends_well(words)
            for made in ("said.h5", "report.html", "said.h5.plan.json"):
                (received / made).unlink(missing_ok=True)
    for nested in ("[" * 100_000, "9" * 10_000):
        path.write_text(nested)
        for words in commands(kind, received):
            ends_well(words)


@each_file
def test_a_program_in_json_is_none_in_a_report(kind: str, file: str, received: Path, ends_well: Ends) -> None:
    path = received / kind / file
    for value in random.Random(0).sample(with_each(path, [PROGRAM]), 3):
        write_value(path, value)
        ends_well(["report", received / kind, "--out", received / "report.html"])
        if (received / "report.html").exists():
            assert "<script" not in (received / "report.html").read_text(encoding="utf-8")
            (received / "report.html").unlink()


ATOMS = "a.traj a.db a.json a.xyz a.extxyz a.cif a.bundle a.py a.pckl POSCAR a.gpw a.nc"


@pytest.mark.parametrize("name", ATOMS.split())
def test_structures_from_strangers_are_no_programs(name: str, received: Path, tmp_path: Path, ends_well: Ends) -> None:
    marker = tmp_path / "ran"
    (tmp_path / name).write_bytes(pickle.dumps(Payload(marker), protocol=0))
    ends_well(["predict", received / "run", tmp_path / name, "--out", tmp_path / "said.h5"])
    for source in ("ase", "pyg", "mesh"):
        table = f'kind = "{source}"\nfiles = ["{name}"]\n' + ("cutoff = 3.0\n" if source == "ase" else "")
        (tmp_path / "build.toml").write_text(table)
        ends_well(["data", "build", tmp_path / "build.toml", "--out", tmp_path / "new.h5"])
    assert not marker.exists()
