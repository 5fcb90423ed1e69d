"""The verdict: what is said about errors, coverage and spread, and when."""

import math
from dataclasses import replace
from typing import Any

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
    target, ones = np.where(covered, 0.0, 5.0), np.ones(len(covered))
    return Points(field="e", unit="eV", target=target, mean=0 * ones, graph=graph, std=ones, lower=-ones, upper=ones)


def beside(mae: float, **baselines: float) -> TargetEvaluation:
    return replace(scores(mae), baselines={name: {"mae": value} for name, value in baselines.items()})


def covering(share: float, graphs: int = 10_000, each: int = 1) -> Any:
    """The finding on so many graphs, of which a share lies in its interval."""
    graph = np.repeat(np.arange(graphs), each)
    return coverage_finding(points(graph < share * graphs, graph), share, 0.9)


def unknown(share: float) -> Any:
    """The finding on 1,000 graphs, of which a share has no interval."""
    known = points(np.arange(1000) < 900, np.arange(1000))
    known.upper[: round(share * 1000)] = np.nan
    return coverage_finding(known, 0.9, 0.9)


RIDGE = "on statistics of inputs, 0.05 against 0.1 eV. Train on more"
EXACT = "0.05 against 0.1 eV. Predict with it, or train on labels of it (hydragnn data label)."
MAE_BEST = replace(scores(0.1), members={"0": {"mae": 0.2, "rmse": 0.1}, "1": {"mae": 0.08, "rmse": 0.3}})
"""The member with the smallest RMSE, which ``best_member`` names, is not the one with the smallest MAE."""
PER_ATOM = replace(scores(0.1), ensemble={"mae": 0.1, "mae_per_node": 0.0123})


@pytest.mark.parametrize(
    ("finding", "grade", "phrase"),
    [
        *((error_finding(scores(mae)), "good", "its best member.") for mae in (0.1, 0.49)),
        *((error_finding(scores(mae)), "fair", "") for mae in (0.5, 0.89)),
        *((error_finding(scores(mae)), "poor", "") for mae in (0.9, 2.0)),
        *((error_finding(scores(0.1, trivial=trivial)), "unknown", "") for trivial in (0.0, math.nan)),
        (error_finding(scores(0.1, best=0.2)), "good", "50 % below"),
        (error_finding(scores(0.1, best=0.08)), "good", "25 % above"),
        (error_finding(scores(0.1, best=0.1)), "good", "Level with"),
        (error_finding(PER_ATOM), "good", "It is 12.3 meV/atom."),
        (error_finding(beside(0.1, ridge=0.05, boosting=0.08)), "fair", f"is better: ridge {RIDGE}"),
        (error_finding(beside(0.04, ridge=0.05, boosting=0.08)), "good", "its best member."),
        (error_finding(beside(0.1, exact=0.05)), "fair", f"A model of others is better: exact, {EXACT}"),
        (error_finding(MAE_BEST), "good", "25 % above its best member, 1, which alone"),
        (covering(0.90), "good", "keep"),
        (covering(0.85), "fair", "narrow"),
        (covering(0.95), "fair", "wide"),
        (covering(0.7), "poor", "overconfident"),
        (covering(1.0), "poor", "careful"),
        (covering(0.84, graphs=50), "good", "chance"),
        (unknown(0.004), "good", " 0.4 % of values lie"),
        (unknown(0.12), "good", " 12 % of values lie"),
        (covering(1.0, graphs=5, each=1000), "unknown", ""),
        *((spread_finding(rank), grade, "") for rank, grade in ((0.6, "good"), (0.3, "fair"), (0.0, "poor"))),
        *((spread_finding(rank), "unknown", "") for rank in (None, math.nan)),
    ],
)
def test_findings_are_graded_and_say_why(finding: Any, grade: str, phrase: str) -> None:
    assert finding.grade == grade and phrase in finding.sentence


def test_an_error_is_stated_per_atom_and_beside_a_baseline_only_where_there_is_one() -> None:
    sentence = error_finding(scores(0.1)).sentence
    assert "per" not in sentence.replace("predictor", "") and "better:" not in sentence


def test_values_of_one_graph_that_fail_together_count_as_one() -> None:
    graph = np.repeat(np.arange(100), 50)
    together = points(graph < 90, graph)
    apart = points(np.random.default_rng(0).permutation(graph < 90), graph)
    assert coverage_error(together, 0.9) == pytest.approx(math.sqrt(0.09 / 100), rel=0.05)
    assert coverage_error(apart, 0.9) == pytest.approx(math.sqrt(0.09 / 5000), rel=0.25)


def test_a_field_is_as_good_as_the_worse_of_error_and_coverage() -> None:
    rows = 10_000
    narrow = points(np.arange(rows) < 0.6 * rows, np.arange(rows))
    assert field_verdict("energy", scores(0.1), narrow, 0.9).grade == "poor"
    assert field_verdict("energy", scores(0.1), None, 0.9).grade == "good"


def test_honest_spreads_lie_on_the_diagonal_of_the_calibration_curve() -> None:
    generator = np.random.default_rng(0)
    std = np.exp(generator.normal(size=40_000))
    error = std * generator.normal(size=40_000)
    # four standard errors of a share in 40 000 draws
    assert observed_levels(error, std) == pytest.approx(np.array(LEVELS), abs=4 * 0.5 / 200)


def test_binned_errors_of_honest_spreads_equal_the_spreads() -> None:
    generator = np.random.default_rng(1)
    spread = np.exp(generator.normal(size=40_000))
    x, y = binned_errors(spread, spread * generator.normal(size=40_000), 10)
    assert len(x) == 10 and np.all(np.diff(x) > 0)
    assert y == pytest.approx(x, rel=0.1)  # each of 4000 values: 1.1 % standard error, more in the wide last bin
