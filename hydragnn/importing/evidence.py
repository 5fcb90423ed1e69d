"""Evidence of a diagnosis: what an imported run and its data hold."""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from hydragnn.datasets import GraphStore, normalise, open_store
from hydragnn.datasets.copies import copy_labels
from hydragnn.graphs.parts import PART
from hydragnn.importing.checkpoints import read_checkpoint
from hydragnn.importing.diagnosis import Case, Format, Set
from hydragnn.importing.model import PublicInputs
from hydragnn.importing.runs import Imported
from hydragnn.importing.variables import Variable
from hydragnn.models.saving import load_graph_model

FIRST, NODES, EDGES = 1024, 2_000, 50_000
"""Most graphs, nodes and edges that sizes are computed on."""
FORMATS: dict[str, Format] = {".bp": "bp", ".pickle": "pickle"}
LABELS = ("trainset", "valset", "testset")
CLOSE = 1e-6
"""Part of a range."""


def case_of(model: Imported, run: Path, store: Path | None, place: Path | None) -> Case:
    """Return all that is known of a model; ``place`` has its graphs."""
    kind = "raw" if place is None else FORMATS.get(place.suffix, "raw")
    weights, optimized = read_checkpoint(model.files.checkpoint)
    return Case(
        config=model.files.config,
        names=[*weights],
        file=model.files.checkpoint.name,
        settings=model.settings,
        module=deepcopy(model.module).double(),  # where changes are no rounding
        optimized=optimized,
        data=None if store is None else _set_of(model, run, open_store(store), kind),
    )


def _set_of(model: Imported, run: Path, store: GraphStore, kind: Format) -> Set:
    """Return the graphs of a store, as the model's code saw them."""
    graph_model, normalisation = load_graph_model(run / "model")
    inputs = cast(PublicInputs, graph_model.node_inputs)
    present = {field.name for field in store.fields()}
    names = [one.field.name for one in model.reading.outputs]
    marks, parts, numbers = copy_labels(store), dict[str, list[int]](), np.full(len(store), -1)
    if PART.name in present:
        numbers = torch.as_tensor(store.column(PART.name).values).flatten().numpy()
        parts = {name: marks[numbers == number].tolist() for number, name in enumerate(LABELS)}
    first = np.argsort(numbers != LABELS.index("testset"), kind="stable")[:FIRST]
    sizes = store.sizes()
    fits = (np.cumsum(sizes.nodes[first]) <= NODES) & (np.cumsum(sizes.edges[first]) <= EDGES)
    first = first[: max(1, int(fits.sum()))]
    batch = normalise(store.read(first), normalisation)
    graph = inputs.double().graph(batch.to(dtype=torch.float64))
    scaled = [one for one in model.reading.variables if one.span]
    return Set(
        format=kind,
        parts=parts,
        graph=graph,
        labels=[batch[name].double() if name in present else None for name in names],
        tests=int((numbers[first] == LABELS.index("testset")).sum()),
        fitted_on_all=_fitted_on_all(store, numbers == 0, scaled),
    )


def _fitted_on_all(store: GraphStore, train: NDArray[np.bool_], variables: Sequence[Variable]) -> bool | None:
    """Return True where scales reach beyond training; None without scales."""
    if not variables or not train.any():
        return None
    for one in variables:
        ends = np.array(one.span).T  # [2, width]
        room = CLOSE * np.abs([*ends, ends[1] - ends[0]]).max(0)
        values = store.column(one.field.name).values.reshape(-1, one.field.width).astype(float)
        own = values[np.repeat(train, store.sizes().nodes) if one.field.on == "node" else train]
        fits, fits_training = (np.abs(ends - [v.min(0), v.max(0)]) <= room for v in (values, own))
        if bool((fits & ~fits_training).any()):
            return True
    return False
