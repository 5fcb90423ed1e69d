"""Evidence of a diagnosis: what an imported run and its data hold."""

from collections.abc import Sequence
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

FIRST = 1024
"""Graphs that sizes are computed on, and edges looked at."""
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
        module=model.module,
        optimized=optimized,
        data=None if store is None else _set_of(model, run, open_store(store), kind),
    )


def _set_of(model: Imported, run: Path, store: GraphStore, kind: Format) -> Set:
    """Return the graphs of a store, as the model's code saw them."""
    graph_model, normalisation = load_graph_model(run / "model")
    inputs = cast(PublicInputs, graph_model.node_inputs)
    dtype = next(model.module.parameters()).dtype
    present = {field.name for field in store.fields()}
    names = [one.field.name for one in model.reading.outputs]
    marks, parts, numbers = copy_labels(store), dict[str, list[int]](), np.full(len(store), -1)
    if PART.name in present:
        numbers = torch.as_tensor(store.column(PART.name).values).flatten().numpy()
        parts = {name: marks[numbers == number].tolist() for number, name in enumerate(LABELS)}
    first = np.argsort(numbers != LABELS.index("testset"), kind="stable")[:FIRST]
    batch = normalise(store.read(first), normalisation)
    graph = inputs.graph(batch.to(dtype=dtype))
    scaled = [one for one in model.reading.variables if one.span]
    return Set(
        format=kind,
        parts=parts,
        graph=graph,
        labels=[batch[name].to(dtype) if name in present else None for name in names],
        tests=int((numbers[first] == LABELS.index("testset")).sum()),
        fitted_on_all=_fitted_on_all(store, np.flatnonzero(numbers == 0), scaled),
    )


def _fitted_on_all(store: GraphStore, train: NDArray[np.int64], variables: Sequence[Variable]) -> bool | None:
    """Return True where scales reach beyond training; None without scales."""
    if not variables or not len(train):
        return None
    for one in variables:
        ends = np.array(one.span).T  # [2, width]
        room = CLOSE * np.maximum(ends[1] - ends[0], np.finfo(float).tiny)
        of_all, own = (
            store.read(part)[one.field.name].reshape(-1, one.field.width).double().numpy()
            for part in (range(len(store)), train)
        )
        fits, fits_training = (np.abs(ends - [v.min(0), v.max(0)]) <= room for v in (of_all, own))
        if bool((fits & ~fits_training).any()):
            return True
    return False
