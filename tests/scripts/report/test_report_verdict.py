"""The verdict: what is said about errors, coverage and spread, and when."""

import math
from dataclasses import replace

import numpy as np
import pytest

from hydragnn.ensemble import TargetEvaluation
from hydragnn.scripts.report.facts import Points
from hydragnn.scripts.report.uncertainty import LEVELS, binned_errors, observed_levels
from hydragnn.scripts.report.verdict import (
    coverage_error,
    coverage_finding,
    error_finding,
    field_verdict,
    spread_finding,
)


def scores(mae: float, *, trivial: float = 1.0, best: float | None = None) -> TargetEvaluation:
    return TargetEvaluation(
        unit="eV",
        trivial={"mae": trivial},
        members={name: {"mae": best or 1.1 * mae} for name in "012"},
        best_member="0",
        ensemble={"mae": mae},
    )


def points(covered: np.ndarray, graph: np.ndarray) -> Points:
    """Rows whose interval is [-1, 1] and whose target is inside where ``covered`` says so."""
    target = np.where(covered, 0.0, 5.0)
    ones = np.ones(len(target))
    return Points(
        field="energy", unit="eV", target=target, mean=0 * ones, graph=graph, std=ones, lower=-ones, upper=ones
    )


@pytest.mark.parametrize(
    ("mae", "grade"), [(0.1, "good"), (0.49, "good"), (0.5, "fair"), (0.89, "fair"), (0.9, "poor"), (2.0, "poor")]
)
def test_errors_are_graded_by_their_ratio_to_the_trivial_predictor(mae: float, grade: str) -> None:
    assert error_finding(scores(mae)).grade == grade


def test_a_trivial_predictor_without_error_is_no_yardstick() -> None:
    assert error_finding(scores(0.1, trivial=0.0)).grade == "unknown"
    assert error_finding(scores(0.1, trivial=math.nan)).grade == "unknown"


@pytest.mark.parametrize(("best", "phrase"), [(0.2, "50 % below"), (0.08, "25 % above"), (0.1, "Level with")])
def test_the_ensemble_is_compared_with_its_best_member(best: float, phrase: str) -> None:
    assert phrase in error_finding(scores(0.1, best=best)).sentence


def test_errors_of_energies_are_stated_per_atom() -> None:
    own = {"mae": 0.1, "mae_per_node": 0.0123}
    assert "It is 12.3 meV/atom." in error_finding(replace(scores(0.1), ensemble=own)).sentence
    assert "per" not in error_finding(scores(0.1)).sentence.replace("predictor", "")


@pytest.mark.parametrize(
    ("mae", "baselines", "grade", "phrase"),
    [
        (
            0.1,
            {"ridge": 0.05, "boosting": 0.08},
            "fair",
            "ridge on statistics of inputs, 0.05 against 0.1 eV. Train on more",
        ),
        (0.04, {"ridge": 0.05, "boosting": 0.08}, "good", "its best member."),
        (
            0.1,
            {"exact": 0.05},
            "fair",
            "A model of others is better: exact, 0.05 against 0.1 eV. Predict with it, or train on labels of it (hydragnn data label).",
        ),
    ],
)
def test_a_model_that_loses_to_a_simple_baseline_says_so_with_the_next_move(
    mae: float, baselines: dict[str, float], grade: str, phrase: str
) -> None:
    own = replace(scores(mae), baselines={name: {"mae": value} for name, value in baselines.items()})
    found = error_finding(own)
    assert found.grade == grade and phrase in found.sentence
    assert ("better:" in found.sentence) == (grade == "fair")


@pytest.mark.parametrize(
    ("share", "grade", "phrase"),
    [
        (0.90, "good", "keep"),
        (0.85, "fair", "narrow"),
        (0.95, "fair", "wide"),
        (0.7, "poor", "overconfident"),
        (1.0, "poor", "careful"),
    ],
)
def test_coverage_of_many_graphs_is_graded_by_its_distance_from_the_promise(
    share: float, grade: str, phrase: str
) -> None:
    rows = 10_000
    actual = coverage_finding(points(np.arange(rows) < share * rows, np.arange(rows)), share, 0.9)
    assert actual.grade == grade and phrase in actual.sentence


def test_a_miss_that_chance_explains_is_not_held_against_the_model() -> None:
    actual = coverage_finding(points(np.arange(50) < 42, np.arange(50)), 0.84, 0.9)
    assert actual.grade == "good" and "chance" in actual.sentence


def test_a_handful_of_graphs_cannot_judge_coverage_however_many_nodes_they_have() -> None:
    actual = coverage_finding(points(np.ones(5000, dtype=bool), np.repeat(np.arange(5), 1000)), 1.0, 0.9)
    assert actual.grade == "unknown"


def test_values_of_one_graph_that_fail_together_count_as_one() -> None:
    graph = np.repeat(np.arange(100), 50)
    together = points(graph < 90, graph)
    apart = points(np.random.default_rng(0).permutation(graph < 90), graph)
    assert coverage_error(together, 0.9) == pytest.approx(math.sqrt(0.09 / 100), rel=0.05)
    assert coverage_error(apart, 0.9) == pytest.approx(math.sqrt(0.09 / 5000), rel=0.25)


@pytest.mark.parametrize(
    ("rank", "grade"), [(0.6, "good"), (0.3, "fair"), (0.0, "poor"), (None, "unknown"), (math.nan, "unknown")]
)
def test_the_spread_is_graded_by_how_well_it_ranks_the_errors(rank: float | None, grade: str) -> None:
    assert spread_finding(rank).grade == grade


def test_a_field_is_as_good_as_the_worse_of_error_and_coverage() -> None:
    rows = 10_000
    narrow = points(np.arange(rows) < 0.6 * rows, np.arange(rows))
    assert field_verdict("energy", scores(0.1), narrow, 0.9).grade == "poor"
    assert field_verdict("energy", scores(0.1), None, 0.9).grade == "good"


def test_honest_spreads_lie_on_the_diagonal_of_the_calibration_curve() -> None:
    generator = np.random.default_rng(0)
    std = np.exp(generator.normal(size=40_000))
    honest = Points(
        field="a", unit="", target=std * generator.normal(size=40_000), mean=0 * std, graph=np.arange(40_000), std=std
    )
    # four standard errors of a share in 40 000 draws
    assert observed_levels(honest) == pytest.approx(np.array(LEVELS), abs=4 * 0.5 / 200)


def test_binned_errors_of_honest_spreads_equal_the_spreads() -> None:
    generator = np.random.default_rng(1)
    spread = np.exp(generator.normal(size=40_000))
    x, y = binned_errors(spread, spread * generator.normal(size=40_000), 10)
    assert len(x) == 10 and np.all(np.diff(x) > 0)
    assert y == pytest.approx(x, rel=0.1)  # each of 4000 values: 1.1 % standard error, more in the wide last bin
