"""Runs as sources of runs: a folder that resumes in itself, or the configuration in it."""

import os
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError

CONFIG = "config.json"
"""The configuration in the folder of a run; a program wrote it, and the folder may come from anybody."""


def run_of(config: Any) -> Path | None:
    """The folder of the run that a configuration is; None where it is a table or another file."""
    path = Path(config) if isinstance(config, str | os.PathLike) else Path()
    if path.name == CONFIG:
        return path.parent
    if config == path or isinstance(config, str):
        if path.is_dir() and not (path / CONFIG).is_file():
            raise InputError(f"{path} is a folder without a run (it has no {CONFIG}); give a CONFIG.toml")
        return path if path.is_dir() else None
    return None


def run_folder(config: Any, out: Path | str | None, *, resume: bool = True) -> Path:
    """The folder that a run trains in: ``out``, or with ``resume`` that of the run that ``config`` is; InputError without one."""
    own = run_of(config)
    if out is not None:
        return Path(out)
    if own is None:
        raise InputError("--out is missing; name the folder that the run goes into (out=)")
    if not resume:
        raise InputError(f"{own} is a run; continue it with --resume, or begin another like it with --out NEW")
    return own
