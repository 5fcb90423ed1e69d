"""Kinds of edges of one lattice, as products in their common modes."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from hydragnn.architectures import relational
from hydragnn.architectures.relational import RelationalLayer, RelationalSettings
from hydragnn.kernels import Topology
from hydragnn.layers import MessageGraph, lattice_modes

GRAPHS, WIDTH, KINDS = 9, 16, 3
TORUS = (4, 3, 2)
STEPS = {0: (1, 0, 0), 1: (0, 1, 0), 2: (1, 1, 1)}
Edges = list[tuple[int, int, int]]
"""Receiver, sender and kind."""


def torus(*, both_ways: bool = True) -> Edges:
    """Every site of a periodic lattice, joined with where three steps lead it, to and fro or one way."""
    sites = np.arange(np.prod(TORUS)).reshape(TORUS)
    edges = []
    for kind, step in STEPS.items():
        for sign in (1, -1) if both_ways else (1,):
            there = np.roll(sites, [sign * by for by in step], axis=(0, 1, 2))
            edges += [(here, other, kind) for here, other in zip(sites.ravel().tolist(), there.ravel().tolist())]
    return sorted(edges)


def chain() -> Edges:
    """A row of sites that ends, where the end is not like the middle."""
    neighbours = [(site, site + 1, 0) for site in range(23)] + [(site, site + 2, 1) for site in range(22)]
    return sorted(neighbours + [(there, here, kind) for here, there, kind in neighbours])


def message_graph(each: list[Edges], sites: int = 24) -> MessageGraph:
    """Graphs of ``sites`` nodes with these edges."""
    rows = torch.tensor([[i + g * sites, j + g * sites, k] for g, edges in enumerate(each) for i, j, k in edges])
    return MessageGraph(
        topology=Topology.square(rows[:, 1].contiguous(), rows[:, 0].contiguous(), len(each) * sites),
        owner=torch.arange(len(each)).repeat_interleave(sites),
        nodes_per_graph=torch.full((len(each),), sites),
        edge_kinds={"relation": rows[:, 2].contiguous()},
    )


def modes_of(graph: MessageGraph, reduce: str = "sqrt", width: int = WIDTH) -> object:
    return lattice_modes(graph.topology, graph.nodes_per_graph, graph.edge_kinds["relation"], KINDS, reduce, width)


def result(layer: RelationalLayer, states: Tensor, graph: MessageGraph) -> list[Tensor]:
    """New states, and what weights and states receive of a sum of squares."""
    states = states.clone().requires_grad_()
    found = layer({0: states}, graph)[0]
    return [found, *torch.autograd.grad(found.square().sum(), [states, *layer.parameters()])]


@pytest.mark.parametrize("reduce", ["sum", "mean", "sqrt"])
def test_on_a_lattice_a_layer_gives_by_modes_what_it_gives_edge_by_edge(
    reduce: Literal["sum", "mean", "sqrt"], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer = RelationalLayer(RelationalSettings(hidden_dim=WIDTH, reduce=reduce), KINDS, None).double()
    graph, states = message_graph([torus()] * GRAPHS), torch.randn(GRAPHS * 24, WIDTH, dtype=torch.float64)
    assert modes_of(graph, reduce) is not None
    by_modes = result(layer, states, graph)
    monkeypatch.setattr(relational, "lattice_modes", lambda *_: None)
    for value, expected in zip(by_modes, result(layer, states, message_graph([torus()] * GRAPHS)), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-11, atol=1e-11)


def moved_edge() -> list[Edges]:
    """Lattices of which one has an edge elsewhere."""
    *others, (site, _, kind) = torus()
    return [torus()] * (GRAPHS - 1) + [[*others, (site, site, kind)]]


ELSEWHERE: dict[str, Callable[[], MessageGraph]] = {
    "a chain that ends": lambda: message_graph([chain()] * GRAPHS),
    "kinds that point one way": lambda: message_graph([torus(both_ways=False)] * GRAPHS),
    "one graph is another": lambda: message_graph(moved_edge()),
    "few graphs": lambda: message_graph([torus()] * 2),
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_what_is_not_one_lattice_is_computed_edge_by_edge(case: str) -> None:
    assert modes_of(ELSEWHERE[case]()) is None


def test_where_modes_would_take_longer_edges_are_taken() -> None:
    assert modes_of(message_graph([torus()] * GRAPHS), width=WIDTH) is not None
    assert modes_of(message_graph([torus()] * GRAPHS), width=8) is None


def test_arithmetic_of_fewer_digits_goes_from_edge_to_edge() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert modes_of(message_graph([torus()] * GRAPHS)) is None
