"""From runs to a folder that can be moved, trusted and read again."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms

from hydragnn.base.errors import Busy, InputError
from hydragnn.base.files import lock_file, read_sealed, write_sealed
from hydragnn.datasets import MemoryStore, make_split
from hydragnn.ensemble import Evaluation, evaluate_ensemble
from hydragnn.ensemble.building.build import build_ensemble
from hydragnn.ensemble.ensemble import Ensemble


def test_the_evaluation_stands_beside_every_member_and_the_trivial_predictor(
    built: tuple[Path, Evaluation],
) -> None:
    out, evaluation = built
    assert read_sealed(out / "evaluation.json") == evaluation.to_json()
    for part in ("valid", "test"):
        assert set(evaluation.parts[part]) == {"energy", "forces"}
        for field, metrics in evaluation.parts[part].items():
            assert len(metrics.members) == 3
            best = min(member["rmse"] for member in metrics.members.values())
            assert metrics.members[metrics.best_member]["rmse"] == best
            squares = np.array([member["rmse"] ** 2 for member in metrics.members.values()])
            mean = np.sqrt(Ensemble.load(out).weights_of(field) @ squares)
            # Jensen: the mean is no worse than members on average
            assert metrics.ensemble["rmse"] <= mean * (1 + 1e-9), field
            assert best > 0 and metrics.trivial["rmse"] > 0


def test_the_arrays_are_the_rows_behind_the_metrics(built: tuple[Path, Evaluation]) -> None:
    out, evaluation = built
    with np.load(out / "evaluation.npz", allow_pickle=False) as arrays:
        for field in ("energy", "forces"):
            rows = {name.split("/")[-1]: arrays[name] for name in arrays.files if name.startswith(f"test/{field}/")}
            metrics = evaluation.parts["test"][field].ensemble
            assert np.sqrt(np.mean((rows["mean"] - rows["target"]) ** 2)) == pytest.approx(metrics["rmse"])
            inside = (rows["lower"] <= rows["target"]) & (rows["target"] <= rows["upper"])
            known = np.isfinite(rows["upper"])
            assert inside[known].mean() == pytest.approx(metrics["coverage"])
            assert (~known).mean() == pytest.approx(metrics["unknown"])
            assert rows["members"].shape == (3, len(rows["target"])) and len(rows["graph"]) == len(rows["target"])
            weighted = Ensemble.load(out).weights_of(field) @ rows["members"]
            np.testing.assert_allclose(weighted, rows["mean"], atol=1e-9)


def test_an_energy_and_its_forces_share_weights_that_other_members_may_not_have(
    built: tuple[Path, Evaluation],
) -> None:
    ensemble = Ensemble.load(built[0])
    assert set(ensemble.manifest.weights) == {"energy", "forces"}
    assert np.array_equal(ensemble.weights_of("energy"), ensemble.weights_of("forces"))
    assert ensemble.weights_of("energy").sum() == pytest.approx(1.0)


def test_a_moved_ensemble_predicts_the_same_bits(
    built: tuple[Path, Evaluation], tmp_path: Path, frames: list[Atoms]
) -> None:
    out, _ = built
    before = Ensemble.load(out).predict(frames[:5])
    shutil.copytree(out, tmp_path / "elsewhere" / "renamed")
    after = Ensemble.load(tmp_path / "elsewhere" / "renamed").predict(frames[:5])
    for name in ("energy", "forces"):
        for quantity in ("mean", "std", "epistemic", "aleatoric", "lower", "upper"):
            assert np.array_equal(before[name][quantity], after[name][quantity])


def test_an_ensemble_holds_no_pickle_and_no_place_of_this_machine(
    built: tuple[Path, Evaluation], tmp_path_factory: pytest.TempPathFactory
) -> None:
    out, _ = built
    assert {path.suffix for path in out.rglob("*") if path.is_file()} == {".json", ".npz", ".safetensors"}
    manifest = (out / "ensemble.json").read_text()
    assert str(tmp_path_factory.getbasetemp()) not in manifest


def test_weights_of_members_are_respected(
    runs: list[Path], store: MemoryStore, tmp_path: Path, frames: list[Atoms]
) -> None:
    build_ensemble(runs[:2], tmp_path / "one", weights=[1.0, 0.0], store=store)
    weighted = Ensemble.load(tmp_path / "one").predict(frames[:4])
    alone = Ensemble.load(runs[0]).predict(frames[:4])
    # members as one and alone agree to rounding in fp32
    np.testing.assert_allclose(weighted["energy"].mean, alone["energy"].mean, rtol=1e-6)


def test_a_run_is_an_ensemble_of_one_without_intervals(runs: list[Path], frames: list[Atoms]) -> None:
    predictions = Ensemble.load(runs[0]).predict(frames[:3])
    assert predictions.status == ("ok", "ok", "ok")
    for quantity in ("std", "epistemic", "aleatoric", "lower", "upper"):
        assert np.isnan(predictions["energy"][quantity]).all() and np.isnan(predictions["forces"][quantity]).all()
    assert np.isfinite(predictions["energy"].mean).all()
    assert predictions.domain == ("", "", "") and np.isnan(predictions.domain_score).all()


def test_one_run_alone_gets_absolute_intervals(one_member: tuple[Path, Evaluation], frames: list[Atoms]) -> None:
    folder, evaluation = one_member
    ensemble = Ensemble.load(folder)
    assert ensemble.manifest.calibration["forces"].method == "absolute"
    forces = ensemble.predict(frames[:3])["forces"]
    width = forces.upper - forces.lower
    np.testing.assert_allclose(width, width[0, 0])
    scores = evaluation.parts["test"]["forces"]
    assert scores.members[scores.best_member]["rmse"] == scores.ensemble["rmse"]


def changed(run: Path, tmp_path: Path, name: str, **edits: Callable[[dict[str, Any]], None]) -> Path:
    folder = tmp_path / name
    shutil.copytree(run, folder)
    for file, edit in edits.items():
        path = folder / ("model/model.json" if file == "model" else f"{file}.json")
        value = json.loads(path.read_text())
        edit(value)
        write_sealed(path, value)
    return folder


def test_an_existing_folder_is_never_overwritten(runs: list[Path], store: MemoryStore, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "campaign.json").write_text("{}")
    with pytest.raises(InputError, match="exists already and is a campaign; choose another --out"):
        build_ensemble(runs, out, store=store)
    assert [entry.name for entry in out.iterdir()] == ["campaign.json"]


def test_of_two_that_make_one_ensemble_the_second_leaves_the_first_alone(
    runs: list[Path], store: MemoryStore, tmp_path: Path
) -> None:
    """What a killed process left behind goes with the next, which may fill an empty folder."""
    (tmp_path / "ensemble").mkdir()
    making = tmp_path / ".ensemble.making"
    (making / "members" / "0").mkdir(parents=True)
    lock = lock_file(making / ".lock")
    assert lock is not None
    with pytest.raises(Busy, match=r"another process makes .*ensemble; wait for it"):
        build_ensemble(runs, tmp_path / "ensemble", store=store)
    assert (making / "members").is_dir()
    os.close(lock)
    build_ensemble(runs[:1], tmp_path / "ensemble", store=store)
    assert [path.name for path in tmp_path.iterdir()] == ["ensemble"]
    assert not (tmp_path / "ensemble" / ".lock").exists()


@pytest.mark.parametrize(
    "damage, says",
    [
        (lambda d: (d / "members/1/weights.safetensors").write_bytes(b"0"), "differs from what was saved"),
        (lambda d: (d / "members/1/weights.safetensors").unlink(), "copy the whole folder"),
        (lambda d: (d / "ensemble.json").write_text("{"), "not valid JSON"),
        (lambda d: (d / "ensemble.json").write_text('{"version": 99, "members": [{}]}'), "update the program"),
        (lambda d: (d / "ensemble.json").write_text('{"version": 1, "members": [{}]}'), "damaged"),
        (lambda d: (d / "ensemble.json").write_text("{}"), "does not describe an ensemble"),
    ],
    ids=["changed weights", "lost weights", "torn manifest", "newer manifest", "damaged manifest", "foreign manifest"],
)
def test_a_damaged_ensemble_is_refused(
    built: tuple[Path, Evaluation], tmp_path: Path, damage: Callable, says: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(built[0], folder)
    damage(folder)
    with pytest.raises(InputError, match=says):
        Ensemble.load(folder)


def test_a_folder_that_is_neither_ensemble_nor_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither a campaign, an ensemble nor a run"):
        Ensemble.load(tmp_path)
    (tmp_path / "campaign.json").write_text("{}")
    with pytest.raises(InputError, match=r"is a campaign; hydragnn\.load takes its best trial"):
        Ensemble.load(tmp_path)


def test_an_element_without_reference_fails_alone(built: tuple[Path, Evaluation], frames: list[Atoms]) -> None:
    odd = frames[1].copy()
    odd.numbers[0] = 79 if odd.numbers[0] == 29 else 29
    strange = frames[2].copy()
    strange.numbers[:] = 1
    predictions = Ensemble.load(built[0]).predict([frames[0], strange, odd])
    assert predictions.status[0] == predictions.status[2] == "ok"
    assert "reference" in predictions.status[1]
    assert np.isnan(predictions["energy"].mean).tolist() == [False, True, False]
    assert "atomic_numbers 1 is not in the training data" in predictions.domain[1]
    assert predictions.domain_scores["kinds"][1] == pytest.approx(1000.0)  # members that fail leave the score


def test_an_ensemble_is_evaluated_on_any_labelled_store(runs: list[Path], store: MemoryStore, tmp_path: Path) -> None:
    evaluation = build_ensemble(runs, tmp_path / "ensemble")
    ensemble = Ensemble.load(tmp_path / "ensemble")
    assert set(ensemble.manifest.selection["diversity"]) == {"energy", "forces"}
    test = make_split(store, ensemble.members[0].config.split).test
    again = evaluate_ensemble(ensemble, store, test)
    assert again.parts["all"]["forces"].ensemble == pytest.approx(evaluation.parts["test"]["forces"].ensemble)
    assert again.parts["all"]["forces"].trivial["rmse"] is None
    with pytest.raises(InputError, match="a run alone has no calibrated uncertainty"):
        evaluate_ensemble(Ensemble.load(runs[0]), store, test)


def without_model(run: Path, folder: Path) -> list[Path]:
    shutil.rmtree(shutil.copytree(run, folder / "bare") / "model")
    return [folder / "bare"]


Edit = Callable[[dict[str, Any]], None]
VERSION: Edit = lambda value: value.update(version=99)  # noqa: E731
EDITS: list[tuple[dict[str, Edit], str]] = [
    ({"record": lambda v: v.update(data_hash="other")}, "trained on different data"),
    ({"model": lambda v: v["fields"][1].update(unit="Ry")}, "mean different things by energy"),
    ({"record": VERSION}, "update the program"),
    ({"model": VERSION}, "update the program"),
    ({"model": lambda v: v["heads"][0].update(forces=None)}, "predict different fields"),
]
SHARES = "are no shares for 2 runs; give one each, from 0 on, that add up to 1"
REFUSED: list[tuple[Callable[[list[Path], Path], list[Path]], dict[str, Any], str]] = [
    *((lambda runs, to, of=edits: [runs[0], changed(runs[1], to, "other", **of)], {}, words) for edits, words in EDITS),
    *(
        (lambda runs, to: runs[:2], {"weights": shares}, SHARES)
        for shares in ([1.0, 1.0], [1.5, -0.5], [float("nan"), 1.0], [float("inf"), 1.0], [1.0])
    ),
    (
        lambda runs, to: [*runs, shutil.copytree(runs[0], to / "copied")],
        {},
        "0000 and copied have the same settings and seed",
    ),
    (lambda runs, to: runs[:1], {"nominal": 90.0}, "fraction between 0 and 1"),
    (lambda runs, to: without_model(runs[0], to), {}, "holds no trained model"),
    (lambda runs, to: [to / "nowhere"], {}, r"record\.json does not exist"),
]
"""Runs, options, and the words of the refusal."""


@pytest.mark.parametrize(("chosen", "options", "words"), REFUSED)
def test_impossible_ensembles_are_refused_and_leave_nothing(
    chosen: Callable[[list[Path], Path], list[Path]],
    options: dict[str, Any],
    words: str,
    runs: list[Path],
    store: MemoryStore,
    tmp_path: Path,
) -> None:
    members = chosen(runs, tmp_path)
    before = {*tmp_path.iterdir()}
    with pytest.raises(InputError, match=words):
        build_ensemble(members, tmp_path / "ensemble", store=store, **options)
    assert {*tmp_path.iterdir()} == before


def test_another_store_than_that_of_training_is_refused(runs: list[Path], store: MemoryStore, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not what member"):
        build_ensemble(runs, tmp_path / "out", store=MemoryStore(store.read(np.arange(40)), store.attributes))
