"""Files that ARCHITECTURE.md names for a question exist, and are few."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST = {
    "How a trial starts": 5,
    "How the next configuration is found": 4,
    "What happens when a node is lost": 6,
    "How a prediction becomes a file": 5,
    "How SchNet computes forces": 8,
    "Which code runs `gather_multiply_sum`": 4,
    "How a run trains": 4,
}
"""Files that a question may take."""


def reading_path(question: str) -> list[tuple[str, str]]:
    """Return the files that are listed for a question, each with the name to look for."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    [items] = re.findall(rf"^- \*\*{re.escape(question)}:\*\* (.*)$", text, re.MULTILINE)
    return re.findall(r"`([^`]*)` \(`(\w+)`\)", items)


@pytest.mark.parametrize("question", MOST)
def test_a_question_takes_few_files_and_every_name_in_its_list_exists(question: str) -> None:
    path = reading_path(question)
    assert 0 < len(path) <= MOST[question]
    for file, name in path:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        assert name in defined, file


def test_every_path_in_the_pages_exists() -> None:
    pages = [
        ROOT / "README.md",
        ROOT / "ARCHITECTURE.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
    rooms = "graphs|datasets|hydragnn|hpo|ensemble|scripts|tests|docs"
    for page in pages:
        for path in re.findall(rf"`((?:{rooms})/[\w/.-]*)`", page.read_text(encoding="utf-8")):
            assert (ROOT / path).exists(), f"{page.name} names {path}"
