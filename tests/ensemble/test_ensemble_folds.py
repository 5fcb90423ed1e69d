"""Graphs calibrate only members that have not learned from them, also by cross-validation."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms

from hydragnn.datasets import MemoryStore, SplitSettings, make_split, open_store
from hydragnn.ensemble import Ensemble, build_ensemble, predict_to_file
from hydragnn.ensemble.building.held_out import calibrating_split
from hydragnn.ensemble.estimates.calibration.numbers import Calibration
from hydragnn.ensemble.estimates.calibration.protocol import held_out_p_values
from hydragnn.ensemble.estimates.numbers import NumberEstimate
from hydragnn.ensemble.members.member import Member, load_member
from hydragnn.graphs import Field
from hydragnn.models import Point, Target
from hydragnn.scripts.report import write_report
from hydragnn.scripts.report.page import summary
from tests.ensemble.conftest import Built, distances_of, refused, written
from tests.ensemble.finished import arrays_of, edit_json
from tests.once import shared

ENERGY = Target(field=Field(name="energy", on="graph", unit="eV", role="target"), loss="mse", weight=1.0)
FOLDS = 4


@pytest.fixture(scope="session")
def folded(store: MemoryStore) -> MemoryStore:
    """The clusters with a part for every member: its fold of four is tested, some of the others choose its epoch.

    The last eight graphs are the test part of all.
    """
    fields = [Field(name=f"part_{k}", on="graph", classes=4, dtype="int64", role="auxiliary") for k in range(FOLDS)]
    graphs = []
    for number in range(len(store)):
        parts = [2 if number >= 72 or number % FOLDS == k else int(number // FOLDS % 5 == k) for k in range(FOLDS)]
        values = {field.name: torch.tensor([part]) for field, part in zip(fields, parts)}
        graphs.append(store.read(np.array([number])).with_fields(values, fields=fields))
    return MemoryStore(graphs, store.attributes)


@shared
def fold_runs(tmp_path_factory: pytest.TempPathFactory, runs: list[Path], folded: MemoryStore) -> list[Path]:
    """The runs as if each had been trained without its fold: who trained on what is said by their files alone."""
    root, folders = tmp_path_factory.mktemp("folds"), []
    path = written(root / "folded.h5", folded[:], **folded.attributes)
    for fold in range(FOLDS):
        folder = shutil.copytree(runs[fold % len(runs)], root / f"fold-{fold}")
        config = json.loads((folder / "config.json").read_text())
        config |= {"split": {"kind": "given", "field": f"part_{fold}"}, "data": {**config["data"], "store": str(path)}}
        record = {"data_hash": open_store(path).fingerprint, "config": config}
        for name, change in (("config", config), ("record", record)):
            edit_json(folder / f"{name}.json", lambda value, change=change: value.update(change))
        folders.append(folder)
    return folders


@shared
def cross_validated(tmp_path_factory: pytest.TempPathFactory, fold_runs: list[Path]) -> Built:
    out = tmp_path_factory.mktemp("cross") / "ensemble"
    return out, build_ensemble(fold_runs, out)


def test_no_member_speaks_of_what_it_has_seen(cross_validated: Built, fold_runs: list[Path]) -> None:
    members = [load_member(run, weight=0.25) for run in fold_runs]
    store = open_store(members[0].config.data.store)
    splits, (_, folds) = [make_split(store, one.config.split) for one in members], calibrating_split(members, store)
    assert sorted(np.concatenate([fold.graphs for fold in folds]).tolist()) == list(range(72))
    for fold in folds:
        for position, split in enumerate(splits):
            seen = np.intersect1d(fold.graphs, np.union1d(split.train, split.valid))
            assert len(seen) == (0 if position in fold.members else len(fold.graphs))
    with np.load(cross_validated[0] / "evaluation.npz") as arrays:
        graph, words = arrays["held-out/energy/graph"], arrays["held-out/energy/members"]
        mean, truth = arrays["held-out/energy/mean"], arrays["held-out/energy/target"]
        p_values = held_out_p_values(arrays["held-out/domain/p_values"], 72)
        held_out = np.concatenate([fold.graphs for fold in folds]).tolist()
        p_value_of = dict(zip(held_out, p_values.tolist(), strict=True))
        further_of = dict(zip(held_out, arrays["held-out/domain/further"].tolist(), strict=True))
    for position, split in enumerate(splits):
        seen = np.isin(graph, np.union1d(split.train, split.valid))
        np.testing.assert_array_equal(np.isnan(words[position]), seen)
    np.testing.assert_allclose(mean, np.nanmean(words, axis=0), rtol=1e-12)
    calibration = Ensemble.load(cross_validated[0]).manifest.calibration["energy"]
    assert isinstance(calibration, Calibration) and calibration.method == "absolute"
    for fold in calibration.folds:
        own = np.isin(graph, splits[fold.members[0]].test)
        alone = [Point(mean=torch.from_numpy(words[fold.members[0], own]))]
        nodes = store.sizes().nodes[graph[own]]
        one = NumberEstimate.of(ENERGY, alone, np.ones(1), replace(calibration, folds=()), nodes)
        p_value, further = ([of[g] for g in graph[own].tolist()] for of in (p_value_of, further_of))
        one = one.at(calibration, distances_of(p_value, further=further))
        np.testing.assert_allclose(fold.scores[0], np.sort(np.abs(one.mean - truth[own]) / one.std), rtol=1e-9)


def test_a_member_changes_its_fold_alone(cross_validated: Built, fold_runs: list[Path], tmp_path: Path) -> None:
    shutil.copytree(fold_runs[1], tmp_path / "fold-1")
    shutil.copytree(fold_runs[2] / "model", tmp_path / "fold-1" / "model", dirs_exist_ok=True)  # another model entirely
    build_ensemble([fold_runs[0], tmp_path / "fold-1", *fold_runs[2:]], tmp_path / "out")
    before, after = (np.load(out / "evaluation.npz") for out in (cross_validated[0], tmp_path / "out"))
    changed = before["held-out/energy/mean"] != after["held-out/energy/mean"]
    np.testing.assert_array_equal(changed, before["held-out/energy/graph"] % FOLDS == 1)


def test_the_ensemble_says_how_it_was_calibrated_and_predicts(
    cross_validated: Built, frames: list[Atoms], fold_runs: list[Path], tmp_path: Path
) -> None:
    out, evaluation = cross_validated
    ensemble = Ensemble.load(out)
    assert set(evaluation.parts) == {"held-out", "test"} and ensemble.manifest.data["parts"]["held-out"] == 72
    for name, calibration in ensemble.manifest.calibration.items():
        assert (calibration.part, calibration.graphs, len(calibration.folds)) == ("held-out", 72, FOLDS)
        assert "CV+ over 4 folds: 90 % is usual; " in calibration.sentence
        for part in ("held-out", "test"):
            scores = evaluation.parts[part][name]
            assert len(scores.members) == FOLDS and scores.trivial["rmse"] is not None
            assert scores.baselines.keys() == ({"ridge", "boosting"} if name == "energy" else set())
            assert bool(scores.best_member) == (part == "test")
    assert str(evaluation)
    predictions = ensemble.predict(frames[:9])
    for name in ("energy", "forces"):
        one = predictions[name]
        assert isinstance(one, NumberEstimate)
        assert (one.lower <= one.mean).all() and (one.mean <= one.upper).all() and (one.std > 0).all()
        np.testing.assert_allclose(one.mean, one.members.mean(axis=0), atol=1e-9)
    width = predictions["energy"]["upper"] - predictions["energy"]["lower"]
    assert len(set(width.round(9))) > 1, "folds disagree more about some graphs than about others"
    source = load_member(fold_runs[0]).config.data.store
    assert predict_to_file(out, source, tmp_path / "out.h5").failed == 0
    whole, arrays = ensemble.predict(open_store(source)), arrays_of(tmp_path / "out.h5")
    for quantity in ("mean", "std", "lower", "upper"):
        np.testing.assert_array_equal(arrays[f"fields/energy/{quantity}"], whole["energy"][quantity])


@pytest.mark.usefixtures("undrawn")
def test_builds_are_alike_and_reports_name_folds(cross_validated: Built, fold_runs: list[Path], tmp_path: Path) -> None:
    page = write_report(cross_validated[0], tmp_path / "report.html").read_text()
    assert "CV+ over 4 folds" in page and "They cross-validate" in page
    assert summary(cross_validated[0]).lines[0].startswith("ensemble: mean absolute errors on the test part")
    build_ensemble(fold_runs, tmp_path / "ensemble")
    folders = (cross_validated[0], tmp_path / "ensemble")
    first, second = (json.loads((folder / "ensemble.json").read_text()) for folder in folders)
    for manifest in (first, second):
        del manifest["data"]["store"], manifest["checksum"]  # the store's place counts from the folder
    assert first == second
    tensors = [(folder / "domain.safetensors").read_bytes() for folder in folders]
    assert tensors[0] == tensors[1]


WRONG_FOLDS: list[dict[str, Any]] = [
    *({"members": members} for members in ([4], [-1], [], [0, 0])),
    *({"scores": scores} for scores in ([], [[]], [[-1.0]], [[float("nan")]], [["x"]], [[1.0], [1.0]])),
    {"more": 1},
]


def test_impossible_folds_and_those_without_weight_are_refused(cross_validated: Built, tmp_path: Path) -> None:
    manifest = shutil.copytree(cross_validated[0], tmp_path / "received") / "ensemble.json"
    sound = manifest.read_text()

    def take_weight(value: dict[str, Any]) -> None:
        """The first member speaks for the third, so that weights still add up to 1."""
        first, _, third, *_ = value["members"]
        first["weight"] += third["weight"]
        third["weight"] = 0.0

    for fold in WRONG_FOLDS:
        manifest.write_text(sound)
        edit_json(manifest, lambda value, fold=fold: value["calibration"]["energy"]["folds"][0].update(fold))
        refused("damaged", Ensemble.load, tmp_path / "received")
    manifest.write_text(sound)
    edit_json(manifest, take_weight)
    refused("is for other members", Ensemble.load, tmp_path / "received")


def test_a_member_without_weight_has_no_say(fold_runs: list[Path], tmp_path: Path) -> None:
    build_ensemble(fold_runs, tmp_path / "out", weights=[0.5, 0.25, 0.25, 0.0])
    calibration = Ensemble.load(tmp_path / "out").manifest.calibration["energy"]
    assert {fold.members for fold in calibration.folds} == {(0,), (1,), (2,)}


def with_split(member: Member, **changes: Any) -> Member:
    split = SplitSettings.parse({**member.config.split.to_json(), **changes})
    return replace(member, config=member.config.model_copy(update={"split": split}))


@pytest.fixture(scope="session")
def member(runs: list[Path]) -> Member:
    return load_member(runs[0])


@shared
def calibrated_runs(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The runs with an eighth of the graphs for calibration, which training does not depend on."""
    folders = [shutil.copytree(run, tmp_path_factory.mktemp("calibrated") / run.name) for run in runs]
    for folder in folders:
        edit_json(folder / "config.json", lambda value: value["split"].update(calibration=0.125))
    return folders


@pytest.mark.parametrize("seeds", [(3, 9), (1, 2, 3)], ids=str)
@pytest.mark.parametrize("calibration", [0.0, 0.1, 0.25])
def test_unseen_ones_calibrate(member: Member, store: MemoryStore, seeds: tuple[int, ...], calibration: float) -> None:
    members = [with_split(member, seed=seed, calibration=calibration) for seed in seeds]
    (joint, _), splits = calibrating_split(members, store), [make_split(store, one.config.split) for one in members]
    for split in splits:
        assert not np.intersect1d(joint.calibration, np.union1d(split.train, split.valid)).size
        assert not np.intersect1d(joint.test, np.concatenate([split.train, split.valid, split.calibration])).size
        assert not np.intersect1d(joint.valid, split.train).size
    together = np.concatenate([joint.train, joint.valid, joint.calibration, joint.test])
    assert sorted(together.tolist()) == list(range(len(store)))


def test_members_that_leave_no_validation_are_refused(member: Member, store: MemoryStore, frames: list[Any]) -> None:
    few = MemoryStore(store.read(np.arange(2)), store.attributes)
    halves = [with_split(member, train=0.5, valid=0.5, seed=seed, calibration=None) for seed in range(20)]
    trained = [int(make_split(few, one.config.split).train[0]) for one in halves]
    one, other = halves[trained.index(0)], halves[trained.index(1)]
    refused(r"hold out different graphs.*choose runs with one", calibrating_split, [one, other], few)


def test_graphs_that_chose_nothing_calibrate(calibrated_runs: list[Path], store: MemoryStore, tmp_path: Path) -> None:
    evaluation = build_ensemble(calibrated_runs, tmp_path / "out", store=store)
    manifest = Ensemble.load(tmp_path / "out").manifest
    assert manifest.data["parts"] == {"train": 40, "valid": 20, "calibration": 10, "test": 10}
    assert {(one.part, one.graphs) for one in manifest.calibration.values()} == {("calibration", 10)}
    assert "calibrated on 10 graphs that chose nothing" in manifest.calibration["energy"].sentence
    assert set(evaluation.parts) == {"valid", "test"}
    with np.load(tmp_path / "out" / "evaluation.npz") as arrays:
        tested = set(arrays["test/energy/graph"].tolist())
    split, _ = calibrating_split([load_member(run) for run in calibrated_runs], store)
    assert tested == set(split.test.tolist()) and not tested & set(split.calibration.tolist())


def test_validation_calibrates_without_labels(calibrated_runs: list[Path], store: MemoryStore, tmp_path: Path) -> None:
    split = make_split(store, load_member(calibrated_runs[0]).config.split)
    graphs = [store.read(np.array([number])) for number in range(len(store))]
    graphs = [one.with_fields(drop={"forces"}) if k in split.calibration else one for k, one in enumerate(graphs)]
    bare = MemoryStore(graphs, store.attributes)
    folders = [shutil.copytree(run, tmp_path / run.name) for run in calibrated_runs]
    for folder in folders:
        edit_json(folder / "record.json", lambda value: value.update(data_hash=bare.fingerprint))
    build_ensemble(folders, tmp_path / "out", store=bare)
    calibration = Ensemble.load(tmp_path / "out").manifest.calibration
    assert (calibration["energy"].part, calibration["energy"].graphs) == ("calibration", 10)
    assert (calibration["forces"].part, calibration["forces"].graphs) == ("valid", 20)
    assert "20 validation graphs, which also chose the epoch" in calibration["forces"].sentence
