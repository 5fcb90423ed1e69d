"""What ARCHITECTURE.md says to open for a question is there, and is little."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST = {
    "how a trial is started": 8,
    "how a trial is started as a job step": 8,
    "how a trial is started in a pack": 8,
    "what happens when a node is lost": 7,
    "how a prediction is shared": 7,
}
"""Files that a question may take."""
LOCAL = 2
"""Files at the end of the first that are about processes of this machine; ways in an allocation have others in their place."""


def reading_path(question: str) -> list[tuple[str, list[str]]]:
    """The files that are listed for a question, each with the names that its clause speaks of."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    [(instead, items)] = re.findall(
        rf"\*\*To see {question}\*\*, open( instead of the last two)?\n\n((?:\d+\. .*\n)+)", text
    )
    clauses = [line.partition(": ") for line in items.splitlines()]
    path = [(re.findall("`(.*)`", file)[0], re.findall(r"`(\w+)`", clause)) for file, _, clause in clauses]
    return [*reading_path("how a trial is started")[:-LOCAL], *path] if instead else path


@pytest.mark.parametrize("question", MOST)
def test_a_question_takes_few_files_and_every_name_in_its_list_is_there(question: str) -> None:
    path = reading_path(question)
    assert 0 < len(path) <= MOST[question]
    for file, names in path:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        assert names and set(names) <= defined, file


def test_every_file_that_architecture_speaks_of_is_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rooms = ("graphs", "datasets", "hydragnn", "hpo", "ensemble", "scripts", "tests")
    files = [f"/{file.relative_to(ROOT).as_posix()}" for room in rooms for file in (ROOT / room).rglob("*.py")]
    named = set(re.findall(r"`([\w/]+\.py)`", text))
    assert named and not [name for name in named if not any(file.endswith(f"/{name}") for file in files)]
