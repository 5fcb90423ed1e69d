"""Both directions of an edge have one filter: who pairs with whom, and that nothing else changes."""

from typing import Any

import pytest
import torch
from torch import Tensor

import hydragnn.layers.message_graph
from hydragnn.graphs.batch import edge_vectors
from hydragnn.kernels import Pairs, Topology, gather_multiply_sum, pairs_of
from hydragnn.kernels.cpu import compiled
from hydragnn.kernels.family import plain_forms
from tests.hydragnn.alloys import alloys, network_for

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="the compiled kernels are not built")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_an_edge_and_its_reverse_are_a_pair(dtype: torch.dtype) -> None:
    batch = alloys().to(dtype=dtype)
    vectors = edge_vectors(batch)
    pairs = pairs_of(vectors, batch.topology)
    assert pairs is not None and len(pairs.first) == batch.num_edges // 2
    second = torch.full_like(pairs.first, -1)
    for edge, pair in enumerate(pairs.pair.tolist()):
        if edge != pairs.first[pair]:
            second[pair] = edge
    assert torch.equal(batch.senders[pairs.first], batch.receivers[second])
    assert torch.equal(batch.receivers[pairs.first], batch.senders[second])
    torch.testing.assert_close(vectors[pairs.first], -vectors[second])


def test_repeated_edges_are_pairs_of_their_own_and_a_self_loop_is_one_alone() -> None:
    edges = Topology.square(torch.tensor([1, 1, 0, 0, 2]), torch.tensor([0, 0, 1, 1, 2]), 3)
    vectors = torch.tensor([[1.0], [1.0], [-1.0], [-1.0], [0.0]])
    pairs = pairs_of(vectors, edges)
    assert pairs is not None
    assert pairs.pair.tolist() == [0, 1, 0, 1, 2] and pairs.first.tolist() == [0, 1, 4]
    assert pairs.spread(torch.tensor([[5.0], [6.0], [7.0]])).squeeze(1).tolist() == [5.0, 6.0, 5.0, 6.0, 7.0]


def test_where_an_edge_has_no_reverse_there_are_no_pairs() -> None:
    one_way = Topology.square(torch.tensor([1, 2]), torch.tensor([0, 1]), 3)
    assert pairs_of(torch.ones(2, 3), one_way) is None
    other_image = Topology.square(torch.tensor([1, 0]), torch.tensor([0, 1]), 2)
    assert pairs_of(torch.tensor([[1.0], [-1.1]]), other_image) is None
    batch = alloys(max_neighbours=3)
    assert pairs_of(edge_vectors(batch), batch.topology) is None


def test_a_compiler_sees_no_pairs() -> None:
    batch = alloys()
    with plain_forms():
        assert pairs_of(edge_vectors(batch), batch.topology) is None


SETTINGS: dict[str, dict[str, Any]] = {
    "schnet": {"num_radial": 6},
    "painn": {"num_radial": 6},
    "tensornet": {},
    "equivariant_transformer": {"heads": 2},
    "mace": {"max_ell": 2},
    "egnn": {"num_radial": 6},
    "pna": {"num_radial": 6},
    "pnaplus": {"num_radial": 6},
    "pnaeq": {"num_radial": 6},
    "cgcnn": {"num_radial": 6},
    "dimenet": {},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_all_numbers_are_those_of_filters_for_every_edge(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = alloys().to(dtype=torch.float64)
    settings = {"kind": name.split()[-1], "hidden_dim": 8, "num_layers": 2, **SETTINGS[name]}
    model = network_for(batch, **settings).double()

    def numbers() -> list[Tensor]:
        predictions = {name: value.mean for name, value in model(batch).items()}
        loss = sum((value.square().sum() for value in predictions.values()), torch.zeros(()))
        return [*predictions.values(), *torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)]

    sought, results = list[bool](), list[list[Tensor]]()
    for find in (pairs_of, lambda *_: None):

        def seek(vectors: Tensor, topology: Topology, find: Any = find) -> Pairs | None:
            pairs: Pairs | None = find(vectors, topology)
            sought.append(pairs is not None)
            return pairs

        monkeypatch.setattr(hydragnn.layers.message_graph, "pairs_of", seek)
        results.append(numbers())
    for ours, full in zip(*results, strict=True):
        torch.testing.assert_close(ours, full, rtol=1e-9, atol=1e-11)
    assert set(sought[: len(sought) // 2]) == {True} and set(sought[len(sought) // 2 :]) == {False}


def test_edges_that_share_weights_say_how() -> None:
    edges = Topology.square(torch.tensor([1, 0, 0]), torch.tensor([0, 1, 2]), 3)
    shared = edges.sharing(torch.tensor([0, 0, 1]), 2)
    assert shared.num_weights == 2 and edges.num_weights == 3
    assert shared.row_offsets is edges.row_offsets
    moved = shared.to("meta")
    assert moved.pair is not None and moved.num_weights == 2
    with pytest.raises(ValueError, match="3 edges; every edge needs one"):
        edges.sharing(torch.tensor([0, 1]), 2)
    with pytest.raises(ValueError, match="make them torch"):
        edges.sharing(torch.tensor([0, 0, 1], dtype=torch.int32), 2)
    for wrong in (2, -1):
        with pytest.raises(IndexError, match="numbered from 0 to 1"):
            edges.sharing(torch.tensor([0, wrong, 1]), 2)
    with pytest.raises(ValueError, match="goes with 2 weights"):
        gather_multiply_sum(torch.ones(3, 4), torch.ones(3, 4), shared)
