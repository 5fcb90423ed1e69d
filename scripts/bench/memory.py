"""What the memory of a batch is foretold to be, against what it is."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from hydragnn.conformance.cases import loss_of, make_graph, make_model
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.joining import concatenate
from hydragnn.models import GraphModel
from hydragnn.training.memory import allocations, footprint_of, probe_batch

KINDS = ("schnet", "painn", "egnn", "pna", "gatv2", "gin", "cgcnn")
CPU = torch.device("cpu")
EXTRAS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"global_attention": {"kind": "multihead", "heads": 4}},
    {"global_attention": {"kind": "linear", "heads": 4}},
    {"checkpoint_activations": True},
    {"conditioning": "film"},
)


def peak_of(compute: Callable[[GraphBatch], object], batch: GraphBatch) -> int:
    """The bytes of a batch and of all that computing it allocates, at their most."""
    batch = replace(batch)
    return batch.size + int(np.concatenate([[0], allocations(lambda: compute(batch), CPU)]).cumsum().max())


def train_on(model: GraphModel, batch: GraphBatch) -> None:
    """Gradients of everything that the model gives."""
    loss_of(model(batch)).backward(inputs=list(model.parameters()))


def predict_on(model: GraphModel, batch: GraphBatch) -> None:
    """Predictions alone."""
    with torch.no_grad():
        model(batch)


def foretold_pairs(count: int, told: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
    """Foretold and measured peaks of random configurations with random batches; ``told`` is called for each."""
    random, rows = np.random.default_rng(0), []
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        settings = {
            **EXTRAS[random.integers(len(EXTRAS))],
            "hidden_dim": int(4 * random.integers(1, 25)),
            "num_layers": int(random.integers(1, 5)),
        }
        dtype = (torch.float32, torch.float32, torch.float64)[random.integers(3)]
        model = make_model(kind, dtype=dtype, **settings)
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight)

        training = number % 3 < 2
        compute = partial(train_on if training else predict_on, model)
        some = concatenate([small_graph(seed, 3 + seed) for seed in range(5)]).to(dtype=dtype)
        begin = time.process_time()
        footprint = footprint_of(compute, some)
        seconds = time.process_time() - begin
        nodes, graphs = int(10 ** random.uniform(0, 2)), int(10 ** random.uniform(0, 1.7))
        edges = 2 * int(nodes * random.uniform(0, 15))
        batch = probe_batch(some, (graphs, nodes, edges))
        amounts = [1.0, graphs, batch.num_nodes, batch.num_edges, graphs * nodes**2]
        foretold = float(np.max(np.array(footprint.forms) @ np.array(amounts)))
        measured = peak_of(compute, batch)
        told()
        rows.append(
            {
                "kind": kind,
                "training": training,
                "ratio": foretold / measured,
                "measured": measured,
                "seconds": seconds,
            }
        )
    return rows


def small_graph(seed: int, nodes: int) -> GraphBatch:
    """A graph of the conformance suite, whose edges all have a reverse."""
    return probe_batch(make_graph(seed, nodes), (1, nodes, 4 * nodes))
