"""Triplets, angles and the functions of distance that go with them."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from scipy.special import eval_legendre, spherical_jn
from torch import Tensor

from hydragnn.conformance.cases import make_graph
from hydragnn.graphs import from_ase
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.field import Field
from hydragnn.graphs.joining import concatenate
from hydragnn.graphs.topology import Topology
from hydragnn.layers import MessageGraph, SphericalBesselBasis, TripletSums
from hydragnn.layers.harmonics import bessel_zeros
from hydragnn.layers.triplets import reverses_of
from tests.parity.loops import graph_of as graph_of_batch

LOAD = Field(name="load", on="graph", dtype="float64")


def graph_of(atoms: Atoms, cutoff: float) -> GraphBatch:
    atoms.info["load"] = 0.3
    return from_ase(atoms, cutoff, fields=[LOAD]).to(dtype=torch.float64)


def message_graph(batch: GraphBatch) -> MessageGraph:
    return graph_of_batch(batch, vectors=edge_vectors(batch))


def slanted() -> Atoms:
    cell = [[2.1, 0.1, 0.0], [0.7, 2.3, 0.2], [0.3, 0.5, 2.6]]
    return Atoms("CuNi", scaled_positions=[[0, 0, 0], [0.4, 0.55, 0.3]], cell=cell, pbc=True)


BATCHES: dict[str, Callable[[], GraphBatch]] = {
    "one atom and its images": lambda: graph_of(bulk("Cu", "fcc", a=3.61), 4.0),
    "a small slanted cell": lambda: graph_of(slanted(), 3.5),
    "molecules in straight lines": lambda: concatenate([graph_of(molecule(name), 4.0) for name in ("CO2", "C2H2")]),
    "edges without reverses": lambda: make_graph(4, 6),
    "an atom that is its own neighbour": lambda: make_graph(6, 5, self_loop=True),
    "no edges": lambda: make_graph(3, 4, edges=0),
}


def slow_reverse(batch: GraphBatch, edge: int) -> list[int]:
    """Every edge with the same two ends, the other way round, and the opposite shift."""
    return [
        other
        for other in range(batch.num_edges)
        if batch.senders[other] == batch.receivers[edge]
        and batch.receivers[other] == batch.senders[edge]
        and torch.allclose(batch.edge_shifts[other], -batch.edge_shifts[edge], atol=1e-6)
    ]


@pytest.mark.parametrize("name", BATCHES)
def test_the_edge_walked_back_has_the_opposite_shift(name: str) -> None:
    batch = BATCHES[name]()
    reverse, found = reverses_of(edge_vectors(batch), batch.topology)
    for edge in range(batch.num_edges):
        expected = slow_reverse(batch, edge)
        assert bool(found[edge]) == bool(expected)
        assert not expected or int(reverse[edge]) in expected


def slow_sums(messages: list[Tensor], batch: GraphBatch) -> Tensor:
    """Triplet by triplet, with the angle between both edges."""
    vectors = edge_vectors(batch)
    sums = torch.zeros_like(messages[0])
    for second in range(batch.num_edges):
        back = slow_reverse(batch, second)
        for first in range(batch.num_edges):
            if batch.receivers[first] != batch.senders[second] or first in back:
                continue
            cosine = float(vectors[first] @ vectors[second] / (vectors[first].norm() * vectors[second].norm()))
            for ell, message in enumerate(messages):
                factor = math.sqrt((2 * ell + 1) / (4 * math.pi)) * float(eval_legendre(ell, cosine))
                sums[second] += factor * message[first]
    return sums


@pytest.mark.parametrize("name", [name for name in BATCHES if name != "an atom that is its own neighbour"])
def test_sums_over_triplets_are_those_of_a_loop(name: str) -> None:
    batch = BATCHES[name]()
    random = torch.Generator().manual_seed(0)
    messages = [torch.randn(batch.num_edges, 2, dtype=torch.float64, generator=random) for _ in range(7)]
    actual = TripletSums(7)(messages, message_graph(batch))
    torch.testing.assert_close(actual, slow_sums(messages, batch), rtol=1e-11, atol=1e-11)


def test_triplets_in_a_plane_are_those_in_space() -> None:
    flat = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ends = torch.tensor([(a, b) for b in range(3) for a in range(3) if a != b])
    topology = Topology.square(ends[:, 0].contiguous(), ends[:, 1].contiguous(), 3)
    messages = [torch.ones(6, 1, dtype=torch.float64)] * 4

    def sums(vectors: Tensor) -> Tensor:
        owner, count = torch.zeros(3, dtype=torch.int64), torch.tensor([3])
        graph = MessageGraph(topology=topology, owner=owner, nodes_per_graph=count, vectors=vectors)
        return TripletSums(4)(messages, graph)

    space = torch.cat([flat, torch.zeros(6, 1, dtype=torch.float64)], dim=1)
    torch.testing.assert_close(sums(flat), sums(space), rtol=1e-12, atol=1e-12)


def test_sums_over_triplets_have_two_derivatives_in_straight_lines() -> None:
    batch = BATCHES["molecules in straight lines"]()
    positions = batch.positions.clone().requires_grad_()
    random = torch.Generator().manual_seed(0)
    messages = [torch.randn(batch.num_edges, 1, dtype=torch.float64, generator=random) for _ in range(7)]
    weights = torch.randn(batch.num_edges, 1, dtype=torch.float64, generator=random)

    def total(moved: Tensor) -> Tensor:
        return (weights * TripletSums(7)(messages, message_graph(replace(batch, positions=moved)))).sum()

    assert torch.autograd.gradcheck(total, (positions,))
    assert torch.autograd.gradgradcheck(total, (positions,))


def test_zeros_of_bessel_functions_are_all_of_the_first_ones() -> None:
    for ell, zeros in enumerate(bessel_zeros(6, 12)):
        assert np.abs(spherical_jn(ell, zeros)).max() < 1e-14
        signs = np.sign(spherical_jn(ell, np.linspace(1e-3, zeros[-1] - 1e-3, 20_000)))
        assert np.count_nonzero(np.diff(signs)) == len(zeros) - 1


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_spherical_functions_are_those_of_scipy_at_all_distances(dtype: torch.dtype, tolerance: float) -> None:
    """Absolute, where values are of order 10; closed forms of j_6 are wrong by more than 1 at 0.02 of the cutoff in float32."""
    shares = np.linspace(0.02, 1, 50)
    actual = SphericalBesselBasis(3.0, 7, 6)(torch.from_numpy(3.0 * shares).to(dtype)).double().numpy()
    for ell, row in enumerate(bessel_zeros(6, 6)):
        scale = math.sqrt(2) / np.abs(spherical_jn(ell + 1, row))
        expected = scale * spherical_jn(ell, np.outer(shares, row))
        np.testing.assert_allclose(actual[:, ell], expected, rtol=0, atol=tolerance)
