"""All pairs of a batch, or those within a cutoff, beside loops over nodes and images."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111, molecule

from hydragnn.conformance.cases import no_nodes
from hydragnn.graphs.atomic import from_ase
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.joining import concatenate
from hydragnn.graphs.search import pairs_within
from hydragnn.graphs.validate import graph_from_arrays
from hydragnn.graphs.wider import wider
from tests.refusals import refuses

CUTOFF = 4.7
"""Angstrom; between the shells of the structures below."""


def sheared() -> Atoms:
    atoms = bulk("NaCl", "rocksalt", a=5.64)
    atoms.set_cell(atoms.cell.array @ np.array([[1, 0.2, 0], [0, 1, 0.1], [0, 0, 0.9]]), scale_atoms=True)
    atoms.positions += [20.0, -7.0, 3.0]  # outside of the cell
    return atoms


STRUCTURES: dict[str, Callable[[], Atoms]] = {
    "crystal": lambda: bulk("Cu", "fcc", a=3.61),
    "sheared crystal outside of its cell": sheared,
    "slab without a third cell vector": lambda: fcc111("Al", (1, 2, 3), a=4.05, periodic=False),
    "wire": lambda: Atoms("HO", [[0, 0, 0], [0.3, 1.1, 0]], cell=[3.1, 0, 0], pbc=[True, False, False]),
    "molecule": lambda: molecule("CH3CH2OH"),
    "lone atom": lambda: Atoms("He"),
}


def graph(name: str) -> GraphBatch:
    return from_ase(STRUCTURES[name](), 2.0)


def rows(pairs: GraphBatch) -> list[tuple[float, ...]]:
    vectors = edge_vectors(pairs).round(decimals=6) + 0.0
    return sorted(zip(pairs.receivers.tolist(), pairs.senders.tolist(), *vectors.T.tolist()))


@pytest.mark.parametrize("name", STRUCTURES)
def test_pairs_within_a_cutoff_are_those_of_loops_over_images(name: str) -> None:
    atoms, pairs = STRUCTURES[name](), wider(graph(name), CUTOFF)
    expected = []
    reach = [range(-4, 5) if axis else [0] for axis in atoms.pbc]
    for receiver, sender in product(range(len(atoms)), repeat=2):
        for image in product(*reach):
            vector = atoms.positions[sender] + np.array(image) @ atoms.cell.array - atoms.positions[receiver]
            if np.linalg.norm(vector) < CUTOFF and (receiver != sender or any(image)):
                expected.append((receiver, sender, *(vector.round(6) + 0.0).tolist()))
    actual = rows(pairs)
    assert len(actual) == len(expected)
    np.testing.assert_allclose(np.array(actual).reshape(-1, 5), np.array(sorted(expected)).reshape(-1, 5), atol=2e-6)
    assert (pairs.receivers.diff() >= 0).all()


@pytest.mark.parametrize("cutoff", [CUTOFF, None])
def test_pairs_of_a_batch_are_those_of_its_graphs_alone(cutoff: float | None) -> None:
    names = [name for name in STRUCTURES if cutoff is not None or name in ("molecule", "lone atom")]
    batch = concatenate([*map(graph, names), no_nodes().with_fields(drop=no_nodes().fields), *map(graph, names)])
    batch = batch if cutoff is not None else replace(batch, periodic=torch.zeros_like(batch.periodic))
    together = wider(batch, cutoff)
    for number in range(batch.num_graphs):
        alone = wider(batch.select([number]), cutoff)
        own = together.select([number])
        assert torch.equal(own.senders, alone.senders) and torch.equal(own.receivers, alone.receivers)
        assert torch.equal(edge_vectors(own), edge_vectors(alone))


def test_without_a_cutoff_every_node_has_all_others_of_its_graph() -> None:
    batch = concatenate([graph("molecule"), graph("lone atom"), graph("molecule")])
    pairs, owner = wider(batch, None), batch.owner("node").tolist()
    expected = [(i, j) for i in range(len(owner)) for j in range(len(owner)) if owner[i] == owner[j] and i != j]
    assert list(zip(pairs.receivers.tolist(), pairs.senders.tolist())) == expected
    assert not pairs.edge_shifts.any()


def test_points_of_a_plane_have_pairs_through_its_periodic_boundary() -> None:
    box = {"cell": np.diag([1.0, 0.0, 0.0]), "periodic": [True, False, False]}
    plane = graph_from_arrays([[0.1, 0.5], [0.9, 0.5]], [], [], **box)
    assert rows(wider(plane, 0.3)) == [(0, 1, -0.2, 0.0), (1, 0, 0.2, 0.0)]


def test_vectors_follow_positions_and_cell() -> None:
    batch = graph("sheared crystal outside of its cell")
    strain = torch.zeros(3, 3, dtype=batch.cell.dtype, requires_grad=True)
    map_ = torch.eye(3, dtype=batch.cell.dtype) + strain
    pairs = wider(replace(batch, positions=batch.positions @ map_, cell=batch.cell @ map_), CUTOFF)
    vectors = edge_vectors(pairs)
    (gradient,) = torch.autograd.grad(vectors.square().sum() / 2, strain)
    torch.testing.assert_close(gradient, (vectors.T @ vectors).detach())


def test_pairs_are_searched_once_for_a_batch_and_anew_where_its_nodes_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Mock(side_effect=pairs_within)
    monkeypatch.setattr("hydragnn.graphs.batch.pairs_within", search)
    batch = graph("molecule")
    first, second = wider(batch, 2.0), wider(batch, 2.0)
    assert torch.equal(first.senders, second.senders) and search.call_count == 1
    assert wider(replace(batch, positions=batch.positions * 9), 2.0).num_edges == 0
    assert search.call_count == 2


def test_all_pairs_of_a_periodic_graph_are_refused() -> None:
    batch = concatenate([graph("molecule"), graph("wire")])
    refuses(r"graph 1 of the batch is periodic, .* have no end; give a cutoff", wider, batch, None)
