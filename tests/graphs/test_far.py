"""Graphs far from the origin keep their edges in single precision, and near ones every bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule

from hydragnn.conformance.smoothness import atoms_graph, energy_model
from hydragnn.datasets import MemoryStore, Normalisation
from hydragnn.graphs import GraphBatch, concatenate, edge_vectors
from hydragnn.runs.preparation import normalise_store

CUTOFF = 3.4
OFFSETS = (100.0, 1e4, 5.4e6)


def single(batch: GraphBatch) -> GraphBatch:
    return batch.to(dtype=torch.float32)


def structures() -> list[Atoms]:
    """A molecule, a cell of one atom that sees its images, and a crystal."""
    crystal = bulk("NaCl", "rocksalt", a=5.64, cubic=True)
    crystal.rattle(0.1, seed=0)
    return [molecule("C2H6"), bulk("Cu", "fcc", a=3.61), crystal]


def moved(atoms: Atoms, offset: float) -> Atoms:
    copy = atoms.copy()
    copy.positions += offset * np.array([1.0, -0.7, 0.3])
    return copy


def batch_of(offset: float) -> GraphBatch:
    return concatenate([atoms_graph(moved(atoms, offset), CUTOFF) for atoms in structures()])


@pytest.mark.parametrize("offset", OFFSETS)
def test_edges_keep_their_vectors_in_single_precision_wherever_graphs_lie(offset: float) -> None:
    batch = batch_of(offset)
    # doubles have 1e-9 at the farthest offset, singles 2e-7 of lengths up to 3.4
    torch.testing.assert_close(edge_vectors(single(batch)).double(), edge_vectors(batch), rtol=0, atol=2e-6)


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("attention", [{}, {"global_attention": {"kind": "equivariant", "heads": 2, "cutoff": 4.3}}])
def test_energies_do_not_depend_on_where_graphs_lie(offset: float, attention: dict[str, object]) -> None:
    model = energy_model("painn", **attention).float()
    here, there = (model(single(batch_of(by)))["energy"].mean for by in (0.0, offset))
    torch.testing.assert_close(there, here, rtol=2e-5, atol=2e-5)


def test_what_is_kept_in_memory_for_training_keeps_edges_too() -> None:
    store = MemoryStore([atoms_graph(moved(atoms, 5.4e6), CUTOFF) for atoms in structures()])
    kept = normalise_store(store, np.arange(len(store)), [], Normalisation(), torch.float32).read(range(len(store)))
    expected = edge_vectors(store.read(range(len(store))))
    assert kept.positions.dtype == torch.float32
    torch.testing.assert_close(edge_vectors(kept).double(), expected, rtol=0, atol=2e-6)


def test_graphs_that_are_not_far_keep_every_bit() -> None:
    """Also beside one that is far, and where there are no nodes."""
    near = concatenate([atoms_graph(atoms, CUTOFF) for atoms in structures()])
    torch.testing.assert_close(single(near).positions, near.positions.float(), rtol=0, atol=0)
    both = single(concatenate([near, atoms_graph(moved(molecule("CH4"), 1e5), CUTOFF)]))
    torch.testing.assert_close(both.positions[: near.num_nodes], near.positions.float(), rtol=0, atol=0)
    whole = near.select([0])
    nodes, edges = (torch.tensor([0, 0, count, count]) for count in (8, whole.num_edges))
    cell, periodic = whole.cell.repeat(3, 1, 1), whole.periodic.repeat(3, 1)
    bare = whole.with_fields(drop=whole.fields)
    padded = replace(bare, cell=cell, periodic=periodic, node_offsets=nodes, edge_offsets=edges)
    torch.testing.assert_close(single(padded).positions, whole.positions.float(), rtol=0, atol=0)
    doubles = atoms_graph(moved(molecule("CH4"), 1e5), CUTOFF)
    assert doubles.to(dtype=torch.float64).positions is doubles.positions
