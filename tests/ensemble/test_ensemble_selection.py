"""Who becomes a member."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn.base.errors import InputError
from hydragnn.ensemble.building.selection import Candidate, greedy_selection, top_k
from hydragnn.ensemble.numbers import NumberEstimate, NumberEvidence
from hydragnn.graphs import Field
from hydragnn.models import Point, Target
from hydragnn.record import RunRecord


def candidate(name: str, status: str = "finished", **best: float) -> Candidate:
    record = RunRecord(
        config={},
        config_hash="",
        data_hash="",
        seed=0,
        status=status,
        best={k.replace("_", "/"): v for k, v in best.items()},
    )
    return Candidate(name=name, folder=Path(name), record=record)


def test_the_best_come_first_and_unfinished_runs_do_not_count() -> None:
    runs = [
        candidate("a", valid_loss=3.0),
        candidate("b", status="paused", valid_loss=0.1),
        candidate("c", valid_loss=1.0),
        candidate("d", status="stopped", valid_loss=2.0),
        candidate("e", status="failed"),
    ]
    assert [one.name for one in top_k(runs, 2)] == ["c", "d"]


def test_r2_is_better_when_higher() -> None:
    runs = [candidate("a", valid_energy_r2=0.5), candidate("b", valid_energy_r2=0.9)]
    assert top_k(runs, 1, by="valid/energy/r2")[0].name == "b"


@pytest.mark.parametrize(
    "k, by, says",
    [
        (3, "valid/loss", "exceeds the 2 finished runs"),
        (0, "valid/loss", "at least 1"),
        (1, "valid/los", "did you mean valid/loss"),
    ],
    ids=["k above the finished runs", "k of zero", "misspelled metric"],
)
def test_impossible_choices_are_refused(k: int, by: str, says: str) -> None:
    runs = [candidate("a", valid_loss=1.0), candidate("b", valid_loss=2.0), candidate("c", status="failed")]
    with pytest.raises(InputError, match=says):
        top_k(runs, k, by=by)


def points(target: np.ndarray, means: np.ndarray) -> NumberEvidence:
    return NumberEvidence(target=target, means=means, variances=np.zeros_like(means))


def evidence(seed: int, candidates: int = 5, rows: int = 60) -> NumberEvidence:
    generator = np.random.default_rng(seed)
    target = generator.normal(size=rows)
    errors = generator.normal(size=(candidates, rows)) * generator.uniform(0.2, 2.0, size=(candidates, 1))
    return points(target, target + errors)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["crps", "nll"]), st.integers(1, 5))
def test_greedy_selection_is_never_worse_than_the_best_candidate_on_its_score(seed: int, score: str, size: int) -> None:
    fields = {"energy": evidence(seed), "volume": evidence(seed + 1)}
    selection = greedy_selection(fields, size, score=score)
    assert len(selection.members) <= size
    assert sum(selection.weights) == pytest.approx(1.0)
    assert min(selection.trace) <= selection.trace[0] + 1e-12


def test_equal_errors_that_are_independent_are_averaged() -> None:
    generator = np.random.default_rng(0)
    target = generator.normal(size=400)
    fields = {"energy": points(target, target + generator.normal(size=(4, 400)))}
    selection = greedy_selection(fields, 4)
    assert len(selection.members) == 4
    assert min(selection.trace) < 0.65  # averaging four independent errors halves them


def test_a_copy_is_not_worth_its_price_but_an_independent_member_is() -> None:
    generator = np.random.default_rng(1)
    target = generator.normal(size=400)
    first, second = target + generator.normal(size=(2, 400))
    fields = {"energy": points(target, np.stack([first, first, second]))}
    selection = greedy_selection(fields, 3, price=0.02)
    assert set(selection.members) in ({0, 2}, {1, 2})


def test_a_dear_member_is_left_out_where_inference_has_a_price() -> None:
    fields = {"energy": evidence(4)}
    free = greedy_selection(fields, 5)
    costs = [100.0 if c == free.members[-1] else 1.0 for c in range(5)]
    assert free.members[-1] not in greedy_selection(fields, 5, costs=costs, price=1.0).members


def test_scores_reward_honest_spread() -> None:
    target = np.zeros(1000)
    noise = np.random.default_rng(2).normal(size=(1, 1000))
    known = NumberEvidence(target=target, means=noise, variances=np.ones((1, 1000)))
    unknown = NumberEvidence(target=target, means=noise, variances=np.full((1, 1000), 100.0))
    for score in ("crps", "nll"):
        assert known.score((0,), score) < unknown.score((0,), score)


@pytest.mark.parametrize("size, score, says", [(9, "crps", "impossible"), (1, "crsp", "did you mean crps")])
def test_impossible_greedy_selections_are_refused(size: int, score: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        greedy_selection({"energy": evidence(0)}, size, score=score)


def test_diversity_of_copies_is_none_and_of_independent_members_half() -> None:
    generator = np.random.default_rng(3)
    target = generator.normal(size=4000)
    errors = generator.normal(size=(2, 4000))
    weights = np.array([0.5, 0.5])
    copies = points(target, target + errors[[0, 0]]).diversity(weights)
    assert copies["error_correlation"] == pytest.approx(1.0)
    assert copies["ambiguity"] == pytest.approx(0.0)
    independent = points(target, target + errors).diversity(weights)
    assert abs(independent["error_correlation"]) < 0.06
    assert independent["ambiguity"] == pytest.approx(0.5, abs=0.03)


def test_ambiguity_is_what_averaging_takes_off_the_squared_error() -> None:
    case = evidence(7)
    weights = np.full(5, 0.2)
    mean_of_members = np.mean((case.means - case.target) ** 2)
    of_ensemble = np.mean((weights @ case.means - case.target) ** 2)
    assert case.diversity(weights)["ambiguity"] == pytest.approx(1 - of_ensemble / mean_of_members)


def test_diversity_on_a_single_labelled_vector_is_a_number() -> None:
    field = Field(name="dipole", on="graph", shape=(3,), parity="vector", role="target")
    target = Target(field=field, loss="mse", weight=1.0)
    members = [Point(mean=torch.tensor([row], dtype=torch.float64)) for row in ([0.1, 0.2, 0.3], [0.3, 0.1, 0.0])]
    found = NumberEstimate.evidence(target, np.array([[1.0, 2.0, 3.0]]), members).diversity(np.array([0.5, 0.5]))
    assert all(np.isfinite(value) for value in found.values()), found
