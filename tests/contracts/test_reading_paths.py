"""Files that ARCHITECTURE.md names for a question exist, and are few."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST = 8
"""Files that a question may take."""


def test_a_question_takes_few_files_and_every_name_in_its_list_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    items = re.findall(r"^- \*\*.*:\*\* (.*)$", text, re.MULTILINE)
    lists = [path for path in (re.findall(r"`([^`]*)` \(`(\w+)`\)", line) for line in items) if path]
    assert len(lists) >= 7
    for path in lists:
        assert len(path) <= MOST
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
