"""Final states of members: how far a graph's are from those of training, in ensembles of every kind."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk

from hydragnn.base.errors import InputError
from hydragnn.datasets import MemoryStore, make_split
from hydragnn.ensemble import Ensemble
from hydragnn.ensemble.domain import Domain, Latent
from hydragnn.ensemble.members.latent import RIDGE, LatentFit
from hydragnn.ensemble.members.member import final_states, outcome
from hydragnn.graphs import concatenate, from_ase

CUTOFF = 4.5
CRYSTAL = bulk("Au", "fcc", 3.0, cubic=True) * 2
"""Dense, where training has clusters."""


def states_of(nodes: int, seed: int) -> torch.Tensor:
    """States of four channels, two of which say the same and one of which is silent."""
    values = torch.randn(nodes, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values[:, 2] = values[:, 0] + 3.0
    values[:, 3] = 0.0
    return values


def latent_of(loaded: Ensemble) -> Latent:
    domain = loaded.manifest.domain
    assert isinstance(domain, Domain)
    (found,) = [one for one in domain.detectors if isinstance(one, Latent)]
    return found


def test_distances_are_those_of_the_formula_and_do_not_depend_on_batches() -> None:
    known, asked = states_of(500, 0), states_of(7, 1)
    fit = LatentFit(4)
    for some in known.split(130):
        fit.show(some, torch.arange(len(some)), len(some))
    fit.show(torch.full((1, 4), torch.nan), torch.zeros(1, dtype=torch.int64), 1)
    moments = (known.T @ known / len(known)).numpy()
    inverse = np.linalg.inv(moments + RIDGE * np.trace(moments) / 4 * np.eye(4))
    expected = np.sqrt(np.einsum("nc,cd,nd->n", asked, inverse, asked))
    owners = torch.tensor([0, 0, 0, 0, 0, 2, 2])
    actual, of_nodes = fit.space().distances(asked, owners, 3)
    np.testing.assert_allclose(np.exp(of_nodes), expected, rtol=1e-8)
    np.testing.assert_allclose(np.exp(actual[[0, 2], 0]), [expected[:5].mean(), expected[5:].mean()], rtol=1e-8)
    np.testing.assert_allclose(np.exp(actual[[0, 2], 1]), [expected[:5].max(), expected[5:].max()], rtol=1e-8)
    centred = known - known.mean(dim=0)
    moments = (centred.T @ centred / len(known)).numpy()
    inverse = np.linalg.inv(moments + np.trace(moments) / 4 / len(known) * np.eye(4))
    away = (asked[:5].mean(dim=0) - known.mean(dim=0)).numpy()
    np.testing.assert_allclose(np.exp(actual[0, 2]), np.sqrt(away @ inverse @ away), rtol=1e-8)
    assert (actual[1] < -60).all(), "a graph without nodes has no states"
    rough, _ = fit.space().distances(asked.to(torch.bfloat16), owners, 3)
    np.testing.assert_allclose(rough[[0, 2]], actual[[0, 2]], atol=0.3)  # of rounding to 8 bits, times 100 at most


def test_the_space_of_a_member_is_that_of_the_graphs_that_trained_it(ensemble: Path, store: MemoryStore) -> None:
    for member in Ensemble.load(ensemble).members:
        batch = store.read(make_split(store, member.config.split).train)
        states = final_states(member, batch)
        assert states.shape == (batch.num_nodes, member.model.settings.hidden_dim) and member.latent is not None
        every = torch.arange(batch.num_nodes)
        squares = np.exp(2 * member.latent.distances(states, every, batch.num_nodes)[1])
        powers = np.linalg.eigvalsh((states.T.double() @ states.double()).numpy() / len(states))
        assert squares.mean() == pytest.approx((powers / (powers + RIDGE * powers.mean())).sum(), rel=1e-3)


def test_the_detector_is_the_mean_of_members_and_flags_what_they_never_made(
    ensemble: Path, frames: list[Atoms]
) -> None:
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


def test_a_lack_of_memory_changes_no_distance(
    ensemble: Path, frames: list[Atoms], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    from hydragnn.ensemble.members.member import load_member

    space = LatentFit(5).space()
    with pytest.raises(InputError, match=r"states of 5 channels, and the model in .* has 12"):
        load_member(runs[0], model=runs[0] / "model", name="one", weight=1.0, latent=space)
    assert len(latent_of(Ensemble.load(ensemble)).spaces) == 3
