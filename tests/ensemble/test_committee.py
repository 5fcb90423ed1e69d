"""Members of one shape are computed as one, and their final states tell how far graphs are from training."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk

from hydragnn.base.errors import InputError
from hydragnn.datasets import MemoryStore, make_split
from hydragnn.ensemble import Ensemble
from hydragnn.ensemble.domain import Domain, Latent
from hydragnn.ensemble.ensemble import ensemble_of
from hydragnn.ensemble.members import committee
from hydragnn.ensemble.members.committee import in_committee
from hydragnn.ensemble.members.latent import RIDGE, fitted_space
from hydragnn.ensemble.members.member import Member, MemberOutcome, final_states, load_member, outcome, outcome_alone
from hydragnn.graphs import GraphBatch, concatenate, from_ase
from hydragnn.models.trained_stack import TrainedStack
from hydragnn.runs import train
from tests.ensemble.conftest import config_of, store_of
from tests.once import shared

FOUR = 4


@shared
def four(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of four runs of one shape that differ in seeds and scales of labels."""
    folders = [tmp_path_factory.mktemp("four") / str(seed) for seed in range(FOUR)]
    for seed, folder in enumerate(folders):
        train(config_of(stored, train__seed=seed, train__epochs=1), folder)
    return folders


def members_of(folders: Sequence[Path], dtype: torch.dtype) -> Sequence[Member]:
    return ensemble_of([load_member(folder, dtype=dtype) for folder in folders]).members


def assert_near(one: MemberOutcome, other: MemberOutcome, tolerance: float) -> None:
    assert one.reasons == other.reasons
    np.testing.assert_allclose(one.distances, other.distances, rtol=tolerance)
    for name, value in one.predictions.items():
        for what, numbers in value.tensors().items():
            exact = other.predictions[name].tensors()[what]
            assert float((numbers - exact).abs().max() / exact.abs().max()) < tolerance, name


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many members were computed as one."""
    calls, original = list[int](), TrainedStack.predict_with_states

    def counted(stack: TrainedStack, batch: GraphBatch) -> Any:
        calls.append(len(stack.members))
        return original(stack, batch)

    monkeypatch.setattr(TrainedStack, "predict_with_states", counted)
    return calls


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_four_members_as_one_predict_what_each_does_alone(
    four: list[Path], frames: list[Atoms], dtype: torch.dtype, tolerance: float, calls: list[int]
) -> None:
    members = members_of(four, dtype)
    for batch in (store_of(frames[:9])[:], store_of(frames[:1])[:]):
        calls.clear()
        for member in members:
            assert_near(outcome(member, batch), outcome_alone(member, batch), tolerance)
        assert calls == [FOUR]


def test_members_of_other_shapes_and_large_batches_are_computed_alone(
    four: list[Path], frames: list[Atoms], stored: Path, tmp_path: Path, calls: list[int]
) -> None:
    train(config_of(stored, model__hidden_dim=16, train__epochs=1), tmp_path / "wide")
    members = members_of([*four[:2], tmp_path / "wide"], torch.float64)
    batch = store_of(frames[:2])[:]
    for member in members:
        outcome(member, batch)
    assert calls == [2]
    members_of_one, seconds = in_committee(members_of(four[:3], torch.float64))
    assert seconds.shared([3.0, 0.0, 0.0]) == (3.0, 0.0, 0.0)
    outcome(members_of_one[0], batch)
    assert seconds.shared([3.0, 0.0, 0.0]) == (1.0, 1.0, 1.0) and calls == [2, 3]
    with patch.object(committee, "WORK_OF_CPU", 12 * batch.num_edges - 1):
        for member in members:
            assert_near(outcome(member, batch), outcome_alone(member, batch), 1e-15)
    assert calls == [2, 3]


def test_batches_that_cannot_be_computed_as_one_are_computed_one_by_one(four: list[Path], frames: list[Atoms]) -> None:
    members, batch = members_of(four[:2], torch.float64), store_of(frames[:2])[:]
    alone = [outcome_alone(member, batch) for member in members]
    with patch.object(TrainedStack, "predict_with_states", side_effect=torch.OutOfMemoryError("out of memory")):
        for member, expected in zip(members, alone):
            assert_near(outcome(member, batch), expected, 1e-15)
    numbers = batch["atomic_numbers"].clone()
    numbers[-1] = 1
    mixed = batch.with_fields({"atomic_numbers": numbers})
    for member in members:
        result = outcome(member, mixed)
        assert not result.reasons[0] and "no reference" in result.reasons[1], result.reasons


def test_a_batch_whose_numbers_changed_in_place_is_predicted_anew(four: list[Path], frames: list[Atoms]) -> None:
    ensemble = ensemble_of([load_member(folder, dtype=torch.float64) for folder in four[:2]])
    batch = store_of(frames[:3])[:]
    before = ensemble.predict(batch)["energy"].mean
    batch.positions.mul_(1.1)
    assert not np.allclose(before, ensemble.predict(batch)["energy"].mean)
    batch.positions.div_(1.1)
    np.testing.assert_allclose(ensemble.predict(batch)["energy"].mean, before, rtol=1e-9)


CUTOFF = 4.5
CRYSTAL = bulk("Au", "fcc", 3.0, cubic=True) * 2
"""Dense, where training has clusters."""


def states_of(nodes: int, seed: int) -> torch.Tensor:
    """States of four channels, two of which say the same and one of which is silent."""
    values = torch.randn(nodes, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values[:, 2] = values[:, 0] + 3.0
    values[:, 3] = 0.0
    return values


def test_distances_are_those_of_the_formula_and_do_not_depend_on_batches() -> None:
    known, asked = states_of(500, 0), states_of(7, 1)
    parts = [(some, torch.arange(len(some)), len(some)) for some in known.split(130)]
    space = fitted_space(4, [*parts, (torch.full((1, 4), torch.nan), torch.zeros(1, dtype=torch.int64), 1)])
    moments = (known.T @ known / len(known)).numpy()
    inverse = np.linalg.inv(moments + RIDGE * np.trace(moments) / 4 * np.eye(4))
    expected = np.sqrt(np.einsum("nc,cd,nd->n", asked, inverse, asked))
    owners = torch.tensor([0, 0, 0, 0, 0, 2, 2])
    actual, of_nodes = space.distances(asked, owners, 3)
    np.testing.assert_allclose(np.exp(of_nodes), expected, rtol=1e-8)
    np.testing.assert_allclose(np.exp(actual[[0, 2], 0]), [expected[:5].mean(), expected[5:].mean()], rtol=1e-8)
    np.testing.assert_allclose(np.exp(actual[[0, 2], 1]), [expected[:5].max(), expected[5:].max()], rtol=1e-8)
    centred = known - known.mean(dim=0)
    moments = (centred.T @ centred / len(known)).numpy()
    inverse = np.linalg.inv(moments + np.trace(moments) / 4 / len(known) * np.eye(4))
    away = (asked[:5].mean(dim=0) - known.mean(dim=0)).numpy()
    np.testing.assert_allclose(np.exp(actual[0, 2]), np.sqrt(away @ inverse @ away), rtol=1e-8)
    assert (actual[1] < -60).all(), "a graph without nodes has no states"
    rough, _ = space.distances(asked.to(torch.bfloat16), owners, 3)
    np.testing.assert_allclose(rough[[0, 2]], actual[[0, 2]], atol=0.3)  # of rounding to 8 bits, times 100 at most


def test_the_space_of_a_member_is_that_of_the_graphs_that_trained_it(ensemble: Path, store: MemoryStore) -> None:
    for member in Ensemble.load(ensemble).members:
        batch = store.read(make_split(store, member.config.split).train)
        states = final_states(member, batch)
        assert (
            states.shape == (batch.num_nodes, member.model.description.model.hidden_dim) and member.latent is not None
        )
        every = torch.arange(batch.num_nodes)
        squares = np.exp(2 * member.latent.distances(states, every, batch.num_nodes)[1])
        powers = np.linalg.eigvalsh((states.T.double() @ states.double()).numpy() / len(states))
        assert squares.mean() == pytest.approx((powers / (powers + RIDGE * powers.mean())).sum(), rel=1e-3)


def test_the_detector_is_the_mean_of_members(ensemble: Path, frames: list[Atoms]) -> None:
    loaded = Ensemble.load(ensemble)
    batch = concatenate([from_ase(frame, CUTOFF, name="frame") for frame in (*frames[:3], CRYSTAL)])
    said = [outcome(member, batch).distances for member in loaded.members]
    output = loaded.predict(batch)
    domain = loaded.manifest.domain
    assert isinstance(domain, Domain) and domain.rarity is not None
    usual, unit = domain.rarity.usual[-3:], domain.rarity.unit[-3:]
    expected = ((np.mean(said, axis=0) - usual) / unit).clip(0).max(axis=1)
    np.testing.assert_allclose(output.domain_scores["latent"], expected, rtol=1e-6, atol=1e-9)
    assert output.domain_scores["latent"][3] > 1 and output.domain[3]
    alone = loaded.predict(from_ase(CRYSTAL, CUTOFF, name="frame"))
    assert alone.domain_scores["latent"][0] == pytest.approx(expected[3], rel=1e-4)


def test_lack_of_memory_changes_nothing(ensemble: Path, frames: list[Atoms], monkeypatch: pytest.MonkeyPatch) -> None:
    member = Ensemble.load(ensemble).members[0]
    batch = concatenate([from_ase(frame, CUTOFF, name="frame") for frame in frames[:5]])
    whole, states = outcome(member, batch), final_states(member, batch)
    for name in ("predict_with_states", "states"):
        original: Callable[..., object] = getattr(type(member.model), name)

        def short(model: object, batch: object, original: Callable[..., object] = original) -> object:
            if len(batch) > 2:  # type: ignore[arg-type]
                raise MemoryError
            return original(model, batch)

        monkeypatch.setattr(type(member.model), name, short)
    np.testing.assert_allclose(outcome(member, batch).distances, whole.distances, rtol=1e-5)
    np.testing.assert_allclose(outcome(member, batch).node_distances, whole.node_distances, rtol=1e-5)
    torch.testing.assert_close(final_states(member, batch), states, rtol=1e-4, atol=1e-5)


def test_states_of_other_models_are_refused(ensemble: Path, runs: list[Path]) -> None:
    space = fitted_space(5, [])
    with pytest.raises(InputError, match=r"states of 5 channels, and the model in .* has 12"):
        load_member(runs[0], latent=space)
    (latent,) = [one for one in Ensemble.load(ensemble).manifest.domain.detectors if isinstance(one, Latent)]
    assert len(latent.spaces) == 3
