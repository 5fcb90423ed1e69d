"""Evidence of a diagnosis: what an imported run and its data hold."""

import math
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hydragnn.datasets import GraphStore, normalise, open_store
from hydragnn.datasets.arrays import flat_graphs
from hydragnn.datasets.fingerprint import graph_digests
from hydragnn.datasets.formats.public_columns import LABELS
from hydragnn.frozen import FrozenModel
from hydragnn.frozen.irreps import IrrepsLinear
from hydragnn.frozen.kinds import EMBEDDING
from hydragnn.graphs.joining import unbatch
from hydragnn.graphs.parts import PART
from hydragnn.importing.checkpoints import read_checkpoint
from hydragnn.importing.diagnosis import LATE, Case
from hydragnn.importing.finding import EPOCH, SETS, logged_losses
from hydragnn.importing.model import PublicInputs
from hydragnn.importing.runs import Imported, part_numbers
from hydragnn.importing.variables import Variable
from hydragnn.models.saving import load_graph_model

FIRST, NODES, EDGES = 1024, 2_000, 50_000
"""Most graphs, nodes and edges that sizes are computed on."""
DRAWS = 2**23
"""Most numbers of a seed among which weights are looked for."""
COMPARED = re.compile(rf"heads_NN|{EMBEDDING.pattern}|{LATE.pattern}")
"""Names of parameters that are compared with draws."""
CLOSE = 1e-6
"""Part of a range."""


def case_of(model: Imported, run: Path, store: Path | None, place: Path | None) -> Case:
    """Return the facts about a model; ``place`` has its data."""
    checkpoint = model.files.checkpoint.resolve()
    return Case(
        source=model.files.source,
        settings=model.settings,
        module=deepcopy(model.module).double(),  # where changes are no rounding
        checkpoint=read_checkpoint(checkpoint),
        file=checkpoint.name,
        epochs=[int(match[2]) for one in sorted(checkpoint.parent.glob("*.pk")) if (match := EPOCH.match(one.stem))],
        logged=logged_losses(checkpoint.parent),
        began=numbers_of_seed(model.module),
        format="" if place is None else place.suffix[1:] if place.suffix in SETS else "raw",
        **({} if store is None else _graphs_of(model, run, open_store(store))),
    )


def numbers_of_seed(module: FrozenModel) -> dict[str, bool]:
    """Return which parameters have the numbers that they began with."""
    count, result = min(8 * sum(one.numel() for one in module.parameters()) + 2**16, DRAWS), dict[str, bool]()
    for real in {torch.float32, next(module.parameters()).dtype}:
        draws = torch.rand(count, generator=torch.Generator().manual_seed(0), dtype=real).double()
        for name, parameter in module.named_parameters():
            part, numbers = module.get_submodule(name.rpartition(".")[0]), parameter.detach().double().flatten()
            equal = False
            if len(numbers) < 4 or not COMPARED.search(name):
                continue
            if name == "rbf.freq":
                equal = torch.allclose(numbers, math.pi * torch.arange(1, 1 + len(numbers)).double(), rtol=CLOSE)
            elif isinstance(part, nn.Linear):
                equal = any(_starts(draws, (numbers * math.sqrt(part.in_features) + 1) / 2, CLOSE))
            elif isinstance(part, IrrepsLinear):  # normal: of 16 uniform numbers, the first 8 are radii
                radii, angles = (-2 * torch.log1p(-draws[:-8])).sqrt(), 2 * math.pi * draws[8:]
                for start in _starts(radii * angles.cos(), numbers[:8], 1e-4):
                    generator = torch.Generator().manual_seed(0)
                    torch.rand(start - 1, generator=generator, dtype=real)
                    equal |= torch.equal(torch.randn(len(numbers), generator=generator, dtype=real).double(), numbers)
            result[name] = equal or result.get(name, False)
    return result


def _starts(draws: Tensor, numbers: Tensor, tolerance: float) -> Iterator[int]:
    """Yield places where numbers follow each other in draws, counted from 1."""
    for start in ((draws[: 1 - len(numbers)] - numbers[0]).abs() < tolerance).nonzero().flatten().tolist():
        if bool(((draws[start : start + len(numbers)] - numbers).abs() < tolerance).all()):
            yield start + 1


def _graphs_of(model: Imported, run: Path, store: GraphStore) -> dict[str, Any]:
    """Return what a case holds of a store."""
    graph_model, normalisation = load_graph_model(run / "model")
    inputs = cast(PublicInputs, graph_model.node_inputs).double()
    parts, numbers = dict[str, list[bytes]](), np.array(part_numbers(store) or [-1] * len(store))
    if (numbers >= 0).any():
        fields = {one.name: one for one in store.fields() if one.name != PART.name}  # copies differ in their part
        blocks = (store.read(some, fields) for some in np.array_split(np.arange(len(store)), 1 + len(store) // FIRST))
        marks = np.concatenate([graph_digests(flat_graphs(one, (*fields.values(),))) for one in blocks])
        parts = {name: [*map(bytes, marks[numbers == number])] for number, name in enumerate(LABELS)}
    first = np.argsort(numbers != LABELS.index("testset"), kind="stable")[:FIRST]
    sizes = store.sizes()
    fits = (np.cumsum(sizes.nodes[first]) <= NODES) & (np.cumsum(sizes.edges[first]) <= EDGES)
    first = first[: max(1, int(fits.sum()))]
    batch = normalise(store.read(first), normalisation).to(dtype=torch.float64)
    return {
        "parts": parts,
        "graph": inputs.graph(batch),
        "alone": [inputs.graph(one) for one in unbatch(batch)] if model.settings.global_attn_engine == "GPS" else [],
        "labels": [batch[one.field.name] if one.field.name in batch.fields else None for one in model.reading.outputs],
        "tests": int((numbers[first] == LABELS.index("testset")).sum()),
        "fitted_on_all": _fitted_on_all(store, numbers == 0, [one for one in model.reading.variables if one.span]),
    }


def _fitted_on_all(store: GraphStore, train: NDArray[np.bool_], variables: Sequence[Variable]) -> bool | None:
    """Return True where scales reach beyond training; None without scales."""
    beyond = None
    for one in variables if train.any() else ():
        ends = np.array(one.span).T  # [2, width]
        room = CLOSE * np.abs([*ends, ends[1] - ends[0]]).max(0)
        values = store.column(one.field.name).values.reshape(-1, one.field.width).astype(float)
        own = values[np.repeat(train, store.sizes().nodes) if one.field.on == "node" else train]
        fits, fits_training = (np.abs(ends - [v.min(0), v.max(0)]) <= room for v in (values, own))
        beyond = beyond or bool((fits & ~fits_training).any())
    return beyond
