"""Every silent failure has tests on its page, which run by its number."""

import subprocess
import sys
from pathlib import Path

from tests.contracts.silent_failures import promises


def test_every_test_of_every_number_is_found_and_no_other(root: Path) -> None:
    field = [f"F{number}" for number in range(1, 21)]
    assert list(promises()) == [*map(str, range(1, 24)), *field]
    assert [number for number, tests in promises().items() if not tests] == ["F19"]  # no structure is so large
    words = [sys.executable, "-m", "tests.contracts.silent_failures", *promises(), "--collect-only"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:]
    found = {line.rpartition("::")[2].partition("[")[0] for line in done.stdout.splitlines() if "::" in line}
    assert found == {name for tests in promises().values() for _, name in tests}
