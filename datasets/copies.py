"""Copies among the graphs of a store.

They are exact, or the same structure written otherwise. A structure stays the same when it is wrapped, shifted, turned, rounded or repeated, or its atoms come in another order: its atoms
keep their sums over edges of functions of length and species. Means of the sums propose pairs of structures. A pair counts where the
sorted sums of all atoms agree, so that one atom elsewhere makes another structure.
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
from hydragnn.graphs.batch import edge_vectors
from hydragnn.graphs.encodings import ENCODINGS
from hydragnn.graphs.field import ATOMIC_NUMBERS

WAVES = np.arange(6)  # functions of length
FARTHEST = 6.0  # Angstrom, of edges that no cutoff made
SAME = 1.5e-3
"""Sums differ by less where coordinates differ by their fourth digit after the point, and by more after thermal motion."""
PASSES = 6  # grids of means, shifted at random, so that no pair lies on two sides of a border in all of them
MOST = 2**21  # graphs of a store that is searched for more than exact copies


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
    """Return a number per graph, equal for copies of any kind.

    Time grows linearly. Graphs that are no atoms in space or have no edges, and stores of more than ``MOST`` graphs, are compared exactly.
    """
    labels, edges, length = copy_labels(store), store.sizes().edges, len(store)
    atoms = store.dim == 3 and any(field.name == ATOMIC_NUMBERS for field in store.fields())
    if not atoms or not 1 < length <= MOST or not edges.any():
        return labels
    width = len(_means(store, np.arange(1))[0])

    def row(number: int) -> NDArray[np.float64]:
        heartbeat()
        means = _means(store, np.arange(number * BLOCK, min((number + 1) * BLOCK, length)))
        return np.pad(means, ((0, BLOCK - len(means)), (0, 0))).ravel()

    means = rows(-(-length // BLOCK), BLOCK * width, row).reshape(-1, width)[:length]
    generator, found = np.random.default_rng(0), list[NDArray[np.int64]]()
    for number in range(PASSES):
        heartbeat()
        size = SAME * (8.0 if number % 2 else 0.25)  # the finer cells for many frames of one trajectory
        cells = np.floor(means / size + generator.random(width)).astype(np.int64).view(np.uint64)
        order = np.lexsort((means[:, 0], (cells * generator.integers(1, 2**63, width, np.uint64)).sum(axis=1)))
        for step in (1, 2):
            pairs = np.stack([order[:-step], order[step:]], axis=1)
            one, other = means[pairs].swapaxes(0, 1)
            close = (np.abs(one - other) <= SAME * (1.0 + np.abs(one))).all(axis=1) & (edges[pairs] > 0).all(axis=1)
            found.append(np.sort(pairs[close & (np.diff(labels[pairs]) != 0)[:, 0]], axis=1))
    pairs = np.unique(np.concatenate(found), axis=0)
    blocks = [pairs[start : start + BLOCK // 8] for start in range(0, len(pairs), BLOCK // 8)]
    one, other = labels[np.concatenate([_agree(store, block) for block in blocks] or [pairs])].T
    if not len(one):
        return labels
    from scipy.sparse import coo_matrix, csgraph  # here, since most trainings have no pairs and begin sooner without

    matrix = coo_matrix((np.ones(len(one)), (one, other)), shape=(int(labels.max()) + 1,) * 2)
    joined = csgraph.connected_components(matrix, directed=False)[1]
    return np.unique(joined, return_index=True)[1][joined][labels]


def _sums(store: GraphStore, graphs: Int64[ndarray, " some"]) -> tuple[Float64[ndarray, "nodes sums"], list[int]]:
    """Return every atom's sums, species and inputs, and where graphs begin."""
    fields = [one for one in store.fields() if one.role == "input" and one.on != "edge" and one.name not in ENCODINGS]
    batch = store.read(graphs, {ATOMIC_NUMBERS, *(one.name for one in fields)})
    kinds = np.cos(np.outer(batch.nodes[ATOMIC_NUMBERS].numpy(), 1.0 + np.sqrt(2.0) * WAVES))  # no two species alike
    lengths = torch.linalg.norm(edge_vectors(batch).double(), dim=1).numpy()[:, None]
    x = np.minimum(lengths / (cutoff_of(store.attributes) or FARTHEST), 1.0)
    sums = np.zeros((batch.num_nodes, len(WAVES)))
    waves = np.square(1.0 - x) * np.cos(np.pi * x * WAVES)
    np.add.at(sums, batch.receivers.numpy(), waves * (1.5 + kinds[batch.senders.numpy()]))
    columns = [sums * (1.5 + kinds), kinds]
    for one in fields:
        values = batch[one.name].double().numpy().reshape(batch.num_items(one.on), *one.shape)
        values = np.linalg.norm(values, axis=-1) if one.parity == "vector" else values
        columns.append((values if one.on == "node" else values[batch.owner("node").numpy()]).reshape(len(sums), -1))
    return np.concatenate(columns, axis=1), batch.node_offsets.tolist()


def _means(store: GraphStore, graphs: Int64[ndarray, " some"]) -> Float64[ndarray, "some means"]:
    """Return the means of graphs' sums and of their cosines."""
    sums, bounds = _sums(store, graphs)
    rows = np.concatenate([sums, np.cos(sums[:, WAVES])], axis=1)
    return np.add.reduceat(rows, bounds[:-1]) / np.diff(bounds)[:, None]


def _agree(store: GraphStore, pairs: Int64[ndarray, "pairs 2"]) -> Int64[ndarray, "same 2"]:
    """Return the pairs whose atoms have the same sums, one by one."""
    graphs, places = np.unique(pairs, return_inverse=True)
    sums, bounds = _sums(store, graphs)
    own = [np.sort(sums[start:stop], axis=0) for start, stop in pairwise(bounds)]

    def same(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
        common = math.gcd(len(a), len(b))
        a, b = a.repeat(len(b) // common, axis=0), b.repeat(len(a) // common, axis=0)
        return bool((np.abs(a - b) <= SAME * (1.0 + 1e-3 * np.abs(a))).all())

    return pairs[[same(own[one], own[other]) for one, other in places.reshape(-1, 2).tolist()]]
