"""Chapter on errors by group and in space, with pictures of fields.

Groups are by element, composition, size, magnitude and place.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from ase.data import chemical_symbols, covalent_radii
from ase.formula import Formula
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.ticker import MaxNLocator
from matplotlib.tri import Triangulation
from numpy.typing import NDArray
from scipy.spatial import KDTree

from hydragnn.scripts.report import canvas
from hydragnn.scripts.report.canvas import COLUMN, Figure, Panel, Section, Table, picture, table_of
from hydragnn.scripts.report.data_facts import graph_ranks
from hydragnn.scripts.report.facts import Data, Facts, Part, PartGraphs, Points, Values, metric, model_scores
from hydragnn.scripts.report.words import measured, per_node, thousands, with_unit
from hydragnn.training.baselines import VOLUME

FIELDS = 4  # with pictures; the page grows by less than 0.5 MB with each
MOST_NODES, VECTORS = 6000, 50  # of more nodes an even sample is drawn; more discs than these are pixels
GAP, TITLE, BAR, WIDTH, PIXELS = 10, 22, 36, (COLUMN - 30) / 2, 120  # of maps, in pixels; and pixels per inch
SIGNED = colormaps["RdBu_r"]
UNSIGNED = ListedColormap(SIGNED(np.linspace(0.5, 1.0, 128)))
SMALLEST = 13  # pixels of a disc that holds a chemical symbol
MAPS = ("truth", "prediction", "error", "spread")
RANKS = {1: ("only graph",), 2: ("best", "worst"), 3: ("best", "median", "worst")}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PlaneView:
    """A graph in the plane with the values of its nodes."""

    xy: NDArray[np.float64]
    radius: Values
    mesh: Triangulation | None
    """Triangles of plane meshes, which have no discs."""
    values: Mapping[str, Values]
    symbols: Sequence[str] = ()
    """Chemical symbols of atoms."""

    @property
    def limits(self) -> NDArray[np.float64]:
        """Return lower left and upper right corner."""
        reach = (self.radius.max() if self.mesh is None else 0.02 * np.ptp(self.xy)) or 1.0
        return np.stack([self.xy.min(axis=0) - reach, self.xy.max(axis=0) + reach])

    @property
    def height(self) -> float:
        """Return the height of a map in pixels."""
        wide, high = np.ptp(self.limits, axis=0)
        return float(np.clip(WIDTH * high / wide, 60.0, 200.0))


def chapter(facts: Facts) -> Section | None:
    """Return the chapter on the graphs and places with errors."""
    part = facts.part
    if part is None or not part.numbers:
        return None
    lead = f"Errors on the {part.name} part by what values have in common, and in space; all but those by size are of an even sample if graphs are many."
    groups = [groups_table(facts, part, field) for field in part.scores]
    title = "Errors by group and place"
    return Section("where", title, lead, list(field_maps(facts)), groups) if any(groups) else None


def field_maps(facts: Facts) -> Iterator[Figure]:
    """Return best, median and worst graph per field of nodes."""
    part, own = facts.part, facts.graphs
    if part is None or own is None or own.batch.dim < 2:
        return
    fields = [name for name in own.items if own.batch.fields[name].on == "node"]
    for field in fields[:FIELDS]:
        points, name = part.numbers[field], f"{part.name}-{field}"
        errors, ranks = graph_ranks(points)
        views = [view for rank in ranks if (view := view_of(points, own, int(errors.number[rank]))) is not None]
        if len(views) < len(ranks):
            continue
        signed, panels = own.batch.fields[field].width == 1, []
        scales = scales_of(views, signed=signed)
        for label, rank, view in zip(RANKS[len(views)], ranks.tolist(), views):
            number, size = int(errors.number[rank]), round(2 * (TITLE + view.height + BAR))
            title, draw = f"{field} of the {label} graph", partial(draw_maps, view, scales, points.unit)
            note = f"{facts.name_of(number) or f'graph {number}'}: RMSE "
            note += with_unit(measured(errors.rmse[rank]), points.unit, "{0}\u00a0{1}")
            note += f", relative L2 {100 * errors.relative[rank]:.1f}\u00a0%" if own.species is None else ""
            svg = picture(f"map-{name}-{label}", title, draw, height=size, dpi=PIXELS)
            panels.append(Panel(svg=svg, label=label, note=note))
        norm = "" if signed else "; of several components the norm is shown"
        caption = (
            f"graphs of the {part.name} part with the smallest, median and largest root mean square error. Colours mean the same in "
            f"all pictures{norm}. A good spread is deep where the error is deep. Missing labels are left blank."
        )
        yield Figure(name=f"maps-{name}", title=f"{field} in space", caption=caption, panels=tuple(panels), wide=True)


def view_of(points: Points, own: PartGraphs, number: int) -> PlaneView | None:
    """Return a graph with the values of its nodes; None where unknown."""
    place, rows = int(own.place(np.array([number]))[0]), np.flatnonzero(points.graph == number)
    first, last = own.batch.node_offsets.numpy()[place : place + 2] if place >= 0 else (0, 0)
    items = own.items[points.field][rows] - first
    if place < 0 or items.min() < 0:
        return None
    xyz, volume = own.batch.positions[first:last].double().numpy(), own.batch.fields.get(VOLUME)
    mesh = triangles(own, place) if volume is None and last - first <= MOST_NODES else None
    radius = _radii(own, slice(first, last), xyz)
    if own.batch.dim == 3:  # seen along the shortest axis, the nearest nodes last
        axes = np.eye(3)[np.argsort(-np.ptp(xyz, axis=0), kind="stable")]
        if own.species is not None and not own.batch.periodic[place].any():  # a molecule lies in any direction
            axes = np.linalg.svd(xyz - xyz.mean(axis=0))[2]
        xyz = xyz @ axes.T
    order = np.argsort(xyz[:, 2] if own.batch.dim == 3 else np.zeros(len(xyz)), kind="stable")
    if len(order) > MOST_NODES:
        order = order[np.linspace(0, len(order) - 1, MOST_NODES).astype(np.int64)]
        radius = radius * np.sqrt((last - first) / MOST_NODES)
    columns, values = dict(zip(MAPS, (points.target, points.mean, points.error, points.spread))), {}
    several = own.batch.fields[points.field].width > 1
    for name, column in columns.items():
        if column is not None:
            values[name] = np.full(last - first, np.nan)
            values[name][items] = norms(column[rows], items)[items] if several else column[rows]
            values[name] = values[name][order]
    symbols: list[str] = []
    if own.species is not None and own.species.min() >= 0 and own.species.max() < len(chemical_symbols):
        symbols = [chemical_symbols[number] for number in own.species[first + order]]
    return PlaneView(xy=xyz[order, :2], radius=radius[order], mesh=mesh, values=values, symbols=symbols)


def _radii(own: PartGraphs, nodes: slice, xyz: Values) -> Values:
    """Return radii of atoms, of grains by volume, else by spacing."""
    if own.species is not None:
        return 0.7 * covalent_radii[np.clip(own.species[nodes], 0, len(covalent_radii) - 1)]
    nearest = KDTree(xyz).query(xyz, 2)[0][:, 1]
    usual = (0.5 * float(np.median(nearest)) if len(xyz) > 1 else 1.0) or 1.0
    if VOLUME not in own.batch.fields:
        return np.full(len(xyz), usual)
    size = np.abs(own.batch[VOLUME][nodes].double().numpy().reshape(len(xyz))) ** (1 / own.batch.dim)
    return usual * np.clip(size / (np.median(size) or 1.0), 0.3, 2.0)


def scales_of(views: list[PlaneView], *, signed: bool) -> tuple[Normalize, Normalize]:
    """Return limits of values and of errors in all these graphs."""
    halves = [[v.values[name] for v in views for name in names if name in v.values] for names in (MAPS[:2], MAPS[2:])]
    (low, high), ends = ((float(np.nanmin(own)), float(np.nanmax(own))) for own in map(np.concatenate, halves))
    most = max(map(abs, ends)) or 1.0
    return Normalize(low, high if high > low else low + 1.0), Normalize(-most if signed else 0.0, most)


def draw_maps(view: PlaneView, scales: tuple[Normalize, Normalize], unit: str, axes: Axes) -> None:
    """Draw truth beside prediction above error beside spread."""
    texts: list[tuple[float, float, str, dict[str, Any]]] = []
    # one pair of axes whose unit is a pixel: further ones would cost most of the time
    axes.set(position=(0, 0, 1, 1), xlim=(0, COLUMN), ylim=(2 * (TITLE + view.height + BAR), 0), autoscale_on=False)
    axes.set_axis_off()
    for row, norm in enumerate(scales):
        top, low, high = row * (TITLE + view.height + BAR) + TITLE, float(norm.vmin or 0.0), float(norm.vmax or 0.0)
        colours: dict[str, Any] = {"cmap": SIGNED if row and low < 0 else UNSIGNED if row else "viridis", "norm": norm}
        for column, name in enumerate(MAPS[2 * row : 2 * row + 2]):
            if name in view.values:
                corner = GAP + column * (WIDTH + GAP)
                _draw_map(axes, view, view.values[name], np.array([corner, top]), colours)
                texts.append((corner, top - 6, with_unit(name, unit), {"color": canvas.INK}))
        place, x = top + view.height + 6, np.linspace(2 * GAP, COLUMN - 2 * GAP, 65)
        bar = np.tile(np.linspace(low, high, len(x)), (2, 1))
        axes.pcolormesh(x, [place, place + 7], bar, shading="gouraud", rasterized=True, **colours)
        ticks = [float(tick) for tick in MaxNLocator(4).tick_values(low, high) if low <= tick <= high]
        for at, text in zip(np.interp(ticks, [low, high], [x[0], x[-1]]), map(canvas.tick_label, ticks)):
            texts.append((float(at), place + 10, text, {"color": canvas.MUTED, "ha": "center", "va": "top"}))
    for across, down, text, style in texts:  # last, so that all pixels are one image
        axes.text(across, down, text, fontsize=11.5, **style)


def _draw_map(axes: Axes, view: PlaneView, values: Values, corner: Values, colours: Mapping[str, Any]) -> None:
    """Draw one map with its upper left corner there."""
    size, labelled = np.ptp(view.limits, axis=0), np.isfinite(values)
    scale = min(WIDTH / size[0], view.height / size[1])
    xy = corner + (WIDTH / 2, view.height / 2) + (view.xy - view.limits.mean(axis=0)) * scale * (1, -1)
    if view.mesh is not None:
        missing = ~labelled[view.mesh.triangles].all(axis=1)
        mesh = Triangulation(*xy.T, view.mesh.triangles, mask=view.mesh.mask | missing)
        axes.tripcolor(mesh, np.where(labelled, values, 0.0), shading="gouraud", rasterized=True, **colours)
        return
    wide, place = 2 * scale * view.radius[labelled], {"offsets": xy[labelled], "offset_transform": axes.transData}
    discs = EllipseCollection(wide, wide, np.zeros_like(wide), units="xy", **place, **colours)
    discs.set(array=values[labelled], edgecolors=canvas.SOFT, linewidths=0.4, rasterized=len(values) > VECTORS)
    axes.add_collection(discs, autolim=False)
    if values is view.values[MAPS[0]]:  # elements once, where they can be read
        for (x, y), size, symbol, value in zip(xy, 2 * scale * view.radius, view.symbols, values):
            if size >= SMALLEST:
                ink = "white" if colours["norm"](value) < 0.6 else canvas.INK
                axes.text(x, y, symbol, fontsize=10, ha="center", va="center", color=ink, clip_on=True)


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
        columns[name] = lambda n: f"{100 * inside[n].mean():.1f} %" if len(inside[n]) else "–"
    graphs = [np.unique(points.graph[rows]).tolist() for _, _, rows in groups]
    if outside:
        columns["outside domain"] = lambda n: f"{100 * np.mean([bool(outside[g]) for g in graphs[n]]):.1f} %"
    columns["values"] = lambda n: thousands(len(groups[n][2]))
    columns["graphs"] = lambda n: thousands(len(graphs[n]))
    caption = f"{with_unit(field, points.unit)}: errors by group; the bar is the MAE."
    return table_of(range(len(groups)), columns, caption, bars=[one / (max(mae) or 1.0) for one in mae])


def groups_of(points: Points, own: PartGraphs | None, data: Data | None) -> Iterator[tuple[str, str, Rows]]:
    """Return kind, name and rows of groups, several of a kind."""
    kinds: dict[str, Grouping] = {}
    if own is not None:
        kinds |= {"element": by_element(points, own), "composition": by_composition(points, own)}
    if data is not None and points.graph.max() < len(data.sizes):
        nodes = data.sizes.nodes[points.graph].astype(np.float64)
        kinds["nodes per graph"] = bins_of(nodes, np.arange(len(nodes)))
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
