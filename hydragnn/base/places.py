"""Checks of the paths that commands take, without torch.

Commands call them before they import torch, and whatever opens a path calls them again.
"""

import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from multiprocessing import current_process
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError
from hydragnn.base.files import kind_of_folder
from hydragnn.base.limits import status_of

MANIFEST = "manifest.json"
"""File that makes a folder a store."""
INDEX = "md.idx"
"""File that makes a folder a set of ADIOS2."""
StorePlace = Path | tuple[Path, ...]
"""A store, or several that are one."""

SUFFIXES = (".h5", ".csv", ".parquet", ".xyz")

MADE_BY = {"a campaign": "hydragnn search", "an ensemble": "hydragnn ensemble", "a run": "hydragnn train"}
"""Commands by the kind of folder that they make."""


def paths_of(place: StorePlace) -> tuple[Path, ...]:
    """Return the paths of a store, or of several."""
    return (place,) if isinstance(place, Path) else place


def stores_from_json(value: Any) -> StorePlace:
    """Return the store or stores that a configuration names."""
    return tuple(map(Path, value)) if isinstance(value, list | tuple) else Path(value)


def text_of(place: StorePlace) -> str:
    """Return the paths of stores in one line."""
    return ", ".join(map(str, paths_of(place)))


def absent_store(place: StorePlace) -> Path | None:
    """Return the first path of stores that does not exist."""
    return next((path for path in paths_of(place) if not path.exists()), None)


def as_path(value: Any) -> Path:
    """Return a path; InputError for what can be none."""
    if not isinstance(value, str | os.PathLike) or value == "" or "\0" in str(value):
        raise InputError(f"{value!r:.60} ({type(value).__name__}) is no path; give a text or a pathlib.Path")
    status_of(at_home(value))
    return at_home(value)


def at_home(value: str | os.PathLike[str]) -> Path:
    """Return a path with the home folder for a leading ``~``."""
    path = Path(value)
    return path.expanduser() if path.parts[:1] == ("~",) else path


FOLDERS = (".h5", ".bp", ".traj", ".bundle", ".zarr")
"""Ends of folders that are one file to a reader."""


def matching_files(pattern: Path | str) -> list[Path]:
    """Return the files of a path, folder or pattern, by name."""
    path = as_path(pattern)
    literal = Path(re.sub(r"\[([*?[])\]", r"\1", str(path)))  # a folder with brackets comes escaped
    path = literal if literal.exists() else path
    if path.is_dir() and path.suffix not in FOLDERS:
        return sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    return [path] if path.exists() else sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))


def source_paths(source: Any) -> list[Path]:
    """Return stores or files of paths and patterns; InputError for mixtures."""
    paths: dict[Path, None] = {}
    for pattern in source if isinstance(source, list | tuple) else [source]:
        path = as_path(pattern)
        matches = [path] if (path / MANIFEST).is_file() else matching_files(path)
        check_exists(matches[0] if matches else path)
        if not matches:  # an empty folder
            check_file(path)
        if twice := [one for one in matches if one in paths]:
            raise InputError(f"{twice[0]} is named twice, and each file is predicted once; name it once")
        paths |= dict.fromkeys(matches)
    if not paths:
        raise InputError("there is no file to predict; give at least one")
    stores = [path for path in paths if is_store(path)]
    for path in paths:
        if path in stores:
            check_store(path)
        elif stores:
            raise InputError(f"{stores[0]} is a store and {path} is none; predict stores and files apart")
        elif path.suffix != ".toml":
            check_file(path)
    return list(paths)


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of paths that tell them apart.

    >>> distinct_names([Path("a/md.xyz"), Path("b/md.xyz"), Path("c.xyz")])
    ['a/md.xyz', 'b/md.xyz', 'c.xyz']
    """
    names = [path.name for path in paths]
    for length in range(2, max((len(path.parts) for path in paths), default=0) + 1):
        counts = Counter(names)
        if len(counts) == len(names):
            break
        names = ["/".join(path.parts[-length:]) if counts[name] > 1 else name for path, name in zip(paths, names)]
    return names


def check_workers(value: Any) -> None:
    """Raise InputError for a number of workers that is none."""
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if value not in (None, "auto") and not whole:
        raise InputError(f"workers = {value!r:.40} is neither a whole number from 1 nor auto")
    is_worker = getattr(current_process(), "_inheriting", False)  # a worker that reads the program
    if is_worker and value not in (None, 1):
        raise InputError(f'workers = {value} read the program again; put this call under if __name__ == "__main__":')
    program = str(getattr(sys.modules.get("__main__"), "__file__", ""))
    if whole and value > 1 and program.startswith("<"):  # which each worker would have to read again
        raise InputError(f"workers = {value} need a program in a file, and this one is {program}; say workers = 1")


def check_exists(path: Path) -> None:
    """Raise InputError where there is nothing."""
    if status_of(path) is None:
        raise InputError(f"{path} does not exist; check the path")


def is_public(folder: Path) -> bool:
    """Return True for a set of the public HydraGNN (ADIOS2, pickled)."""
    if (folder / MANIFEST).exists():
        return False
    return (folder / INDEX).is_file() or any(folder.glob("*-meta.pkl"))


def check_store(folder: Path) -> None:
    """Raise InputError for anything else than a complete store or public set."""
    check_exists(folder)
    if is_public(folder):
        return
    if not folder.is_dir():
        old = f'of BP3, an old format of ADIOS2, rewrite it by its tool: adios2_reorganize {folder} NEW.bp BPFile "" BP5 ""'
        move = f"if {old}" if folder.suffix == ".bp" else "make one with: hydragnn data build"
        raise InputError(f"{folder} is a file, not a store; {move}")
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
        places = data.get("store") if isinstance(data, dict) else None
        for place in places if isinstance(places, list) else [places]:
            if isinstance(place, str):
                check_store((origin.parent / at_home(place)).resolve())


def is_store(path: Path) -> bool:
    """Return True for the path of a store; InputError without one."""
    check_exists(path)
    return path.suffix in (".h5", ".bp") or (path / MANIFEST).is_file()


def check_file(path: Path) -> None:
    """Raise InputError for a source of graphs that is no file."""
    if not path.is_file():
        raise InputError(f"{path} is neither a store, a BUILD.toml nor another file; give one of them")


def check_kind(folder: Path, *kinds: str) -> str:
    """Return the kind of a folder; InputError unless one of ``kinds``."""
    check_exists(folder)
    kind = kind_of_folder(folder)
    if kind not in kinds:
        *others, last = [one for one in MADE_BY if one in kinds]
        what = kind or ("" if folder.is_dir() else "a file")
        words = f"{what}, neither" if what else "neither"
        commands = " or ".join(MADE_BY[one] for one in (*others, last))
        raise InputError(f"{folder} is {words} {', '.join(others)} nor {last}; give a folder made by {commands}")
    return kind


def model_folder(path: Path) -> Path:
    """Return the ensemble or run of a path; InputError for others."""
    kind = check_kind(path, *MADE_BY, "a model")
    if kind == "a model":
        run = path.resolve().parent
        if not (run / "record.json").is_file():
            raise InputError(
                f"{path} is a model without its run, whose record.json and config.json lie beside it; copy the whole run, or read "
                "the weights alone with hydragnn.models.load_model"
            )
        return run
    if kind == "a campaign":
        raise InputError(f"{path} is a campaign; hydragnn.load takes its best trial, or name the folder of a trial")
    return path


def weights_folder(run: Path) -> Path:
    """Return the folder with the weights of a run or member."""
    return run if (run / "model.json").is_file() else run / "model"


def check_suffix(path: Path) -> None:
    """Raise InputError for a file whose suffix is no format of predictions."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"--out {path}: the suffix chooses the format; use one of {', '.join(SUFFIXES)}")
