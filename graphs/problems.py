"""Faults of graphs: the rules for every place that checks them."""

import math
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from numpy import ndarray
from numpy.typing import NDArray
from torch import Tensor

from hydragnn.graphs.batch import GraphBatch, edge_vectors, graph_label, pairs_of_graph
from hydragnn.graphs.defects import edge_codes
from hydragnn.graphs.field import ATOMIC_NUMBERS, MISSING_CLASS, Field, Location, is_labelled
from hydragnn.graphs.levels import CLUSTERS, cluster_problems, is_levels
from hydragnn.graphs.search import spans_volume

Finding = tuple[int, str]
"""The position of a graph in its batch, and what is wrong with it, to be read after "graph N"."""

SINGULAR = 1e-8  # smallest singular value that periodic cell vectors of length 1 may have together
WHOLE = 1e-3  # part of the larger of cell and shift by which a shift may miss a whole number of cell vectors
CLOSEST = 1e-3  # distance in the unit of positions below which two atoms are one written twice
RADIUS = 1.0
"""Largest covalent radius that counts, Angstrom: atoms of metals under pressure come nearer than their own radii say."""

SYMMETRIC = re.compile("stress|virial", re.IGNORECASE)  # fields of which a matrix is symmetric, whatever their parity
SKEW = "no symmetric tensor, and one half of it would be left out; correct it, or remove it"
ROUNDING, NOISE = 1e-3, 1e-6
"""Difference of the halves of a tensor up to which it is symmetric: over its largest number, and in its own unit."""

GEOMETRY = {
    "cell": r"((unit|super|sim(ulation)?)_?)?(cells?|lat(tices?|(?=_?vec))|box(es)?)"
    r"(_?(vec(tor)?s?|matri(x|ces)|param(eter)?s?|lengths?|sizes?|angles?|[abcxyz]{1,2}))?",
    "periodic": r"pbc|periodic(ity)?|boundary_conditions?",
    "edge_shifts": r"(edge|cell|pbc|unit|image|bond)_?(shift|offset|image|flag)s?(_[abcxyz])?|to_jimages?",
    "spacing": r"spacings?|(voxel|pixel)_?sizes?",
}
"""Names that describe geometry in files, by the setting that uses it."""

LONGEST = 1 + 1e-4  # times the cutoff: what edges may measure in single precision


def graph_problems(
    batch: GraphBatch,
    numbers: Sequence[int] | Int64[ndarray, " graphs"] | None = None,
    *,
    needed: Collection[str] = (),
    cutoff: float | None = None,
    angstrom: float = 0.0,
) -> dict[int, str]:
    """Return the faults of invalid graphs by position in the batch.

    Checked are: at least one node; edges inside their graph and sorted by receiver; finite positions, shifts, cells and
    values (labels of targets with a mask may be missing); classes in range; independent cell vectors along periodic axes; shifts that are whole numbers of these; edges within
    the ``cutoff`` that made them, if one did, and between atoms that are apart; symmetric tensors; one target per edge among those that are the same to
    a model; clusters that are nested; and that every graph has the fields ``needed``.
    A graph with several problems is told of the first. The sentences call graphs by their ``numbers``, by default their
    positions. Offsets, shapes and dtypes are trusted: ``validate`` and the readers of stores check them. With ``angstrom``,
    the unit of positions in Angstrom, all nuclei are elements that are farther from each other than half the sum of their covalent radii.
    """
    by_graph: dict[int, str] = {}
    empty = np.flatnonzero(np.diff(batch.offsets("node").cpu().numpy()) == 0).tolist()
    findings = [(position, " has no nodes; leave empty graphs out") for position in empty]
    for check in (edge_problems, _not_finite_geometry, _singular_cells, _wrong_values):
        findings += check(batch)
    wrong = {position for position, _ in findings}
    fine = [graph for graph in range(batch.num_graphs) if graph not in wrong]
    sound = batch.select(fine) if wrong else batch
    of_sound = [*_wrong_images(sound, cutoff), *_wrong_nuclei(sound, cutoff, angstrom)]
    of_sound += [*_contradictions(sound), *_wrong_clusters(sound)]
    findings += [(fine[place], problem) for place, problem in of_sound]
    for position, problem in [*findings, *_missing_fields(batch, needed)]:
        number = position if numbers is None else numbers[position]
        by_graph.setdefault(position, f"{graph_label(batch, position, int(number))}{problem}")
    return dict(sorted(by_graph.items()))


def with_missing_labels(field: Field) -> str:
    """Return the advice for a graph with missing labels."""
    if field.role != "target":
        return f"only labels of targets may be missing, and {field.name} has the role {field.role}"
    return f"where labels of {field.name} are missing, say so: optional = true in a BUILD.toml, optional=['{field.name}'] in Python"


def cell_problem(cell: Tensor, periodic: Tensor) -> str:
    """Return the fault of one cell along its periodic axes; else empty."""
    if bool(periodic.all()) and spans_volume(cell.tolist()):
        return ""
    rows = cell[periodic]
    scale = rows.norm(dim=1).clamp_min(1e-300)
    if not len(rows) or float(torch.linalg.svdvals(rows / scale[:, None]).min()) >= SINGULAR:
        return ""
    axes = ", ".join("xyz"[i] for i in range(3) if bool(periodic[i]))
    return f": the cell is singular along its periodic axes ({axes}); give independent cell vectors"


def edge_problems(batch: GraphBatch) -> Iterator[Finding]:
    """Yield graphs with edges out of range, then those with unsorted edges."""
    nodes, edges = batch.offsets("node").cpu().numpy(), batch.offsets("edge").cpu().numpy()
    graphs = np.flatnonzero(np.diff(edges))
    if not len(graphs):
        return
    first, last = nodes[graphs], nodes[graphs + 1]
    for which, index in (("senders", batch.senders.cpu().numpy()), ("receivers", batch.receivers.cpu().numpy())):
        least, most = (extreme.reduceat(index, edges[graphs]) for extreme in (np.minimum, np.maximum))
        for graph in graphs[(least < first) | (most >= last)].tolist():
            start, stop = nodes[graph], nodes[graph + 1]
            own = index[edges[graph] : edges[graph + 1]]
            wrong = own[(own < start) | (own >= stop)][0] - start
            yield graph, f", {which}: node index {wrong} is out of range; the graph has {stop - start} nodes"
    falls = batch.receivers[1:] < batch.receivers[:-1]
    if bool(falls.any()):
        positions = falls.nonzero().flatten().cpu().numpy() + 1
        inside = positions[~np.isin(positions, edges)]  # a step down between graphs is an edge outside its graph
        for graph in _owners(inside, edges):
            yield graph, ": edges are not sorted by receiver; make the graph with graph_from_arrays, which sorts them"


def _not_finite_geometry(batch: GraphBatch) -> Iterator[Finding]:
    places: dict[str, Location] = {"positions": "node", "edge_shifts": "edge", "cell": "graph"}
    for name, on in places.items():
        yield from not_finite(name, getattr(batch, name), batch.offsets(on).cpu().numpy(), "remove the graph")


def _singular_cells(batch: GraphBatch) -> Iterator[Finding]:
    flags = batch.periodic.cpu()
    if not bool(flags.any()):
        return
    cells = batch.cell.cpu().double()
    rows = cells / cells.norm(dim=2, keepdim=True).clamp_min(1e-300)
    both = flags[:, :, None] & flags[:, None, :]
    gram = torch.where(both, rows @ rows.mT, torch.eye(3, dtype=rows.dtype))
    # the eigenvalues sum to 3, so the least is at least 4/9 of the determinant
    for graph in (~(torch.linalg.det(gram) > 1e-6)).nonzero().flatten().tolist():
        problem = cell_problem(cells[graph], flags[graph]) if bool(torch.isfinite(cells[graph]).all()) else ""
        if problem:
            yield graph, problem


def _wrong_images(batch: GraphBatch, cutoff: float | None) -> Iterator[Finding]:
    if not batch.dim or not batch.num_edges:
        return
    if bool(batch.edge_shifts.any()):
        yield from _broken_shifts(batch)
    if cutoff is None:
        return
    lengths = edge_vectors(batch).norm(dim=1)
    for graph, edge in _firsts((lengths > cutoff * LONGEST).nonzero().flatten(), batch.edge_offsets):
        length = float(lengths[int(batch.edge_offsets[graph]) + edge])
        beyond = f": edge {edge} is {length:.4g} long, beyond the cutoff of {cutoff:.12g} that the edges are said to end at; "
        yield graph, beyond + "compare shifts, cell and units of positions, or correct the cutoff"


def _wrong_nuclei(batch: GraphBatch, cutoff: float | None, angstrom: float) -> Iterator[Finding]:
    """Yield graphs with nodes that are no elements, or too near."""
    if ATOMIC_NUMBERS not in batch.nodes:
        return
    elements, nodes = batch.nodes[ATOMIC_NUMBERS].cpu().numpy(), batch.offsets("node").cpu().numpy()
    for graph in _owners(np.flatnonzero(elements == 0), nodes) if angstrom else ():
        yield graph, " has nodes with the atomic number 0, which is no element (X, or padding); leave them out"
    reach = RADIUS / angstrom if angstrom else CLOSEST
    first, second, lengths = pairs_of_nuclei(batch, cutoff if angstrom else math.inf, reach)
    near = np.flatnonzero((lengths < reach) & ((first != second) | (lengths >= CLOSEST)))
    if not len(near):
        return
    from ase.data import chemical_symbols, covalent_radii

    species, symbols = np.clip(elements, 0, len(covalent_radii) - 1), np.array(chemical_symbols)
    radii, move = np.minimum(covalent_radii, RADIUS)[species], "remove the duplicate"
    if angstrom:
        near = near[lengths[near] * angstrom < np.maximum(CLOSEST, (radii[first[near]] + radii[second[near]]) / 2)]
        move += ", compare the unit of positions with Angstrom, or say close_nuclei = true where nuclei are meant to be so near"
    near = near[np.argsort(lengths[near], kind="stable")]
    graphs, places = np.unique(np.searchsorted(nodes, first[near], side="right") - 1, return_index=True)
    for graph, at in zip(graphs.tolist(), near[places].tolist()):
        one, other = sorted((int(first[at]), int(second[at])))
        names = "-".join(symbols[species[[one, other]]])
        ends = f"{one - nodes[graph]} and {other - nodes[graph]}"
        yield graph, f": atoms {ends} ({names}) are {lengths[at]:.2g} apart; {move}"


def pairs_of_nuclei(batch: GraphBatch, cutoff: float | None, reach: float) -> tuple[ndarray, ndarray, ndarray]:
    """Return nodes and distances of edges, or of near pairs without cutoff."""
    if not batch.dim:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
    pairs = [
        (batch.receivers.cpu().numpy(), batch.senders.cpu().numpy(), edge_vectors(batch).norm(dim=1).cpu().numpy())
    ]
    if cutoff is None or cutoff < reach:
        for graph, start in enumerate(batch.node_offsets[:-1].tolist()):
            first, second, _, lengths = pairs_of_graph(batch, graph, reach)
            pairs.append((first + start, second + start, lengths))
    first, second, lengths = (np.concatenate(column) for column in zip(*pairs))
    return first, second, lengths


def nearest_nuclei(batch: GraphBatch, cutoff: float | None) -> dict[str, tuple[float, int]]:
    """Return the smallest distance of each pair of elements, and its graph."""
    if ATOMIC_NUMBERS not in batch.nodes:
        return {}
    from ase.data import chemical_symbols

    first, second, lengths = pairs_of_nuclei(batch, cutoff, RADIUS)
    first, second, lengths = (column[(first != second) | (lengths >= CLOSEST)] for column in (first, second, lengths))
    ends = np.sort(batch.nodes[ATOMIC_NUMBERS].cpu().numpy()[np.stack([first, second], axis=1)], axis=1)
    order, owner = np.argsort(lengths, kind="stable"), batch.owner("node").cpu().numpy()
    _, places = np.unique(ends[order] @ [len(chemical_symbols), 1], return_index=True)
    return {
        "-".join(chemical_symbols[number] for number in ends[at]): (float(lengths[at]), int(owner[first[at]]))
        for at in order[places]
    }


def _broken_shifts(batch: GraphBatch) -> Iterator[Finding]:
    flags = batch.periodic[:, : batch.dim].cpu().numpy()
    cells = batch.cell[:, : batch.dim, : batch.dim].cpu().numpy() * flags[:, :, None]
    shifts, inverses = batch.edge_shifts.cpu().numpy(), np.linalg.pinv(cells)
    for graph, (start, stop) in enumerate(pairwise(batch.offsets("edge").cpu().numpy().tolist())):
        own, cell = shifts[start:stop], cells[graph]
        misfit = np.abs(np.rint(own @ inverses[graph]) @ cell - own)
        scale = np.abs(cell).max()
        if misfit.max(initial=0.0) <= WHOLE * scale:
            continue
        wrong = misfit.max(axis=1) > WHOLE * np.maximum(scale, np.abs(own).max(axis=1))
        if wrong.any():
            edge = int(wrong.argmax())
            shift = ", ".join(f"{value:.4g}" for value in own[edge])
            axes = ", ".join(axis for axis, flag in zip("xyz", flags[graph]) if flag) or "none"
            broken = f", edge_shifts: ({shift}) of edge {edge} is no whole number of periodic cell vectors; "
            yield graph, f"{broken}give the cell and the periodic axes (now {axes}) that the shifts belong to"


def _firsts(edges: Tensor, offsets: Tensor) -> Iterator[tuple[int, int]]:
    """Yield the graphs of ascending edges, each with its first edge."""
    graphs, first = np.unique((torch.searchsorted(offsets, edges, right=True) - 1).cpu().numpy(), return_index=True)
    for graph, edge in zip(graphs.tolist(), edges.cpu().numpy()[first].tolist()):
        yield graph, edge - int(offsets[graph])


def _contradictions(batch: GraphBatch) -> Iterator[Finding]:
    fields = [field for field in batch.fields.values() if field.on == "edge"]
    targets = [field for field in fields if field.role == "target"]
    if not targets or not batch.num_edges:
        return
    codes = edge_codes(batch)
    order = np.argsort(codes, kind="stable")
    same = codes[order[1:]] == codes[order[:-1]]
    first, second = torch.from_numpy(order[:-1][same]), torch.from_numpy(order[1:][same])
    for field in fields:
        if field.role == "input":
            equal = ~_differ(batch[field.name], first, second)
            first, second = first[equal], second[equal]
    for target in targets:
        differ = _differ(batch[target.name], first, second, is_labelled(batch[target.name], target))
        pairs = sorted(zip(first[differ].tolist(), second[differ].tolist()))
        starts = torch.tensor([pair[0] for pair in pairs], dtype=torch.int64)
        for graph, edge in _firsts(starts, batch.edge_offsets):
            base = int(batch.edge_offsets[graph])
            other = next(two - base for one, two in pairs if one == base + edge)
            same = f": edges {edge} and {other} have the same ends, image and inputs, and different {target.name}, which no "
            move = "list each contact once, and leave undirected out where both of its sides are listed"
            yield graph, f"{same}model can tell apart; {move}"


def _differ(values: Tensor, first: Tensor, second: Tensor, labelled: Tensor | None = None) -> Tensor:
    unequal = values[first] != values[second]
    if labelled is not None:
        unequal &= labelled[first] & labelled[second]
    return unequal.reshape(len(unequal), math.prod(values.shape[1:])).any(dim=1)


def _wrong_values(batch: GraphBatch) -> Iterator[Finding]:
    for field in batch.fields.values():
        offsets = batch.offsets(field.on).cpu().numpy()
        missing = field.role == "target" and field.name in batch.masks
        for graph, problem in field_problems(field, batch[field.name], offsets, missing):
            if bool(batch.present(field.name)[graph]):
                yield graph, problem


def field_problems(
    field: Field, values: Tensor, offsets: NDArray[np.int64], missing: bool = False
) -> Iterator[Finding]:
    """Yield graphs with classes out of range, or values not finite.

    Labels may be ``missing``. Tensors, and stresses whatever their parity, are symmetric.
    """
    if not field.classes:
        move = f"remove the graph, or {with_missing_labels(field)}"
        yield from not_finite(f"field {field.name}", values, offsets, move, missing=missing)
        if field.parity == "tensor" or (SYMMETRIC.search(field.name) and field.shape[-2:] == (3, 3)):
            skew = is_skew(values.cpu().numpy())
            for graph in _owners(np.flatnonzero(skew.any(axis=tuple(range(1, skew.ndim)))), offsets):
                yield graph, f", field {field.name}: {SKEW}"
        return
    outside = (values < (MISSING_CLASS if missing else 0)) | (values >= field.classes)
    if bool(outside.any()):
        use = f"use 0 to {field.classes - 1} or declare more classes"
        if field.role == "target" and not missing and bool((values == MISSING_CLASS).any()):
            use += f"; {with_missing_labels(field)}"
        for graph, _, value, _ in _first_bad(values, outside, offsets):
            yield graph, f", field {field.name}: class {value} is out of range; {use}"


def is_skew(tensors: NDArray[Any]) -> NDArray[np.bool_]:
    """Return True for matrices whose halves differ by more than rounding.

    >>> is_skew(np.array([[[1.0, 0.5], [0.5, 1.0]], [[1.0, 0.5], [0.0, 1.0]]]))
    array([False,  True])
    """
    with np.errstate(invalid="ignore"):
        gap = np.abs(tensors - np.swapaxes(tensors, -1, -2)).max(axis=(-2, -1))
    skew: NDArray[np.bool_] = gap > np.maximum(ROUNDING * np.abs(tensors).max(axis=(-2, -1)), NOISE)
    return skew


def not_finite(
    what: str, values: Tensor, offsets: NDArray[np.int64], move: str, missing: bool = False
) -> Iterator[Finding]:
    """Yield graphs with infinite values, or NaN that are no labels."""
    if values.is_floating_point() and not math.isfinite(float(values.sum())):
        for graph, row, value, count in _first_bad(values, values.isinf() if missing else ~values.isfinite(), offsets):
            yield graph, f", {what}: {value} in row {row} ({count} in all); {move}"


def _wrong_clusters(batch: GraphBatch) -> list[Finding]:
    if not any(map(is_levels, batch.fields.values())):
        return []
    present = batch.present(CLUSTERS).nonzero().flatten().tolist()
    return [(present[place], f": {problem}") for place, problem in cluster_problems(batch.select(present))]


def _missing_fields(batch: GraphBatch, needed: Collection[str]) -> Iterator[Finding]:
    for name in needed:
        if name in batch.masks:
            for graph in (~batch.masks[name]).nonzero().flatten().tolist():
                yield graph, f" has no {name}, which the model reads; add it, or leave the graph out"
        field = batch.fields.get(name)
        if field is not None and field.role == "target" and not bool((labelled := batch.labelled(name)).all()):
            offsets = batch.offsets(field.on).cpu().numpy()
            for graph, _, _, count in _first_bad(batch[name], ~labelled, offsets):
                yield graph, f" lacks {count} values of {name}, which the model reads; add them, or leave the graph out"


def _first_bad(values: Tensor, bad: Tensor, offsets: NDArray[np.int64]) -> Iterator[tuple[int, int, float, int]]:
    """Yield each graph with a bad value: position, row, value, count."""
    rows = bad.flatten(1).any(dim=1) if bad.ndim > 1 else bad
    for graph in _owners(rows.nonzero().flatten().cpu().numpy(), offsets):
        span = slice(int(offsets[graph]), int(offsets[graph + 1]))
        yield graph, int(rows[span].nonzero()[0]), values[span][bad[span]][0].item(), int(bad[span].sum())


def _owners(items: NDArray[np.int64], offsets: NDArray[np.int64]) -> list[int]:
    numbers: list[int] = np.unique(np.searchsorted(offsets, items, side="right") - 1).tolist()
    return numbers
