"""Checkpoints, configurations and data of the public HydraGNN on disk."""

import os
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any

from hydragnn.base.errors import InputError
from hydragnn.base.files import read_json
from hydragnn.importing.variables import Source

EPOCH = re.compile(r"^(.*)_epoch_(\d+)$")
WEIGHTS = re.compile(r".*\.pk|(zero_pp_rank_0_)?mp_rank_\d+_model_states\.pt")
"""Names of checkpoints; the second are DeepSpeed's."""
OTHERS = re.compile(r".*\.(pt|pth|ckpt|bin)")
"""Names of checkpoints where none has such a name."""
DEEPEST, MOST = 5, 100_000
"""Folders below each other, and entries, that are looked at."""
SETS = (".bp", ".pickle")
"""Suffixes of folders that are sets of graphs."""
EVENTS, EVENT = "events.out.tfevents.*", re.compile(rb"\x0evalidate error\x15(.{4})", re.DOTALL)
"""Event files of TensorBoard, and a validation loss in one, in single precision."""
BEGIN, SHORT = b"brain.Event:2", 128
"""First entry of an event file, and bytes that an entry after it exceeds."""
LINE = re.compile(rb"Val Loss: ([-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)")
LONGEST = 2**28
"""Bytes of a log that are read."""
FORMATS = {"LSMS": "lsms", "unit_test": "lsms", "CFG": "cfg", "XYZ": "xyz"}
"""Our names of formats of raw files."""


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """One model: its checkpoint and its configuration."""

    name: str
    checkpoint: Path
    root: Path
    """Folder to import, beyond which a set counts by its name alone."""

    @cached_property
    def source(self) -> Source:
        """Return the configuration; InputError without one."""
        return Source(_config(self.checkpoint), Path("config.json"))


def find_models(path: Path) -> list[ModelFiles]:
    """Return the models of a folder or file."""
    if not path.exists():
        raise InputError(f"{path} does not exist; check the path")
    root = path if path.is_dir() else path.parent
    files = [path] if path.is_file() else [*_checkpoints(root, WEIGHTS)] or _checkpoints(root, OTHERS)
    files = [one for one in files if path.is_file() or one.exists()]  # links to epochs that are gone
    newest = {(one.parent, _epoch(one)[0]): one for one in sorted(files, key=lambda one: _epoch(one)[1])}
    links_first = sorted(newest.values(), key=lambda one: one.resolve() == one.absolute())
    unique = {one.resolve(): one for one in links_first}
    if not unique:
        move, shards = "give the folder of its run, or the file", next(iter(sorted(root.glob("**/*.distcp"))), root)
        if shards != root:
            move = f"join its shards: python -m torch.distributed.checkpoint.format_utils dcp_to_torch {quote(str(shards.parent))} NEW.pk"
        raise InputError(f"{path} holds no checkpoint (.pk) of the public HydraGNN; {move}")
    of_folders = [file.parent for file in unique.values()]
    models = []
    for file in sorted(unique.values(), key=str):
        name = file.parent.resolve().name if of_folders.count(file.parent) == 1 else _epoch(file)[0]
        models.append(ModelFiles(name=name, checkpoint=file, root=root))
    return models


def _epoch(file: Path) -> tuple[str, int]:
    """Return the name without the number of an epoch, and that number."""
    match = EPOCH.match(file.stem)
    return (match[1], int(match[2])) if match else (file.stem, 10**9)


def _checkpoints(root: Path, names_of: re.Pattern[str]) -> Iterator[Path]:
    entries = 0
    for folder, folders, names in os.walk(root, followlinks=True):
        deep = len(Path(folder).relative_to(root).parts)
        folders[:] = sorted(one for one in folders if deep < DEEPEST and not one.endswith(SETS) and one[0] != ".")
        entries += len(names)
        if entries > MOST:
            raise InputError(f"{root} holds more than {MOST:,} files; give the folder of the run itself")
        yield from (Path(folder) / name for name in names if names_of.fullmatch(name))


def _config(checkpoint: Path) -> Mapping[str, Any]:
    """Return the configuration beside a checkpoint, or one folder up or down."""
    for folder in (checkpoint.parent, checkpoint.resolve().parent):  # of a link, that of its target comes second
        others = [*sorted(folder.glob("*/config.json")), *sorted(folder.glob("*.json"))]
        for places in ([folder / "config.json"], [folder.parent / "config.json"], others):
            dicts = {place: one for place in places if place.is_file() and isinstance(one := read_json(place), dict)}
            configs = {place: one for place, one in dicts.items() if isinstance(one.get("NeuralNetwork"), dict)}
            if any(one != next(iter(configs.values())) for one in configs.values()):
                raise InputError(f"{' and '.join(map(str, configs))} differ; name that of {folder} config.json")
            for place, value in configs.items():
                if not isinstance(value["NeuralNetwork"].get("Architecture"), dict):
                    raise InputError(f"{place} has no NeuralNetwork.Architecture; copy it again")
                return value
    raise InputError(f"{checkpoint.parent} has no config.json of its model; copy the one of the checkpoint's run")


def logged_losses(folder: Path) -> list[float] | None:
    """Return the validation losses in logs; None where unknown.

    Unknown are those of logs that neither have some nor show that there were none.
    """
    losses, events = list[float](), [*folder.glob(EVENTS)]
    contents = dict.fromkeys(events, b"")
    for file in filter(Path.is_file, [*events, *folder.glob("run.log")]):
        with suppress(OSError), file.open("rb") as log:  # a loss that nobody may read is none
            contents[file] = content = log.read(LONGEST)
            logged = [struct.unpack("<f", own)[0] for own in EVENT.findall(content)]
            losses += logged or map(float, LINE.findall(content))
    bare = bool(events) and all(BEGIN in contents[file] and len(contents[file]) < SHORT for file in events)
    return losses if losses or bare else None


def find_data(model: ModelFiles, branch: int | None = None) -> Path | None:
    """Return the data of a model or of its branch.

    InputError where several sets lie there, and the configuration names none of them.
    """
    paths, name = model.source.paths, model.source.dataset.get("name")
    shared = [one for key, one in paths.items() if branch is None or not key.startswith("branch-")]
    shared += [f"{folder}{name}{suffix}" for folder in ("dataset/", "") for suffix in SETS]
    names, several = [own] if (own := paths.get(f"branch-{branch}")) else shared, list[Path]()
    for root in _roots(model):
        for name in names:
            if (root / name).suffix in SETS and has_files(root / name):
                return root / name
        near = [one for one in [*root.glob("*"), *root.glob("dataset/*")] if one.suffix in SETS and one.is_dir()]
        if root.resolve().is_relative_to(model.root.resolve()):
            if len(near) == 1 and not own:
                return near[0]
            several = several or sorted(near)
    if (raw := folder_of_raw(model)) is not None:
        return raw / next(iter(paths.values()))
    if several:
        some, key = ", ".join(one.name for one in several[:3]), "total" if branch is None else f"branch-{branch}"
        raise InputError(
            f"config.json names none of the sets beside the checkpoint ({some}{', ...' * (len(several) > 3)}): "
            f'add "Dataset": {{"path": {{"{key}": "FILE"}}}} to it, and import again'
        )
    return None


def folder_of_raw(model: ModelFiles) -> Path | None:
    """Return the folder from which paths of raw files count; None without."""
    data, places = model.source.dataset, model.source.paths.values()
    if data.get("format") not in FORMATS or "node_features" not in data or not places:
        return None
    return next((one for one in _roots(model) if all(has_files(one / name) for name in places)), None)


def has_files(path: Path) -> bool:
    """Return True for a folder that is not empty."""
    try:
        return any(path.iterdir())
    except (OSError, ValueError):  # no folder, or no path
        return False


def _roots(model: ModelFiles) -> list[Path]:
    return [root for file in (model.checkpoint.absolute(), model.checkpoint.resolve()) for root in file.parents[:4]]
