"""Checks of the paths that commands take, without torch.

Commands call them before they import torch, and whatever opens a path calls them again.
"""

import os
from pathlib import Path
from typing import Any, Literal

from hydragnn.base.errors import InputError
from hydragnn.base.files import kind_of_folder

MANIFEST = "manifest.json"
"""What makes a folder a store."""

SUFFIXES = (".h5", ".bp", ".npz", ".csv", ".parquet", ".xyz")
"""Formats of predictions."""

Kind = Literal["ensemble", "campaign", "run"]
MARKS: dict[str, Kind] = {"ensemble.json": "ensemble", "campaign.json": "campaign", "record.json": "run"}
"""Kinds of folders by their file."""


def as_path(value: Any) -> Path:
    """Return a path; InputError for what is no text and no path."""
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"{value!r:.60} ({type(value).__name__}) is no path; give a text or a pathlib.Path")
    return Path(value)


def check_texts(values: Any, what: str, example: str) -> None:
    """Raise InputError for what is no list of texts."""
    if not isinstance(values, list | tuple) or not all(isinstance(one, str) for one in values):
        raise InputError(f"{what} = {values!r:.60} is no list of texts; write for example {what}=['{example}']")


def check_workers(value: Any) -> None:
    """Raise InputError for a number of workers that is none."""
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if value not in (None, "auto") and not whole:
        raise InputError(f"workers = {value!r:.40} is neither a whole number from 1 nor auto")


def check_exists(path: Path) -> None:
    """Raise InputError where there is nothing."""
    if not path.exists():
        raise InputError(f"{path} does not exist; check the path")


def check_store(folder: Path) -> None:
    """Raise InputError for anything else than a complete store."""
    check_exists(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is a file, not a store; make one with: hydragnn data build")
    if not (folder / MANIFEST).exists():
        if any(folder.glob("*part-*")):
            raise InputError(f"{folder} has no {MANIFEST}: the writer did not finish; run it again")
        raise InputError(f"{folder} has no {MANIFEST}, so it is not a store; make one with: hydragnn data build")


def check_stores(table: dict[str, Any], origin: Path) -> None:
    """Raise InputError for the first store of a configuration that is none.

    Relative paths count from the folder of the file ``origin``. What is no table or no text is left to the configuration's own checks.
    """
    branches = table.get("branches")
    for section in [table, *(branches if isinstance(branches, list) else [])]:
        data = section.get("data") if isinstance(section, dict) else None
        if isinstance(data, dict) and isinstance(data.get("store"), str):
            check_store((origin.parent / data["store"]).resolve())


def is_store(path: Path) -> bool:
    """Return True for the path of a store; InputError without one."""
    check_exists(path)
    return path.suffix in (".h5", ".bp") or (path / MANIFEST).is_file()


def check_file(path: Path) -> None:
    """Raise InputError for a source of graphs that is no file."""
    if not path.is_file():
        raise InputError(f"{path} is neither a store, a BUILD.toml nor another file; give one of them")


def check_source(path: Path) -> None:
    """Raise InputError for graphs that cannot be predicted, whatever they hold."""
    if is_store(path):
        check_store(path)
    elif path.suffix != ".toml":
        check_file(path)


def check_model(folder: Path) -> Kind:
    """Return "ensemble" or "run"; InputError for any other folder."""
    kind = next((kind for mark, kind in MARKS.items() if kind != "campaign" and (folder / mark).is_file()), None)
    if kind is None and (folder / "campaign.json").is_file():
        raise InputError(f"{folder} is a campaign; make an ensemble first: hydragnn ensemble {folder} --out ENSEMBLE")
    if kind is None and (folder / "model.json").is_file():
        raise InputError(f"{folder} is the model of a run; give the folder of the run, {folder.parent}")
    if kind is None:
        raise InputError(f"{folder} is neither an ensemble nor a run; give a folder made by hydragnn ensemble or train")
    return kind


def check_suffix(path: Path) -> None:
    """Raise InputError for a file whose suffix is no format of predictions."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"--out {path}: the suffix chooses the format; use one of {', '.join(SUFFIXES)}")


def reported_kind(folder: Path) -> Kind:
    """Return the kind of a folder with a report; InputError for others.

    The order matters: an ensemble's member holds a record, an ensemble may lie inside a campaign.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} does not exist or is no folder; give the --out of an earlier command")
    for mark, kind in MARKS.items():
        if (folder / mark).is_file():
            return kind
    raise InputError(
        f"{folder} is neither a campaign, an ensemble nor a run (no {', '.join(MARKS)}); give the --out of an earlier command"
    )


def source_kind(source: Path) -> str:
    """Return "a campaign" or "a run"; InputError for anything else."""
    if not source.is_dir():
        problem = "is a file" if source.exists() else "does not exist"
        raise InputError(
            f"{source} {problem}; give a folder made by hydragnn search, or folders made by hydragnn train"
        )
    kind = "a campaign" if (source / "campaign.json").is_file() else kind_of_folder(source)
    if kind not in ("a campaign", "a run"):
        raise InputError(
            f"{source} is {kind or 'neither a campaign nor a run'}; give a folder made by hydragnn search, or folders made by "
            "hydragnn train"
        )
    return kind
