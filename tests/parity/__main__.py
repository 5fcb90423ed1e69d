"""Every comparison with an implementation that others wrote, in one run, and their table.

    python -m tests.parity --out docs/parity.md

Weights and outputs of schnetpack, torchmd-net and mace-torch lie beside the tests.
"""

import argparse
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from hydragnn.architectures import architectures
from tests.benchmarks.harness import NOT_MEASURED

HERE = Path(__file__).parent
PAGE = """# The same numbers as other implementations

Made by `{command}` with torch {torch}, PyTorch Geometric {geometric} and e3nn {e3nn}: {count} tests.
Our networks and layers have the weights of theirs, in float64. *Difference* is the largest difference over the largest value of all that is compared.
It is at most 1e-10, unless a line gives a reason.

- PyTorch Geometric and e3nn are run by the tests.
- Weights and outputs of schnetpack 2.1.1, torchmd-net 3.1.0 and mace-torch 0.3.16 lie in `tests/parity`; scripts `tests/parity/make_*.py` of commit ee84d0e6 made them.
- Where no other program has our form, its equations are written as loops over nodes and edges, which share no code with the layer.

"""


class Comparisons:
    """A plugin of pytest that keeps what comparisons saw."""

    def __init__(self) -> None:
        self.tests = 0
        self.lines: dict[tuple[str, str, str], float] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A stage of a test is over; what it saw is known at its end."""
        for _, (*line, difference) in report.user_properties if report.when == "call" else ():
            self.tests += 1
            self.lines[tuple(line)] = max(self.lines.get(tuple(line), 0.0), difference)


def table(lines: dict[tuple[str, str, str], float]) -> str:
    """The lines in Markdown, by architecture."""
    head = ["| what | beside | compared | difference |", "|---|---|---|---|"]
    seen = {line: f"{difference:.0e}" if difference else "none" for line, difference in lines.items()}
    rows = [f"| `{line[0]}` | {line[1]} | {line[2]} | {seen[line]} |" for line in sorted(lines)]
    compared = {what for what, *_ in lines}
    rows += [f"| `{kind}` | {NOT_MEASURED} | | |" for kind in architectures() if kind not in compared]
    return "\n".join([*head, *rows]) + "\n"


def main() -> int:
    """Run all comparisons and write or print the table; the exit code is that of pytest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a Markdown file, replaced where there is one")
    out = parser.parse_args().out
    comparisons = Comparisons()
    quiet = ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning", "-q", "-p", "no:cacheprovider"]
    code = pytest.main([*quiet, str(HERE / "test_parity.py")], plugins=[comparisons])
    if code == pytest.ExitCode.OK:
        versions = {"torch": "torch", "geometric": "torch-geometric", "e3nn": "e3nn"}
        known = {name: metadata.version(package) for name, package in versions.items()}
        command = "python -m tests.parity" + (f" --out {out}" if out else "")
        page = PAGE.format(command=command, count=comparisons.tests, **known) + table(comparisons.lines)
        print(page) if out is None else out.write_text(page)
    return int(code)


if __name__ == "__main__":
    raise SystemExit(main())
