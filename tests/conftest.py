"""Shape checks of jaxtyping are active in the tests, and every test runs on one thread."""

from pathlib import Path

import pytest
import torch
from jaxtyping import install_import_hook

install_import_hook("hydragnn", "beartype.beartype")
torch.set_num_threads(1)

ROOT = Path(__file__).resolve().parent.parent


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
