"""Tables, networks, JSON of pymatgen, time series, voxels and grids, each against a graph made by hand."""

import base64
import gzip
import json
import math
import re
import tomllib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import meshio
import networkx
import numpy as np
import pytest
import torch
from ase.build import bulk
from meshio.xdmf import TimeSeriesWriter
from PIL import Image

from hydragnn.datasets import open_store
from hydragnn.graphs import GraphBatch, edge_vectors, from_ase
from hydragnn.graphs.pyg import torch_geometric
from tests.datasets.conftest import built, refused

X = {"name": "x", "on": "node"}
Y = {"name": "y", "on": "graph", "role": "target", "dtype": "float32"}
ANGLE = {"name": "angle", "on": "node"}
ATOMS: dict[str, Any] = {"kind": "ase", "cutoff": 3.0, "fields": []}


def pairs(graph: GraphBatch) -> set[tuple[int, int]]:
    return set(zip(graph.senders.tolist(), graph.receivers.tolist()))


def test_tables_of_nodes_and_edges_name_nodes_by_id(tmp_path: Path) -> None:
    (tmp_path / "joints.csv").write_text("graph,joint,x,px\na,007,0.5,0\na,7,1.5,1\nb,007,2.5,0\nb,9,,1\nb,c,4.5,2\n")
    (tmp_path / "bars.csv").write_text("graph,from,to,area\na,007,7,2\nb,c,9,3\nb,9,007,4\n")
    (tmp_path / "trusses.csv").write_text("graph,y\nb,2\na,\n")
    target = {"role": "target", "optional": True}
    fields = [
        {**X, **target},
        {"name": "p", "on": "node", "key": "px"},
        {"name": "area", "on": "edge"},
        {**Y, **target},
    ]
    files = {"kind": "tables", "files": ["joints.csv"], "edges": "bars.csv"}
    more = {"graphs": "trusses.csv", "node_id": "joint", "ends": ["from", "to"], "undirected": True, "fields": fields}
    graphs = built(tmp_path, **files, **more)
    assert pairs(graphs) == {(0, 1), (1, 0), (4, 3), (3, 4), (3, 2), (2, 3)} and list(graphs.names) == ["a", "b"]
    assert graphs.labelled("x").tolist() == [True, True, True, False, True] and graphs["x"][4] == 4.5
    assert graphs.present("y").tolist() == [False, True] and sorted(graphs["area"].tolist()) == [2, 2, 3, 3, 4, 4]
    (tmp_path / "bars.csv").write_text("graph,from,to,area\na,007,8,2\n")
    words = "bars.csv, graph a: an edge names the node 8, which its graph does not have"
    refused(tmp_path, words, **files, **more)
    (tmp_path / "joints.csv").write_text("x\n1\n2\n3\n")
    (tmp_path / "bars.csv").write_text("sender,receiver\n0,1\n1,0\n1,2\n2,1\n")
    one = built(tmp_path, **files, fields=[X])
    assert pairs(one) == {(0, 1), (1, 0), (1, 2), (2, 1)} and one["x"].tolist() == [1, 2, 3]


def networks() -> list[networkx.Graph]:
    """A path of three nodes with labels, and a directed pair that lacks one."""
    path = networkx.Graph(y=1.0, name="path")
    path.add_nodes_from([("a", {"x": 1.0, "u": 0.0, "v": 1.0}), ("b", {"x": 2.0, "u": 2.0, "v": 3.0})])
    path.add_node("c", u=4.0, v=5.0)
    path.add_edges_from([("a", "b", {"w": 0.5}), ("b", "c", {"w": 1.5})])
    pair = networkx.DiGraph(y=2.0)
    pair.add_nodes_from([("p", {"x": 3.0, "u": 0.0, "v": 0.0}), ("q", {"x": 4.0, "u": 1.0, "v": 0.0})])
    pair.add_edge("q", "p", w=2.5)
    return [path.to_directed(), pair]


NETWORK = {
    "kind": "networkx",
    "positions": ["u", "v"],
    "fields": [
        {**X, "role": "target", "optional": True},
        {"name": "w", "on": "edge"},
        Y,
        {"name": "uv", "on": "node", "shape": [2], "key": ["u", "v"]},
    ],
}


@pytest.mark.parametrize("suffix", ["graphml", "json"])
def test_graphs_of_networkx_come_from_files_that_run_no_code(suffix: str, tmp_path: Path) -> None:
    for number, graph in enumerate(networks()):
        file = tmp_path / f"g{number}.{suffix}"
        if suffix == "graphml":
            networkx.write_graphml(graph, file)
        else:
            file.write_text(json.dumps(networkx.node_link_data(graph, edges=("edges", "links")[number])))
    graphs = built(tmp_path, files=[f"*.{suffix}"], **NETWORK)
    assert list(graphs.names) == ["path", f"g1.{suffix}#0"]
    weights = dict(zip(zip(graphs.senders.tolist(), graphs.receivers.tolist()), graphs["w"].tolist()))
    assert weights == {(0, 1): 0.5, (1, 0): 0.5, (1, 2): 1.5, (2, 1): 1.5, (4, 3): 2.5}
    assert graphs.labelled("x").tolist() == [True, True, False, True, True] and graphs["y"].tolist() == [1, 2]
    np.testing.assert_array_equal(graphs.positions, graphs["uv"])


def monty(atoms: Any) -> dict[str, Any]:
    """A structure as pymatgen writes it."""
    sites = [
        {"species": [{"element": symbol, "occu": 1}], "abc": list(place), "properties": {"magmom": float(number)}}
        for number, (symbol, place) in enumerate(zip(atoms.symbols, atoms.get_scaled_positions(wrap=False)))
    ]
    lattice = {"matrix": atoms.cell.tolist(), "pbc": [True, True, True]}
    return {"@module": "pymatgen.core.structure", "@class": "Structure", "lattice": lattice, "sites": sites}


FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "matbench": lambda one, other: {
        "index": ["mb-1", "mb-2"],
        "columns": ["structure", "gap pbe"],
        "data": [[one, 5.0], [other, None]],
    },
    "records": lambda one, other: [
        {"structure": one, "gap pbe": 5.0, "material_id": "mb-1"},
        {"structure": other, "material_id": "mb-2"},
    ],
    "by name": lambda one, other: {"mb-1": {"structure": one, "gap pbe": 5.0}, "mb-2": other},
    "structure": lambda one, other: one,
}


@pytest.mark.parametrize("form", FORMS)
def test_json_of_pymatgen_and_matbench_has_the_structures_of_ase(form: str, tmp_path: Path) -> None:
    crystals = [bulk("NaCl", "rocksalt", a=5.6), bulk("Cu", cubic=True)]
    with gzip.open(tmp_path / "bench.json.gz", "wt") as file:
        json.dump(FORMS[form](*map(monty, crystals)), file)
    gap = {"name": "gap", "on": "graph", "role": "target", "key": "gap pbe", "optional": True}
    spin = {"name": "magmom", "on": "node", "role": "target"}
    table = {"kind": "ase", "files": ["bench.json.gz"], "cutoff": 3.5}
    graphs = built(tmp_path, **table, fields=[spin] if form == "structure" else [gap, spin])
    expected = from_ase(crystals[0], 3.5)
    assert graphs.counts("edge")[0] == expected.num_edges and graphs["magmom"][:2].tolist() == [0, 1]
    np.testing.assert_allclose(graphs.positions[:2], expected.positions, atol=1e-9)
    assert graphs["atomic_numbers"][:2].tolist() == [11, 17]
    last = built(tmp_path, **table, index="-1", fields=[spin])
    assert len(last) == 1 and last.num_nodes == (2 if form == "structure" else 4)
    if form != "structure":
        assert list(graphs.names) == ["mb-1", "mb-2"] and graphs.present("gap").tolist() == [True, False]


def run(path: Path, frames: int) -> None:
    """Write a square of two triangles whose field u at a point is time plus its number."""
    points, cells = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1]]), [("triangle", np.array([[0, 1, 2], [0, 2, 3]]))]
    with TimeSeriesWriter(path, data_format="XML") as writer:
        writer.write_points_cells(points, cells)
        for frame in range(frames):
            u = frame + np.arange(4.0)
            fields = {"u": u, "v": np.stack([u, -u, 0 * u], axis=1)}
            writer.write_data(0.5 * frame, point_data=fields, cell_data={"c": [u[:2]]})


U = {"name": "u", "on": "node"}


def test_frames_of_a_time_series_are_graphs_with_the_next_one_as_target(tmp_path: Path) -> None:
    for number, frames in enumerate([4, 3]):
        run(tmp_path / f"run{number}.xdmf", frames)
    following = {"name": "next", "on": "node", "shape": [2], "role": "target", "key": "v", "column": [0, 1], "step": 1}
    time = {"name": "time", "on": "graph", "role": "auxiliary"}
    graphs = built(tmp_path, kind="mesh", files=["run*.xdmf"], fields=[U, following, time])
    assert list(graphs.names) == ["run0.xdmf#0", "run0.xdmf#1", "run0.xdmf#2", "run1.xdmf#0", "run1.xdmf#1"]
    assert list(graphs.texts["run"]) == ["run0.xdmf"] * 3 + ["run1.xdmf"] * 2
    assert graphs["u"].reshape(5, 4)[:, 0].tolist() == [0, 1, 2, 0, 1]
    assert graphs["time"].tolist() == [0, 0.5, 1, 0, 0.5]
    np.testing.assert_array_equal(graphs["next"][:, 0], graphs["u"] + 1)
    np.testing.assert_array_equal(graphs["next"][:, 1], -graphs["u"] - 1)
    assert pairs(graphs.select([0])) == {(0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0), (2, 3), (3, 2), (0, 3), (3, 0)}
    cells = built(tmp_path, kind="mesh", files=["run1.xdmf"], cell_centred=True, fields=[{**U, "key": "c", "step": -1}])
    assert list(cells.names) == ["run1.xdmf#1", "run1.xdmf#2"] and cells["u"].tolist() == [0, 1, 1, 2]
    words = "run0.xdmf#0: no w for the node field w"
    refused(tmp_path, words, kind="mesh", files=["run0.xdmf"], fields=[{"name": "w", "on": "node"}])
    triangle = [[0.0, 0], [1, 0], [0, 1]], [("triangle", [[0, 1, 2]])], {"u": np.ones(3)}
    meshio.Mesh(*triangle).write(tmp_path / "one.vtu")
    refused(tmp_path, "one.vtu is no time series", kind="mesh", files=["one.vtu"], fields=[{**U, "step": 1}])


IMAGE = np.array([[5, 5, 9], [5, 2, 9]], dtype=np.int32)


@pytest.mark.parametrize("suffix", ["npy", "tif", "png"])
@pytest.mark.parametrize("periodic", [False, True])
def test_grains_of_an_image_are_nodes_with_size_and_shared_area(suffix: str, periodic: bool, tmp_path: Path) -> None:
    if suffix == "npy":
        np.save(tmp_path / "i.npy", IMAGE)
    else:
        Image.fromarray(IMAGE.astype(np.uint8)).save(tmp_path / f"i.{suffix}")
    (tmp_path / "grains.csv").write_text("file,grain,angle\nother.npy,5,0\ni,9,90\ni,2,20\ni,5,50\n")
    (tmp_path / "strength.csv").write_text("file,y\ni,4.5\n")
    image = {"kind": "voxels", "files": ["i.*"], "spacing": 2.0, "periodic": periodic}
    graph = built(tmp_path, **image, grains="grains.csv", labels="strength.csv", fields=[ANGLE, Y])
    values = {name: graph[name].tolist() for name in ("volume", "angle", "y")}
    assert values == {"volume": [4, 12, 8], "angle": [20, 50, 90], "y": [4.5]}
    areas = np.zeros((3, 3))
    np.add.at(areas, (graph.senders.numpy(), graph.receivers.numpy()), graph["area"].numpy())
    faces = [[0, 4, 2], [4, 0, 2], [2, 2, 0]]  # grain 2 meets 5 above and left, and 9 right
    around = [[0, 6, 2], [6, 0, 6], [2, 6, 0]]  # also through the upper wall, and both rows through the side
    assert areas.tolist() == (around if periodic else faces)
    if not periodic:
        np.testing.assert_allclose(graph.positions, [[3, 3], [5 / 3, 5 / 3], [2, 5]])


def test_labels_of_grains_may_be_missing(tmp_path: Path) -> None:
    np.save(tmp_path / "i.npy", IMAGE)
    (tmp_path / "g.csv").write_text("grain,angle\n5,1\n9,\n2,3\n")
    angle = {**ANGLE, "role": "target", "optional": True}
    graph = built(tmp_path, kind="voxels", files=["i.npy"], grains="g.csv", fields=[angle])
    assert graph.labelled("angle").tolist() == [True, True, False] and graph["angle"][:2].tolist() == [3, 1]
    pores = built(tmp_path, kind="voxels", files=["i.npy"], background=9)
    assert pores["volume"].tolist() == [1, 3] and pairs(pores) == {(0, 1), (1, 0)}


VOLUME = np.arange(24, dtype=np.int32).reshape(2, 3, 4) // 5
PHASES = '<DataArray type="UInt8" Name="phase" format="ascii">' + "1 " * 24 + "</DataArray>"
SHARP, EXTENT = np.full((24, 3), 0.5), "0 2 0 3 0 4"
ENTITY = b'<!DOCTYPE x [<!ENTITY a "aaaa">]>'


def vti(
    path: Path, form: str, head: bytes = b"", extent: str = EXTENT, more: str = "", size: int = 96, second: str = ""
) -> None:
    """Write VTK's image data with the axes x, y, z and a field of vectors, as ParaView and DAMASK do."""
    content = [np.array([size], np.uint32).tobytes() + VOLUME.T.tobytes(), SHARP.astype(np.float32).tobytes()]
    content[1] = np.array([len(content[1])], np.uint32).tobytes() + content[1]
    appended, raw, places = b"", form.endswith("raw"), []
    for array, values in zip(content, (VOLUME.T, SHARP)):
        encoded = array if raw else base64.b64encode(array)
        if form == "zlib":
            packed = zlib.compress(array[4:])
            sizes = np.array([1, size, 0, len(packed)], np.uint32).tobytes()
            encoded = base64.b64encode(sizes) + base64.b64encode(packed)
        place = f'format="appended" offset="{len(appended)}"/>'
        inline = " ".join(map(str, values.ravel())) if form == "ascii" else encoded.decode("latin-1")
        shown = f'format="{form if form == "ascii" else "binary"}">{inline}</DataArray>'
        places.append(place if "appended" in form else shown)
        appended += encoded
    end = b'<AppendedData encoding="%s">_%s\n</AppendedData>' % (b"raw" if raw else b"base64", appended)
    packer = ' compressor="vtkZLibDataCompressor"' if form == "zlib" else ""
    path.write_bytes(
        head
        + f'''<VTKFile type="ImageData" version="0.1" byte_order="LittleEndian"{packer}><ImageData WholeExtent="{EXTENT}"
        Origin="1 1 1" Spacing="0.5 1 2"{more}><Piece Extent="{extent}"><CellData><DataArray type="Int32" Name="material"
        {places[0]}{second}<DataArray type="Float32" Name="v" NumberOfComponents="3" {places[1]}</CellData></Piece></ImageData>'''.encode()
        + (end if "appended" in form else b"")
        + b"</VTKFile>"
    )


@pytest.mark.parametrize("form", ["ascii", "binary", "zlib", "appended", "appended raw"])
def test_image_data_of_vtk_have_their_lengths(form: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", VOLUME)
    vti(tmp_path / "a.vti", form)
    own = built(tmp_path, kind="voxels", files=["a.vti"])
    same = built(tmp_path, kind="voxels", files=["a.npy"], spacing=[0.5, 1, 2])
    assert torch.equal(own.positions, same.positions) and torch.equal(own["area"], same["area"])
    assert built(tmp_path, kind="voxels", files=["a.vti"], spacing=2.0)["volume"].sum() == 24 * 8
    vti(tmp_path / "a.vti", form, second=PHASES)
    named = built(tmp_path, kind="voxels", files=["a.vti"], array="material")
    assert torch.equal(own.positions, named.positions)
    words = "2 arrays of whole numbers on cells, out of material (Int32, CellData), phase (UInt8, CellData), v (Float32, CellData)"
    refused(tmp_path, words, kind="voxels", files=["a.vti"])
    refused(tmp_path, "has 0 arrays grains of", kind="voxels", files=["a.vti"], array="grains")
    refused(tmp_path, "array is for .vti", kind="voxels", files=["a.npy"], array="material")
    vti(tmp_path / "a.vti", form)
    content = (tmp_path / "a.vti").read_bytes()
    (tmp_path / "a.vti").write_bytes(content.replace(b'Spacing="0.5 1 2"', b""))  # 1 in VTK
    assert built(tmp_path, kind="voxels", files=["a.vti"])["volume"].sum() == 24
    (tmp_path / "a.vti").write_bytes(content.replace(b"CellData", b"PointData"))
    words = "0 arrays of whole numbers on cells, out of material (Int32, PointData)"
    refused(tmp_path, words, kind="voxels", files=["a.vti"])


BROKEN_VTI: dict[str, tuple[dict[str, Any], str]] = {
    "entities": ({"head": ENTITY}, "it declares entities"),
    "pieces": ({"extent": "0 2 0 3 0 2"}, "has several pieces, or turned axes"),
    "turned": ({"more": ' Direction="0 1 0 1 0 0 0 0 1"'}, "has several pieces, or turned axes"),
    "short": ({"size": 48}, "cannot be read by meshio (ValueError: cannot reshape"),
    "another grid": ({"head": b"<VTKFile/>"}, "cannot be read"),
}


@pytest.mark.parametrize("case", BROKEN_VTI.values(), ids=BROKEN_VTI)
def test_damaged_image_data_are_sentences(case: tuple[dict[str, Any], str], tmp_path: Path) -> None:
    vti(tmp_path / "a.vti", **{"form": "binary", **case[0]})
    refused(tmp_path, case[1], kind="voxels", files=["a.vti"])


WITH_ANGLE = {"fields": [ANGLE], "grains": "g.csv"}
NO_GRAINS: list[tuple[dict[str, Any], str]] = [
    ({"files": ["rgb.png"]}, "rgb.png holds colours"),
    ({"files": ["f.npy"]}, "f.npy: float64 image"),
    ({"files": ["bad.tif"]}, "bad.tif cannot be read as an image"),
    ({"files": ["v.jpg"]}, "v.jpg is no image of grains"),
    ({"files": ["i.npy"], "fields": [ANGLE]}, "no value for the field angle; name a table"),
    ({"files": ["i.npy"], **WITH_ANGLE}, "have other grains: grain 2 is in one of them alone"),
    ({"files": ["i.npy", "v.TIF"], **WITH_ANGLE}, "g.csv has no file; it has angle, grain"),
]


def test_pages_of_an_image_are_its_first_axis_and_wrong_images_are_sentences(tmp_path: Path) -> None:
    pages = [Image.fromarray(np.full((2, 3), value, np.uint8)) for value in (1, 2)]
    pages[0].save(tmp_path / "v.TIF", save_all=True, append_images=pages[1:])
    graph = built(tmp_path, kind="voxels", files=["v.TIF"])
    assert graph.dim == 3 and graph["volume"].tolist() == [6, 6] and graph["area"].tolist() == [6, 6]
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "rgb.png")
    pages[0].save(tmp_path / "v.jpg")
    np.save(tmp_path / "f.npy", IMAGE / 2)
    np.save(tmp_path / "i.npy", IMAGE)
    (tmp_path / "g.csv").write_text("grain,angle\n5,0\n9,1\n")
    (tmp_path / "bad.tif").write_text("no image")
    for table, words in NO_GRAINS:
        refused(tmp_path, words, kind="voxels", **table)


@pytest.mark.parametrize(
    ("axes", "near", "edges"), [((2, 3), 4, 14), ((2, 3), 8, 22), ((2, 2, 2), 6, 24), ((2, 2, 2), 26, 56)]
)
def test_points_of_a_grid_have_the_neighbours_that_are_declared(
    axes: tuple[int, ...], near: int, edges: int, tmp_path: Path
) -> None:
    x = np.arange(2 * math.prod(axes), dtype=np.float64).reshape(2, *axes)
    np.savez(tmp_path / "g.npz", x=x, pair=np.stack([x, -x], -1), y=[1.0, np.nan], id=["one", "two"])
    both = {"name": "both", "on": "node", "shape": [2], "key": "pair"}
    minus = {"name": "minus", "on": "node", "key": "pair", "column": 1, "role": "target"}
    table = {"kind": "npz", "files": ["g.npz"], "spacing": 0.5, "grid": near, "name_key": "id"}
    fields = [X, both, minus, {**Y, "optional": True}]
    graphs = built(tmp_path, **table, fields=fields)
    assert graphs.counts("edge").tolist() == [edges, edges] and list(graphs.names) == ["one", "two"]
    reach = 0.5 * (1 if near == 2 * len(axes) else math.sqrt(len(axes)))
    lengths = edge_vectors(graphs).norm(dim=1)
    assert float(lengths.max()) == pytest.approx(reach) and float(lengths.min()) == 0.5
    np.testing.assert_array_equal(graphs["minus"], -graphs["x"])
    np.testing.assert_array_equal(graphs["both"][:, 1], -graphs["x"])
    assert graphs["x"].tolist() == [*range(x.size)] and graphs.present("y").tolist() == [True, False]
    assert graphs.positions[1].tolist() == [0.0, 0.5] if len(axes) == 2 else [0.0, 0.0, 0.5]


NO_GRIDS: list[tuple[dict[str, Any], str]] = [
    ({"grid": 6}, "with grid = 6 they are [graphs, x, y, z, ...] of one size"),
    ({"periodic": [True]}, "the grid has 2 axes; give one positive spacing and periodic, or one per axis"),
    ({"fields": [X, {"name": "z", "on": "node"}]}, "node fields lie on the grids"),
    ({"fields": [X, {"name": "e", "on": "edge", "key": "x"}]}, "the edge field e cannot go with edges from a cutoff"),
    ({"positions": "x"}, "grid makes nodes, edges and cell"),
    ({"grid": None}, "spacing acts only with grid"),
]


def test_a_periodic_grid_goes_on_at_the_other_side(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", x=np.arange(12.0).reshape(1, 3, 4), z=np.zeros((1, 4, 3)))
    table = {"kind": "npz", "files": ["g.npz"], "spacing": [1.0, 2.0], "grid": 4, "fields": [X]}
    graph = built(tmp_path, **table, periodic=[True, False])
    assert graph.num_edges == 2 * (3 * 4 + 3 * 3) and (8, 0) in pairs(graph) and (3, 0) not in pairs(graph)
    assert sorted({*edge_vectors(graph).norm(dim=1).tolist()}) == [1.0, 2.0]
    for wrong, words in NO_GRIDS:
        refused(tmp_path, words, **{**table, **wrong})


def test_structures_of_one_name_in_several_folders_have_names_of_their_own(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        ase.io.write(tmp_path / folder / "POSCAR", bulk("Cu"), format="vasp")
    assert list(built(tmp_path, **ATOMS, files=["*/POSCAR"]).names) == ["a/POSCAR#0", "b/POSCAR#0"]


def test_the_examples_of_the_page_run(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch_geometric("data")  # whose deprecated parts warn when they are first imported
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", (root / "docs" / "data.md").read_text(), re.MULTILINE | re.DOTALL)
    for language, code in blocks:
        if language == "python":
            exec(compile(code, "data.md", "exec"), {})  # the block is ours, not input
    (grid,) = [tomllib.loads(code) for language, code in blocks if language == "toml" and "flow.npz" in code]
    assert built(tmp_path, **grid).counts("node").tolist() == [256] * 10
    assert len(open_store(tmp_path / "packed.h5")) == 10


def tables(folder: Path, nodes: str, edges: str) -> dict[str, Any]:
    (folder / "nodes.csv").write_text(nodes)
    (folder / "edges.csv").write_text(edges)
    return {"kind": "tables", "files": ["nodes.csv"], "edges": "edges.csv", "fields": [X]}


def test_graphs_of_tables_are_told_apart_by_text_and_loops_stay_single(tmp_path: Path) -> None:
    table = tables(tmp_path, "graph,x\n10,1\n9,2\n9,3\n", "graph,sender,receiver\n9,0,1\n9,0,0\n")
    graphs = built(tmp_path, undirected=True, **table)
    assert list(graphs.names) == ["9", "10"] and graphs["x"].tolist() == [2, 3, 1]
    assert sorted(zip(graphs.senders.tolist(), graphs.receivers.tolist())) == [(0, 0), (0, 1), (1, 0)]
    table = tables(tmp_path, "graph,x,serial\n01,1,99999999999999999999\n1,2,3\n", "graph,sender,receiver\n1,0,0\n")
    assert list(built(tmp_path, **table).names) == ["01", "1"]


AB = {"name": "ab", "on": "edge", "shape": [2], "parity": "vector", "key": ["a", "b"]}
BOTH = {"undirected": True}
CELL = {"kind": "npz", "files": ["c.npz"], "positions": "pos", "cutoff": 0.9, "cell": "cell", "periodic": True}
ENDS = "sender,receiver\n"
TWO_WAYS: list[tuple[str, str, dict[str, Any], str]] = [
    ("graph,x,x\n0,1,2\n", f"graph,{ENDS}", {}, "nodes.csv has several columns x"),
    ("x\n1\n2\n3\n", f"{ENDS}0,1\n1,0\n1,2\n", {}, "the pair 1, 2 is listed in one direction"),
    ("x\n1\n2\n", f"{ENDS}0,1\n", {}, "every pair is listed in one direction; say undirected = true"),
    ("x\n1\n2\n", f"{ENDS}0,-1\n", BOTH, "-1"),
    (
        "x\n1\n2\n",
        "sender,receiver,a,b\n0,1,1,2\n",
        {**BOTH, "fields": [AB]},
        "ab is a vector of edges, and the reverse",
    ),
    ("", ENDS, {"files": ["a.npz"]}, "a.npz: columns of different lengths"),
    ("", "", {"kind": "networkx", "files": ["g.json"], "edges": None}, "the node 1 is listed twice"),
    ("", "", {**ATOMS, "files": ["a.json"], "edges": None}, "site 0 is occupied by"),
    ("", "", {**CELL, "edges": None}, "cell of shape (3, 3) is one cell, or the lengths of three boxes"),
]


@pytest.mark.parametrize(("nodes", "edges", "more", "words"), TWO_WAYS, ids=[words for *_, words in TWO_WAYS])
def test_files_that_could_be_read_in_two_ways_are_refused(
    nodes: str, edges: str, more: dict[str, Any], words: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(3), z=np.ones(2))
    np.savez(tmp_path / "c.npz", x=np.ones((3, 2)), pos=np.zeros((2, 3)), cell=np.eye(3))
    network = {"directed": False, "multigraph": False, "graph": {}, "nodes": [{"id": 1, "x": 1.0}] * 2, "edges": []}
    (tmp_path / "g.json").write_text(json.dumps(network))
    crystal = monty(bulk("Cu"))
    crystal["sites"][0]["species"] = [{"element": "Cu", "occu": 0.5}, {"element": "Ag", "occu": 0.5}]
    (tmp_path / "a.json").write_text(json.dumps([crystal]))
    table = {**tables(tmp_path, nodes, edges), **more}
    refused(tmp_path, words, **{key: value for key, value in table.items() if value is not None})


PACKED = {
    "a.graphml.gz": {"kind": "networkx"},
    "a.csv.gz": {"kind": "smiles"},
    "a.npz": {"kind": "npz", "positions": "x", "cutoff": 1.0},
    "a.pt.gz": {"kind": "pyg"},
    "a.db.gz": {"kind": "ase", "cutoff": 3.0},
    "a.vtu.gz": {"kind": "mesh"},
}


@pytest.mark.parametrize("name", PACKED)
def test_compressed_files_that_are_not_unpacked_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"id,smiles\nv,CO\n"))
    refused(
        tmp_path,
        f"{name} is compressed, and only structures and .json.gz are read so; unpack it",
        files=[name],
        **PACKED[name],
    )


def test_images_of_one_name_have_rows_of_their_own(tmp_path: Path) -> None:
    for folder in ("d1", "d2"):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "v.npy", np.arange(4).reshape(2, 2))
    rows = [f"d{place}/v.npy,{grain},{10 * place + grain}" for place in (1, 2) for grain in range(4)]
    (tmp_path / "grains.csv").write_text("\n".join(["file,grain,x", *rows]))
    table = {"kind": "voxels", "files": ["d1", "d2"], "grains": "grains.csv", "fields": [X]}
    assert built(tmp_path, **table)["x"].tolist() == [10, 11, 12, 13, 20, 21, 22, 23]
    (tmp_path / "grains.csv").write_text("\n".join(["file,grain,x", *(f"v.npy,{grain},1" for grain in range(4))]))
    refused(tmp_path, "grains.csv and d1/v.npy have other grains", **table)


def structure(**changes: Any) -> dict[str, Any]:
    sites = [{"species": [{"element": "Cu", "occu": 1}], "abc": [0, 0, 0]}]
    return {"@class": "Structure", "lattice": {"matrix": (np.eye(3) * 3.6).tolist()}, "sites": sites, **changes}


def columns(*names: str, rows: int = 1) -> dict[str, Any]:
    return {"index": [0], "columns": names, "data": [[structure()]] * rows}


FLAT = {"matrix": [[1, 0, 0], [2, 0, 0], [0, 0, 1]]}
NO_STRUCTURE: list[tuple[Any, str]] = [
    ([{"initial": structure(), "final": structure()}], "structure 0 has several structures, initial, final; keep one"),
    (columns("structure", rows=2), "index, columns and data have different lengths"),
    (columns("structure", "y"), "index, columns and data have different lengths"),
    (structure(lattice={"a": 3.6, "b": 3.6, "c": 3.6}), "structure 0 has no matrix of a cell with a volume"),
    (structure(lattice=FLAT), "has no matrix of a cell with a volume"),
    (structure(sites=[]), "structure 0 has no sites"),
]


@pytest.mark.parametrize("value, words", NO_STRUCTURE)
def test_json_that_is_no_whole_structure_is_refused(value: Any, words: str, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(value))
    refused(tmp_path, words, **ATOMS, files=["s.json"])


GRID = """<Grid Name="{frame}" GridType="Uniform"><Time Value="{time}"/>
<Topology TopologyType="Triangle" NumberOfElements="{count}"><DataItem DataType="Int" Dimensions="{count} 3" Format="XML" Precision="8">{cells}</DataItem></Topology>
<Geometry GeometryType="XY"><DataItem DataType="Float" Dimensions="4 2" Format="XML" Precision="8">{points}</DataItem></Geometry>
<Attribute Name="u" AttributeType="Scalar" Center="Node"><DataItem DataType="Float" Dimensions="4" Format="XML" Precision="8">1 2 3 4</DataItem></Attribute></Grid>"""


COLLECTION = """<Xdmf Version="3.0"><Domain><Grid Name="t" GridType="Collection" CollectionType="Temporal">
{}</Grid></Domain></Xdmf>"""
SQUARE = "0 1 2 0 2 3"
NEXT = {"name": "next", "on": "node", "role": "target", "key": "u", "step": 1}


def moving(path: Path, scales: list[float], times: list[Any], cells: list[str]) -> dict[str, Any]:
    """Write frames with points and cells of their own, as ParaView does."""
    frames = []
    for frame, (scale, time, triangles) in enumerate(zip(scales, times, cells)):
        points = " ".join(str(scale * one) for one in (0, 0, 1, 0, 1, 1, 0, 1))
        count = len(triangles.split()) // 3
        frames.append(GRID.format(frame=frame, time=time, count=count, cells=triangles, points=points))
    path.write_text(COLLECTION.format("".join(frames)))
    return {"kind": "mesh", "files": [path.name]}


def test_meshes_that_move_or_change_are_read_frame_by_frame(tmp_path: Path) -> None:
    table = moving(tmp_path / "a.xdmf", [1, 2, 3], [0, 1, 2], [SQUARE] * 3)
    graphs = built(tmp_path, **table, fields=[U, NEXT])
    np.testing.assert_array_equal(graphs.positions[4:], 2 * graphs.positions[:4])
    table = moving(tmp_path / "b.xdmf", [1, 1], [0, 1], [SQUARE, "0 1 3 1 2 3"])
    assert pairs(built(tmp_path, **table, fields=[U])) >= {(0, 2), (5, 7)}
    refused(tmp_path, "b.xdmf#0: the frame +1 later has another mesh", **table, fields=[U, NEXT])


def test_steps_are_of_equal_time_or_the_model_reads_the_time(tmp_path: Path) -> None:
    times: list[Any] = [0, 1, 5]
    table = moving(tmp_path / "a.xdmf", [1] * 3, times, [SQUARE] * 3)
    refused(tmp_path, "a.xdmf: frames are not equally spaced in time", **table, fields=[U, NEXT])
    time = [{"name": "now", "on": "graph", "key": "time"}, {"name": "then", "on": "graph", "key": "time", "step": 1}]
    graphs = built(tmp_path, **table, fields=[U, NEXT, *time])
    assert graphs["now"].tolist() == times[:2] and graphs["then"].tolist() == times[1:]
    lead = {**table, "fields": [U, NEXT, {"name": "lead", "on": "graph", "key": "lead_time", "step": 1}]}
    assert built(tmp_path, **lead)["lead"].tolist() == [1, 4]
    for wrong, words in (([2, 0, 1], "0.0 after 2.0"), ([0, 0, 1], "0.0 after 0.0"), ([0, "1 s", 2], "ValueError")):
        table = moving(tmp_path / "a.xdmf", [1] * 3, wrong, [SQUARE] * 3)
        refused(tmp_path, words, **table, fields=[U, NEXT, *time])


def test_pages_of_an_image_are_space_or_refused(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    image = np.arange(8, dtype=np.uint16).reshape(2, 2, 2)
    with tifffile.TiffWriter(tmp_path / "v.tif") as file:
        for page in image:
            file.write(page)
    graph = built(tmp_path, kind="voxels", files=["v.tif"], fields=[])
    assert graph.dim == 3 and graph.num_nodes == 8
    tifffile.imwrite(tmp_path / "t.tif", image, imagej=True, metadata={"axes": "TYX"})
    refused(tmp_path, "t.tif has an axis of time", kind="voxels", files=["t.tif"], fields=[])


def test_tables_in_several_files_name_each_graph_in_one(tmp_path: Path) -> None:
    table = tables(tmp_path, "graph,x\n0,1\n", "graph,sender,receiver\n0,0,0\n")
    (tmp_path / "more.csv").write_text("graph,x\n0,2\n")
    refused(tmp_path, "graph 0 has rows in", **{**table, "files": ["nodes.csv", "more.csv"]})
    (tmp_path / "nodes.csv").write_text("graph,x\n,1\n")
    refused(tmp_path, "nodes.csv: a row has nothing in the column graph", **table)
    (tmp_path / "nodes.csv").write_text("graph,x\n0,1\n")
    (tmp_path / "graphs.csv").write_text("graph,id\n0,007\n")
    assert list(built(tmp_path, graphs="graphs.csv", **table).names) == ["007"]


def test_a_property_that_one_site_lacks_is_missing_there_alone(tmp_path: Path) -> None:
    (site,) = structure()["sites"]
    sites = [site, {**site, "abc": [0.5, 0.5, 0.5], "properties": {"charge": 2.0}}]
    (tmp_path / "s.json").write_text(json.dumps(structure(sites=sites)))
    charge = {"name": "charge", "on": "node", "role": "target", "optional": True}
    graph = built(tmp_path, kind="ase", files=["s.json"], cutoff=4.0, fields=[charge])
    assert graph.labelled("charge").tolist() == [False, True] and graph["charge"][1] == 2


def test_folders_have_dots_and_brackets(tmp_path: Path) -> None:
    folder = tmp_path / "d [x] *" / "data.v2"
    folder.mkdir(parents=True)
    ase.io.write(folder / "b [1].xyz", bulk("Cu"))
    for files in (["data.v2"], ["data.v2/b [1].xyz"], ["data.v2/*.xyz"]):
        assert len(built(tmp_path / "d [x] *", **ATOMS, files=files)) == 1
