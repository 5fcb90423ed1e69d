"""What a user installs is what the repository holds."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from setuptools import Distribution


def test_the_wheel_holds_every_file_of_its_packages(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules, templates, styles and demo data, by what setuptools itself would copy; scripts of the shell and recipes stay."""
    monkeypatch.chdir(root)
    distribution = Distribution({"script_name": "setup.py"})
    distribution.parse_config_files()
    distribution.include_package_data = False  # which would need the list of files of a source archive
    build: Any = distribution.get_command_obj("build_py")
    build.ensure_finalized()
    shipped = {Path(folder, name) for _, folder, _, names in build.data_files for name in names}
    shipped |= {Path(file) for _, _, file in build.find_all_modules()}
    files = {path.relative_to(root) for room in ROOMS for path in (root / room).rglob("[!.]*") if path.is_file()}
    stays = {".cpp", ".h", ".so", ".sh"}  # setup.py lists the sources of what is compiled
    assert shipped == {
        path for path in files if path.suffix not in stays and not {"__pycache__", "recipes"} & {*path.parts}
    }


ROOMS = ("graphs", "datasets", "hpo", "ensemble", "scripts", "hydragnn")


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
        "        try:\n"
        "            if not found.name.endswith('__main__'): importlib.import_module(found.name)\n"
        "        except ModuleNotFoundError as error:  # of an extra\n"
        "            if error.name not in ('metatensor', 'metatomic', 'torch_sim'): raise\n"
        "print('imported')"
    )
    done = python(code, root, tmp_path)
    assert done.stdout.strip() == "imported", done.stderr


def test_a_light_import_loads_no_torch_and_the_short_name_of_a_room_is_refused(root: Path, tmp_path: Path) -> None:
    done = python("import sys, hydragnn; print('torch' in sys.modules); import datasets", root, tmp_path)
    assert (done.returncode, done.stdout.strip()) == (1, "False")
    assert "hydragnn.datasets" in done.stderr.splitlines()[-1]


def test_shapes_are_annotated_with_a_class_of_arrays(root: Path) -> None:
    """From numpy 2.5 on an alias of NDArray is none, and jaxtyping refuses it when the module is imported."""
    alias = re.compile(r"\b(?:Float|Int|Bool|Num|Shaped)\d*\[NDArray|^(?:Array|Numbers) = NDArray\[np", re.MULTILINE)
    files = [path for room in ROOMS for path in (root / room).rglob("*.py") if "recipes" not in path.parts]
    assert len(files) > 300 and not [path for path in files if alias.search(path.read_text())]
