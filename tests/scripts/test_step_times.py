"""Dynamics of this machine are measured."""

from tests.benchmarks.step_times import StepSettings, dynamics_rows


def test_a_crystal_moves_by_the_calculator() -> None:
    (row,) = dynamics_rows(StepSettings(device="cpu", hidden=4, repeats=1, atoms=(8,)))
    assert row["atoms"] == 8 and row["ms"] > row["graph ms"] > 0
