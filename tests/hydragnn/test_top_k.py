"""Levels by learned scores: who stays, what they know, and the way back."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from hydragnn.architectures import architecture_of
from hydragnn.architectures.base import PoolingSettings
from hydragnn.base.errors import InputError
from hydragnn.config import RunConfig
from hydragnn.conformance.cases import CORNERS, make_graph, small_settings
from hydragnn.datasets import MemoryStore
from hydragnn.graphs import CLUSTERS, Field, GraphBatch, clusters_field, concatenate, from_voronoi
from hydragnn.graphs.batch import edge_vectors
from hydragnn.layers import GraphUNet, MessageGraph, States
from hydragnn.layers.top_k import TopK
from hydragnn.models import build_model, parse_head
from hydragnn.runs import train


def message_graph(batch: GraphBatch) -> MessageGraph:
    return MessageGraph(
        topology=batch.topology,
        owner=batch.owner("node"),
        nodes_per_graph=batch.counts("node"),
        vectors=edge_vectors(batch),
        edge_features=batch.edges["area"].unsqueeze(1),
    )


def by_first_channel(ratio: float) -> TopK:
    """Scores are the first channel."""
    top = TopK(2, ratio).double()
    with torch.no_grad():
        top.direction.copy_(torch.tensor([3.0, 0.0]))
    return top


def states_with(scores: list[float]) -> Tensor:
    return torch.tensor([[score, 7.0] for score in scores], dtype=torch.float64)


def those_who_stay(scores: list[float], sizes: list[int], ratio: float) -> list[int]:
    batch = concatenate([make_graph(seed, size, edges=0) for seed, size in enumerate(sizes)])
    return by_first_channel(ratio)(states_with(scores), message_graph(batch)).joining.senders.tolist()


def test_the_highest_of_every_graph_stay_and_so_does_who_is_as_high_as_the_last() -> None:
    assert those_who_stay([0.1, 0.9, -0.5, 0.4, -3.0, -2.0, -1.0], [4, 3], 0.5) == [1, 3, 5, 6]
    assert those_who_stay([0.4, 0.4, 0.9, 0.4, 0.1], [5], 0.4) == [0, 1, 2, 3]
    assert those_who_stay([0.4, 0.4 + 1e-12, 0.9], [3], 0.6) == [0, 1, 2]  # rounding decides nothing
    assert those_who_stay([0.0, 0.0, 0.0], [3], 0.1) == [0, 1, 2]
    assert those_who_stay([1.0, 2.0], [1, 1], 0.5) == [0, 1]
    assert those_who_stay([*map(float, range(10))], [10], 0.3) == [7, 8, 9]  # 3 and not 4, whatever 10 * 0.3 is


def test_in_half_precision_as_many_stay() -> None:
    """Scores of 300 nodes rounded to 8 bits would be equal by the dozen."""
    states = 3 + torch.rand(300, 1, generator=torch.Generator().manual_seed(0))
    top, graph = TopK(1, 0.5), message_graph(make_graph(0, 300, edges=0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert len(top(states, graph).joining.senders) == 150


@pytest.mark.parametrize("corner", CORNERS)
def test_a_level_has_the_edges_between_those_who_stay_as_they_are(corner: str) -> None:
    batch = CORNERS[corner]()
    graph, states = message_graph(batch), torch.randn(batch.num_nodes, 2, dtype=torch.float64)
    coarser = TopK(2, 0.5).double()(states, graph)
    kept = coarser.joining.senders.tolist()
    edges = [
        (kept.index(s), kept.index(r), number)
        for number, (s, r) in enumerate(zip(batch.senders.tolist(), batch.receivers.tolist()))
        if s in kept and r in kept
    ]
    level, vectors, features = coarser.graph, coarser.graph.vectors, coarser.graph.edge_features
    assert list(zip(level.topology.senders.tolist(), level.topology.receivers.tolist())) == [edge[:2] for edge in edges]
    assert level.owner.tolist() == [int(batch.owner("node")[node]) for node in kept]
    numbers = [edge[2] for edge in edges]
    assert graph.vectors is not None and vectors is not None and features is not None
    assert torch.equal(vectors, graph.vectors[numbers])
    assert torch.equal(features.squeeze(1), batch.edges["area"][numbers])


@pytest.mark.parametrize("shape", [(2,), (3, 2), (3, 3, 2)], ids=["scalars", "vectors", "tensors"])
def test_states_of_every_degree_are_multiplied_by_the_gate_and_the_others_hear_nothing(shape: tuple[int, ...]) -> None:
    scores = [0.5, -1.0, 2.0, 0.1]
    coarser = by_first_channel(0.5)(states_with(scores), message_graph(make_graph(0, 4)))
    values = torch.randn(4, *shape, dtype=torch.float64)
    pooled = coarser.pooled(values)
    torch.testing.assert_close(pooled, torch.stack([np.tanh(0.5) * values[0], np.tanh(2.0) * values[2]]))
    back = coarser.unpooled(pooled)
    assert torch.equal(back[[0, 2]], pooled) and not back[[1, 3]].any()


class Counted(torch.nn.Module):
    """A layer that notes how many nodes it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[int] = []

    def forward(self, states: States, graph: MessageGraph) -> States:
        self.nodes.append(graph.num_nodes)
        return states


def test_layers_work_on_fewer_and_fewer_nodes_and_scores_learn_from_what_comes_back() -> None:
    layers = [Counted() for _ in range(5)]
    network = GraphUNet(layers, 2, 2, {0}, 0.5).double()
    states = torch.randn(8, 2, dtype=torch.float64, requires_grad=True)
    network({0: states}, message_graph(make_graph(0, 8)))[0].sum().backward()
    assert [layer.nodes for layer in layers] == [[8], [4], [2], [4], [8]]
    for top in network.scores:
        assert isinstance(top, TopK) and top.direction.grad is not None and top.direction.grad.any()


def test_models_that_pool_by_scores_need_no_clusters_and_refuse_them() -> None:
    energy, size = Field(name="energy", on="graph", role="target"), Field(name="size", on="node")
    settings = small_settings("painn", pooling={"levels": 2, "by": "scores"})
    assert isinstance(settings.pooling, PoolingSettings) and not settings.pools_clusters
    heads, fields = [parse_head({"kind": "energy", "field": "energy"})], [energy, size, clusters_field(2)]
    build_model(settings, heads, fields, inputs=["size"], dim=3, seed=0)
    with pytest.raises(InputError, match="is for models that pool by clusters"):
        build_model(settings, heads, fields, inputs=["size", CLUSTERS], dim=3, seed=0)
    with pytest.raises(InputError, match="ratio is that of nodes kept by scores"):
        small_settings("painn", pooling={"levels": 2, "ratio": 0.5})


def test_kinds_of_edges_pool_by_scores_and_those_with_a_schedule_do_not() -> None:
    relational, scores = architecture_of("relational"), {"levels": 1, "by": "scores"}
    assert not relational.unpoolable(small_settings("relational", pooling=scores))
    scheduled = small_settings("relational", pooling=scores, schedule=[0, 1])
    assert "schedule of levels of its own" in relational.unpoolable(scheduled)


def test_a_run_that_pools_by_scores_ends_with_the_same_bits_where_it_was_interrupted(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    load, answer = Field(name="load", on="node"), Field(name="answer", on="node", role="target")
    store = MemoryStore(
        [
            from_voronoi(random.random((20, 2)), [1.0, 1.0], False).with_fields(
                {"load": (value := torch.from_numpy(random.normal(size=20)).float()), "answer": value.square()},
                fields=[load, answer],
            )
            for _ in range(12)
        ]
    )
    config = RunConfig.parse(
        {
            "data": {"store": "in memory"},
            "model": {"kind": "gin", "hidden_dim": 8, "num_layers": 3, "pooling": {"by": "scores", "ratio": 0.4}},
            "heads": [{"kind": "scalar", "field": "answer"}],
            "train": {"epochs": 4, "checkpoint_seconds": 0},
        }
    )
    train(config, tmp_path / "run", store=store, until=2)
    resumed = train(config, tmp_path / "run", store=store, resume=True)
    assert resumed.curves["valid/loss"] == train(config, tmp_path / "whole", store=store).curves["valid/loss"]


def test_edges_of_a_level_are_in_the_order_of_their_receivers_after_any_order_of_nodes() -> None:
    """Nodes in another order: the same nodes stay, with the same states."""
    batch = make_graph(0, 9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    states, top = torch.randn(9, 2, dtype=torch.float64), TopK(2, 0.5).double()
    without_edges = replace(message_graph(make_graph(0, 9, edges=0)), edge_features=None)
    one, other = top(states, message_graph(batch)), top(states[order], without_edges)
    assert bool((one.graph.topology.receivers.diff() >= 0).all())
    assert sorted(one.joining.senders.tolist()) == sorted(order[other.joining.senders].tolist())
