"""No graph calibrates or judges an ensemble that one of its members has learned from."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydragnn.base.errors import InputError
from hydragnn.base.files import write_sealed
from hydragnn.datasets import MemoryStore, SplitSettings, make_split
from hydragnn.ensemble.building.build import build_ensemble
from hydragnn.ensemble.building.held_out import joint_split
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.members.member import Member, load_run
from tests.once import shared


def with_split(member: Member, **changes: Any) -> Member:
    split = SplitSettings.parse({**member.config.split.to_json(), **changes})
    return replace(member, config=member.config.model_copy(update={"split": split}))


@pytest.fixture(scope="session")
def member(runs: list[Path]) -> Member:
    return load_run(runs[0])


@shared
def calibrated_runs(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The runs with an eighth of the graphs for calibration, which training does not depend on."""
    folders = []
    for run in runs:
        folders.append(tmp_path_factory.mktemp("calibrated") / run.name)
        shutil.copytree(run, folders[-1])
        config = json.loads((run / "config.json").read_text())
        config["split"]["calibration"] = 0.125
        (folders[-1] / "config.json").write_text(json.dumps(config))
    return folders


def test_members_of_one_split_have_that_split(member: Member, store: MemoryStore) -> None:
    own, joint = make_split(store, member.config.split), joint_split([member, member], store)
    assert joint.counts == own.counts
    assert all(np.array_equal(getattr(joint, part), getattr(own, part)) for part in own.counts)


@pytest.mark.parametrize("seeds", [(3, 9), (1, 2, 3)], ids=str)
@pytest.mark.parametrize("calibration", [0.0, 0.1, 0.25])
def test_a_graph_calibrates_only_if_no_member_was_trained_or_validated_on_it(
    member: Member, store: MemoryStore, seeds: tuple[int, ...], calibration: float
) -> None:
    members = [with_split(member, seed=seed, calibration=calibration) for seed in seeds]
    joint, splits = joint_split(members, store), [make_split(store, one.config.split) for one in members]
    for split in splits:
        assert not np.intersect1d(joint.calibration, np.union1d(split.train, split.valid)).size
        assert not np.intersect1d(joint.test, np.concatenate([split.train, split.valid, split.calibration])).size
        assert not np.intersect1d(joint.valid, split.train).size
    together = np.concatenate([joint.train, joint.valid, joint.calibration, joint.test])
    assert sorted(together.tolist()) == list(range(len(store)))


def test_members_that_leave_nothing_to_validate_on_are_refused(
    member: Member, store: MemoryStore, frames: list[Any]
) -> None:
    few = MemoryStore(store.read(np.arange(2)), store.attributes)
    halves = [with_split(member, train=0.5, valid=0.5, seed=seed, calibration=None) for seed in range(20)]
    trained = [int(make_split(few, one.config.split).train[0]) for one in halves]
    one, other = halves[trained.index(0)], halves[trained.index(1)]
    with pytest.raises(InputError, match=r"hold out different graphs.*choose runs with one"):
        joint_split([one, other], few)


def test_graphs_that_chose_nothing_calibrate(calibrated_runs: list[Path], store: MemoryStore, tmp_path: Path) -> None:
    evaluation = build_ensemble(calibrated_runs, tmp_path / "out", store=store)
    manifest = Ensemble.load(tmp_path / "out").manifest
    assert manifest.data["parts"] == {"train": 40, "valid": 20, "calibration": 10, "test": 10}
    assert {one.part for one in manifest.calibration.values()} == {"calibration"}
    assert {one.graphs for one in manifest.calibration.values()} == {10}
    assert "calibrated on 10 graphs that chose nothing" in manifest.calibration["energy"].sentence
    assert set(evaluation.parts) == {"valid", "test"}
    with np.load(tmp_path / "out" / "evaluation.npz") as arrays:
        tested = set(arrays["test/energy/graph"].tolist())
    split = joint_split([load_run(run) for run in calibrated_runs], store)
    assert tested == set(split.test.tolist()) and not tested & set(split.calibration.tolist())


def without_labels(store: MemoryStore, name: str, graphs: np.ndarray) -> MemoryStore:
    """Return a store whose graphs with these numbers lack a field."""
    one_by_one = [store.read(np.array([number])) for number in range(len(store))]
    bare = [one.with_fields(drop={name}) if k in graphs else one for k, one in enumerate(one_by_one)]
    return MemoryStore(bare, store.attributes)


def test_a_field_without_labels_in_the_calibration_part_is_calibrated_on_validation(
    calibrated_runs: list[Path], store: MemoryStore, tmp_path: Path
) -> None:
    split = make_split(store, load_run(calibrated_runs[0]).config.split)
    bare = without_labels(store, "forces", split.calibration)
    folders = []
    for run in calibrated_runs:
        folders.append(tmp_path / run.name)
        shutil.copytree(run, folders[-1])
        record = json.loads((run / "record.json").read_text())
        record["data_hash"] = bare.fingerprint
        write_sealed(folders[-1] / "record.json", record)
    build_ensemble(folders, tmp_path / "out", store=bare)
    calibration = Ensemble.load(tmp_path / "out").manifest.calibration
    assert (calibration["energy"].part, calibration["energy"].graphs) == ("calibration", 10)
    assert (calibration["forces"].part, calibration["forces"].graphs) == ("valid", 20)
    assert "20 validation graphs, which also chose the epoch" in calibration["forces"].sentence
