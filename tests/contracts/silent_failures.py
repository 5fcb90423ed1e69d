"""Run the tests of one of the silent failures on ``docs/silent-failures.md``, by its number there.

python -m tests.contracts.silent_failures 14     # by pytest, which takes further options
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def promises() -> dict[str, list[tuple[str, str]]]:
    """Return file and function of the tests that each row of the page links to."""
    text = (ROOT / "docs" / "silent-failures.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (F?\d+) \|.*\|([^|]*)\|$", text, re.MULTILINE)
    links = {number: re.findall(r"\[([^]]*)\]\(\.\./([^)]*)\)", cell) for number, cell in rows}
    return {number: [(file, _function(file, name)) for name, file in own] for number, own in links.items()}


INHERITED = "hydragnn/conformance/"
"""Promises, which are tests of every architecture."""


def _function(file: str, name: str) -> str:
    return f"{'' if file.startswith(INHERITED) else 'test_'}{name.replace(' ', '_')}"


def run(numbers: Sequence[str], options: Sequence[str] = ()) -> int:
    tests = [test for number in numbers for test in promises()[number]]
    files = {"tests/contracts/test_models.py" if file.startswith(INHERITED) else file: None for file, _ in tests}
    names = " or ".join(name for _, name in tests)
    return int(
        pytest.main(["-q", "--rootdir", str(ROOT), "-k", names, *options, *(str(ROOT / file) for file in files)])
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", nargs="+", metavar="NUMBER", help="1 to 29, and F1 to F20 of the field")
    known, options = parser.parse_known_args()
    if unknown := [number for number in known.numbers if number not in promises()]:
        parser.error(f"there is no number {unknown[0]}; give some of {', '.join(promises())}")
    return run(known.numbers, options)


if __name__ == "__main__":
    sys.exit(main())
