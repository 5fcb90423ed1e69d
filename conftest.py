"""Doctests of the rooms run in the modules of the package, not in second copies under the folders' short names."""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent
OPTIONAL = {"metatomic_model.py": "metatomic", "torch_sim_states.py": "torch_sim"}
collect_ignore = [f"ensemble/exporting/{name}" for name, package in OPTIONAL.items() if find_spec(package) is None]
"""Modules for which a package of an extra is needed."""
ROOMS = ("graphs", "datasets", "hpo", "ensemble", "scripts")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> None:
    """Let pytest find ``datasets/arrays.py`` already imported, as ``hydragnn.datasets.arrays``."""
    parts = file_path.relative_to(ROOT).with_suffix("").parts if file_path.is_relative_to(ROOT) else ()
    if file_path.suffix == ".py" and parts and parts[0] in ROOMS:
        short = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        sys.modules.setdefault(short, import_module(f"hydragnn.{short}"))
