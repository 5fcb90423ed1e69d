"""Check that the package stays plain and small: ``python -m tests.style [--list N]``.

A docstring begins with a verb or a noun, its first line has at most 12 words, names are verbs or nouns, and words that were
replaced stay away. The limits below hold today. Lower them when the figures fall. Limits of lines stand in ``pyproject.toml``.
"""

import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("hydragnn", "graphs", "datasets", "hpo", "ensemble", "scripts")
LIMITS = {
    "openings": 1.0,
    "openings of fields": 1.0,
    "long first lines": 2.5,
    "participles": 0.3,
    "former words": 25.0,
}
"""Percent of docstrings, of those of fields and constants, of docstrings and of names; number of names."""
WORDS = 12
OPENING = re.compile(r"(What|Whatever|Who|Whoever|Whose|Whom|Those|That|Where|How|So|Which|Whether|When)\b")
FIELD_OPENING = re.compile(rf"(Of|Under)\b|{OPENING.pattern}")
PARTICIPLE = re.compile(
    "_*(told|given|known|seen|heard|said|there|here|beside|taken|made|kept|found|wanted|left|judged|chosen|asked|done|gone|came|hears|"
    "speaks|tells|lives|around|apart|before|after|again)_*"
)
FORMER = re.compile(
    "(^|_)(ballast|bell|chronicle|company|crew|deaf|desk|ears|excused|guest|heart|hush|paces|recipe|roster|spells|standings|troubles?|"
    "vain|watcher|workshop)(_|$)"
)
"""Parts of names that have another word today."""


def files() -> Iterator[Path]:
    """Yield the modules of the package; recipes are studies with words of their own."""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if not any(parent.is_symlink() for parent in (path, *path.parents)) and "recipes" not in path.parts:
                yield path


def name_of(node: ast.AST) -> str:
    """Return the name that a node binds; empty where it binds none."""
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return node.name
        case ast.arg():
            return node.arg
        case ast.Name(ctx=ast.Store()):
            return node.id
    return ""


def fields_of(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and first line of every docstring of a field or constant."""
    body = node.body if isinstance(node, ast.Module | ast.ClassDef) else []
    for one, two in pairwise(body):
        match one, two:
            case (ast.Assign() | ast.AnnAssign(), ast.Expr(value=ast.Constant(value=str(text)))):
                yield two.lineno, text.strip().partition("\n")[0]


def lines_of() -> dict[str, int]:
    """Return the lines of the package without recipes, of the tests without benchmarks, and of these."""
    tests = {path: "benchmarks" if "benchmarks" in path.parts else "tests" for path in (ROOT / "tests").rglob("*.py")}
    lines = {"package": 0, "tests": 0, "benchmarks": 0}
    for path, part in {**dict.fromkeys(files(), "package"), **tests}.items():
        lines[part] += path.read_text(encoding="utf-8").count("\n")
    return lines


def main() -> None:
    """Print the figures beside their limits; exit with 1 where one is above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", type=int, default=0, metavar="N", help="also print the first N of every kind")
    most = parser.parse_args().list
    found: dict[str, list[str]] = {kind: [] for kind in LIMITS}
    docstrings = fields = names = 0
    for path in files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: "
            holds = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if holds and (first := (ast.get_docstring(node) or "").partition("\n")[0]):
                docstrings += 1
                found["openings"] += [where + first] * bool(OPENING.match(first))
                found["long first lines"] += [where + first] * (len(first.split()) > WORDS)
            for line, first in fields_of(node):
                fields += 1
                found["openings of fields"] += [f"{path.relative_to(ROOT)}:{line}: {first}"] * bool(
                    FIELD_OPENING.match(first)
                )
            if name := name_of(node):
                names += 1
                found["participles"] += [where + name] * bool(PARTICIPLE.fullmatch(name))
                parts = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
                found["former words"] += [where + name] * bool(FORMER.search(parts))
    whole = {
        "openings": docstrings,
        "openings of fields": fields,
        "long first lines": docstrings,
        "participles": names,
        "former words": 100,
    }
    figures = {kind: 100 * len(rows) / whole[kind] for kind, rows in found.items()}
    for kind, rows in found.items():
        print(f"{kind}: {figures[kind]:.2f}, limit {LIMITS[kind]}")
        print(*rows[:most], sep="\n", end="\n" * bool(most))
    most_lines = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hydragnn"]["lines"]
    lines = lines_of()
    for part, count in lines.items():
        print(f"lines of {part}: {count}, limit {most_lines[part]}")
    sys.exit(
        any(figures[kind] > LIMITS[kind] for kind in LIMITS) or any(lines[part] > most_lines[part] for part in lines)
    )


if __name__ == "__main__":
    main()
