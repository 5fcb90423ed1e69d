"""The page that ``python -m tests.parity`` makes has no line that no test makes."""

import re
from pathlib import Path

from test_networks import CHAINS, line_of

from tests.benchmarks.harness import NOT_MEASURED


def test_every_line_of_the_table_in_the_documents_is_a_comparison(root: Path) -> None:
    lines = (root / "docs" / "parity.md").read_text().splitlines()
    table = {
        tuple(cell.strip(" `") for cell in line.strip("|").split("|")[:3]) for line in lines if line.startswith("| `")
    }
    code = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    marked = re.findall(r'mark.parity\(\s*"(.+?)",\s*"(.+?)",\s*"(.+?)",?\s*\)', code)
    marked += [line_of(case) for case in CHAINS]
    advice = "make it anew: python -m tests.parity --out docs/parity.md"
    assert table and {line for line in table if line[1] != NOT_MEASURED} <= set(marked), advice
