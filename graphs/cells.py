"""Edges and facets of mesh cells, in the node order of meshio."""

import re

from hydragnn.base.errors import InputError

Pairs = list[tuple[int, int]]

CORNERS = {"vertex": 1, "line": 2, "triangle": 3, "quad": 4, "tetra": 4, "pyramid": 5, "wedge": 6, "hexahedron": 8}
_EDGES: dict[str, Pairs] = {
    "vertex": [],
    "line": [(0, 1)],
    "triangle": [(0, 1), (1, 2), (2, 0)],
    "quad": [(0, 1), (1, 2), (2, 3), (3, 0)],
    "tetra": [(0, 1), (1, 2), (2, 0), (0, 3), (1, 3), (2, 3)],
    "pyramid": [(0, 1), (1, 2), (2, 3), (3, 0), (0, 4), (1, 4), (2, 4), (3, 4)],
    "wedge": [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (0, 3), (1, 4), (2, 5)],
    "hexahedron": [
        *[(0, 1), (1, 2), (2, 3), (3, 0)],
        *[(4, 5), (5, 6), (6, 7), (7, 4)],
        *[(0, 4), (1, 5), (2, 6), (3, 7)],
    ],
}
FACETS: dict[str, list[tuple[int, ...]]] = {
    "vertex": [],
    "line": [(0,), (1,)],
    "triangle": [(0, 1), (1, 2), (2, 0)],
    "quad": [(0, 1), (1, 2), (2, 3), (3, 0)],
    "tetra": [(0, 2, 1), (0, 1, 3), (1, 2, 3), (2, 0, 3)],
    "pyramid": [(0, 3, 2, 1), (0, 1, 4), (1, 2, 4), (2, 3, 4), (3, 0, 4)],
    "wedge": [(0, 2, 1), (3, 4, 5), (0, 1, 4, 3), (1, 2, 5, 4), (2, 0, 3, 5)],
    "hexahedron": [(0, 3, 2, 1), (4, 5, 6, 7), (0, 1, 5, 4), (1, 2, 6, 5), (2, 3, 7, 6), (3, 0, 4, 7)],
}
# nodes beyond the corners of quadratic cells: the mid-side nodes follow _EDGES, then come centres of faces and of the cell
_CENTRES: dict[str, dict[int, list[tuple[int, ...]]]] = {
    "triangle": {7: [(0, 1, 2)]},
    "quad": {9: [(0, 1, 2, 3)]},
    "wedge": {18: [(0, 1, 4, 3), (1, 2, 5, 4), (2, 0, 3, 5)]},
    "pyramid": {14: [(0, 1, 2, 3)]},
    "hexahedron": {
        24: [(0, 1, 5, 4), (1, 2, 6, 5), (2, 3, 7, 6), (3, 0, 4, 7)],
        27: [(0, 4, 7, 3), (1, 2, 6, 5), (0, 1, 5, 4), (3, 7, 6, 2), (0, 3, 2, 1), (4, 5, 6, 7), tuple(range(8))],
    },
}
_QUADRATIC = {
    "line": (3,),
    "triangle": (6, 7),
    "quad": (8, 9),
    "tetra": (10,),
    "pyramid": (13, 14),
    "wedge": (15, 18),
    "hexahedron": (20, 24, 27),
}


def cell_shape(cell_type: str) -> str:
    """Return the family of a cell type; InputError for unknown types.

    >>> cell_shape("triangle6"), cell_shape("polygon")
    ('triangle', 'polygon')
    """
    match = re.fullmatch(r"([a-z]+)(\d*)", cell_type)
    shape, order = (match.group(1), match.group(2)) if match else ("", "")
    if shape in ("polygon", "polyhedron") or (
        shape in CORNERS and (not order or int(order) in _QUADRATIC.get(shape, ()))
    ):
        return shape
    quadratic = (f"{shape}{order}" for shape, orders in _QUADRATIC.items() for order in orders)
    types = ", ".join(sorted([*CORNERS, *quadratic, "polygon", "polyhedron"]))
    raise InputError(f"cells of type {cell_type} are not known; convert them to one of {types}")


def cell_edges(cell_type: str, size: int) -> Pairs:
    """Return pairs of local nodes that an edge joins.

    Along a quadratic edge both corners join the mid-side node. Centre nodes of faces and cells join the mid-side nodes
    around them (a cell's centre: the centres of its faces).

    >>> cell_edges("line3", 3)
    [(0, 2), (2, 1)]
    """
    shape = cell_shape(cell_type)
    if shape == "polygon":
        return [(i, (i + 1) % size) for i in range(size)]
    corners, edges = CORNERS[shape], _EDGES[shape]
    if size == corners:
        return edges
    pairs = [pair for k, (a, b) in enumerate(edges) for pair in ((a, corners + k), (corners + k, b))]
    for k, around in enumerate(_CENTRES.get(shape, {}).get(size, [])):
        centre = corners + len(edges) + k
        if len(around) > 4:
            pairs += [(centre - 1 - face, centre) for face in range(k)]
        else:
            pairs += [(corners + e, centre) for e, (a, b) in enumerate(edges) if a in around and b in around]
    return pairs


def cell_facets(cell_type: str, size: int) -> list[tuple[int, ...]]:
    """Return a cell's sides as corner nodes in order."""
    shape = cell_shape(cell_type)
    return [(i, (i + 1) % size) for i in range(size)] if shape == "polygon" else FACETS[shape]
