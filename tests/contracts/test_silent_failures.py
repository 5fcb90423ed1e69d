"""Every silent failure of the public HydraGNN has its promise, its tests, and its line on the page; one number can be run."""

import re
import subprocess
import sys
from pathlib import Path

from tests.contracts.silent_failures import PROMISES, page

COMMAND = [sys.executable, "-m", "tests.contracts.silent_failures"]


def test_every_number_has_its_promise() -> None:
    assert list(PROMISES) == list(range(1, 24))
    assert all(promise.tests for promise in PROMISES.values())


def test_the_page_is_what_the_command_makes(root: Path) -> None:
    advice = "make it anew: python -m tests.contracts.silent_failures --out docs/silent-failures.md"
    assert (root / "docs" / "silent-failures.md").read_text() == page(), advice


def test_every_test_of_every_number_is_found_and_no_other(root: Path) -> None:
    words = [*COMMAND, *map(str, PROMISES), "--collect-only"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:]
    found = {line.rpartition("::")[2].partition("[")[0] for line in done.stdout.splitlines() if "::" in line}
    assert found == {test.split("::")[1] for promise in PROMISES.values() for test in promise.tests}


def test_one_number_can_be_run(root: Path) -> None:
    done = subprocess.run([*COMMAND, "16"], cwd=root, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and re.search(r"\d+ passed, \d+ deselected", done.stdout), done.stdout[-2000:]
