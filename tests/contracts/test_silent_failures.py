"""Every silent failure has tests on its page, which run by its number."""

import ast
import subprocess
import sys
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
    assert list(promises()) == [*map(str, range(1, 30)), *(f"F{number}" for number in range(1, 21))]


def test_the_tests_of_a_number_run(root: Path) -> None:
    words = [sys.executable, "-m", "tests.contracts.silent_failures", "16", "18", "--collect-only"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:]
    found = {line.rpartition("::")[2].partition("[")[0] for line in done.stdout.splitlines() if "::" in line}
    assert found == {f"test_{name.removeprefix('test_')}" for number in ("16", "18") for _, name in promises()[number]}
