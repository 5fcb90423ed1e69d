"""What a single trained model says about its validation graphs: the points of parity and error plots."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hydragnn.config import RunConfig
from hydragnn.datasets import BatchSettings, GraphStore, WithoutEdges, make_split, open_store, pack
from hydragnn.graphs.batch import GraphBatch
from hydragnn.models import TrainedModel, load_model
from hydragnn.scripts.report.data_facts import evenly_spaced
from hydragnn.scripts.report.facts import Points

GRAPHS, NODES = 400, 40_000  # seconds on one core, and enough for a cloud of dots
BATCH_NODES = 4_000


def run_points(folder: Path, config: RunConfig) -> dict[str, Points]:
    """Validation targets and predictions of the run in ``folder``, from an even sample of graphs.

    InputError where the run has no model yet or its store is gone.
    """
    model = load_model(folder / "model")
    store: GraphStore = open_store(config.data.store)
    indices = make_split(store, config.split).valid
    if not config.data.edges:
        store = WithoutEdges(store)
    sizes = store.sizes()
    indices = evenly_spaced(indices, sizes.nodes, GRAPHS, NODES)
    budget = BatchSettings(max_graphs=0, max_nodes=max(BATCH_NODES, int(sizes.nodes[indices].max())))
    collected: dict[str, list[tuple[Tensor, Tensor, NDArray[np.int64]]]] = {name: [] for name in model.targets}
    for numbers in pack(sizes, indices, budget):
        batch = store.read(numbers)
        for name, prediction in model.predict(batch).items():
            if name in batch.fields:
                collected[name].append(_labelled(batch, name, prediction.mean, numbers))
    return {name: _points(model, name, rows) for name, rows in collected.items() if any(len(row[2]) for row in rows)}


def _labelled(
    batch: GraphBatch, name: str, mean: Tensor, numbers: NDArray[np.int64]
) -> tuple[Tensor, Tensor, NDArray[np.int64]]:
    """Targets, predictions and graph numbers of the items that have a label, flat."""
    field = batch.fields[name]
    owner = batch.owner(field.on)
    present = batch.present(name).index_select(0, owner)
    graph = np.repeat(numbers[owner[present].numpy()], field.width)
    return batch[name][present].reshape(-1), mean[present].reshape(-1), graph


def _points(model: TrainedModel, name: str, rows: list[tuple[Tensor, Tensor, NDArray[np.int64]]]) -> Points:
    target, mean, graph = zip(*rows)
    return Points(
        field=name,
        unit=model.fields[name].unit,
        target=np.concatenate([values.numpy() for values in target]).astype(np.float64),
        mean=np.concatenate([values.numpy() for values in mean]).astype(np.float64),
        graph=np.concatenate(graph),
    )
