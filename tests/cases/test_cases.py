"""Every case of ``python -m tests.cases`` has the right answer."""

import pytest

from tests.cases.__main__ import CASES, answer


@pytest.mark.parametrize("name", CASES)
def test_a_case_that_once_failed_has_the_right_answer(name: str) -> None:
    row = answer(name)
    assert row.right, f"wanted {row.wanted}, seen {row.seen}"
