"""Exchange with torch_geometric, whose edges also flow from row 0 to 1."""

import math
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hydragnn.base.errors import InputError, nearest
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import MISSING_CLASS, Field, columns_of
from hydragnn.graphs.joining import unbatch
from hydragnn.graphs.problems import GEOMETRY
from hydragnn.graphs.texts import NAME, NAME_KEYS, name_among
from hydragnn.graphs.validate import AGREES, graph_from_arrays, node_indices, numbers_of

Data = Any  # torch_geometric.data.Data: importing it takes seconds, so only what uses it does

POSITIONS = ("pos", "positions", "_positions")
FRACTIONS = ("frac_coords",)
CELLS = ("cell", "lattice", "cell_lattice_vectors", "_cell", "supercell_size")
PERIODIC = ("periodic", "pbc", "_pbc")
OURS = "periodic"  # attribute of data that ``to_pyg`` made, whose shifts move the sender
MARK = "of_hydragnn"  # attribute that ``to_pyg`` adds: fields are in names and units of a store
SHIFTS: dict[str, tuple[bool, int]] = {
    "edge_shifts": (False, 1),  # the public HydraGNN
    "shifts": (False, 1),  # MACE
    "unit_shifts": (True, 1),  # MACE
    "edge_cell_shift": (True, 0),  # NequIP, Allegro; edges are turned round first
    "edge_cell_shifts": (True, 0),
    "cell_offsets": (True, 0),  # fairchem, OCP
    "to_jimages": (True, 0),  # CDVAE, DiffCSP
    "pbc_shift": (True, 1),  # SevenNet
    "pbc_offset": (True, 1),  # matgl, in cell vectors
    "pbc_offshift": (False, 1),  # matgl, as a length
    "_offsets": (False, 0),  # SchNetPack, whose edges end at _idx_i
    "edge_shift": (True, 1),  # e3nn's examples
    "images": (True, 1),
    "offset": (True, 1),
    "offsets": (False, 0),
}
"""Attributes that shift one end of every edge: True if they count cell vectors, and the row of ``edge_index`` that they move."""
TURNED = ("edge_cell_shift", "edge_cell_shifts")  # attributes beside which row 0 of ``edge_index`` receives
LENGTHS = (
    *("edge_length", "edge_lengths", "edge_len", "edge_dist", "edge_distance", "edge_distances"),
    *("distances", "bond_dist"),
)
VECTORS = ("edge_vec", "edge_vectors", "edge_vector", "bond_vec", "distance_vec", "_Rij")
MAYBE_LENGTHS = ("edge_attr", "edge_weight")
"""Attributes that often are lengths: they confirm a reading and refuse none."""

SUSPICIOUS = re.compile("shift|offset|image|translation|pbc|periodic", re.IGNORECASE)
WHOLE = 1e-3  # cell vectors by which a shift may miss a whole number of them
TIE = 1e-5  # relative difference below which two readings give the same lengths


def torch_geometric(module: str) -> ModuleType:
    """Import a module of torch_geometric without its deprecation notes."""
    from importlib import import_module

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return import_module(f"torch_geometric.{module}")


def from_pyg(
    data: Data,
    fields: Iterable[Field] = (),
    *,
    keys: Mapping[str, str] | None = None,
    columns: Mapping[str, int | list[int]] | None = None,
    optional: Iterable[str] = (),
    cutoff: float | None = None,
    name: str = "graph",
) -> GraphBatch:
    """Return the graph of one ``Data``; fields are attributes by name.

    ``keys`` names the attributes of fields with other names, and ``columns`` one or several columns of an attribute that holds several quantities.

    Positions come from ``pos`` (none: dimension 0); cell, periodic axes and images from the attributes of this program, the public
    HydraGNN, MACE, NequIP, fairchem, SevenNet, matgl, SchNetPack and others (``SHIFTS``), compared with lengths of edges that
    are stored beside, or with the ``cutoff`` that made them. A trailing axis of length 1 may stand for a scalar, and a leading
    one for the graph. Fields named in ``optional`` may be absent, and labels of these targets missing (NaN, of classes -1). InputError for a missing attribute, for images that are not
    understood and for all that ``graph_from_arrays`` refuses.

    >>> data = torch_geometric("data").Data(pos=torch.zeros(2, 3), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([2.0]))
    >>> from_pyg(data, [Field(name="y", on="graph", role="target")])["y"]
    tensor([2.])
    """
    absent, keys, columns = set(optional), keys or {}, columns or {}
    declared: list[Field] = []
    values: dict[str, dict[str, Tensor]] = {"nodes": {}, "edges": {}, "graphs": {}}
    for field in fields:
        key, where = keys.get(field.name, field.name), f"{name}, field {field.name}"
        value = data.get(key)
        if value is None and field.name in absent:
            continue
        if value is None:
            raise InputError(f"{name}: the data has no attribute {key}; {nearest(key, list(data.keys()))}")
        declared.append(field)
        value = numbers_of(value, where)
        value = columns_of(value, columns[field.name], where) if field.name in columns else value
        values[f"{field.on}s"][field.name] = _shaped(value, field)
    geometry = _geometry_of(data, name, cutoff=cutoff, known={keys.get(f.name, f.name) for f in declared})
    if geometry["positions"] is None:
        if data.num_nodes is None:
            raise InputError(f"{name}: the data has neither nodes nor positions; set pos, x or num_nodes")
        geometry["positions"] = torch.zeros(data.num_nodes, 0)
    given: dict[str, Any] = geometry | values
    graph = graph_from_arrays(**given, fields=declared, optional=absent, name=name)
    own = name_among({key: data[key] for key in NAME_KEYS if key in data})
    return graph.with_texts({NAME: [own]}) if own else graph


def to_pyg(batch: GraphBatch, *, whole: bool = False) -> list[Data]:
    """Return one ``Data`` per graph, with every field under its name.

    Graph fields have a leading axis of 1, so that torch_geometric stacks them when it makes batches. With ``whole`` fields and
    texts that a graph lacks are there as well, as NaN, -1 or an empty text: torch_geometric makes batches of equal attributes only.
    """
    if not whole:
        return [_data(graph) for graph in unbatch(batch)]
    batch = without_zeros(batch)
    return [_data(batch.select([place]), whole=True) for place in range(len(batch))]


def without_zeros(batch: GraphBatch) -> GraphBatch:
    """Return the batch with NaN, or -1, in place of absent values."""
    filled = {}
    for name in batch.masks:
        values, present = batch[name], batch.present_items(name)
        if present is not None and values.dtype != torch.bool:
            absent = ~present.view(-1, *[1] * (values.ndim - 1))
            filled[name] = values.masked_fill(absent, math.nan if values.is_floating_point() else MISSING_CLASS)
    return batch.with_fields(filled)


def _data(graph: GraphBatch, *, whole: bool = False) -> Data:
    geometry: dict[str, Any] = {"pos": graph.positions, "edge_shifts": graph.edge_shifts} if graph.dim else {}
    return torch_geometric("data").Data(
        edge_index=torch.stack([graph.senders, graph.receivers]),
        num_nodes=graph.num_nodes,
        cell=graph.cell,
        periodic=graph.periodic,
        **{MARK: True},
        **geometry,
        **graph.nodes,
        **graph.edges,
        **graph.graphs,
        **{key: texts[0] for key, texts in graph.texts.items() if (whole or texts[0]) and key not in graph.fields},
    )


def _shaped(value: Tensor, field: Field) -> Tensor:
    """Without the axis of length 1 that torch_geometric's users keep for scalars."""
    extra = value.ndim - len(field.shape)
    if field.on == "graph" and extra == 0 and not field.shape:
        return value[None]
    if extra == 2 and not field.shape and value.shape[-1] == 1:
        return value.squeeze(-1)
    return value


_Reading = tuple[Float[Tensor, "edges dim"], Float[Tensor, " edges"]]
"""Reading of an attribute: shifts of senders, and edge lengths."""


def _geometry_of(data: Data, name: str, *, cutoff: float | None, known: Collection[str]) -> dict[str, Any]:
    """Return geometry as arguments of ``graph_from_arrays``, whichever program wrote it.

    Attributes are recognised by name. Whether a shift is a length or counts cell vectors, and which end it moves, is what
    the program of that name means if the lengths of edges agree: with lengths or vectors stored beside, with ``cutoff``, or else
    with the other readings, of which none may be shorter. Names in ``known`` have another meaning.

    InputError where no reading agrees, several remain, or an attribute looks like an image and is not understood.
    """
    edge_index = edges_of(data, name)
    cell = _cell(data, name, known)
    positions = _positions(data, cell, name)
    _, flags = _first(data, PERIODIC)
    periodic = False if flags is None else _tensor(flags)
    flags_of = {1, 3, 3 if positions is None else positions.shape[-1]}
    if periodic is None or (isinstance(periodic, Tensor) and periodic.numel() not in flags_of):
        raise InputError(f"{name}: pbc = {flags!r} is not one flag per axis; store a tensor like [True, True, False]")
    periodic = periodic.reshape(-1) if isinstance(periodic, Tensor) else periodic
    if isinstance(periodic, Tensor) and len(periodic) == 1:
        periodic = bool(periodic)
    shifts = None
    if positions is not None and edge_index.shape[1]:
        for row, side in enumerate(("senders", "receivers")):
            node_indices(edge_index[row], f"edge_index ({side})", len(positions), name)
        shifts = _shifts(data, positions, edge_index, cell, cutoff, known, name)
    if flags is None and cell is not None:
        periodic = None if shifts is None else _crossed(shifts, _square(cell, shifts.shape[1]))
    ends = dict(zip(("senders", "receivers"), edge_index))
    return {"positions": positions, **ends, "edge_shifts": shifts, "cell": cell, "periodic": periodic}


def _tensor(value: Any) -> Tensor | None:
    """Return an attribute as numbers; None where it holds none."""
    try:
        return None if value is None else numbers_of(value, "")
    except InputError:
        return None


def _first(data: Data, names: Collection[str]) -> tuple[str, Any]:
    """The first of the attributes that the data has, with its name."""
    return next(((name, value) for name in names if (value := data.get(name)) is not None), ("", None))


def edges_of(data: Data, name: str) -> Tensor:
    """Return senders and receivers of a ``Data`` in its order."""
    edges = data.get("edge_index")
    if edges is None and data.get("_idx_i") is not None and data.get("_idx_j") is not None:
        return torch.stack([numbers_of(data.get(key), f"{name}, {key}") for key in ("_idx_j", "_idx_i")])
    if edges is None and data.get("adj_t") is not None:
        raise InputError(f"{name}: edges in adj_t are not read; store edge_index, without the transform ToSparseTensor")
    if edges is None:
        return torch.zeros(2, 0, dtype=torch.int64)
    edges = numbers_of(edges, f"{name}, edge_index")
    if edges.ndim != 2 or edges.shape[0] != 2:
        raise InputError(f"{name}: edge_index of shape {tuple(edges.shape)} is not [2, edges]; transpose it")
    return edges.flip(0) if any(data.get(key) is not None for key in TURNED) else edges


def _cell(data: Data, name: str, fields: Collection[str]) -> Tensor | None:
    key, value = _first(data, CELLS)
    if value is None:
        for key in {*data.keys()} - {*fields} if _first(data, (*POSITIONS, *FRACTIONS))[0] else ():
            other = _tensor(data[key]) if re.fullmatch(GEOMETRY["cell"], key, re.IGNORECASE) else None
            if other is not None and other.ndim:
                raise InputError(
                    f"{name}: {key} describes geometry and would not be used; store cell with pbc, or remove it"
                )
        return None
    cell = numbers_of(value, f"{name}, {key}").double()
    cell = cell[0] if cell.ndim == 3 and len(cell) == 1 else cell
    if cell.ndim == 2 and cell.shape[0] == 1:
        cell = cell[0]
    if cell.shape not in {(3, 3), (2, 2), (3,), (2,)}:
        raise InputError(f"{name}, {key}: shape {tuple(cell.shape)} is not [3, 3]; give its cell vectors as rows")
    return cell


def _positions(data: Data, cell: Tensor | None, name: str) -> Tensor | None:
    key, raw = _first(data, (*POSITIONS, *FRACTIONS))
    if raw is None:
        return None
    positions = numbers_of(raw, f"{name}, {key}")
    if positions.ndim != 2 or positions.shape[1] not in (0, 2, 3):
        raise InputError(f"{name}, {key}: shape {tuple(positions.shape)} is not [nodes, 2] or [nodes, 3]; reshape it")
    if key in POSITIONS:
        return positions
    if cell is None:
        raise InputError(f"{name}: {key} but neither pos nor a cell; store pos, or the cell vectors as cell")
    return positions.double() @ _square(cell, positions.shape[1])


def _square(cell: Tensor, dim: int) -> Float[Tensor, "dim dim"]:
    return (torch.diag(cell) if cell.ndim == 1 else cell)[:dim, :dim]


def _shifts(
    data: Data,
    positions: Tensor,
    edge_index: Tensor,
    cell: Tensor | None,
    cutoff: float | None,
    known: Collection[str],
    name: str,
) -> Tensor | None:
    """Return shifts of senders, None without any; InputError where unclear."""
    count, dim = edge_index.shape[1], positions.shape[1]
    box = None if cell is None or not bool(cell.any()) else _square(cell, dim)
    straight = (positions[edge_index[1]] - positions[edge_index[0]]).double()  # [edges, dim], receiver - sender
    stored = dict(_stored_lengths(data, count))
    shifts_by_name: dict[str, Tensor] = {}
    for key in SHIFTS:
        value = None if key in known else _tensor(data.get(key))
        if value is None:
            continue
        value = value[0] if value.ndim == 3 and len(value) == 1 else value
        if value.shape != (count, dim) and count in value.shape and value.ndim == 2 and bool(value.any()):
            problem = f"{name}: {key} of shape {tuple(value.shape)} is not [edges, {dim}], for {count} edges"
            raise InputError(f"{problem}; store one shift per edge")
        if value.shape == (count, dim):
            shifts_by_name[key] = _read(key, value.double(), straight, box, stored, cutoff, OURS in data, name)
    if shifts_by_name:
        (first, shifts), *others = shifts_by_name.items()
        for other, same in others:
            if float((same - shifts).abs().max()) > AGREES * max(1.0, float(shifts.abs().max())):
                raise InputError(f"{name}: {first} and {other} say different shifts; remove the wrong one")
        return shifts
    for key, stored_value in data:
        if not SUSPICIOUS.search(key) or key in known or key in PERIODIC:
            continue
        value = _tensor(stored_value)
        if value is None:
            continue
        flags = re.search("pbc|periodic", key, re.IGNORECASE) and value.numel() in (1, 3)
        if bool(value.any()) and (value.shape == (count, dim) or flags):
            raise InputError(
                f"{name}: the attribute {key} seems to say how the graph is periodic and is none that this program knows; store "
                "the images as edge_shifts (pos[receiver] - pos[sender] + edge_shifts) with cell and pbc, or remove it"
            )
    _check_without_images(straight, box, stored, name)
    return None


def _read(
    key: str,
    value: Float[Tensor, "edges dim"],
    straight: Float[Tensor, "edges dim"],
    box: Float[Tensor, "dim dim"] | None,
    stored: dict[str, Tensor],
    cutoff: float | None,
    ours: bool,
    name: str,
) -> Float[Tensor, "edges dim"]:
    """Return the reading that lengths confirm; InputError for none or two."""
    in_cells, end = (False, 0) if ours and key == "edge_shifts" else SHIFTS[key]
    readings: list[_Reading] = []
    for counts_cells in (in_cells, not in_cells):
        vectors = _as_lengths(value, counts_cells, box)
        if vectors is not None:
            for row in (end, 1 - end):
                moved = vectors if row == 0 else -vectors  # of the sender, whichever end the program moves
                readings.append((moved, (straight - moved).norm(dim=1)))
    if not readings:
        no_lattice = "they are no whole numbers of cell vectors, as counts or as lengths"
        where = "there is no cell" if box is None else no_lattice
        raise InputError(f"{name}: {key} are not zero but {where}; store the cell of this graph, or remove {key}")
    agreeing, by = _agreeing(readings, stored, cutoff)
    if not agreeing:
        longest = min(float(lengths.max()) for _, lengths in readings)
        raise InputError(
            f"{name}: no reading of {key} gives edges that agree with {by} (the shortest goes up to {longest:.4g}); mend {key}"
        )
    longest, total = (min(float(measure(lengths)) for _, lengths in agreeing) for measure in (torch.max, torch.sum))
    best = [
        moved
        for moved, lengths in agreeing
        if float(lengths.max()) <= longest * (1 + TIE) and float(lengths.sum()) <= total * (1 + TIE)
    ]
    if not best:
        raise InputError(
            f"{name}: lengths do not say which end of the edges {key} moves; store the lengths as edge_length, or say the cutoff "
            "of the edges under [attributes]"
        )
    return best[0]


def _as_lengths(value: Tensor, counts_cells: bool, box: Tensor | None) -> Tensor | None:
    """Return a shift as vectors; None where it is no lattice vector."""
    if not bool(value.any()):
        return value
    if box is None:
        return None
    whole = value if counts_cells else value @ torch.linalg.pinv(box)
    if bool(((whole - whole.round()).abs() > WHOLE).any()):
        return None
    if counts_cells:
        return whole.round() @ box
    misses = (whole.round() @ box - value).abs().max() > WHOLE * box.abs().max()  # along a vector that the cell lacks
    return None if bool(misses) else value


def _stored_lengths(data: Data, count: int) -> Iterator[tuple[str, Tensor]]:
    for key in (*LENGTHS, *VECTORS, *MAYBE_LENGTHS):
        value = _tensor(data.get(key))
        if value is None or not value.ndim or len(value) != count or not value.is_floating_point():
            continue
        if key in VECTORS and value.ndim == 2:
            yield key, value.double().norm(dim=1)
        elif key not in VECTORS and value.numel() == count:
            yield key, value.double().reshape(-1)


def _agreeing(readings: list[_Reading], stored: dict[str, Tensor], cutoff: float | None) -> tuple[list[_Reading], str]:
    """Return the readings that agree with known lengths, and their origin."""
    for key, lengths in stored.items():
        agreeing = [reading for reading in readings if bool(_close(reading[1], lengths).all())]
        if agreeing or key not in MAYBE_LENGTHS:
            return agreeing, key
    if cutoff is not None:
        limit = cutoff * (1 + AGREES)
        within = [reading for reading in readings if float(reading[1].max()) <= limit]
        return within, f"the declared cutoff of {cutoff:.12g}"
    return readings, ""


def _close(one: Tensor, other: Tensor) -> Tensor:
    return (one - other).abs() <= AGREES * (1e-3 + other.abs())


def _are_images(lengths: Tensor, straight: Tensor, box: Tensor) -> bool:
    """Return True where lengths are those of images two cells away."""
    within = straight - (straight @ torch.linalg.pinv(box)).round() @ box
    turns = torch.cartesian_prod(*[torch.arange(-2, 3, dtype=box.dtype)] * len(box)) @ box
    agrees = torch.zeros_like(lengths, dtype=torch.bool)
    for turn in turns:
        agrees |= _close((within + turn).norm(dim=1), lengths)
    return bool(agrees.all())


def _check_without_images(straight: Tensor, box: Tensor | None, stored: dict[str, Tensor], name: str) -> None:
    """Raise InputError where edges have other lengths than without images.

    What may be a length is one where it agrees on every fourth edge or more and is shorter on the others, and where it is the
    distance of some image on every edge.
    """
    lengths = straight.norm(dim=1)
    for key, told in stored.items():
        agrees = _close(lengths, told)
        if bool(agrees.all()):
            continue
        is_length = 4 * int(agrees.sum()) >= len(agrees) and bool((told < lengths)[~agrees].all())
        if is_length or (box is not None and (key not in MAYBE_LENGTHS or _are_images(told, straight, box))):
            edge = int((lengths - told).abs().argmax())
            raise InputError(
                f"{name}: edge {edge} is {lengths[edge]:.4g} long by its positions and {told[edge]:.4g} by {key}, and no "
                "attribute says through which images edges run; store edge_shifts, or pbc = [False, False, False] for no images"
            )


def _crossed(shifts: Float[Tensor, "edges dim"], box: Float[Tensor, "dim dim"]) -> Tensor:
    """Return the axes along which edges cross into images."""
    flags = torch.zeros(3, dtype=torch.bool)
    if bool(shifts.any()):
        flags[: len(box)] = ((shifts @ torch.linalg.pinv(box)).abs() > 0.5).any(dim=0)
    return flags
