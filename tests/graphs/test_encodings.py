"""Structural encodings: parity with dense linear algebra, the same on every call."""

import numpy as np
import pytest
import torch

from hydragnn.graphs import ENCODINGS, concatenate, graph_from_arrays, validate, with_encodings
from hydragnn.graphs.batch import GraphBatch
from tests.graphs.geometry import cells
from tests.refusals import refuses


def encoded(name: str, graph: GraphBatch, width: int) -> torch.Tensor:
    return with_encodings(graph, {name: width})[name]


def adjacency(graph: GraphBatch) -> np.ndarray:
    matrix = np.zeros((graph.num_nodes, graph.num_nodes))
    matrix[graph.senders.numpy(), graph.receivers.numpy()] = 1.0
    return matrix


@pytest.mark.parametrize("count", [3, 30, 150], ids=["fewer nodes than columns", "dense", "sparse"])
def test_laplacian_columns_are_eigenvectors_in_ascending_order(count: int) -> None:
    graph = cells(count)
    k = 5
    vectors = encoded("laplacian_encoding", graph, k).double().numpy()
    matrix = adjacency(graph)
    root = 1 / np.sqrt(matrix.sum(axis=1))
    laplacian = np.eye(count) - root[:, None] * matrix * root
    values = np.linalg.eigvalsh(laplacian)
    known = min(k, count - 1)
    # float32 storage
    np.testing.assert_allclose(laplacian @ vectors[:, :known], vectors[:, :known] * values[1 : known + 1], atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors[:, :known], axis=0), 1.0, atol=1e-6)
    assert not vectors[:, known:].any()


@pytest.mark.parametrize("count", [30, 150])
def test_signs_are_the_same_on_every_call_and_leave_the_random_state_alone(count: int) -> None:
    graph = cells(count)
    before = torch.get_rng_state()
    first, second = (encoded("laplacian_encoding", graph, 4) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(before, torch.get_rng_state())
    assert (first.gather(0, first.abs().argmax(dim=0, keepdim=True)) > 0).all()


@pytest.mark.parametrize("periodic", [True, False])
def test_random_walks_return_with_the_probability_of_the_matrix_power(periodic: bool) -> None:
    graph = cells(6, periodic)
    encoding = encoded("random_walk_encoding", graph, 4)
    matrix = adjacency(graph)
    step = matrix / matrix.sum(axis=1, keepdims=True)
    expected = np.stack([np.diag(np.linalg.matrix_power(step, n)) for n in (1, 2, 3, 4)], axis=1)
    np.testing.assert_allclose(encoding, expected, atol=1e-6)


def test_every_graph_of_a_batch_is_encoded_on_its_own() -> None:
    graphs = [cells(5), cells(8)]
    batch = validate(with_encodings(concatenate(graphs), {"random_walk_encoding": 3}))
    alone = torch.cat([encoded("random_walk_encoding", graph, 3) for graph in graphs])
    assert torch.equal(batch["random_walk_encoding"], alone)
    assert set(batch.fields) == {*graphs[0].fields, "random_walk_encoding"}


@pytest.mark.parametrize("name", ENCODINGS)
def test_lone_nodes_have_zeros(name: str) -> None:
    """Encodings of no width and repeated ones are refused."""
    assert encoded(name, graph_from_arrays(np.zeros((1, 2)), [], []), 3).tolist() == [[0.0, 0.0, 0.0]]
    refuses("at least 1", encoded, name, cells(3), -1)
    refuses("already has", encoded, name, with_encodings(cells(3), {name: 1}), 1)


SHAPES = {
    "no two nodes are alike": np.stack([cells(12).senders, cells(12).receivers]),
    "ring": np.stack([np.arange(12), (np.arange(12) + 1) % 12]),
    "chain": np.stack([np.arange(11), np.arange(1, 12)]),
}


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_encodings_follow_nodes_but_for_eigenvectors_of_graphs_with_a_symmetry(name: str, shape: str) -> None:
    pairs = SHAPES[shape]
    senders, receivers = np.concatenate([pairs, pairs[::-1]], axis=1)
    place = np.random.default_rng(0).permutation(12)  # where each node of the first listing stands in the second
    one, other = (
        encoded(name, graph_from_arrays(np.zeros((12, 2)), *edges), 4)
        for edges in ((senders, receivers), (place[senders], place[receivers]))
    )
    same = torch.allclose(one, other[torch.from_numpy(place)], atol=1e-5)
    assert same == (name == "random_walk_encoding" or shape == "no two nodes are alike")
