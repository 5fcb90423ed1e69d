"""The page that ``python -m tests.parity`` makes is the one in the documents."""

import re
from pathlib import Path

from hydragnn.architectures import architectures


def test_every_comparison_and_every_architecture_is_in_the_table_of_the_documents(root: Path) -> None:
    lines = (root / "docs" / "parity.md").read_text().splitlines()
    table = {
        tuple(cell.strip(" `") for cell in line.strip("|").split("|")[:3]) for line in lines if line.startswith("| `")
    }
    code = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    marked = re.findall(r'mark.parity\(\s*"(.+?)",\s*"(.+?)",\s*"(.+?)",?\s*\)', code)
    advice = "make it anew: python -m tests.parity --out docs/parity.md"
    assert table == set(marked) and {what for what, _, _ in table} >= set(architectures()), advice
