"""Shape checks of jaxtyping are active in the tests, and every test runs on one thread."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

install_import_hook("hydragnn", "beartype.beartype")
torch.set_num_threads(1)
settings.register_profile("tests", deadline=None)  # the first example also imports; a busy machine is no failure
settings.load_profile("tests")

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(
    str(ROOT / "tests" / "hpo")
)  # for `from world import World`: pytest's importlib mode leaves folders out


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with real data beside the project; skips where it is absent."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"real data not found at {folder}; see docs/recipes.md")
    return folder


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root folder."""
    return ROOT


def loaded(name: str) -> ModuleType:
    """A module beside this file."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def played() -> ModuleType:
    """The module that plays campaigns through the real scheduler on a virtual clock."""
    return importlib.import_module("played")


@pytest.fixture(scope="session")
def slurm_module() -> ModuleType:
    """The module that brings up a real Slurm; skips, with the reason, where this machine cannot have one."""
    module = loaded("slurm")
    reason = module.why_not()
    if reason:
        pytest.skip(f"no real Slurm: {reason}")
    return module


@pytest.fixture(scope="session")
def slurm(slurm_module: ModuleType) -> Iterator[Any]:
    """A real Slurm with four nodes of four cores."""
    with slurm_module.Cluster(nodes=4) as cluster:
        yield cluster
