"""A model on disk: ``model.json`` says what it is, ``weights.safetensors`` holds its numbers; no pickle."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from hydragnn.datasets.normalisation import Normalisation, normalisation_from_json
from hydragnn.errors import InputError
from hydragnn.files import read_json, write_atomically, write_json
from hydragnn.models.build import build_described
from hydragnn.models.description import ModelDescription, description_from_json
from hydragnn.models.graph_model import GraphModel

VERSION = 2
"""1: the weights of encoders lay in one list per kind of layer; names are translated on reading."""


def save_model(
    folder: Path,
    model: GraphModel,
    normalisation: Normalisation,
    weights: Mapping[str, Tensor] | None = None,
    check: Callable[[], None] | None = None,
) -> None:
    """Write the model into ``folder``, weights first and atomically; ``weights`` replaces the model's own (averages).

    ``check`` is called right before each file gets its name, and what it raises leaves the old one.
    """
    state = dict(model.state_dict()) if weights is None else dict(weights)
    contiguous = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    write_atomically(folder / "weights.safetensors", save(contiguous), check)
    write_json(
        folder / "model.json",
        {"version": VERSION, **model.description.to_json(), "normalisation": normalisation.to_json()},
        check,
    )


def read_description(folder: Path) -> tuple[ModelDescription, Normalisation]:
    """What ``model.json`` says; InputError where it is missing, damaged or from a newer version."""
    path = folder / "model.json"
    value: Any = read_json(path)
    if not isinstance(value, dict) or not isinstance(value.get("version"), int):
        raise InputError(f"{path} does not describe a model; was {folder} made by hydragnn train?")
    if value["version"] > VERSION:
        raise InputError(
            f"{path} has version {value['version']}, this program reads up to {VERSION}; update the program"
        )
    try:
        return description_from_json(value), normalisation_from_json(value["normalisation"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged ({error}); train or copy the model again") from error


def load_graph_model(folder: Path) -> tuple[GraphModel, Normalisation]:
    """The model in ``folder`` with its weights; InputError where files are missing, damaged or do not fit together."""
    description, normalisation = read_description(folder)
    path = folder / "weights.safetensors"
    try:
        weights = load_file(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; copy the whole folder of the model") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} cannot be read ({error}); copy the whole folder of the model again") from error
    model = build_described(description, seed=0)
    weights = {_renamed(name, description): value for name, value in weights.items()}
    dtypes = {value.dtype for value in weights.values() if value.is_floating_point()}
    if torch.float64 in dtypes:
        model = model.double()
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(f"{path} does not fit {folder / 'model.json'}; copy the whole folder again") from error
    return model, normalisation


def _renamed(name: str, description: ModelDescription) -> str:
    """Today's name of a weight, whatever version called it so."""
    room, _, rest = name.partition(".")
    return f"{room}.{description.architecture.renamed(rest)}" if room == "encoder" else name
