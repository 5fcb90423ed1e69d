"""The ranks of a probe meet on their own node, and nowhere that others can write."""

import os
import re
from pathlib import Path

import pytest

from tests.forked import Forked

PROBE = Path(__file__).parents[2] / "hpo" / "launching" / "probe.py"


def probes(folder: Path) -> list[tuple[int, str]]:
    """Exit codes and what was printed by a probe of two ranks."""
    environment = {**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    words = [str(PROBE), "--ranks", "2", "--meet", "here", "--rank"]
    pair = [Forked([*words, str(rank)], environment) for rank in range(2)]
    return [(process.wait(240), process.communicate()[0]) for process in pair]


def test_two_ranks_of_a_healthy_node_say_so_and_leave_nothing(tmp_path: Path) -> None:
    (code, printed), other = probes(tmp_path)
    assert (code, other) == (0, (0, ""))
    assert re.fullmatch(r"seconds 0\.\d*[1-9]\d*\nhealthy\n", printed), printed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", [0o777, 0o750])
def test_a_meeting_place_that_others_can_enter_is_refused(mode: int, tmp_path: Path) -> None:
    place = tmp_path / f"hydragnn-here-{os.geteuid()}"
    place.mkdir()
    place.chmod(mode)
    found = probes(tmp_path)
    assert [code for code, _ in found] == [1, 1]
    assert all("is open to others than this user" in text for _, text in found)
