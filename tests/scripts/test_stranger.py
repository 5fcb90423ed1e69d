"""First hour of a stranger with own data: a dozen commands, and mistakes that each get one sentence."""

import subprocess
import sys
from pathlib import Path

import ase.io
import pytest
from ase.build import bulk

import hydragnn
from tests.cases import inputs
from tests.once import Call

BUILD = f'kind = "ase"\nfiles = ["own.xyz"]\ncutoff = 4.0\n{inputs.TARGETS}'
RUN = inputs.RUN.format(store="own.h5", more='forces = "forces"', epochs=2)
RUN = RUN.replace("hidden_dim = 16\nnum_layers = 2", "hidden_dim = 8\nnum_layers = 1")
TRANSCRIPT = {
    "--version": "hydragnn 0.",
    "data build build.toml --out own.h5": "24",
    "data info own.h5": "eV/Angstrom",
    "data check own.h5": "problems  none",
    "help train.epochs": "Full budget in epochs",
    "help heads.0.weight": "mean loss in the total",
    "help model.kind": "painn",
    "help split": "split.seed",
    "train run.toml --out run": "trivial predictor",
    "train run --resume --set train.epochs=4": "after epoch 2 with train.epochs: 2, now 4",
    "report run": "run/report.html",
    "predict run new.xyz --out new.csv": "new.csv",
}
"""Commands, and words of what they print."""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with 24 labelled frames of copper, new frames, and two configurations."""
    monkeypatch.chdir(tmp_path)
    frames = [bulk("Cu", cubic=True) for _ in range(24)]
    for seed, atoms in enumerate(frames):
        atoms.rattle(0.1, seed=seed)
        inputs.labelled(atoms, stress=False)
    ase.io.write("own.xyz", frames, format="extxyz")
    ase.io.write("new.xyz", [bulk("Cu", cubic=True), bulk("Cu")], format="extxyz")
    Path("build.toml").write_text(BUILD)
    Path("run.toml").write_text(RUN)
    return tmp_path


@pytest.mark.usefixtures("own", "undrawn")
def test_a_dozen_commands_lead_from_own_structures_to_predictions(call: Call) -> None:
    for command, words in TRANSCRIPT.items():
        code, out, errors = call(*command.split())
        assert code == 0, (command, out, errors)
        assert words in " ".join(out.split()) or words in out, (command, out, errors)
    assert "after epoch 2 with train.epochs: 2, now 4" in Path("run/report.html").read_text()
    rows = Path("new.csv").read_text().splitlines()
    assert len(rows) == 3 and rows[0].startswith("graph,")
    for place in ("more/a.cif", "more/b.cif", "other/a.cif"):
        Path(place).parent.mkdir(exist_ok=True)
        ase.io.write(place, bulk("Cu"))
    code, _, errors = call("predict", "run", "new.xyz", "more", "oth*/*.cif", "build.toml", "--out", "many.csv")
    assert code == 0, errors
    several = [row.split(",") for row in Path("many.csv").read_text().splitlines()]
    assert [int(row[0]) for row in several[1:]] == [*range(29)]
    names = [row[several[0].index("name")] for row in several[1:]]
    assert names[:6] == ["new.xyz#0", "new.xyz#1", "more/a.cif#0", "b.cif#0", "other/a.cif#0", "own.xyz#0"]
    alone = [float(row.split(",")[-1]) for row in rows[1:]]
    assert [float(row[-1]) for row in several[1:3]] == pytest.approx(alone, rel=1e-5)  # other batches round differently
    assert len(hydragnn.predict("run", ["new.xyz", "more"])) == 4
    code, out, errors = call("data", "merge", "own.h5", "own.h5", "--out", "twice.h5")
    assert code == 2 and "names each store once" in errors
    code, out, errors = call("data", "append", "own.h5", "build.toml")
    assert code == 0 and "24 of the 24 added graphs are exact copies" in " ".join(out.split()), (out, errors)
    wrong = {"own.h5 new.xyz": "own.h5 is a store and new.xyz is none", "new.xyz n*.cif": "does not exist"}
    wrong["new.xyz n*.xyz"] = "new.xyz is named twice, and each file is predicted once; name it once"
    for sources, words in wrong.items():
        code, _, errors = call("predict", "run", *sources.split(), "--out", "no.csv")
        assert code == 2 and words in errors and errors.count("\n") == 1, errors


WRONG = {
    "hydragnn.load(3)": "3 (int) is no path",
    'hydragnn.load("own.h5")': "neither a campaign, an ensemble nor a run",
    'hydragnn.load("run", "metals")': "it has no branch metals",
    'hydragnn.predict("run", {"a": 1})': "is no list, data set or generator of graphs",
    'hydragnn.predict("run", [frames[0], store[0]])': "not ase's Atoms and hydragnn's GraphBatch",
    'hydragnn.predict("run", frames, "out.h5")': "a list in memory is predicted in memory",
    'hydragnn.predict("run", store, workers=2)': "keep_parts and graph_ranks are about a file",
    'hydragnn.predict("run", "own.h5", "p.h5", workers=0)': "workers = 0 is neither",
    "model.graphs(torch.zeros(3))": "not torch's Tensor",
    'model.predict("build.toml")': "is no store; predict files with hydragnn.predict",
    'store["energy"]': "'energy' (str) is no index of graphs",
    "store[24]": "there is no graph 24",
    "store.read([0.5])": "are no numbers of graphs",
    "store[:3].select([0.5])": "are no graphs of a batch",
    'hydragnn.train("run.toml", "new", overrides="train.epochs=1")': "is no list of texts",
    'hydragnn.train("run.toml", "new", memory=4)': "memory = 4 (int) is no text",
    'hydragnn.build_ensemble("run", "new", top_k=0)': "top_k = 0 is out of range; give at least 1",
    'hydragnn.build_ensemble("run", "new", baselines="a:b")': "baselines = 'a:b' (str) is no list of texts",
    'hydragnn.build_store("build.toml", "new.h5", workers=None)': "workers = None is no value",
    'hydragnn.load("run", allow_code=5)': "allow_code = 5 (int) is no list of texts",
    'hydragnn.predict("run", "own.h5", "p.h5", resume=torch.ones(2))': "is no truth value",
    'hydragnn.export("run", "new.pt2", ["torch"])': "to = ['torch'] (list) is no text",
    'hydragnn.load("a\\0b")': "is no path",
    'hydragnn.simulate("run.toml", hours=float("nan"))': "hours = nan is no finite number",
    'hydragnn.simulate("run.toml", nodes="4")': "nodes = '4' (str) is no whole number; give one, such as 3",
    "hydragnn.train('own.xyz', 'new')": "own.xyz is not valid TOML",
    "hydragnn.search('own.h5', 'new')": "own.h5 is a store; give a TOML file",
    "built('role = \"target\"', 'role = \"label\"')": "role: Input should be",
    "built('unit = \"eV\"', 'unit = \"eV\"\\nscale = 0')": "scale = 0 makes every value 0",
    'built("cutoff = 4.0", \'cutoff = "4 A"\')': "cutoff: Input should be a valid number",
    'built("shape = [3]", "shape = [4]")': "reshape it or declare another shape",
    'built("own.xyz", "own.cif")': "no such file",
    'trained("epochs = 2", "epochs = 2026-01-01")': "a date; give numbers",
    "trained('kind = \"schnet\"', 'kind = [\"schnet\"]')": "model.kind is missing",
    'trained("[[heads]]", "[heads]")': "heads: Input should be a valid list",
    "trained('forces = \"forces\"', 'forces = \"force\"')": "did you mean forces?",
    'trained("own.h5", "own.xyz")': "is a file, not a store",
    'hydragnn.merge_stores(["own.h5"], "new.h5")': "merge takes two stores or more",
    'hydragnn.append_store("own.h5", "own.h5")': "every graph would be there twice",
    'hydragnn.append_store("own.h5", "own.xyz")': "own.xyz is neither a store nor a BUILD.toml",
    'trained("[train]", "[start]\\nmodel = \'none\'\\n[train]")': "none does not exist; check the path",
    'trained("[train]", "[start]\\nmodel = \'run\'\\nfreeze = 9\\n[train]")': "the model has 1 layers; lower it",
    'trained("[train]", "[start]\\nmodel = \'run\'\\nreplay = 2\\n[train]")': "less than or equal to 1 (given: 2)",
    'trained(\'"own.h5"\', \'["own.h5", "own.h5"]\')': "names each of them once",
    "built('\"ase\"', '\"voxel\"')": "did you mean voxels?",
    "built('[\"own.xyz\"]', '\"own.xyz\"')": "files: Input should be a valid list",
    "built('name = \"energy\"', 'name = \"energy\"\\nstep = 1')": "step is for time series",
    'hydragnn.predict("run", ["new.xyz", "none.xyz"], "new.csv")': "none.xyz does not exist",
    'hydragnn.predict("run", "new.xyz", "new.docx")': "the suffix chooses the format",
    'hydragnn.build_store({"kind": "pyg", "fields": []}, "new.h5", data=[3])': "no Data of torch_geometric",
}
"""Python that is wrong, and words of its sentence."""

PROGRAM = """
import sys
import torch
import ase.io
import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.datasets import open_store
build, run = open("build.toml").read(), open("run.toml").read()
def written(name, text, old, new):
    assert old in text
    open(name, "w").write(text.replace(old, new, 1))
    return name
def built(old, new):
    return hydragnn.build_store(written("wrong.toml", build, old, new), "new.h5")
def trained(old, new):
    return hydragnn.train(written("wrong.toml", run, old, new), "new")
hydragnn.build_store("build.toml", "own.h5", quiet=True)
hydragnn.train("run.toml", "run", overrides=["train.epochs=1"])
store, model, frames = open_store("own.h5"), hydragnn.load("run"), ase.io.read("own.xyz", ":2")
for line in sys.stdin.read().splitlines():
    try:
        print(f"gave {eval(line)!r:.60}")
    except InputError as error:
        print(repr(str(error)))
    except Exception as error:
        print(f"raised {error!r:.200}")
"""


@pytest.mark.usefixtures("own")
def test_mistakes_of_a_stranger_get_one_sentence_each_and_leave_nothing(own: Path) -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, input="\n".join(WRONG), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    for (line, words), answer in zip(WRONG.items(), answers, strict=True):
        assert answer[0] in "'\"" and "\\n" not in answer and len(answer) < 400, (line, answer)
        assert words in answer.replace("\\'", "'"), (line, answer)
    names = {"own.xyz", "new.xyz", "build.toml", "run.toml", "wrong.toml", "own.h5", "run"}
    assert {path.name for path in own.iterdir()} == names
