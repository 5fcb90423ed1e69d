"""Every silent failure of the public HydraGNN has tests on its page, which run by its number."""

import subprocess
import sys
from pathlib import Path

from tests.contracts.silent_failures import promises


def test_every_test_of_every_number_is_found_and_no_other(root: Path) -> None:
    assert list(promises()) == list(range(1, 24)) and all(promises().values())
    numbers = map(str, promises())
    words = [sys.executable, "-m", "tests.contracts.silent_failures", *numbers, "--collect-only"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:]
    found = {line.rpartition("::")[2].partition("[")[0] for line in done.stdout.splitlines() if "::" in line}
    assert found == {name for tests in promises().values() for _, name in tests}
