"""Errors by groups of values: by element, composition, size, magnitude and place."""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from ase.data import chemical_symbols
from ase.formula import Formula
from matplotlib.tri import Triangulation
from numpy.typing import NDArray
from scipy.spatial import KDTree

from hydragnn.scripts.report.facts import Data, Facts, Part, PartGraphs, Points, Values, metric, model_scores
from hydragnn.scripts.report.section import Table, table_of
from hydragnn.scripts.report.words import measured, per_node, percent, thousands, with_unit

Rows = NDArray[np.int64]
Grouping = Iterator[tuple[str, Rows]]
BINS, MOST = 4, 10  # bins of numbers; elements and compositions with groups of their own, those with most values


def groups_table(facts: Facts, part: Part, field: str) -> Table | None:
    """Return errors of one field by groups of its values, if any."""
    points = part.numbers.get(field)
    groups = list(groups_of(points, facts.graphs, facts.data)) if points is not None else []
    if points is None or not groups:
        return None
    error, covered, outside, data = np.abs(points.error), points.covered, facts.outside, facts.data
    mae = [float(error[rows].mean()) for _, _, rows in groups]
    columns: dict[str, Callable[[Any], str]] = {
        "by": lambda n: "" if n and groups[n - 1][0] == groups[n][0] else groups[n][0],
        "group": lambda n: groups[n][1],
        "MAE": lambda n: measured(mae[n]),
        "RMSE": lambda n: measured(float(np.sqrt(np.mean(error[groups[n][2]] ** 2)))),
    }
    if data is not None and math.isfinite(metric(model_scores(part.scores[field]), "mae_per_node")):
        share_of = error / data.sizes.nodes[points.graph]
        columns["MAE per node"] = lambda n: per_node(float(share_of[groups[n][2]].mean()), points.unit)
    if covered is not None:
        name = f"in {facts.evaluation.nominal * 100:.0f} % interval"
        inside = [covered[rows][np.isfinite(covered[rows])] for _, _, rows in groups]
        columns[name] = lambda n: percent(float(inside[n].mean())) + " %" if len(inside[n]) else "–"
    graphs = [np.unique(points.graph[rows]).tolist() for _, _, rows in groups]
    if outside:
        columns["outside domain"] = lambda n: percent(sum(bool(outside[g]) for g in graphs[n]) / len(graphs[n])) + " %"
    columns["values"] = lambda n: thousands(len(groups[n][2]))
    columns["graphs"] = lambda n: thousands(len(graphs[n]))
    caption = f"{with_unit(field, points.unit)}: errors by group; the bar is the MAE."
    return table_of(range(len(groups)), columns, caption, bars=[one / (max(mae) or 1.0) for one in mae])


def groups_of(points: Points, own: PartGraphs | None, data: Data | None) -> Iterator[tuple[str, str, Rows]]:
    """Return kind, name and rows of groups, two or more of a kind."""
    kinds: dict[str, Grouping] = {}
    if own is not None:
        kinds |= {"element": by_element(points, own), "composition": by_composition(points, own)}
    if data is not None and points.graph.max() < len(data.sizes):
        kinds["nodes per graph"] = bins_of(
            data.sizes.nodes[points.graph].astype(np.float64), np.arange(len(points.graph))
        )
    items = own.items.get(points.field) if own is not None else None
    if own is not None and items is not None and len(rows := np.flatnonzero(items >= 0)):
        size = norms(points.target[rows], items[rows])[items[rows]]
        kinds[with_unit("size of the truth", points.unit)] = bins_of(size, rows)
        kinds["distance from boundary"] = by_depth(points, own)
    for kind, groups in kinds.items():
        if len(named := list(groups)) > 1:
            yield from ((kind, name, rows) for name, rows in named)


def bins_of(values: Values, rows: Rows) -> Grouping:
    """Return rows by value, many values in bins of equal count.

    >>> [(name, own.tolist()) for name, own in bins_of(np.array([8.0, 2.0, 8.0]), np.array([0, 1, 2]))]
    [('2', [1]), ('8', [0, 2])]
    """
    whole = bool((values == np.round(values)).all() and np.abs(values).max(initial=0.0) < 1e6)
    distinct = np.unique(values)
    levels = np.linspace(0, 1, BINS + 1)[1:-1]
    edges = distinct if len(distinct) <= BINS else np.unique(np.quantile(values, levels, method="lower"))
    bin_of = np.searchsorted(edges, values)
    for number in np.unique(bin_of).tolist():
        own = values[bin_of == number]
        ends = [str(int(end)) if whole else measured(float(end)) for end in (own.min(), own.max())]
        yield " to ".join(dict.fromkeys(ends)), rows[bin_of == number]


def by_element(points: Points, own: PartGraphs) -> Grouping:
    """Return rows of atoms by element, of graphs by those inside."""
    species, items = own.species, own.items.get(points.field)
    if species is None or (items is not None and own.batch.fields[points.field].on != "node"):
        return
    place, owner, rows_of = own.place(points.graph), own.batch.owner("node").numpy(), []
    for number in np.unique(species[(species > 0) & (species < len(chemical_symbols))]).tolist():
        holders = np.isin(place, owner[species == number])
        of = holders & ~holders.all() if items is None else (items >= 0) & (species[items] == number)
        rows_of.append(("with " * (items is None) + chemical_symbols[number], np.flatnonzero(of)))
    yield from sorted((one for one in rows_of if len(one[1])), key=lambda one: -len(one[1]))[:MOST]


def by_composition(points: Points, own: PartGraphs) -> Grouping:
    """Return rows by elements of their graph, else by formula."""
    if own.species is None or own.species.min() < 1 or own.species.max() >= len(chemical_symbols):
        return
    symbols = np.array(chemical_symbols)[own.species]
    atoms = [part.tolist() for part in np.split(symbols, own.batch.node_offsets.numpy()[1:-1])]
    names = ["–".join(sorted(set(part))) for part in atoms]
    if len(set(names)) == 1:
        names = [f"{Formula.from_list(part).reduce()[0]:metal}" for part in atoms]
    name_of = np.array([*names, ""])[own.place(points.graph)]
    rows_of = [(name, np.flatnonzero(name_of == name)) for name in sorted(set(names))]
    rows_of = sorted((one for one in rows_of if len(one[1])), key=lambda one: -len(one[1]))
    yield from rows_of[:MOST]
    if len(rows_of) > MOST:
        yield f"{len(rows_of) - MOST} others", np.concatenate([rows for _, rows in rows_of[MOST:]])


def norms(values: Values, items: Rows) -> Values:
    """Return the norm of the components of every item.

    >>> norms(np.array([3.0, 4.0, 2.0]), np.array([0, 0, 2]))
    array([5., 0., 2.])
    """
    return np.sqrt(np.bincount(items, weights=values**2))


def by_depth(points: Points, own: PartGraphs) -> Grouping:
    """Return rows of nodes of plane meshes by distance from the boundary."""
    batch, items = own.batch, own.items[points.field]
    if batch.dim != 2 or own.species is not None or batch.fields[points.field].on != "node":
        return
    depth, offsets = np.full(batch.num_nodes, np.nan), batch.node_offsets.tolist()
    for place in range(batch.num_graphs):
        if (mesh := triangles(own, place)) is not None:
            corner, side = np.argwhere((mesh.neighbors < 0) & ~mesh.mask[:, None]).T
            boundary = np.unique([mesh.triangles[corner, side], mesh.triangles[corner, (side + 1) % 3]])
            xy = np.stack([mesh.x, mesh.y], axis=1)
            away = KDTree(xy[boundary]).query(xy)[0]
            depth[offsets[place] : offsets[place + 1]] = away / (away.max() or 1.0)
    value = np.where(items >= 0, depth[items], np.nan)
    names = ("on it", "first third", "second third", "farthest third")
    for name, (above, limit) in zip(names, pairwise((-1.0, 0.0, 1 / 3, 2 / 3, 1.0))):
        if len(rows := np.flatnonzero((value > above) & (value <= limit))):
            yield name, rows


def triangles(own: PartGraphs, place: int) -> Triangulation | None:
    """Return triangles with two or more sides among a plane graph's edges.

    None where the graph is periodic, and where they do not hold nearly all nodes.
    """
    batch, (first, last) = own.batch, own.batch.node_offsets.numpy()[place : place + 2]
    begin, end = batch.edge_offsets[place : place + 2].tolist()
    senders, receivers = (ends[begin:end].numpy() - first for ends in (batch.senders, batch.receivers))
    linked = np.minimum(senders, receivers) * (last - first) + np.maximum(senders, receivers)
    if batch.dim != 2 or bool(batch.periodic[place].any()) or not len(linked):
        return None
    try:
        mesh = Triangulation(*batch.positions[first:last].double().numpy().T)
    except (RuntimeError, ValueError):  # all nodes on a line, or on each other
        return None
    ends = np.stack([mesh.triangles, np.roll(mesh.triangles, -1, axis=1)])
    sides = np.isin(ends.min(axis=0) * (last - first) + ends.max(axis=0), linked).sum(axis=1)
    mesh.set_mask(sides < 2)
    return mesh if len(np.unique(mesh.triangles[sides >= 2])) > 0.9 * (last - first) else None
