"""Runs as sources of runs."""

from pathlib import Path
from typing import Any

from hydragnn.base import places
from hydragnn.base.errors import InputError
from hydragnn.base.places import MADE_BY, as_path, check_kind
from hydragnn.base.settings import Settings

CONFIG = "config.json"
"""The configuration in a run folder, which may come from anybody."""


def run_of(config: Any) -> Path | None:
    """Return the run folder that a configuration names; None for other files."""
    path = as_path(config) if not isinstance(config, Settings | dict) else Path()
    if path.name == CONFIG:
        return path.parent
    if config == path or isinstance(config, str):
        if path.is_dir() and not (path / CONFIG).is_file():
            raise InputError(f"{path} is a folder without a run (it has no {CONFIG}); give a CONFIG.toml")
        return path if path.is_dir() else None
    return None


def run_folder(config: Any, out: Path | str | None, *, resume: bool = True) -> Path:
    """Return the folder of a run: ``out``, or its own with ``resume``."""
    own = run_of(config)
    if out is not None:
        return as_path(out)
    if own is None:
        raise InputError("--out is missing; name the folder that the run goes into (out=)")
    if not resume:
        raise InputError(f"{own} is a run; continue it with --resume, or begin another like it with --out NEW")
    return own


def model_folder(path: Path) -> Path:
    """Return an ensemble or run, or a campaign's best trial.

    InputError for anything else, for a model without its run, and for a campaign without a result.
    """
    if check_kind(path, *MADE_BY, "a model") != "a campaign":
        return places.model_folder(path)
    from hydragnn.hpo.final import best_runs

    if not (runs := best_runs(path)):
        raise InputError(f"{path} is a campaign without a result so far; wait for a trial, or resume the search")
    return runs[0]
