"""Every silent failure has tests on its page."""

import ast
from pathlib import Path

import pytest

from tests.contracts.silent_failures import promises


@pytest.mark.parametrize("number", promises())
def test_every_test_of_a_number_is_defined_where_the_page_says(number: str, root: Path) -> None:
    tests = promises()[number]
    assert tests or number == "F19"  # no structure is so large
    for file, name in tests:
        tree = ast.parse((root / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, file


def test_the_page_has_all_numbers() -> None:
    assert list(promises()) == [*map(str, range(1, 24)), *(f"F{number}" for number in range(1, 21))]
