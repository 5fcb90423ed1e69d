"""What a user installs is what the repository holds."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path


def test_every_package_in_the_checkout_but_recipes_is_shipped(root: Path) -> None:
    listed = set(tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    actual = set()
    for room in ("graphs", "datasets", "hpo", "ensemble", "scripts", "hydragnn"):
        for init in (root / room).rglob("__init__.py"):
            parts = init.parent.relative_to(root).parts
            actual.add(".".join(parts if room == "hydragnn" else ("hydragnn", *parts)))
    assert listed == actual - {"hydragnn.scripts.recipes"}


def python(code: str, root: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code in another folder than the checkout, which alone is on the path."""
    command = [sys.executable, "-W", "error::SyntaxWarning", "-c", code]
    environment = {"PYTHONPATH": str(root), "PATH": ""}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_every_module_imports_from_a_bare_checkout_in_another_folder(root: Path, tmp_path: Path) -> None:
    code = (
        "import importlib, pkgutil, hydragnn\n"
        "rooms = ('graphs', 'datasets', 'kernels', 'layers', 'models', 'training', 'hpo', 'ensemble', 'scripts')\n"
        "for room in rooms:\n"
        "    package = importlib.import_module('hydragnn.' + room)\n"
        "    for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if not found.name.endswith('__main__'): importlib.import_module(found.name)\n"
        "print('imported')"
    )
    done = python(code, root, tmp_path)
    assert done.stdout.strip() == "imported", done.stderr


def test_the_short_name_of_a_room_is_refused(root: Path, tmp_path: Path) -> None:
    done = python("import datasets", root, tmp_path)
    assert done.returncode == 1
    assert "hydragnn.datasets" in done.stderr.splitlines()[-1]


def test_light_import_does_not_load_torch(root: Path, tmp_path: Path) -> None:
    assert python("import sys, hydragnn; print('torch' in sys.modules)", root, tmp_path).stdout.strip() == "False"


def test_shapes_are_annotated_with_a_class_of_arrays(root: Path) -> None:
    """From numpy 2.5 on an alias of NDArray is none, and jaxtyping refuses it when the module is imported."""
    files = [
        path
        for room in ("graphs", "datasets", "hydragnn", "hpo", "ensemble", "scripts")
        for path in (root / room).rglob("*.py")
    ]
    wrong = [
        f"{path.name}: {line.strip()}"
        for path in files
        for line in path.read_text().splitlines()
        if re.search(r"\b(Float|Int|Bool|Num|Shaped)\d*\[NDArray|^(Array|Numbers) = NDArray\[np", line)
        and "recipes" not in path.parts
    ]
    assert not wrong
