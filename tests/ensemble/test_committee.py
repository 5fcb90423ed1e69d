"""Members of one shape are computed as one, and predict what each predicts alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms

from hydragnn.ensemble.ensemble import ensemble_of
from hydragnn.ensemble.members import committee
from hydragnn.ensemble.members.committee import in_committee
from hydragnn.ensemble.members.member import Member, MemberOutcome, load_run, outcome, outcome_alone
from hydragnn.graphs import GraphBatch
from hydragnn.models.trained_stack import TrainedStack
from hydragnn.runs import train
from tests.ensemble.conftest import config_of, store_of
from tests.once import shared

EIGHT = 8


@shared
def eight(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of eight runs of one shape that differ in seeds and scales of labels."""
    folders = [tmp_path_factory.mktemp("eight") / str(seed) for seed in range(EIGHT)]
    for seed, folder in enumerate(folders):
        train(config_of(stored, train__seed=seed, train__epochs=1), folder)
    return folders


def members_of(folders: Sequence[Path], dtype: torch.dtype) -> Sequence[Member]:
    return ensemble_of([load_run(folder, dtype=dtype) for folder in folders]).members


def assert_near(one: MemberOutcome, other: MemberOutcome, tolerance: float) -> None:
    assert one.reasons == other.reasons
    np.testing.assert_allclose(one.distances, other.distances, rtol=tolerance)
    for name, value in one.predictions.items():
        for what, numbers in value.tensors().items():
            exact = other.predictions[name].tensors()[what]
            assert float((numbers - exact).abs().max() / exact.abs().max()) < tolerance, name


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_eight_members_as_one_predict_what_each_does_alone(
    eight: list[Path], frames: list[Atoms], dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_calls(monkeypatch)
    members = members_of(eight, dtype)
    for batch in (store_of(frames[:9]).read(range(9)), store_of(frames[:1]).read([0])):
        calls.clear()
        for member in members:
            assert_near(outcome(member, batch), outcome_alone(member, batch), tolerance)
        assert calls == [EIGHT]


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many members were computed as one."""
    calls: list[int] = []
    original = TrainedStack.compute

    def counted(stack: TrainedStack, inputs: GraphBatch) -> Any:
        calls.append(len(stack.normalisations))
        return original(stack, inputs)

    monkeypatch.setattr(TrainedStack, "compute", counted)
    return calls


def test_members_of_other_shapes_and_large_batches_are_computed_alone(
    eight: list[Path], frames: list[Atoms], stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_calls(monkeypatch)
    train(config_of(stored, model__hidden_dim=16, train__epochs=1), tmp_path / "wide")
    members = members_of([*eight[:2], tmp_path / "wide"], torch.float64)
    batch = store_of(frames[:2]).read([0, 1])
    for member in members:
        outcome(member, batch)
    assert calls == [2]
    monkeypatch.setattr(committee, "WORK_OF_CPU", 12 * batch.num_edges - 1)
    for member in members:
        assert_near(outcome(member, batch), outcome_alone(member, batch), 1e-15)
    assert calls == [2]


def test_a_batch_that_cannot_be_computed_as_one_is_computed_one_by_one(
    eight: list[Path], frames: list[Atoms], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without memory for all at once, and where a graph has an element without reference."""

    def fail(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory")

    members = members_of(eight[:2], torch.float64)
    batch = store_of(frames[:2]).read([0, 1])
    alone = [outcome_alone(member, batch) for member in members]
    with monkeypatch.context() as patch:
        patch.setattr(TrainedStack, "compute", fail)
        for member, expected in zip(members, alone):
            assert_near(outcome(member, batch), expected, 1e-15)
    numbers = batch["atomic_numbers"].clone()
    numbers[-1] = 1
    mixed = batch.with_fields({"atomic_numbers": numbers})
    for member in members:
        result = outcome(member, mixed)
        assert not result.reasons[0] and "no reference" in result.reasons[1], result.reasons


def test_seconds_of_members_that_are_computed_as_one_are_equal(eight: list[Path], frames: list[Atoms]) -> None:
    members, committee = in_committee(members_of(eight[:3], torch.float64))
    assert committee.shared([3.0, 0.0, 0.0]) == (3.0, 0.0, 0.0)
    outcome(members[0], store_of(frames[:2]).read([0, 1]))
    assert committee.shared([3.0, 0.0, 0.0]) == (1.0, 1.0, 1.0)


def test_a_batch_whose_numbers_changed_in_place_is_predicted_anew(eight: list[Path], frames: list[Atoms]) -> None:
    ensemble = ensemble_of([load_run(folder, dtype=torch.float64) for folder in eight[:2]])
    batch = store_of(frames[:3]).read(range(3))
    before = ensemble.predict(batch)["energy"].mean
    batch.positions.mul_(1.1)
    after = ensemble.predict(batch)["energy"].mean
    assert not np.allclose(before, after)
    batch.positions.div_(1.1)
    np.testing.assert_allclose(ensemble.predict(batch)["energy"].mean, before, rtol=1e-9)
