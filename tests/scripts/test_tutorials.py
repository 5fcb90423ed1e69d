"""Tutorials run from their first line to the last, with smaller numbers."""

import re
import runpy
import shlex
from pathlib import Path

import pytest

from hydragnn.graphs.pyg import torch_geometric
from tests.once import Call

PARTS = re.compile(r"^```(python|toml)\n(.*?)^```$|^    ((?:hydragnn|python) [^\n]*)$", re.MULTILINE | re.DOTALL)

SMALLER = {
    "first-hour": {"range(240)": "range(60)", "[:220]": "[:56]", "[220:]": "[56:]", "hidden_dim = 32": "hidden_dim = 8", "epochs = 40": "epochs = 3",
        "epochs=60": "epochs=4", "trials = 8": "trials = 3", "[5, 15]": "[1]", "low = 16": "low = 8", "high = 48": "high = 12", ".repeat(2)": ""},
    "dynamics": {".repeat(2)": "", "--steps 200\n": "--steps 20\n", "--cell": "--cell --fmax 30", "6000 --steps 2000 ": "60000 --steps 200 "},
    "properties": {"3 * np.eye": "2 * np.eye", "repeat(3)": "repeat(2)"},
    "slurm": {"--epochs 60": "--epochs 4"},
    "own-loop": {"range(400)": "range(40)", "320": "32", "322": "34", "\"epochs\": 8": "\"epochs\": 2", "range(10)": "range(1)"},
    "meshes-in-time": {"range(60)": "range(12)", "hidden_dim = 24": "hidden_dim = 8", "epochs = 40": "epochs = 2"},
    "sensors": {"NODES, DAYS = 30, 30": "NODES, DAYS = 6, 4", "hidden_dim = 32": "hidden_dim = 8", "epochs = 12": "epochs = 1", "steps=18, starts=6": "steps=3, starts=2",
        "(0, 5, 17)": "(0, 1, 2)"},
    "public-ensemble": {"range(1400)": "range(120)", "[:400]": "[:100]", "[400:]": "[100:]", "[:240]": "[:40]", "[240:320]": "[40:70]",
        "[320:]": "[70:]", "epochs=60": "epochs=2"},
    "grains-from-images": {"range(240)": "range(40)", "epochs = 150": "epochs = 2", "trials = 6": "trials = 4", "[30]": "[1]", "high = 32": "high = 12"},
    "sphere": {"73, 3": "16, 3", "hidden_dim = 24": "hidden_dim = 8", "epochs = 20": "epochs = 1", "store, steps = open_store(\"flow.h5\"), 20": "store, steps = open_store(\"flow.h5\"), 3", "(0, 7, 19)": "(0, 1, 2)"},
    "maps-of-orientations": {"range(2000)": "range(40)", "epochs = 40": "epochs = 2"},
}  # fmt: skip
"""Pages, and what the tests shorten; every entry must occur."""


def run(page: str, root: Path, call: Call, names: dict[str, object]) -> str:
    text = (root / "docs" / "tutorials" / f"{page}.md").read_text()
    for long, short in SMALLER[page].items():
        text = text.replace(long, short)
    printed = []
    for language, block, command in PARTS.findall(text):
        named = re.match(r'"""(\S+)"""\n|# (\S+\.toml)\n', block)
        if named:
            Path(named[1] or named[2]).write_text(block)
        elif language:
            exec(compile(block, page, "exec"), names)  # the page is ours, not input
        elif command.startswith("python "):
            runpy.run_path(shlex.split(command)[1])
        else:
            code, out, errors = call(*shlex.split(command, comments=True)[1:])
            wanted = int(match[1]) if (match := re.search(r"# exits with (\d)", command)) else 0
            assert code == wanted, (command, out, errors)
            printed.append(out + errors)
    return "\n".join(printed)


@pytest.mark.usefixtures("undrawn")
def test_the_first_hour_and_what_goes_on_from_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = run("first-hour", root, call, {})
    assert "trivial predictor" in printed
    assert len(Path("new.csv").read_text().splitlines()) == 5
    names: dict[str, object] = {}
    stopped = run("dynamics", root, call, names)
    assert "last frame" in stopped
    assert Path("to-label.xyz").is_file()
    assert "#SBATCH" in run("slurm", root, call, {})
    capfd.readouterr()
    run("properties", root, call, {})
    out = capfd.readouterr().out
    assert out.count("lattice constant") == out.count("C11") == out.count("THz") == 2


def test_own_loops_on_torch_geometric(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    monkeypatch.chdir(tmp_path)
    torch_geometric("data"), torch_geometric("loader")  # imported without the warnings of that package
    run("own-loop", root, call, {})


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("page", ["meshes-in-time", "sensors", "grains-from-images", "maps-of-orientations", "sphere"])
def test_other_scales(page: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    monkeypatch.chdir(tmp_path)
    run(page, root, call, {})


@pytest.mark.usefixtures("undrawn")
def test_an_ensemble_of_the_public_hydragnn(
    root: Path, real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [f"EGNN_gfm2024_m{number}" for number in (61, 62, 63)]
    for name in names:
        for file in ("checkpoint.pk", "config.json"):
            (Path("members") / name).mkdir(parents=True, exist_ok=True)
            (Path("members") / name / file).write_bytes((real_data / "hydragnn-generations" / name / file).read_bytes())
    printed = run("public-ensemble", root, call, {})
    page = (root / "docs" / "tutorials" / "public-ensemble.md").read_text()
    for line in re.findall(r"^(EGNN_gfm2024_m61: .*|  (?:evidence|reads|predicts): .*|next: .*)$", page, re.MULTILINE):
        assert line in printed
    assert len(Path("predictions.csv").read_text().splitlines()) == 21
    assert 'id="import"' in Path("imported/ensemble/report.html").read_text()


def test_every_tutorial_runs_and_every_shorter_number_occurs(root: Path) -> None:
    pages = {page.stem: page.read_text() for page in (root / "docs" / "tutorials").glob("*.md")}
    assert set(SMALLER) | {"coming-from"} == set(pages)
    for page, numbers in SMALLER.items():
        assert [long for long in numbers if long not in pages[page]] == [], page
