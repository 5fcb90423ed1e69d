"""Models on disk: ``model.json`` and ``weights.safetensors``, no pickle."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from hydragnn.base.errors import InputError, about
from hydragnn.base.files import Check, check_version, read_sealed, replace_atomically, write_sealed
from hydragnn.base.limits import check_readable
from hydragnn.datasets.normalisation import Normalisation, check_widths, normalisation_from_json
from hydragnn.graphs.levels import CLUSTERS
from hydragnn.models.branched import BranchedModel, build_branched
from hydragnn.models.description import ModelDescription, description_from_json
from hydragnn.models.graph_model import GraphModel

VERSION = 2
BRANCHED = 3
"""Version of models with several branches."""
STIFF = 4
"""Version of models with a stiffness, which earlier programs would leave out."""
SMALL = 256
"""Size that a description may ask for, however few weights there are."""
CHECKSUM = "sha256"
"""Key of the checksum of numbers in the weights' file: in itself, so that no reader sees one without the other."""


def save_model(
    folder: Path,
    model: GraphModel | BranchedModel,
    *normalisations: Normalisation,
    weights: Mapping[str, Tensor] | None = None,
    check: Check | None = None,
) -> None:
    """Write a model with the normalisation of every branch atomically, weights first.

    ``weights`` replaces the model's own (averages).

    ``check`` is called right before each file gets its name, and what it raises leaves the old one.
    """
    views = model.views if isinstance(model, BranchedModel) else (model,)
    content: Any = [
        {**view.description.to_json(), "normalisation": normalisation.to_json()}
        for view, normalisation in zip(views, normalisations, strict=True)
    ]
    several = isinstance(model, BranchedModel)
    stiff = any(getattr(view.description.close_range, "stiffness", None) is not None for view in views)
    version = STIFF if stiff else BRANCHED if several else VERSION
    content = {"version": version, **({"branches": content} if several else content[0])}
    weights = model.state_dict() if weights is None else weights
    contiguous: dict[str, Tensor] = {}
    places = set[int]()  # a module under several names has one tensor, and files have none that share memory
    for name, value in weights.items():
        one = value.detach().cpu().contiguous()
        contiguous[name] = one.clone() if one.data_ptr() in places else one
        places.add(one.data_ptr())
    seal = {CHECKSUM: weights_checksum(contiguous)}
    replace_atomically(folder / "weights.safetensors", lambda aside: write_tensors(aside, contiguous, seal), check)
    write_sealed(folder / "model.json", content, check)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write contiguous tensors of the host, flushed; OSError where the disk refuses."""
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(dict(tensors), path, metadata=metadata and dict(metadata))  # without a copy of all in memory
    except SafetensorError as error:
        raise OSError(str(error)) from error
    path.chmod(mode)  # which others may read
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def weights_checksum(weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of all names, types, shapes and numbers."""
    total = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name].detach().cpu().contiguous()
        total.update(f"{name} {value.dtype} {list(value.shape)};".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def read_description(folder: Path | str, branch: str = "") -> tuple[ModelDescription, Normalisation]:
    """Return the description in ``model.json``; InputError if unusable."""
    folder = Path(folder)
    branches = _read(folder)
    return branches[_position([description for description, _ in branches], branch, folder)]


def _read(folder: Path) -> list[tuple[ModelDescription, Normalisation]]:
    """Return every branch in ``model.json``; InputError if damaged."""
    path = folder / "model.json"
    value: Any = read_sealed(path)
    if not isinstance(value, dict) or not isinstance(value.get("version"), int):
        raise InputError(f"{path} does not describe a model; was {folder} made by hydragnn train?")
    check_version(value["version"], path, oldest=VERSION, newest=STIFF)
    try:
        every = value.get("branches", [value])
        branches = [(description_from_json(one), normalisation_from_json(one["normalisation"])) for one in every]
        if not branches:
            raise ValueError("no branches")
        for description, normalisation in branches:
            check_widths(normalisation, description.fields)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged ({error}); train or copy the model again") from error
    return branches


def _position(descriptions: Sequence[ModelDescription], branch: str, folder: Path) -> int:
    """Return a branch's position; InputError lists the branches."""
    names = [description.branch for description in descriptions]
    if branch in names:
        return names.index(branch)
    if names == [""]:
        raise InputError(f"the model in {folder} has no branches, so there is no {branch}; leave the branch out")
    problem = f"no branch {branch}" if branch else "several branches, and none was named"
    raise InputError(
        f"the model in {folder} has {problem}; name one of {', '.join(names)} (--branch, or hydragnn.load(RUN, branch))"
    )


def load_graph_model(folder: Path | str, branch: str = "") -> tuple[GraphModel, Normalisation]:
    """Return a model with its weights, and its normalisation.

    InputError where files are missing, damaged or do not fit together, and where there is no such branch.
    """
    folder = Path(folder)
    branches = _read(folder)
    descriptions = [description for description, _ in branches]
    position = _position(descriptions, branch, folder)
    weights = read_weights(folder / "weights.safetensors")
    _check_size(descriptions, weights, folder / "model.json")
    with about(str(folder / "model.json")):
        model = build_branched(descriptions, seed=0)
    if torch.float64 in {value.dtype for value in weights.values() if value.is_floating_point()}:
        model = model.double()
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        places = f"{folder / 'weights.safetensors'} does not fit {folder / 'model.json'}"
        raise InputError(f"{places}; copy the whole folder again") from error
    return model.views[position] if isinstance(model, BranchedModel) else model, branches[position][1]


def _check_size(descriptions: Sequence[ModelDescription], weights: Mapping[str, Tensor], path: Path) -> None:
    """Raise InputError where sizes exceed the weights, before anything is allocated."""
    count, tables = sum(value.numel() for value in weights.values()), []
    for description in descriptions:  # without entries that are no sizes
        table = description.to_json()
        ours: Any = next(cls for cls in type(description.model).__mro__ if cls.__module__.startswith("hydragnn."))
        if description.model.pooling is not None:
            table["fields"] = [field for field in table["fields"] if field["name"] != CLUSTERS]
        sizes = {key: value for key, value in table["model"].items() if key in ours.model_fields}
        tables.append({**table, "model": sizes})
    largest = max(_whole_numbers(tables), default=0)
    if largest > max(count, SMALL):
        raise InputError(f"{path} is damaged (it asks for {largest} of something, with {count} weights); copy it again")


def _whole_numbers(value: Any) -> Iterator[int]:
    """The whole numbers in plain JSON."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _whole_numbers(item)
    elif isinstance(value, int):
        yield value


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the weights of a model; InputError where they are damaged."""
    check_readable(path)
    try:
        with safe_open(path, framework="pt") as file:
            expected = (file.metadata() or {}).get(CHECKSUM)
        weights = load_file(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; copy the whole folder of the model") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} cannot be read ({error}); copy the whole folder of the model again") from error
    if expected != weights_checksum(weights):
        raise InputError(f"{path} is damaged: its checksum is not that of what was written; use another copy")
    return weights
