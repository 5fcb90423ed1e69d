"""Fe-Pt alloys on a lattice: mixing enthalpy, charge transfer and magnetic moment as three heads of one model."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from ase import Atoms
from numpy.typing import NDArray

from hydragnn.datasets import StoreWriter
from hydragnn.graphs import ATOMIC_NUMBERS_FIELD, Field, GraphBatch, from_ase, relation_field, with_shell_relations
from hydragnn.graphs.relations import shell_radii

CELL = (20.872, 10.436, 14.116)  # Bohr; body-centred tetragonal, 32 sites
CUTOFF = 10.6  # Bohr; eight neighbour shells
LEFT_OUT = (8, 16, 24)  # compositions (numbers of Fe) that training never sees
FIELDS = (
    ATOMIC_NUMBERS_FIELD,
    relation_field(8, "shell"),
    Field(name="enthalpy", on="graph", unit="Ry/atom", role="target", dtype="float64"),
    Field(name="charge_transfer", on="node", unit="e", role="target"),
    Field(name="moment", on="node", unit="muB", role="target"),
    Field(name="part", on="graph", classes=3, dtype="int64", role="auxiliary"),
    Field(name="iron", on="graph", classes=33, dtype="int64", role="auxiliary"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cells:
    """The raw file: one row per configuration."""

    numbers: NDArray[np.int64]
    enthalpy: NDArray[np.float64]
    charge_transfer: NDArray[np.float32]
    moment: NDArray[np.float32]
    part: NDArray[np.int64]

    @property
    def iron(self) -> NDArray[np.int64]:
        """Fe atoms of every cell."""
        return (self.numbers == 26).sum(axis=1)


def read_cells(path: Path, seed: int = 0) -> tuple[Cells, NDArray[np.float64]]:
    """The configurations with their parts, and the positions of the sites.

    Equal labels up to symmetry would leak between parts: parts are made of whole symmetry classes, and training keeps
    one configuration of each. Part 2 judges: the file's validation classes and all cells of the left-out
    compositions. Part 1 (one class in twenty of the rest) chooses the epoch.
    """
    with np.load(path, allow_pickle=False) as raw:
        numbers, energy = raw["Z"].astype(np.int64), raw["header"][:, 0]
        iron = (numbers == 26).sum(axis=1)
        pure = {count: energy[iron == count].mean() / 32 for count in (0, 32)}
        enthalpy = energy / 32 - (iron * pure[32] + (32 - iron) * pure[0]) / 32
        classes, first = np.unique(raw["symmetry_class"], return_index=True)
        chosen = np.random.default_rng(seed).permutation(classes)[: len(classes) // 20]
        judged = raw["is_validation"] | np.isin(iron, LEFT_OUT)
        part = np.where(judged, 2, np.isin(raw["symmetry_class"], chosen).astype(np.int64))
        keep = judged.copy()
        keep[first] = True
        cells = Cells(
            numbers=numbers[keep],
            enthalpy=enthalpy[keep],
            charge_transfer=raw["charge_transfer"][keep],
            moment=raw["magmom"][keep],
            part=part[keep],
        )
        return cells, raw["pos"]


def lattice(positions: NDArray[np.float64]) -> GraphBatch:
    """The graph that all cells share: 32 sites, edges to eight shells of neighbours, the shell as the kind of edge."""
    site = from_ase(Atoms("Fe32", positions=positions, cell=CELL, pbc=True), CUTOFF)
    radii = shell_radii(site)
    assert len(radii) == 8
    return with_shell_relations(site, radii)


def cells_as_batch(cells: Cells, rows: slice, site: GraphBatch) -> GraphBatch:
    """The configurations ``rows`` as graphs without geometry: on an ideal lattice the shells say it all."""
    numbers = torch.from_numpy(cells.numbers[rows])
    count, nodes, edges = len(numbers), site.num_nodes, site.num_edges
    base = torch.arange(count).repeat_interleave(edges) * nodes
    return GraphBatch(
        positions=torch.zeros(count * nodes, 0, dtype=torch.float64),
        senders=site.senders.repeat(count) + base,
        receivers=site.receivers.repeat(count) + base,
        edge_shifts=torch.zeros(count * edges, 0, dtype=torch.float64),
        cell=torch.zeros(count, 3, 3, dtype=torch.float64),
        periodic=torch.zeros(count, 3, dtype=torch.bool),
        node_offsets=torch.arange(count + 1) * nodes,
        edge_offsets=torch.arange(count + 1) * edges,
        fields={field.name: field for field in FIELDS},
        nodes={
            "atomic_numbers": numbers.flatten(),
            "charge_transfer": torch.from_numpy(cells.charge_transfer[rows]).flatten(),
            "moment": torch.from_numpy(cells.moment[rows]).flatten(),
        },
        edges={"shell": site.edges["relation"].repeat(count)},
        graphs={
            "enthalpy": torch.from_numpy(cells.enthalpy[rows]),
            "part": torch.from_numpy(cells.part[rows]),
            "iron": torch.from_numpy(cells.iron[rows]),
        },
    )


def write_store(raw: Path, store: Path) -> None:
    """The raw npz file as a store."""
    cells, positions = read_cells(raw)
    site = lattice(positions)
    with StoreWriter(store, FIELDS, dim=0, attributes={"source": "LSMS Fe-Pt, github allaffa/GCNN b0bc200f"}) as writer:
        for start in range(0, len(cells.numbers), 256):
            writer.write(cells_as_batch(cells, slice(start, start + 256), site))
