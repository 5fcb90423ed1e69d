"""Training runs of recipes: from the recipe's campaign file, resumed where an earlier call was interrupted."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.datasets import MemoryStore, open_store
from hydragnn.graphs import Field
from hydragnn.models import Number, TrainedModel, load_model
from hydragnn.record import RunRecord

Array = torch.Tensor
BLOCK = 64  # graphs predicted at once


def recipe_table(name: str) -> dict[str, Any]:
    """The configuration of a recipe's campaign file, without its ``[search]``."""
    table = tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text())
    return {section: value for section, value in table.items() if section != "search"}


def train_recipe(
    name: str,
    store: Path,
    out: Path,
    *overrides: str,
    epochs: int | None = None,
    heads: list[dict[str, Any]] | None = None,
) -> RunRecord:
    """The run of recipe ``name`` in the folder ``out``, begun, resumed or found finished; InputError where it failed.

    ``heads`` replaces the recipe's heads.
    """
    length = [] if epochs is None else [f"train.epochs={epochs}"]
    table = recipe_table(name)
    table["heads"] = heads or table["heads"]
    table["data"]["store"] = str(store.resolve())
    resume = (out / "config.json").exists()
    record = hydragnn.train(table, out, resume=resume, overrides=[*overrides, *length])
    if record.failure is not None:
        raise InputError(f"{out}: training failed ({record.failure.kind}: {record.failure.message})")
    return record


def predictions(model: TrainedModel, store: Path, graphs: list[int]) -> list[dict[str, tuple[Array, Array]]]:
    """Predicted and true values of every numeric target, block by block of graphs, in the fields' units."""
    reader = open_store(store)
    blocks = []
    for start in range(0, len(graphs), BLOCK):
        batch = reader.read(graphs[start : start + BLOCK])
        blocks.append(
            {
                name: (prediction.mean, batch[name].to(torch.float64))
                for name, prediction in model.predict(batch).items()
                if isinstance(prediction, Number)
            }
        )
    return blocks


def rmse(model: TrainedModel, store: Path, graphs: list[int]) -> dict[str, float]:
    """Root mean square error of every target over the graphs, all components alike."""
    blocks = predictions(model, store, graphs)
    return {
        name: float(torch.cat([(block[name][0] - block[name][1]).flatten() for block in blocks]).square().mean().sqrt())
        for name in blocks[0]
    }


def make_store(store: Path, fields: Sequence[Field], write: Callable[[Path], None]) -> None:
    """Write the store unless it is there.

    InputError where an earlier version of the recipe made it.
    """
    if not store.exists():
        write(store)
    elif open_store(store).fields() != tuple(fields):
        raise InputError(f"{store} is of an earlier version of this recipe, with other parts; choose another --out")


def subsets(store: Path, graphs: Mapping[str, Sequence[int] | NDArray[np.int64]]) -> dict[str, MemoryStore]:
    """Graphs of a store as stores of their own, by name: rows of an ensemble's evaluation."""
    reader = open_store(store)
    return {name: MemoryStore(reader.read(numbers), reader.attributes) for name, numbers in graphs.items()}


def model_of(run: Path) -> TrainedModel:
    """The trained model of a run folder."""
    return load_model(run / "model")
