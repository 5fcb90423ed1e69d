"""Small forms of ``soak.py``, which says how to run the long ones."""

from pathlib import Path

from soak import Course, lost, soak, two


def test_a_campaign_whose_processes_are_struck_while_its_study_is_written_loses_nothing(tmp_path: Path) -> None:
    result = soak(Course(tmp_path, 8, 0.05), kills=3, workers=2, seed=1)
    assert lost(result, 8) == 0 and result["twice"] == 0
    assert sum(result["struck"].values()) == 3


def test_of_two_controllers_where_locks_do_not_reach_one_leaves_and_nothing_is_lost(tmp_path: Path) -> None:
    result = two(Course(tmp_path, 9, 2.0), "c", stopped=True, error=37)
    assert result["codes"] == (4, 0), result["said"]
    assert "goes on with this search since" in result["said"][0]
    assert lost(result, 9) == 0 and result["twice"] == 0 and result["alive"] == 0
