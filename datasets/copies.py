"""Copies among the graphs of a store: exact ones, and the same structure written otherwise.

A structure is the same when it is wrapped through its cell, shifted, turned, rounded or repeated, or when its atoms come in another order.
Its atoms then have the same surroundings: sums over edges of functions of length and species. Their means propose pairs of structures,
and a pair counts if the sorted sums of all atoms agree, so that one atom elsewhere makes another structure.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float64, Int64
from numpy import ndarray
from numpy.typing import NDArray

from hydragnn.datasets.manifest import cutoff_of
from hydragnn.datasets.store import GraphStore
from hydragnn.datasets.survey import BLOCK, Rows, every_row
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.encodings import ENCODINGS
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field

WAVES = 6
"""Functions of length."""
FARTHEST = 6.0  # Angstrom, of edges that no cutoff made
SAME = 1.5e-3
"""Sums differ by so much where coordinates differ by their fourth digit after the point; thermal motion changes them more."""
PASSES = 6
"""Grids of means, shifted at random, so that no pair lies on two sides of a border in all of them."""
MOST = 2**21
"""Graphs of a store that is searched for more than exact copies."""


def copy_labels(store: GraphStore) -> Int64[ndarray, " graphs"]:
    """Return a number per graph, equal exactly for identical graphs."""
    first, second = np.ascontiguousarray(store.digests()).view(np.uint64).T
    order = np.lexsort((second, first))
    new = (np.diff(first[order]) != 0) | (np.diff(second[order]) != 0)
    labels = np.zeros(len(order), dtype=np.int64)
    labels[order[1:]] = np.cumsum(new)
    return labels


def structure_labels(
    store: GraphStore, rows: Rows = every_row, heartbeat: Callable[[], None] = lambda: None
) -> Int64[ndarray, " graphs"]:
    """Return a number per graph, equal for identical graphs and for the same structure.

    Time grows linearly. Graphs that are no atoms in space, and stores of more than ``MOST`` graphs, are compared exactly.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    labels, inputs = copy_labels(store), _inputs(store)
    if inputs is None or not 1 < len(store) <= MOST:
        return labels
    width = len(_means(store, np.arange(1), inputs)[0])

    def row(number: int) -> NDArray[np.float64]:
        heartbeat()
        means = _means(store, np.arange(number * BLOCK, min((number + 1) * BLOCK, len(store))), inputs)
        return np.pad(means, ((0, BLOCK - len(means)), (0, 0))).ravel()

    means = rows(-(-len(store) // BLOCK), BLOCK * width, row).reshape(-1, width)[: len(store)]
    pairs = _near(means, labels)
    pairs = pairs[(store.sizes().edges[pairs] > 0).all(axis=1)]
    same = [np.zeros((0, 2), dtype=np.int64)]
    for start in range(0, len(pairs), BLOCK // 8):
        heartbeat()
        same.append(_verified(store, pairs[start : start + BLOCK // 8], inputs))
    one, other = labels[np.concatenate(same)].T
    count = int(labels.max()) + 1
    joined = connected_components(coo_matrix((np.ones(len(one)), (one, other)), shape=(count, count)), directed=False)[
        1
    ]
    least = np.full(count, count, dtype=np.int64)
    np.minimum.at(least, joined, np.arange(count))
    return least[joined][labels]


def _inputs(store: GraphStore) -> list[Field] | None:
    """Return what else a model reads of atoms; None where nodes are none."""
    fields = {field.name: field for field in store.fields()}
    if ATOMIC_NUMBERS not in fields or store.dim != 3:
        return None
    others = [one for one in fields.values() if one.role == "input" and one.on != "edge"]
    return [one for one in others if one.name not in (ATOMIC_NUMBERS, *ENCODINGS)]


def _surroundings(batch: GraphBatch, cutoff: float, inputs: list[Field]) -> Float64[ndarray, "nodes sums"]:
    """Return sums over the edges of every atom, its species, and its inputs."""
    species = batch.nodes[ATOMIC_NUMBERS].numpy().astype(np.float64)
    kinds = np.cos(np.outer(species, 1.0 + np.sqrt(2.0) * np.arange(WAVES)))  # [nodes, waves]; no two species alike
    x = np.minimum(torch.linalg.norm(edge_vectors(batch).double(), dim=1).numpy() / cutoff, 1.0)[:, None]
    waves = np.square(1.0 - x) * np.cos(np.pi * x * np.arange(WAVES)) * (1.5 + kinds[batch.senders.numpy()])
    sums = np.zeros((batch.num_nodes, WAVES))
    np.add.at(sums, batch.receivers.numpy(), waves)
    values = [batch[one.name].double().numpy().reshape(batch.num_items(one.on), *one.shape) for one in inputs]
    values = [np.linalg.norm(own, axis=-1) if one.parity == "vector" else own for one, own in zip(inputs, values)]
    owners = batch.owner("node").numpy()
    rows = [(own if one.on == "node" else own[owners]).reshape(batch.num_nodes, -1) for one, own in zip(inputs, values)]
    return np.concatenate([sums * (1.5 + kinds), kinds, *rows], axis=1)


def _means(store: GraphStore, graphs: Int64[ndarray, " some"], inputs: list[Field]) -> Float64[ndarray, "some means"]:
    """Return the means of graphs' sums and of their cosines, which tell more of them."""
    owners, sums = _sums(store, graphs, inputs)
    rows = np.concatenate([sums, np.cos(sums[:, :WAVES])], axis=1)
    total = np.zeros((len(graphs), rows.shape[1]))
    np.add.at(total, owners, rows)
    return total / np.bincount(owners, minlength=len(graphs))[:, None]


def _sums(
    store: GraphStore, graphs: Int64[ndarray, " some"], inputs: list[Field]
) -> tuple[Int64[ndarray, " nodes"], Float64[ndarray, "nodes sums"]]:
    batch = store.read(graphs, [ATOMIC_NUMBERS, *(one.name for one in inputs)])
    return batch.owner("node").numpy(), _surroundings(batch, cutoff_of(store.attributes) or FARTHEST, inputs)


def _near(means: Float64[ndarray, "graphs means"], labels: Int64[ndarray, " graphs"]) -> Int64[ndarray, "pairs 2"]:
    """Return pairs of graphs of close means that are no exact copies."""
    generator, pairs = np.random.default_rng(0), [np.zeros((0, 2), dtype=np.int64)]
    factors = generator.integers(1, 2**63, means.shape[1], dtype=np.uint64) | np.uint64(1)
    for number in range(PASSES):
        width = SAME * (8.0 if number % 2 else 0.25)  # the finer ones for many frames of one trajectory
        cells = np.floor(means / width + generator.random(means.shape[1])).astype(np.int64).view(np.uint64)
        order = np.lexsort((means[:, 0], (cells * factors).sum(axis=1)))
        for step in (1, 2):
            one, other = order[:-step], order[step:]
            close = (np.abs(means[one] - means[other]) <= SAME * (1.0 + np.abs(means[one]))).all(axis=1)
            close &= labels[one] != labels[other]
            pairs.append(np.stack([one[close], other[close]], axis=1))
    return np.unique(np.sort(np.concatenate(pairs), axis=1), axis=0)


def _verified(store: GraphStore, pairs: Int64[ndarray, "pairs 2"], inputs: list[Field]) -> Int64[ndarray, "verified 2"]:
    """Return the pairs whose atoms have the same surroundings, one by one."""
    graphs, places = np.unique(pairs, return_inverse=True)
    owners, sums = _sums(store, graphs, inputs)
    bounds = np.searchsorted(owners, np.arange(len(graphs) + 1))
    own = [np.sort(sums[start:stop], axis=0) for start, stop in pairwise(bounds)]

    def agree(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
        common = math.gcd(len(one), len(other))
        one, other = one.repeat(len(other) // common, axis=0), other.repeat(len(one) // common, axis=0)
        return bool((np.abs(one - other) <= SAME * (1.0 + 1e-3 * np.abs(one))).all())

    return pairs[[agree(own[one], own[other]) for one, other in places.reshape(-1, 2).tolist()]]
