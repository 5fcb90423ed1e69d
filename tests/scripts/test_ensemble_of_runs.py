"""``hydragnn ensemble RUN RUN ...``: given runs all become members; what cannot be is refused before anything is made."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.datasets import StoreWriter, open_store
from hydragnn.ensemble import Ensemble, build_ensemble, calculator
from hydragnn.ensemble.building import build
from hydragnn.graphs import Field
from hydragnn.record import read_record, write_record
from tests import charged_rings as rings
from tests.charged_rings import ring
from tests.once import Call, shared

FOLDS = 3
FIELDS = [
    *rings.FIELDS,
    Field(name="spin", on="graph", role="target"),
    *(Field(name=f"part_{k}", on="graph", classes=3, dtype="int64", role="auxiliary") for k in range(FOLDS)),
]


@shared
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty rings; of every member another third is tested, and some of the rest choose its epoch; six are the test part of all."""
    path, random = tmp_path_factory.mktemp("rings") / "rings.h5", np.random.default_rng(0)
    with StoreWriter(path, FIELDS, dim=2) as writer:
        for number in range(60):
            parts = [2 if number >= 54 or number % FOLDS == k else int(number // FOLDS % 5 == 0) for k in range(FOLDS)]
            values = {f"part_{k}": part for k, part in enumerate(parts)}
            writer.write(ring(4 + number % 3, random, FIELDS, spin=random.random(), **values))
    return path


def trained(store: Path, out: Path, **changes: Any) -> Path:
    table = {
        "data": {"store": str(store)},
        "split": {"train": 0.5, "valid": 0.25},
        "model": {"kind": "gin", "hidden_dim": 4, "num_layers": 1},
        "heads": [{"kind": "scalar", "field": "moment"}],
        "train": {"epochs": 1},
    }
    hydragnn.train({**table, **changes}, out)
    return out


@shared
def runs(store: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [trained(store, root / f"run-{seed}", train={"epochs": 1, "seed": seed}) for seed in range(2)]


@shared
def folds(store: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root, folds = tmp_path_factory.mktemp("folds"), [{"kind": "given", "field": f"part_{k}"} for k in range(FOLDS)]
    return [
        trained(store, root / f"fold-{k}", split=split, train={"epochs": 1, "seed": k}) for k, split in enumerate(folds)
    ]


def test_given_runs_all_become_members_with_equal_weights(call: Call, runs: list[Path], tmp_path: Path) -> None:
    code, out, err = call("ensemble", *runs, "--out", tmp_path / "ensemble", "--json")
    assert code == 0, err
    members = Ensemble.load(tmp_path / "ensemble").members
    assert [(member.name, member.weight) for member in members] == [("run-0", 0.5), ("run-1", 0.5)]
    assert json.loads(out) == build_ensemble(runs, tmp_path / "same").to_json() | {"timing": json.loads(out)["timing"]}
    code, _, err = call("report", tmp_path / "ensemble")
    assert code == 0, err
    page = (tmp_path / "ensemble" / "report.html").read_text()
    assert "hydragnn train CONFIG.toml --out run-0" in page
    assert "hydragnn ensemble run-0 run-1 --out ENSEMBLE" in page


def test_one_run_becomes_an_ensemble_with_intervals(call: Call, runs: list[Path], store: Path, tmp_path: Path) -> None:
    assert call("ensemble", runs[0], "--out", tmp_path / "ensemble")[0] == 0
    evaluation = hydragnn.evaluate(tmp_path / "ensemble", store)
    assert np.isfinite(evaluation.parts["all"]["moment"].ensemble["crps"])


def test_runs_of_different_folds_are_cross_validated(call: Call, folds: list[Path], tmp_path: Path) -> None:
    code, out, err = call("ensemble", *folds, "--out", tmp_path / "ensemble", "--json")
    assert code == 0, err
    assert set(json.loads(out)["parts"]) == {"held-out", "test"}
    assert len(Ensemble.load(tmp_path / "ensemble").manifest.calibration["moment"].folds) == FOLDS
    code, text, err = call("ensemble", *folds, "--out", tmp_path / "again")
    assert code == 0 and "mean absolute errors on the test part" in text, err


@pytest.mark.parametrize("option", ["--top-k 1", "--train", "--final-seeds 2", "--epochs 3", "--workers 2"])
def test_an_option_of_campaigns_is_refused_for_runs(option: str, call: Call, runs: list[Path], tmp_path: Path) -> None:
    code, _, err = call("ensemble", *runs, "--out", tmp_path / "ensemble", *option.split())
    assert code == 2 and err.count("\n") == 1, err
    assert err.startswith(f"error: {option.split()[0]} has no meaning for given runs")
    assert not list(tmp_path.iterdir())


def copy_with(run: Path, tmp_path: Path, config: dict[str, Any] | None = None, **record: Any) -> Path:
    """A copy of the run whose record, or sections of whose configuration, say something else."""
    shutil.copytree(run, tmp_path / "copy")
    write_record(replace(read_record(run), **record), tmp_path / "copy")
    value = json.loads((run / "config.json").read_text())
    for section, changes in (config or {}).items():
        value[section] |= changes
    (tmp_path / "copy" / "config.json").write_text(json.dumps(value))
    return tmp_path / "copy"


def folder_with(tmp_path: Path, name: str) -> Path:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / name).write_text("{}")
    return tmp_path / "other"


CHANGED = "copy/config.json is not what was trained, as record.json has it (split.seed: 0, now 7); copy the run again"
REFUSED: dict[str, Callable[[list[Path], Path], list[Path]]] = {
    "absent does not exist": lambda runs, tmp: [*runs, tmp / "absent"],
    "record.json is a file": lambda runs, tmp: [*runs, runs[0] / "record.json"],
    "is neither a campaign nor a run": lambda runs, tmp: [runs[0], tmp],
    "other is an ensemble": lambda runs, tmp: [runs[0], folder_with(tmp, "ensemble.json")],
    "other is a campaign, and": lambda runs, tmp: [*runs, folder_with(tmp, "campaign.json")],
    "give one campaign": lambda runs, tmp: [folder_with(tmp, "campaign.json")] * 2,
    "is given twice": lambda runs, tmp: [*runs, runs[0] / ".." / "run-0"],
    "copy is running after 1 epochs": lambda runs, tmp: [runs[0], copy_with(runs[1], tmp, status="running")],
    "copy failed": lambda runs, tmp: [copy_with(runs[1], tmp, status="failed")],
    CHANGED: lambda runs, tmp: [copy_with(runs[1], tmp, {"split": {"seed": 7}})],
    "gone.h5, which member copy": lambda runs, tmp: [copy_with(runs[1], tmp, {"data": {"store": f"{tmp}/gone.h5"}})],
}
"""Words of the sentence, and folders that are given."""


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_cannot_become_a_member_is_refused(sentence: str, call: Call, runs: list[Path], tmp_path: Path) -> None:
    sources = REFUSED[sentence]
    code, _, err = call("ensemble", *sources(runs, tmp_path), "--out", tmp_path / "ensemble")
    assert code == 2 and err.count("\n") == 1, err
    assert err.startswith("error: ") and sentence in err
    assert not (tmp_path / "ensemble").exists()


def test_runs_that_do_not_fit_together_are_refused(call: Call, runs: list[Path], store: Path, tmp_path: Path) -> None:
    other = trained(store, tmp_path / "spin", heads=[{"kind": "scalar", "field": "spin"}])
    code, _, err = call("ensemble", *runs, other, "--out", tmp_path / "ensemble")
    assert code == 2 and "members run-0 and spin predict different fields (moment and spin)" in err, err
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "record.json").touch()
    code, _, err = call("ensemble", *runs, "--out", tmp_path / "taken")
    assert code == 2 and "taken exists already and is a run" in err, err
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["spin", "taken"]


@pytest.mark.parametrize(("moment", "kind"), [("validated", signal.SIGINT), ("write_manifest", signal.SIGTERM)])
def test_a_signal_leaves_nothing_and_the_same_command_begins_again(
    moment: str, kind: signal.Signals, call: Call, runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(build, moment)

    def interrupted(*arguments: Any) -> Any:
        os.kill(os.getpid(), kind)
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(build, moment, interrupted)
        code, _, err = call("ensemble", *runs, "--out", tmp_path / "ensemble")
    assert code == 130
    place = tmp_path / "ensemble"
    assert err == f"interrupted: stopped by {kind.name}; {place} was not made; the same command begins again\n"
    assert not list(tmp_path.iterdir())
    assert call("ensemble", *runs, "--out", tmp_path / "ensemble")[0] == 0


OPENED = ("ensemble", "ensemble/members/1", "run", "run/model", "campaign", "campaign/trials/0000")


@shared
def made(store: Path, runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    hydragnn.build_ensemble(runs, root / "ensemble")
    table = json.loads((trained(store, root / "run") / "config.json").read_text())
    space = {"train.learning_rate": {"type": "float", "low": 1e-3, "high": 1e-2}}
    hydragnn.search(table | {"search": {"trials": 1, "space": space}}, root / "campaign")
    return root


@pytest.mark.parametrize("name", OPENED)
def test_every_command_opens_the_same_folders(name: str, made: Path, store: Path, call: Call, tmp_path: Path) -> None:
    folder = made / name
    code, _, errors = call("predict", folder, store, "--out", tmp_path / "p.h5")
    assert code == 0, errors
    model = hydragnn.load(folder)
    if name == "campaign":
        with pytest.raises(InputError, match=r"is a campaign; hydragnn.load takes its best trial"):
            Ensemble.load(folder)
    else:
        assert model.names == Ensemble.load(f"{folder}/").names
    means = hydragnn.predict(folder, store)["moment"]["mean"]
    assert means == pytest.approx(model.predict(open_store(store))["moment"]["mean"])
    words = ["--json"] * (name != "run")
    code, out, errors = call("check", folder, *words)
    assert code in (0, 1), errors  # a trained-for-one-epoch member may be a copy of another
    assert json.loads(out) if words else "permutation passed" in " ".join(out.split())


@pytest.mark.parametrize("name", ["none", "run/config.json", "run/checkpoints", "campaign/trials"])
def test_every_command_refuses_other_places_in_the_same_sentence(name: str, made: Path, store: Path) -> None:
    sentences = set()
    for opened in (
        lambda: hydragnn.load(made / name),
        lambda: hydragnn.predict(made / name, store),
        lambda: hydragnn.predict(made / name, store, made / "p.h5"),
        lambda: hydragnn.export(made / name, made / "p.pt2"),
        lambda: hydragnn.evaluate(made / name, store),
        lambda: hydragnn.report(made / name),
        lambda: calculator(made / name),
    ):
        with pytest.raises(InputError) as error:
            opened()
        sentences.add(str(error.value))
    assert len(sentences) == 1 and name in sentences.pop()
