"""The Python api: what the package offers, and that static tools see the types."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

import hydragnn
from hydragnn.ensemble import Ensemble
from hydragnn.scripts import api


def test_the_package_offers_what_the_api_has() -> None:
    helpers = {"InputError", "run_summary"}
    assert set(hydragnn.__all__) == set(api.__all__) - helpers
    assert all(getattr(hydragnn, name) is getattr(api, name) for name in hydragnn.__all__)


def test_all_public_functions_of_the_api_are_listed() -> None:
    public = {
        name
        for name, value in vars(api).items()
        if inspect.isfunction(value) and value.__module__ == api.__name__ and not name.startswith("_")
    }
    assert public <= set(api.__all__)


@pytest.mark.parametrize("name", sorted(hydragnn.__all__))
def test_every_function_says_what_it_takes_and_gives(name: str) -> None:
    function = getattr(hydragnn, name)
    hints = get_type_hints(function, localns={"Ensemble": Ensemble})
    assert set(hints) == {*inspect.signature(function).parameters, "return"}


def test_static_tools_see_the_types(root: Path, tmp_path: Path) -> None:
    mypy = pytest.importorskip("mypy")
    assert mypy is not None
    links = root / ".links"
    if not links.is_dir():
        pytest.skip("scripts/links.sh has not laid the rooms out for static tools")
    program = tmp_path / "program.py"
    program.write_text("import hydragnn\nreveal_type(hydragnn.load)\nreveal_type(hydragnn.train)\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--config-file",
            str(root / "pyproject.toml"),
            "--cache-dir",
            str(tmp_path),
            program,
        ],
        capture_output=True,
        text=True,
        cwd=links,
        check=False,
    )
    assert "-> hydragnn.ensemble.ensemble.Ensemble" in done.stdout and "RunRecord" in done.stdout, done.stdout
