"""What a single trained model says about its validation graphs: the points of parity and error plots."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hydragnn.config import RunConfig
from hydragnn.datasets import Budget, GraphStore, WithoutEdges, make_split, open_store, pack
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.models import Categorical, Distribution, Normal, Point, Target, TrainedModel, concatenate_distributions
from hydragnn.scripts.report.data_facts import evenly_spaced
from hydragnn.scripts.report.facts import ClassPoints, Points

GRAPHS, NODES = 400, 40_000  # seconds on one core, and enough for a cloud of dots
BATCH_NODES = 4_000


def run_points(model: TrainedModel, config: RunConfig) -> dict[str, Points | ClassPoints]:
    """Validation targets and predictions of the model that a run, or a branch of one, trained, from an even sample of graphs; InputError without its store."""
    store: GraphStore = open_store(config.data.store)
    indices = make_split(store, config.split).valid
    if not config.data.edges:
        store = WithoutEdges(store)
    sizes = store.sizes()
    indices = evenly_spaced(indices, sizes.nodes, GRAPHS, NODES)
    budget = Budget(max_nodes=max(BATCH_NODES, int(sizes.nodes[indices].max())))
    collected: dict[str, list[tuple[Tensor, Distribution, NDArray[np.int64]]]] = {t.name: [] for t in model.targets}
    for numbers in pack(sizes, indices, budget):
        batch = store.read(numbers)
        prediction = model.predict(batch)
        for target in model.targets:
            if target.field.name in batch.fields:
                collected[target.name].append(_labelled(batch, target.field, prediction[target.name], numbers))
    return {
        target.name: _points(target, rows)
        for target in model.targets
        for rows in [collected[target.name]]
        if any(len(row[2]) for row in rows)
    }


def _labelled(
    batch: GraphBatch, field: Field, prediction: Distribution, numbers: NDArray[np.int64]
) -> tuple[Tensor, Distribution, NDArray[np.int64]]:
    """Targets, predictions and graph numbers of the items that have a label; a graph number for every component."""
    owner = batch.owner(field.on)
    present = batch.present(field.name).index_select(0, owner)
    graph = np.repeat(numbers[owner[present].numpy()], field.width)
    return batch[field.name][present].reshape(-1), prediction.rows(present), graph


def _points(target: Target, rows: list[tuple[Tensor, Distribution, NDArray[np.int64]]]) -> Points | ClassPoints:
    labels, parts, graph = zip(*rows)
    truth = np.concatenate([values.numpy() for values in labels])
    prediction = concatenate_distributions(parts)
    if isinstance(prediction, Categorical):
        probability = prediction.probabilities.reshape(-1, prediction.classes).numpy()
        return ClassPoints(
            field=target.name, target=truth.astype(np.int64), probability=probability, graph=np.concatenate(graph)
        )
    assert isinstance(prediction, Point | Normal)
    return Points(
        field=target.name,
        unit=target.field.unit,
        target=truth.astype(np.float64),
        mean=prediction.mean.reshape(-1).numpy(),
        graph=np.concatenate(graph),
    )
