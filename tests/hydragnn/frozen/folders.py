"""Folders that the public HydraGNN wrote: checkpoint, configuration, graphs, and its own outputs for them."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydragnn.frozen import FrozenGraph

DATA = Path(__file__).parents[4] / "shared" / "data"
CASES = Path(__file__).parent / "cases"
Outputs = dict[str, Tensor]


def folders() -> list[Path]:
    """All that hold a checkpoint, whole runs too; two of them lie here for machines without the others."""
    places = [*CASES.glob("*"), *(DATA / "hydragnn" / "ckpt").glob("*"), *(DATA / "hydragnn-generations").glob("*")]
    return sorted({place.name: place for place in places if place.is_dir()}.values())


def config_of(folder: Path) -> dict[str, Any]:
    path = next(folder.rglob("config.json"))
    config: dict[str, Any] = json.loads(path.read_text())
    return config


def weights_of(folder: Path) -> list[dict[str, Tensor]]:
    """Tensors of its checkpoint, or of the files of its branches."""
    files = sorted(path for path in folder.rglob("*.pk") if not re.search(r"_epoch_\d+\.pk$", path.name))
    return [torch.load(path, weights_only=True, map_location="cpu")["model_state_dict"] for path in files]


def joined(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors of all branches, whose files share the encoder."""
    return {name: tensor for part in parts for name, tensor in part.items()}


def in_precision(graph: FrozenGraph, dtype: torch.dtype) -> FrozenGraph:
    reals = {
        name: one.to(dtype) for name, one in vars(graph).items() if isinstance(one, Tensor) and one.is_floating_point()
    }
    return replace(graph, **reals)  # type: ignore[arg-type]


def batches(folder: Path, code: str = "pred") -> Iterator[tuple[FrozenGraph, dict[torch.dtype, Outputs]]]:
    """Graphs, and outputs by precision: the writer's, or those of ``today``'s code for the same weights."""
    arrays: dict[str, Tensor] = {}
    for path in folder.glob("*.npz"):
        if path.name != "state_dict.npz":
            with np.load(path) as file:
                arrays |= {name: torch.from_numpy(file[name]) for name in file if file[name].dtype.kind in "fiub"}
    for number in range(100):
        values = under(arrays, f"g{number}.")
        if not values:
            return
        predictions = under(arrays, f"{code}{number}.")
        expected = {torch.float32: under(predictions, "fp32."), torch.float64: under(predictions, "fp64.")}
        yield graph_of(values), {dtype: outputs for dtype, outputs in expected.items() if outputs}


def graph_of(values: dict[str, Tensor]) -> FrozenGraph:
    graphs = len(values["ptr"]) - 1
    attributes, names = values.get("graph_attr"), values.get("dataset_name")
    optional = {name: values.get(name) for name in ("edge_shifts", "edge_attr", "pe", "rel_pe")}
    return FrozenGraph(
        values["x"],
        values["pos"],
        values["edge_index"].long(),
        values["batch"].long(),
        graphs,
        graph_attr=None if attributes is None else attributes.view(graphs, -1),
        extra={} if names is None else {"branch": names.view(-1).long()},
        **optional,
    )


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
