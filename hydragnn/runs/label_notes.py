"""Labels of a data set: counts, open compositions, reversed forces."""

from collections.abc import Iterator, Sequence

import numpy as np
from ase.data import chemical_symbols
from jaxtyping import Float64
from numpy import ndarray
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.datasets import GraphStore, Split
from hydragnn.datasets.split import species_counts
from hydragnn.datasets.tools import missing_in_graphs, present_graphs
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field
from hydragnn.kernels import segment_sum
from hydragnn.models import Target

LOOKED_AT = 1000
"""Graphs of the training part that are searched for neighbouring structures."""
NEAR = 0.3
"""Structures are neighbours where no atom is farther from where it was than this part of the median edge."""
SAME_CELL = 1e-3
"""Part of a cell by which it may differ in neighbours: the energy of a strain is none of the forces."""
LEAST_PAIRS = 12
MISSED = 0.02
"""Part of the spread of labels by which they may miss their total per node."""


def label_notes(store: GraphStore, train: NDArray[np.int64], targets: Sequence[Target]) -> list[str]:
    """Return notes on the labels of a training part."""
    notes: list[str] = []
    for target in targets:
        notes += missing_labels(store, train, target.field)
        if target.references and not target.given_references:
            notes += undetermined_references(store, train, target.field.name)
        if target.derivative == "forces":
            notes += turned_forces(store, train, target.source, target.field.name)
        if target.total is not None:
            notes += missed_totals(store, train, target.field.name, target.total)
    return notes


def labels_in_parts(store: GraphStore, split: Split, targets: Sequence[Target]) -> dict[str, dict[str, int]]:
    """Return how many graphs of each part have a label, by target."""
    return {
        target.name: {part: int(present[getattr(split, part)].sum()) for part in split.counts}
        for target in targets
        for present in [present_graphs(store, target.field)]
    }


def missing_labels(store: GraphStore, train: NDArray[np.int64], field: Field) -> Iterator[str]:
    """Return a note where labels inside training graphs are missing."""
    there, missing = label_numbers(store, train, field)
    if missing:
        yield f"{missing} of {there + missing} labels of {field.name} in graphs of the training part that have it are missing, and count nowhere"


def label_numbers(store: GraphStore, graphs: NDArray[np.int64], field: Field) -> tuple[int, int]:
    """Return how many numbers of a target these graphs have and lack."""
    chosen = graphs[present_graphs(store, field)[graphs]]
    sizes = {"node": store.sizes().nodes, "edge": store.sizes().edges}
    items = sizes.get(field.on, np.ones(len(store), dtype=np.int64))
    missing = int(missing_in_graphs(store, field)[chosen].sum())
    return int(items[chosen].sum()) * field.width - missing, missing


def unlabelled(store: GraphStore, split: Split, targets: Sequence[Target]) -> list[str]:
    """Return notes on targets without a label in the validation part.

    InputError where none has one, or a target has none in the training part.
    """
    for target in targets:
        if not label_numbers(store, split.train, target.field)[0]:
            raise InputError(
                f"no graph of the training part has a value of {target.name}; choose another split or field"
            )
    names = [target.name for target in targets if not label_numbers(store, split.valid, target.field)[0]]
    if len(names) == len(targets):
        problem = f"the validation part has no label of {', '.join(names)}, so that no best epoch can be chosen"
        raise InputError(f"{problem}; change the split, or label some of its graphs")
    return [
        f"the validation part has no label of {name}, which counts nowhere in the choice of the best epoch"
        for name in names
    ]


def missed_totals(store: GraphStore, train: NDArray[np.int64], name: str, total: str) -> Iterator[str]:
    """Return a note on labels that miss the total."""
    batch = store.read(np.sort(train)[:LOOKED_AT], [name, total] if total else [name])
    labels = batch[name].double()
    lacking = segment_sum(labels, batch.owner("node"), batch.num_graphs)
    if total:
        lacking = lacking - batch[total].double().reshape(lacking.shape)
    present = batch.masks.get(name, batch.counts("node") > 0) & lacking.isfinite().unsqueeze(-1).flatten(1).all(1)
    counts = batch.counts("node").clamp_min(1)
    shifts = lacking.abs() / counts.view(-1, *[1] * (lacking.dim() - 1))
    amount = float(shifts[present].mean()) if bool(present.any()) else 0.0
    if amount > MISSED * float(labels[batch.labelled(name)].std()):
        yield (
            f"labels of {name} do not add up to {total or 'zero'}: they would have to move by {amount:.2g} per node, and predictions with "
            "this total will; name a graph input with their sum in the total of the head, or leave it out"
        )


def undetermined_references(store: GraphStore, train: NDArray[np.int64], energy: str) -> Iterator[str]:
    """Return which reference energies the compositions of the training part leave open."""
    species, rows = open_compositions(store, train, energy)
    if len(rows):
        open_ones = species[np.abs(rows).max(axis=0) > 1e-9]
        yield (
            f"compositions of the training part do not determine the reference energies of {energy} ({len(species) - len(rows)} are independent, and there are "
            f"{len(species)} elements): those of {', '.join(chemical_symbols[z] for z in open_ones)} are a choice, and energies of other "
            "compositions may be far off; give the references of isolated atoms"
        )


def open_compositions(
    store: GraphStore, train: NDArray[np.int64], energy: str
) -> tuple[NDArray[np.int64], Float64[ndarray, "open species"]]:
    """Return elements of labelled graphs, and directions that no graph has."""
    present = store.column(energy).present
    counts, species = species_counts(store)
    counts = counts[train[present[train]]]
    species, counts = species[counts.any(axis=0)], np.unique(counts[:, counts.any(axis=0)], axis=0)
    _, sizes, rows = np.linalg.svd(counts.astype(np.float64))
    return species, rows[int((sizes > 1e-9 * sizes.max(initial=0.0)).sum()) :]


def turned_forces(store: GraphStore, train: NDArray[np.int64], energy: str, forces: str) -> Iterator[str]:
    """Return a note where energies rise along the forces."""
    names = {field.name for field in store.fields()}
    if not {ATOMIC_NUMBERS, energy, forces} <= names or store.dim != 3:
        return
    batch = store.read(np.sort(train)[:LOOKED_AT], [ATOMIC_NUMBERS, energy, forces])
    changes = neighbour_changes(batch, energy, forces)
    if len(changes) < LEAST_PAIRS:
        return
    expected, actual = changes.T
    scale = float(np.sqrt(np.square(expected).sum() * np.square(actual).sum()))
    agreement = float((expected * actual).sum()) / scale if scale else 0.0
    if agreement < -max(0.3, 3 / np.sqrt(len(changes))):
        against = int((expected * actual < 0).sum())
        yield (
            f"energies rise along the forces in {against} of {len(changes)} pairs of neighbouring structures: {forces} seem to have the other "
            "sign (the gradient of the energy is minus the force); if so, say scale = -1.0 for them in the build file"
        )


def neighbour_changes(batch: GraphBatch, energy: str, forces: str) -> Float64[ndarray, "pairs 2"]:
    """Return work and energy change between consecutive structures of the same atoms."""
    lengths = edge_vectors(batch).norm(dim=1)
    reach = NEAR * float(np.median(lengths.numpy())) if len(lengths) else 0.0
    usable = batch.present(energy) & batch.present(forces)
    last: dict[bytes, int] = {}
    rows = []
    cells, offsets = batch.cell.numpy(), batch.node_offsets.tolist()
    positions, pull = batch.positions.numpy(), batch[forces].double().numpy()
    usable[batch.owner("node")[(~batch[forces].isfinite()).any(dim=1)]] = False
    numbers, energies = batch[ATOMIC_NUMBERS].numpy(), batch[energy].double().flatten().numpy()
    for graph in np.flatnonzero(usable.numpy()).tolist():
        own_rows = slice(offsets[graph], offsets[graph + 1])
        previous = last.get(species := numbers[own_rows].tobytes())
        last[species] = graph
        if previous is None:
            continue
        previous_rows = slice(offsets[previous], offsets[previous + 1])
        moved = _moved(
            positions[previous_rows], positions[own_rows], cells[previous], cells[graph], batch.periodic[graph].numpy()
        )
        strained = np.abs(cells[graph] - cells[previous]).max() > SAME_CELL * np.abs(cells[previous]).max()
        if np.abs(moved).max() < reach and not strained:
            work = float((0.5 * (pull[previous_rows] + pull[own_rows]) * moved).sum())
            rows.append([-work, energies[graph] - energies[previous]])
    return np.array(rows, dtype=np.float64).reshape(-1, 2)


def _moved(
    old: NDArray[np.float64],
    new: NDArray[np.float64],
    old_cell: NDArray[np.float64],
    cell: NDArray[np.float64],
    periodic: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Displacements to the nearest image, without those of the strain."""
    if not periodic.all() or not np.linalg.det(old_cell) or not np.linalg.det(cell):
        return new - old
    fractional = new @ np.linalg.inv(cell) - old @ np.linalg.inv(old_cell)
    return (fractional - np.rint(fractional)) @ cell
