"""Meshes: edges counted independently, quadratic cells, tags, cell-centred graphs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import meshio
import numpy as np
import pytest
from skfem import MeshHex, MeshQuad, MeshTet, MeshTri, MeshWedge1
from skfem.io.meshio import to_meshio

from hydragnn.graphs import Field, GraphBatch, edge_vectors, from_mesh, used_points, validate
from hydragnn.graphs.cells import cell_edges, cell_facets, cell_shape
from tests.refusals import refuses

TEMPERATURE = Field(name="temperature", on="node", unit="K", role="target")
PULL = Field(name="pull", on="node", shape=(2,), parity="vector", role="target")


def undirected(graph: GraphBatch) -> set[tuple[int, int]]:
    pairs = set(zip(graph.senders.tolist(), graph.receivers.tolist()))
    assert len(pairs) == graph.num_edges
    assert pairs == {(r, s) for s, r in pairs}
    return {(min(pair), max(pair)) for pair in pairs}


@pytest.mark.parametrize(
    "mesh",
    [MeshTri().refined(3), MeshQuad().refined(3), MeshTet().refined(2), MeshHex().refined(2), MeshWedge1()],
    ids=lambda mesh: type(mesh).__name__,
)
def test_edges_and_cells_that_share_a_facet_are_those_of_scikit_fem(mesh: Any) -> None:
    edges = mesh.facets if mesh.p.shape[0] == 2 else mesh.edges
    graph = validate(from_mesh(to_meshio(mesh)))
    assert undirected(graph) == {tuple(sorted(pair)) for pair in edges.T.tolist()}
    assert graph.dim == mesh.p.shape[0]
    if not isinstance(mesh, MeshWedge1):
        cells, inner = validate(from_mesh(to_meshio(mesh), cell_centred=True)), mesh.f2t[:, mesh.f2t[1] >= 0]
        assert undirected(cells) == {tuple(sorted(pair)) for pair in inner.T.tolist()}
        assert float(cells["volume"].sum()) == pytest.approx(1.0)


SHAPES = {
    "pyramid": [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0.5, 0.5, 1]],
    "wedge": [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1], [0, 1, 1]],
    "hexahedron": [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1]],
    "tetra": [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "triangle": [[0, 0], [1, 0], [0, 1]],
    "quad": [[0, 0], [1, 0], [1, 1], [0, 1]],
    "line": [[0, 0], [1, 0]],
}
VOLUMES = {"pyramid": 1 / 3, "wedge": 0.5, "hexahedron": 1.0, "tetra": 1 / 6, "triangle": 0.5, "quad": 1.0, "line": 1.0}


@pytest.mark.parametrize("kind", SHAPES)
def test_edges_and_facets_of_one_cell_obey_eulers_formula(kind: str) -> None:
    points = SHAPES[kind]
    mesh = meshio.Mesh(points, [(kind, [list(range(len(points)))])])
    graph = from_mesh(mesh)
    facets = len(cell_facets(kind, len(points)))
    if graph.dim == 3:
        assert len(points) - graph.num_edges // 2 + facets == 2
    assert from_mesh(mesh, cell_centred=True)["volume"].tolist() == [pytest.approx(VOLUMES[kind])]


def quadratic(kind: str, size: int) -> meshio.Mesh:
    """One quadratic cell whose further nodes sit at the middles that VTK's node order says."""
    corners = np.pad(np.array(SHAPES[kind], dtype=float), ((0, 0), (0, 3 - len(SHAPES[kind][0]))))
    middles = [corners[[a, b]].mean(axis=0) for a, b in cell_edges(kind, len(corners))]
    points = [*corners, *middles][:size]
    return meshio.Mesh(np.array(points), [(kind + str(size), [list(range(len(points)))])])


@pytest.mark.parametrize("kind, size", [("line", 3), ("triangle", 6), ("quad", 8), ("tetra", 10), ("hexahedron", 20)])
def test_mid_side_nodes_split_every_edge_in_two(kind: str, size: int) -> None:
    graph = validate(from_mesh(quadratic(kind, size)))
    linear = from_mesh(meshio.Mesh(SHAPES[kind], [(kind, [list(range(len(SHAPES[kind])))])]))
    assert graph.num_nodes == size
    assert graph.num_edges == 2 * linear.num_edges
    corners = len(SHAPES[kind])
    assert all((a < corners) != (b < corners) for a, b in undirected(graph))
    total, expected = (float(edge_vectors(g).norm(dim=1).sum()) for g in (graph, linear))
    assert total == pytest.approx(expected)


@pytest.mark.parametrize(
    ("cell_type", "size", "degrees"),
    [
        ("pyramid13", 13, {0: 3, 4: 4, 12: 2}),
        ("wedge15", 15, {0: 3, 14: 2}),
        ("triangle7", 7, {6: 3}),
        ("quad9", 9, {8: 4}),
        ("pyramid14", 14, {13: 4}),
        ("wedge18", 18, {15: 4, 17: 4}),
        ("hexahedron24", 24, {20: 4, 23: 4}),
        ("hexahedron27", 27, {20: 5, 25: 5, 26: 6}),
    ],
)
def test_nodes_beyond_the_corners_join_those_around_them(cell_type: str, size: int, degrees: dict[int, int]) -> None:
    pairs = np.array(cell_edges(cell_type, size))
    assert len(np.unique(np.sort(pairs, axis=1), axis=0)) == len(pairs)
    count = np.bincount(pairs.ravel(), minlength=size)
    assert len(count) == size and count.min() >= 2
    assert {node: int(count[node]) for node in degrees} == degrees


def test_polygons_and_polyhedra_are_cells_too() -> None:
    pentagon = meshio.Mesh(np.eye(5, 2), [("polygon", [[0, 1, 2, 3, 4]])])
    assert from_mesh(pentagon).num_edges == 10
    faces = [[0, 2, 1], [0, 1, 3], [1, 2, 3], [2, 0, 3]]
    polyhedron = meshio.Mesh(SHAPES["tetra"], [("polyhedron4", [faces])])
    assert undirected(from_mesh(polyhedron)) == {(a, b) for a in range(4) for b in range(a + 1, 4)}


def square(**data: object) -> meshio.Mesh:
    points = [[9, 9, 0], [0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]]
    cells = [("line", [[1, 4]]), ("triangle", [[1, 2, 3], [1, 3, 4]]), ("vertex", [[0]])]
    return meshio.Mesh(points, cells, **data)


def test_points_that_no_element_uses_are_dropped_and_fields_follow() -> None:
    mesh = square(point_data={"temperature": [99.0, 1.0, 2.0, 3.0, 4.0]})
    graph = from_mesh(mesh, fields=[TEMPERATURE])
    assert used_points(mesh).tolist() == [1, 2, 3, 4]
    assert graph["temperature"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert graph.num_edges == 10 and graph.dim == 2
    # the empty third component of plane vectors goes
    mesh = square(point_data={"pull": np.pad(np.arange(10.0).reshape(5, 2), ((0, 0), (0, 1)))})
    assert from_mesh(mesh, fields=[PULL])["pull"].tolist() == np.arange(2.0, 10.0).reshape(4, 2).tolist()


def test_physical_groups_and_cell_sets_become_tags() -> None:
    mesh = square(
        cell_data={"gmsh:physical": [np.array([7]), np.array([8, 8]), np.array([0])]},
        field_data={"fixed": np.array([7, 1]), "bulk": np.array([8, 2])},
        cell_sets={"lower-half": [None, np.array([0]), None]},
    )
    graph = from_mesh(mesh)
    assert list(graph.nodes) == ["tag_bulk", "tag_fixed", "tag_lower_half"]
    assert graph["tag_fixed"].tolist() == [1, 0, 0, 1]
    assert graph["tag_lower_half"].tolist() == [1, 1, 1, 0]
    cells = from_mesh(mesh, cell_centred=True, tags=["fixed", "lower-half"])
    assert {name: cells[name].tolist() for name in cells.fields if name.startswith("tag")} == {
        "tag_fixed": [0, 1],
        "tag_lower_half": [1, 0],
    }


def test_cell_data_become_fields_of_cell_centred_graphs() -> None:
    mesh = square(cell_data={"temperature": [np.array([0.0]), np.array([5.0, 6.0]), np.array([0.0])]})
    graph = from_mesh(mesh, fields=[TEMPERATURE], cell_centred=True)
    assert graph["temperature"].tolist() == [5.0, 6.0]
    assert graph["area"].tolist() == pytest.approx([2**0.5] * 2)
    np.testing.assert_allclose(graph.positions, [[2 / 3, 1 / 3], [1 / 3, 2 / 3]])


def test_mixed_cells_share_facets_and_a_surface_in_space_keeps_three_dimensions() -> None:
    points = [[0, 0], [1, 0], [1, 1], [0, 1], [2, 0.5]]
    mesh = meshio.Mesh(points, [("quad", [[0, 1, 2, 3]]), ("triangle", [[1, 4, 2]])])
    assert undirected(from_mesh(mesh)) == {(0, 1), (1, 2), (2, 3), (0, 3), (1, 4), (2, 4)}
    assert undirected(from_mesh(mesh, cell_centred=True)) == {(0, 1)}
    surface = meshio.Mesh([[0, 0, 0], [1, 0, 0], [0, 1, 1.0]], [("triangle", [[0, 1, 2]])])
    assert from_mesh(surface).dim == 3
    assert float(from_mesh(surface, cell_centred=True)["volume"]) == pytest.approx(2**0.5 / 2)


def joined(kind: str, cells: list[list[int]], points: int = 2) -> meshio.Mesh:
    return meshio.Mesh(np.eye(points, 2), [(kind, cells)])


NAN = {"temperature": [0, np.nan, 0, 0, 0]}
WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: from_mesh(joined("line4", [[0, 1, 2, 3]], 4)), "line4 are not known"),
    (lambda: from_mesh(joined("vertex", [[0]])), "no cells that join points"),
    (lambda: from_mesh(joined("line", [[0, 2]])), "names point 2"),
    (lambda: from_mesh(square(), fields=[TEMPERATURE]), "temperature is declared but missing"),
    (lambda: from_mesh(square(), tags=["inlet"]), "no physical group or cell set inlet"),
    (lambda: from_mesh(square(), fields=[TEMPERATURE], nodes={"temperature": [1.0]}), "1 rows for 5 points"),
    (lambda: from_mesh(square(point_data=NAN), fields=[TEMPERATURE]), "temperature: nan in row 0"),
]


@pytest.mark.parametrize(("make", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_wrong_is_named(make: Callable[[], Any], message: str) -> None:
    refuses(message, make)


FILES = """annulus.msh beams.msh box.msh cube_oriented_sub.msh cuubat.msh cylinder_stokes.msh ex28.msh interface.msh
internal.msh mixedtriquad.msh oriented_squares.msh quadratic_quad.msh quadratic_sphere_tet.msh quadratic_tri.msh
quadraticsphere.msh square.msh tagged_gmsh4.msh troublesome_mesh.vtk"""


@pytest.fixture(params=FILES.split())
def real_mesh(request: pytest.FixtureRequest, real_data: Path, capsys: pytest.CaptureFixture[str]) -> meshio.Mesh:
    return meshio.read(real_data / "meshes" / request.param)


def corner_edges(mesh: meshio.Mesh) -> set[tuple[int, int]]:
    """Edges between corners of all elements, the slow way."""
    cycles = {"line": [(0, 1)], "triangle": [(0, 1), (1, 2), (0, 2)], "quad": [(0, 1), (1, 2), (2, 3), (0, 3)]}
    cycles["tetra"] = [(a, b) for a in range(4) for b in range(a)]
    return {
        tuple(sorted((int(cell[a]), int(cell[b]))))
        for block in mesh.cells
        for cell in block.data
        for a, b in cycles.get(cell_shape(block.type), [])
    }


def test_real_meshes_have_the_edges_of_their_elements(real_mesh: meshio.Mesh) -> None:
    graph = validate(from_mesh(real_mesh))
    used = used_points(real_mesh)
    assert graph.num_nodes == len(used)
    if any(block.type[-1].isdigit() for block in real_mesh.cells):  # quadratic
        # every edge between corners has become two through its middle
        centres = sum(len(block.data) for block in real_mesh.cells if block.type == "quad9")
        assert graph.num_edges == 2 * (2 * len(corner_edges(real_mesh)) + 4 * centres)
    else:
        assert undirected(graph) == {(used.searchsorted(a), used.searchsorted(b)) for a, b in corner_edges(real_mesh)}


def test_mid_side_nodes_of_real_meshes_lie_between_their_corners(real_mesh: str) -> None:
    points = np.asarray(real_mesh.points)
    for block in real_mesh.cells:
        if block.type in ("triangle6", "quad9", "tetra10"):
            corners = {"triangle6": 3, "quad9": 4, "tetra10": 4}[block.type]
            linear = np.array(cell_edges(cell_shape(block.type), corners))
            data = np.asarray(block.data)
            ends, middles = points[data[:, linear]], points[data[:, corners : corners + len(linear)]]
            off = np.linalg.norm(middles - ends.mean(axis=2), axis=-1)
            # curved sides bulge, but by less than a quarter of their chord
            assert (off < 0.25 * np.linalg.norm(ends[:, :, 0] - ends[:, :, 1], axis=-1)).all()
