"""Checkpoints, configurations and data of the public HydraGNN on disk."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError
from hydragnn.base.files import read_json

EPOCH, BRANCH = re.compile(r"^(.*)_epoch_(\d+)$"), re.compile(r"^(.*)_branch(\d+)$")
DEEPEST, MOST = 5, 100_000
"""Folders below each other, and entries, that are looked at."""
SETS = (".bp", ".pickle")
"""Suffixes of folders that are sets of graphs."""


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """One model: its checkpoint and its configuration."""

    name: str
    checkpoint: Path
    config: Mapping[str, Any]
    branch: int | None = None
    """Branch that the checkpoint holds alone; None for all."""


def find_models(path: Path) -> list[ModelFiles]:
    """Return the models of a folder or file."""
    if not path.exists():
        raise InputError(f"{path} does not exist; check the path")
    files = (
        [path] if path.is_file() and path.suffix != ".json" else [*_checkpoints(path if path.is_dir() else path.parent)]
    )
    newest = {}
    for file in sorted(files, key=_age):
        if path.is_file() or file.exists():  # links to epochs that are gone
            newest[file.parent, _epoch(file)[0]] = file
    if not newest:
        raise InputError(
            f"{path} holds no checkpoint (.pk) of the public HydraGNN; give the folder of its run, or the file"
        )
    of_folders = [folder for folder, _ in newest]
    result = []
    for (folder, stem), file in newest.items():
        branch = BRANCH.match(stem)
        name = folder.name if of_folders.count(folder) == 1 else stem
        result.append(
            ModelFiles(name=name, checkpoint=file, config=_config(folder), branch=int(branch[2]) if branch else None)
        )
    return sorted(result, key=lambda one: str(one.checkpoint))


def _epoch(file: Path) -> tuple[str, int]:
    """Return the name without the number of an epoch, and that number."""
    match = EPOCH.match(file.stem)
    return (match[1], int(match[2])) if match else (file.stem, 10**9)


def _age(file: Path) -> tuple[str, int]:
    return str(file.parent), _epoch(file)[1]


def _checkpoints(root: Path) -> Iterator[Path]:
    entries = 0
    for folder, folders, names in os.walk(root):
        deep = len(Path(folder).relative_to(root).parts)
        folders[:] = sorted(one for one in folders if deep < DEEPEST and not one.endswith(SETS) and one[0] != ".")
        entries += len(names)
        if entries > MOST:
            raise InputError(f"{root} holds more than {MOST:,} files; give the folder of the run itself")
        yield from (Path(folder) / name for name in names if name.endswith(".pk"))


def _config(folder: Path) -> Mapping[str, Any]:
    """Return the configuration beside a checkpoint, or one folder up or down."""
    near = [folder, folder.parent, *sorted(one for one in folder.iterdir() if one.is_dir())]
    places = [place / "config.json" for place in near] + sorted(folder.glob("*.json"))
    for place in filter(Path.is_file, places):
        value = read_json(place)
        if isinstance(value, dict) and isinstance(value.get("NeuralNetwork"), dict):
            if not isinstance(value["NeuralNetwork"].get("Architecture"), dict):
                raise InputError(f"{place} has no NeuralNetwork.Architecture; copy it again")
            return value
    raise InputError(f"{folder} has no config.json of its model; copy the one that was written beside the checkpoint")


def find_data(model: ModelFiles) -> Path | None:
    """Return the set of graphs beside a model; None without."""
    dataset = model.config.get("Dataset", {})
    places = [*map(str, dict(dataset.get("path") or {}).values())] if isinstance(dataset, dict) else []
    names = [*places, *(f"dataset/{dataset.get('name')}{suffix}" for suffix in SETS)]
    for root in [model.checkpoint.parent, *model.checkpoint.absolute().parents[1:4]]:
        for name in names:
            if (root / name).is_dir() and name.endswith(SETS):
                return root / name
        near = [
            one
            for one in sorted(root.glob("*")) + sorted(root.glob("dataset/*"))
            if one.suffix in SETS and one.is_dir()
        ]
        if len(near) == 1:
            return near[0]
    return None
