"""Maps of orientations and polycrystals, as instruments and their programs write them."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from orix import io
from orix.crystal_map import CrystalMap, Phase, PhaseList
from orix.quaternion import Orientation, Rotation, symmetry

from hydragnn.graphs import GraphBatch
from hydragnn.graphs.orientations import (
    CHARACTERS,
    LAUE,
    disorientation,
    from_bunge,
    mean_orientations,
    orientation_features,
    product,
    rotations_of,
)
from tests.datasets.conftest import built, refused

TWIN = np.degrees(Rotation.from_axes_angles([1, 1, 1], np.pi / 3).to_euler())[0]
IN_TSL = (
    "# TEM_PIXperUM 1.0\n# Phase 1\n# MaterialName  \tNickel\n# Symmetry              43\n# GRID: {grid}\n# XSTEP: {step}\n"
    "# YSTEP: {rows}\n# NCOLS_ODD: {odd}\n# NCOLS_EVEN: {even}\n# NROWS: {count}\n#\n"
)
PHASE = "3.5;3.5;3.5\t90;90;90\tNickel\t11\t225\n"
IN_CTF = "Channel Text File\nAuthor\tB\u00e4r \u00b5m\nXCells\t{0}\nYCells\t{1}\nXStep\t{2}\nYStep\t{2}\nEuler angles refer to Sample\nPhases\t{3}\n{4}"
COLUMNS = "Phase\tX\tY\tBands\tError\tEuler1\tEuler2\tEuler3\tMAD\tBC\tBS\n"


def bicrystal(columns: int = 6, rows: int = 4) -> np.ndarray:
    """Return Euler angles in degrees of two twins side by side."""
    angles = np.tile(np.array([30.0, 40.0, 50.0]), (columns, rows, 1))
    one = from_bunge(np.radians(angles[0, 0])[None])[0]
    other = Rotation(product(from_bunge(np.radians(TWIN)[None])[0], one)).to_euler(degrees=True)[0]
    angles[columns // 2 :] = other
    return angles


def ctf(path: Path, angles: np.ndarray, phase: Any = 1, phases: str = PHASE, order: Any = None) -> str:
    """Write a .ctf as AZtec does."""
    x = np.indices(angles.shape[:2])[0]
    phase = np.broadcast_to(phase, x.shape)
    rows = [
        f"{phase[i, j]}\t{i / 2:.4f}\t{j / 2:.4f}\t8\t0\t{a:.5f}\t{b:.5f}\t{c:.5f}\t0.4\t99\t99"
        for j in range(x.shape[1])
        for i in range(x.shape[0])
        for a, b, c in [angles[i, j]]
    ]
    rows = rows if order is None else [rows[k] for k in order]
    text = IN_CTF.format(*x.shape, 0.5, phases.count("\n"), phases) + COLUMNS + "\n".join(rows) + "\n"
    path.write_bytes(text.encode("latin-1"))
    return text


def ang(path: Path, angles: np.ndarray, hexagonal: bool = False) -> str:
    """Write an .ang as OIM does; hexagonal rows lose a point each."""
    (columns, count), step, lines = angles.shape[:2], 0.5, []
    for j in range(count):
        shift = hexagonal and j % 2
        for i in range(columns - shift):
            a, b, c = np.radians(angles[i, j])
            x, y = (i + shift / 2) * step, j * step * (0.8660254 if hexagonal else 1)
            lines.append(f"  {a:.5f}  {b:.5f}  {c:.5f}  {x:.5f}  {y:.5f} 99.0  0.900  0  1  0.5")
    rows = 0.433013 if hexagonal else step
    form = {"grid": "HexGrid" if hexagonal else "SqrGrid", "step": step, "rows": rows, "odd": columns}
    text = IN_TSL.format(**form, even=columns - hexagonal, count=count) + "\n".join(lines) + "\n"
    path.write_text(text)
    return text


def dream3d(path: Path, angles: np.ndarray | None, ids: np.ndarray | None, newer: bool = False, **changes: Any) -> None:
    """Write cells [x, y, z] as DREAM.3D does."""
    shape = (ids if angles is None else angles).shape[:3]  # type: ignore[union-attr]
    with h5py.File(path, "w") as file:
        image = file.create_group("DataStructure/Image" if newer else "DataContainers/Synthetic")
        lengths = changes.get("spacing", [0.5, 0.5, 2.0])
        said = {"DIMENSIONS": np.array(changes.get("size", shape), np.uint64), "SPACING": np.array(lengths, np.float32)}
        for key, value in said.items():
            if newer and len(value):
                image.attrs[f"_{key}"] = value
            elif len(value):
                image[f"_SIMPL_GEOMETRY/{key}"] = value
        if "unit" in changes:
            image.attrs["Units"] = np.uint32(changes["unit"])
        cells = image.create_group("Cell Data" if newer else "CellData")
        if angles is not None:
            cells["EulerAngles"] = np.radians(angles).transpose(2, 1, 0, 3).astype(np.float32)
        if ids is not None:
            cells["FeatureIds"] = ids.transpose(2, 1, 0)[..., None].astype(np.int32)
        cells["Phases"] = np.ones((*shape[::-1], 1), np.int32)
        image["CellEnsembleData/CrystalStructures"] = np.array([[999], [changes.get("structure", 1)]], np.uint32)


def build(folder: Path, file: str, **table: Any) -> GraphBatch:
    return built(folder, kind="microstructure", files=[file], **table)


def check_bicrystal(graph: GraphBatch, length: float, volume: float) -> None:
    assert graph.num_nodes == 2 and graph.num_edges == 2
    assert graph["area"].tolist() == pytest.approx([length] * 2)
    assert graph["volume"].tolist() == pytest.approx([volume] * 2)
    assert graph["misorientation"].tolist() == pytest.approx([60.0, 60.0], abs=2e-3)
    assert [CHARACTERS[one] for one in graph["character"]] == ["sigma 3"] * 2


def test_a_twin_is_a_twin_in_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    angles = bicrystal()
    ctf(tmp_path / "a.ctf", angles)
    ang(tmp_path / "a.ang", angles)
    check_bicrystal(build(tmp_path, "a.ctf"), 2.0, 3.0)
    check_bicrystal(build(tmp_path, "a.ang"), 2.0, 3.0)
    for newer in (False, True):
        dream3d(tmp_path / "a.dream3d", np.stack([angles] * 3, axis=2), None, newer)
        check_bicrystal(build(tmp_path, "a.dream3d"), 2.0 * 6.0, 3.0 * 6.0)
        in_nanometres = {"spacing": [500, 500, 2000], "unit": 5}
        dream3d(tmp_path / "a.dream3d", np.stack([angles] * 3, axis=2), None, newer, **in_nanometres)
        check_bicrystal(build(tmp_path, "a.dream3d"), 2.0 * 6.0, 3.0 * 6.0)
    assert build(tmp_path, "a.ctf").fields["volume"].unit == "um^2" and "other axes" not in capsys.readouterr().err
    assert build(tmp_path, "a.*g").num_nodes == 2 and built(tmp_path, kind="microstructure", files=["a.ctf", "a.ang"])
    assert "usually have other axes" in capsys.readouterr().err


ORIX = {"2/m": symmetry.C2y, "112/m": symmetry.C2z, "-31m": symmetry.D3y}


@pytest.mark.parametrize("laue", LAUE)
def test_disorientations_are_those_of_orix(laue: str) -> None:
    group = ORIX.get(laue) or next(one for one in symmetry._groups if one.name == laue).proper_subgroup
    turns = from_bunge(np.random.default_rng(0).uniform(0, 6, (200, 3)))
    ends = [Orientation(Rotation(one), symmetry=group) for one in (turns[:100], turns[100:])]
    expected = np.degrees(ends[0].angle_with(ends[1]))
    assert disorientation(turns[:100], turns[100:], laue) == pytest.approx(expected, abs=1e-6)
    assert disorientation(turns[:100], product(rotations_of(laue)[-1], turns[:100]), laue) == pytest.approx(0, abs=1e-5)
    moved = product(rotations_of(laue)[-1], turns)
    assert orientation_features(moved, laue) == pytest.approx(orientation_features(turns, laue), abs=1e-12)


def test_features_are_those_of_the_crystals_axis_in_the_sample() -> None:
    crystals = Rotation.random(5)
    axis = crystals.to_matrix().transpose(0, 2, 1)[:, :, 2]  # orix turns the sample into the crystal
    features = orientation_features(crystals.data, "6/mmm")
    assert features[:, 0] == pytest.approx(axis[:, 0] ** 4) and features[:, 1] == pytest.approx(
        axis[:, 0] ** 3 * axis[:, 1]
    )


def test_between_phases_both_symmetries_count() -> None:
    turns = from_bunge(np.random.default_rng(1).uniform(0, 6, (40, 3)))
    one, other = turns[:20], turns[20:]
    angles = disorientation(one, other, "m-3m", "6/mmm")
    equivalents = [
        2 * np.degrees(np.arccos(np.minimum(np.abs((product(s, other) * product(t, one)).sum(axis=1)), 1)))
        for s in rotations_of("6/mmm")
        for t in rotations_of("m-3m")
    ]
    assert angles == pytest.approx(np.min(equivalents, axis=0)) and angles == pytest.approx(
        disorientation(other, one, "6/mmm", "m-3m")
    )


def test_means_are_those_of_equivalent_points() -> None:
    """Points scattered about an orientation at the zone's edge, each in another equivalent form."""
    random, group = np.random.default_rng(0), rotations_of("m-3m")
    middle = from_bunge(np.radians([[45.0, 0.0, 0.0]]))
    scatter = random.normal([1, 0, 0, 0], 0.01, (500, 4))
    points = product(group[random.integers(0, 24, 500)], product(scatter, middle))
    points /= np.linalg.norm(points, axis=1, keepdims=True) * random.choice([-1, 1], (500, 1))
    mean, spread = mean_orientations(points, np.zeros(500, dtype=np.int64), "m-3m")
    assert disorientation(mean, middle, "m-3m")[0] < 0.2 and 1.0 < spread[0] < 3.0
    assert (
        disorientation(mean, mean_orientations(points[::-1], np.zeros(500, dtype=np.int64), "m-3m")[0], "m-3m")[0]
        < 1e-4
    )


def polycrystal(folder: Path, change: str = "") -> GraphBatch:
    """Return grains of a map of 9 grains, some of 5 degrees; its points are reordered, or turned by a symmetry."""
    random = np.random.default_rng(3)
    seeds, x = random.uniform(0, 20, (9, 2)), np.stack(np.indices((20, 20)), axis=-1)
    grain = ((x[:, :, None] - seeds) ** 2).sum(axis=-1).argmin(axis=-1)
    angles = random.uniform(0, 1, (9, 3)) * [360, 90, 360]
    angles[1] = angles[0] + [0, 4, 0]  # one grain
    angles = angles[grain] + random.normal(0, 0.2, (20, 20, 3))
    if change == "symmetry":
        turns = product(rotations_of("m-3m")[7], from_bunge(np.radians(angles.reshape(-1, 3))))
        angles = Rotation(turns).to_euler(degrees=True).reshape(angles.shape)
    phase = np.where(random.uniform(size=(20, 20)) < 0.03, 0, 1)
    ctf(folder / "p.ctf", angles, phase, order=random.permutation(400) if change == "order" else None)
    return build(folder, "p.ctf", smallest=4)


@pytest.mark.parametrize("shift", range(0, 10, 3))
def test_points_join_the_nearest_grain_across_a_periodic_border(shift: int, tmp_path: Path) -> None:
    angles, phase = bicrystal(10), np.ones((10, 4), dtype=int)
    phase[:2] = angles[2:6] = 0
    ctf(tmp_path / "p.ctf", np.roll(angles, shift, axis=0), np.roll(phase, shift, axis=0))
    graph = build(tmp_path, "p.ctf", smallest=16, periodic=True)
    assert graph["volume"].tolist() == [5.0, 5.0]


@pytest.mark.parametrize("change", ["order", "symmetry"])
def test_grains_do_not_depend_on_order_and_symmetry(change: str, tmp_path: Path) -> None:
    one, other = polycrystal(tmp_path), polycrystal(tmp_path, change)
    assert one.num_nodes == other.num_nodes and one["volume"].sum().item() == pytest.approx(100.0)
    for name in ("volume", "area", "misorientation", "orientation_features", "orientation_spread", "orientation"):
        assert other[name].numpy() == pytest.approx(one[name].numpy(), abs=2e-3), name


def test_hexagonal_grids_have_six_neighbours(tmp_path: Path) -> None:
    angles = np.zeros((5, 5, 3)) + np.arange(25).reshape(5, 5, 1) * [3.3, 1, 0] + [0, 20, 0]
    ang(tmp_path / "h.ang", angles, hexagonal=True)
    graph = build(tmp_path, "h.ang", threshold=0.01)
    inner = np.abs(graph.positions.numpy() - [1.25, 0.8660254 + 0.2165]).sum(axis=1).argmin()
    assert graph.num_nodes == 23 and (graph.receivers == inner).sum() == 6
    assert graph["volume"].numpy() == pytest.approx(0.5 * 0.433013)
    x = graph.positions.numpy()
    gaps = np.linalg.norm(x[graph.senders] - x[graph.receivers], axis=1)
    assert gaps == pytest.approx(0.5, abs=1e-4)


TESS = (
    "***tess\n **format\n 3.5\n **general\n 2 standard\n **cell\n  2\n  *crysym\n  cubic\n  *ori\n  rodrigues:passive\n"
    "  0.0 0.0 0.0\n  0.333333333333 0.333333333333 0.333333333333\n **vertex\n6\n1 0 0 0 0\n2 1 0 0 0\n3 3 0 0 0\n"
    "4 0 1 0 0\n5 1 1 0 0\n6 3 1 0 0\n **edge\n 0\n **face\n 2\n1 4 1 2 5 4\n4 1 2 3 4\n0 0 0 1\n0 -1 0 0 0\n"
    "2 4 2 3 6 5\n4 5 6 7 2\n0 0 0 1\n0 -1 0 0 0\n **domain\n  *general\n   cube\n  *face\n   1\n***end\n"
)


def cube() -> str:
    """Return a .tess of two unit cubes, twins."""
    points = [(x, y, z) for z in range(3) for y in range(2) for x in range(2)]
    pairs = ((1, 2), (2, 4), (4, 3), (3, 1))
    faces = [[4 * z + k for k in (1, 2, 4, 3)] for z in range(3)]
    faces += [[4 * z + a, 4 * z + b, 4 * z + b + 4, 4 * z + a + 4] for z in range(2) for a, b in pairs]
    head = "***tess\n**general\n3 standard\n**cell\n2\n*ori\nquaternion:passive\n1 0 0 0\n.8660254 .28867513 .28867513 .28867513\n"
    vertices = [f"{number} {x} {y} {z} 0" for number, (x, y, z) in enumerate(points, 1)]
    sides = [f"{n} 4 {' '.join(map(str, one))}\n4 1 2 3 4\n0 0 0 1\n0 0 0 0 0" for n, one in enumerate(faces, 1)]
    solids = ["**polyhedron", "2", "1 6 -1 2 4 5 6 7", "2 6 -2 3 8 9 10 11", "***end", ""]
    return head + "\n".join(["**vertex", "12", *vertices, "**edge", "0", "**face", "11", *sides, *solids])


def test_cells_of_neper(tmp_path: Path) -> None:
    (tmp_path / "a.tess").write_text(TESS)
    graph = build(tmp_path, "a.tess")
    assert graph["volume"].tolist() == pytest.approx([1.0, 2.0]) and graph["area"].tolist() == pytest.approx([1.0, 1.0])
    assert graph.positions.numpy() == pytest.approx(np.array([[0.5, 0.5], [2.0, 0.5]]))
    assert graph["misorientation"].tolist() == pytest.approx([60.0] * 2, abs=1e-3) and graph["character"].tolist() == [
        2,
        2,
    ]
    raster = TESS.partition(" **vertex")[0].replace("2 standard", "2\n 3 1\n 1 1").replace("3.5", "2.2")
    for version, convention in (("2.2", "passive"), ("2.1", "active")):
        text = raster.replace("2.2", version).replace("passive", convention) + " **data\n ascii\n1 2\n2\n***end\n"
        (tmp_path / "a.tesr").write_text(text)
        other = build(tmp_path, "a.tesr")
        for name in ("volume", "area", "misorientation", "orientation_features"):
            np.testing.assert_allclose(other[name], graph[name], atol=1e-5)
        np.testing.assert_allclose(other.positions, graph.positions)
    for old, new, words in (
        ("ascii", "binary8", "has binary8 data"),
        (" *ori", " *id\n 4 7\n *ori", "has cells ['4', '7']"),
        ("1 2\n2", "1 2\n3", "has cells 1 to 3, and counts 2"),
    ):
        (tmp_path / "b.tesr").write_text(text.replace(old, new))
        refused(tmp_path, words, kind="microstructure", files=["b.tesr"])
    for kind, first, second in (
        ("euler-bunge", "0 0 0", "{} {} {}".format(*TWIN)),
        ("rodrigues", "0 0 0", "-.33333333 -.33333333 -.33333333"),
    ):
        text = TESS.replace("rodrigues:passive", kind).replace("0.0 0.0 0.0", first)
        (tmp_path / "a.tess").write_text(text.replace("0.333333333333 0.333333333333 0.333333333333", second))
        assert build(tmp_path, "a.tess")["misorientation"][0].item() == pytest.approx(60.0, abs=1e-3)
    (tmp_path / "a.tess").write_text(cube())
    graph = build(tmp_path, "a.tess", symmetry="m-3m")
    assert graph["volume"].tolist() == pytest.approx([1.0, 1.0]) and graph["area"].tolist() == pytest.approx([1.0, 1.0])
    assert graph.positions.numpy() == pytest.approx(np.array([[0.5, 0.5, 0.5], [0.5, 0.5, 1.5]]))
    assert graph["character"].tolist() == [2, 2]


L_SHAPED = (
    "***tess\n **format\n 3.4\n **general\n 2 standard\n **cell\n 2\n **vertex\n 7\n1 0 0 0 0\n2 2 0 0 0\n3 2 1 0 0\n4 1 1 0 0\n"
    "5 1 2 0 0\n6 0 2 0 0\n7 2 2 0 0\n **edge\n 0\n **face\n 2\n1 6 {}\n6 1 1 1 1 1 1\n0 0 0 1\n0 0 0 0 0\n"
    "2 4 4 3 7 5\n4 1 1 1 1\n0 0 0 1\n0 0 0 0 0\n **domain\n  *general\n   square\n***end\n"
)


@pytest.mark.parametrize("start", range(6))
def test_cells_that_are_not_convex_have_their_area(start: int, tmp_path: Path) -> None:
    corners = np.roll(np.arange(1, 7), start).tolist()
    (tmp_path / "a.tess").write_text(L_SHAPED.format(" ".join(map(str, corners))))
    graph = build(tmp_path, "a.tess")
    assert graph["volume"].tolist() == pytest.approx([3.0, 1.0])
    assert graph.positions[0].tolist() == pytest.approx([5 / 6, 5 / 6])
    (tmp_path / "b.tess").write_text(L_SHAPED.format("1 4 3 2 5 6"))  # it crosses itself
    refused(tmp_path, "sees all of it; cut its cells", kind="microstructure", files=["b.tess"])


def test_orientations_of_neper_mean_the_same_in_files_before_and_after_it_exchanged_the_names(tmp_path: Path) -> None:
    bunge = np.array([[10.0, 50.0, 30.0], [160.0, 35.0, 70.0]])  # from the sample to the crystal
    own = Orientation.from_euler(bunge, symmetry.Oh, degrees=True)
    angle = np.degrees(own[0].angle_with(own[1])[0])
    turns = (~own).data  # from the sample's axes to the crystal's, as in Neper's table of (0, 30, 0)
    sets = {"euler-bunge": bunge, "quaternion": turns, "rodrigues": turns[:, 1:] / turns[:, :1]}
    inverse = {"quaternion": own.data, "rodrigues": own.data[:, 1:] / own.data[:, :1]}
    for version, usual, unusual in (("3.4", "active", "passive"), ("3.5", "passive", "active")):
        forms = [(f"{kind}{end}", one) for kind, one in sets.items() for end in ("", f":{usual}")]
        for form, numbers in forms + [(f"{kind}:{unusual}", one) for kind, one in inverse.items()]:
            first, second = (" ".join(map(str, row)) for row in numbers)
            text = TESS.replace("3.5", version).replace("rodrigues:passive", form).replace("0.0 0.0 0.0", first)
            (tmp_path / "a.tess").write_text(text.replace(" ".join(["0.333333333333"] * 3), second))
            graph = build(tmp_path, "a.tess")
            assert graph["misorientation"].tolist() == pytest.approx([angle] * 2, abs=1e-4), (version, form)


NODES = "\n".join(f"{1 + x + 2 * y + 4 * z}, {x}., {y}., {z}." for z in range(4) for y in range(2) for x in range(2))
BRICKS = "\n".join(
    f"{1 + z}, {', '.join(str(4 * (z + up) + k) for up in (0, 1) for k in (1, 2, 4, 3))}" for z in range(3)
)
IN_INP = f"*Heading\n** \n*NODE\n{NODES}\n*ELEMENT, type=C3D8\n{BRICKS}\n"
SETS = "*Elset, elset=GRAIN-1\n1, 2\n*Elset, elset=GRAIN-2\n3\n"


def test_element_sets_are_grains(tmp_path: Path) -> None:
    (tmp_path / "a.inp").write_text(IN_INP + SETS + "*Elset, elset=ALL, generate\n1, 3, 1\n")
    graph = build(tmp_path, "a.inp", sets="GRAIN*")
    assert graph["volume"].tolist() == pytest.approx([2.0, 1.0]) and graph["area"].tolist() == pytest.approx([1.0, 1.0])
    assert graph.positions[:, 2].tolist() == pytest.approx([1.0, 2.5]) and "misorientation" not in graph.fields
    (tmp_path / "b.inp").write_text((IN_INP + SETS).replace("\n2,", "\n** a comment\n2,"))
    assert build(tmp_path, "b.inp")["volume"].tolist() == pytest.approx([2.0, 1.0])
    assert built(tmp_path, kind="mesh", files=["b.inp"]).num_nodes == 16


@pytest.mark.parametrize("element", ["CPE4", "CPE4R", "CPS4I", "CPE3"])
def test_elements_of_plane_strain_are_read(element: str, tmp_path: Path) -> None:
    places = "\n".join(f"{1 + x + 4 * y}, {x}., {y}." for y in range(2) for x in range(4))
    squares = [(k, k + 1, k + 5, k + 4) for k in (1, 2, 3)]
    halves = [one for a, b, c, d in squares for one in ((a, b, c), (a, c, d))]
    rows = [f"{n}, {', '.join(map(str, one))}" for n, one in enumerate(halves if element == "CPE3" else squares, 1)]
    of_square = len(rows) // 3
    sets = f"*Elset, elset=A, generate\n1, {of_square}, 1\n*Elset, elset=B, generate\n{of_square + 1}, {len(rows)}, 1\n"
    text = f"*Heading\n*Node\n{places}\n*Element, type={element}\n" + "\n".join(rows) + f"\n{sets}"
    (tmp_path / "a.inp").write_text(text)
    graph = build(tmp_path, "a.inp")
    assert graph["volume"].tolist() == pytest.approx([1.0, 2.0]) and graph["area"].tolist() == pytest.approx([1.0, 1.0])


def text_of(kind: str, folder: Path) -> str:
    """Return the text of a healthy file of a kind."""
    healthy = {"tess": TESS, "inp": IN_INP + SETS}
    if kind in healthy:
        return healthy[kind]
    return (ctf if kind == "ctf" else ang)(folder / "healthy", bicrystal())


def in_nanometres(text: str) -> str:
    places = re.sub(
        r"(?m)^((?:\s+\S+){3})\s+(\S+)\s+(\S+)", lambda m: f"{m[1]} {1000 * float(m[2])} {1000 * float(m[3])}", text
    )
    return re.sub("STEP: 0.5", "STEP: 500", places)


def reordered(text: str, table: str, order: str, separator: str) -> str:
    """Return a map whose table has other columns first."""
    head, body = text[: text.index(table)], text[text.index(table) :].strip().splitlines()
    rows = [separator.join(np.array(row.split())[[*map(int, order.split())]]) for row in body]
    return head + "\n".join(rows) + "\n"


OIM_8 = "# COLUMN_COUNT: 10\n# COLUMN_HEADERS: x, y, phi1, PHI, phi2, IQ, Phase index, CI, SEM, Fit\n# COLUMN_UNITS: , ,\n#\n"

AS_WRITTEN: dict[str, tuple[str, Callable[[str], str], dict[str, Any]]] = {
    "decimal commas": ("ctf", lambda text: text.replace(".", ","), {}),
    "decimal commas in .ang": ("ang", lambda text: text.replace(".", ","), {}),
    "other columns": ("ctf", lambda text: reordered(text, "Phase\tX", "1 2 5 6 7 0 3 4 8 9 10", "\t"), {}),
    "other columns in .ang": ("ang", lambda text: reordered(text.replace("#\n", OIM_8), "  0.5", "3 4 0 1 2 5 7 6 8 9", " "), {}),
    "lines of Windows": ("ctf", lambda text: text.replace("\n", "\r\n"), {}),
    "lines of Windows in .ang": ("ang", lambda text: text.replace("\n", "\r\n"), {}),
    "no symmetry": ("ang", lambda text: text.replace("# Symmetry              43\n", ""), {"symmetry": "m-3m"}),
    "symmetry by name": ("ctf", lambda text: text.replace("\t11\t225", "\t0\t0"), {"symmetry": {"Nickel": "m-3m"}}),
    "no header": ("ang", lambda text: text[text.rindex("#") + 1 :], {"symmetry": "m-3m", "spacing": 0.5}),
    "no step": ("ctf", lambda text: text.replace("XStep\t0.5\n", ""), {"spacing": 0.5}),
    "nanometres": ("ang", lambda text: "# File created from ACOM RES results\n" + in_nanometres(text), {}),
    "phase 1": ("ang", lambda text: text.replace("0.900  0", "0.900  1"), {}),
    "a phase that no point has": ("ctf", lambda text: text.replace("Phases\t1\n", "Phases\t2\n" + PHASE), {}),
    "blanks for tabs": ("ctf", lambda text: text[:200] + text[200:].replace("\t", "  "), {}),
}  # fmt: skip


def test_points_of_phase_minus_1_are_not_indexed(tmp_path: Path) -> None:
    (tmp_path / "a.ang").write_text(ang(tmp_path / "a.ang", bicrystal()).replace("0.900  0", "0.900 -1", 1))
    assert build(tmp_path, "a.ang")["volume"].tolist() == pytest.approx([2.75, 3.0])


def test_phases_counted_from_0_beside_others_are_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = ang(tmp_path / "a.ang", bicrystal()).replace(
        "# GRID", "# Phase 2\n# MaterialName Copper\n# Symmetry 43\n# GRID"
    )
    (tmp_path / "a.ang").write_text(text.replace("0.900  0", "0.900  1", 4))
    assert build(tmp_path, "a.ang", phases=["Nickel", "Copper"])["volume"].sum() == pytest.approx(1.0)
    assert (
        "20 points of phase 0 have a confidence and belong to no grain; its header lists [1, 2]"
        in capsys.readouterr().err
    )


def test_a_turned_acquisition_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.ctf").write_text(text_of("ctf", tmp_path).replace("XCells", "AcqE1\t0\nAcqE2\t90,0\nXCells"))
    check_bicrystal(build(tmp_path, "a.ctf"), 2.0, 3.0)
    assert "AcqE [0.0, 90.0] turn the axes of Euler angles" in capsys.readouterr().err


@pytest.mark.parametrize("case", AS_WRITTEN)
def test_files_as_instruments_write_them(case: str, tmp_path: Path) -> None:
    kind, change, table = AS_WRITTEN[case]
    (tmp_path / f"a.{kind}").write_bytes(change(text_of(kind, tmp_path)).encode("latin-1"))
    check_bicrystal(build(tmp_path, f"a.{kind}", **table), 2.0, 3.0)


def half(text: str) -> str:
    return text[: len(text) * 3 // 4]


DAMAGED: dict[str, tuple[str, Callable[[str], str], dict[str, Any], str]] = {
    "truncated": ("ang", half, {}, "is damaged or incomplete"),
    "a line is missing": ("ang", lambda text: text[: text.rindex("  ", 0, -80)] + "\n", {}, "is damaged or incomplete"),
    "more points counted": ("ctf", lambda text: text.replace("YCells\t4", "YCells\t5"), {}, "has 24 points, and its header counts 30"),
    "wrong phase": ("ctf", lambda text: text.replace("\n1\t1.0000\t0.5000", "\n7\t1.0000\t0.5000"), {}, "points have phase 7, and its header lists [1]"),
    "no column y": ("ang", lambda text: text.replace("#\n", OIM_8.replace(" y,", "")), {}, "has no column y among x, phi1"),
    "no number": ("ctf", lambda text: text.replace("\t30.00000", "\tnan", 1), {}, "an indexed point has the Euler angle nan"),
    "radians": ("ctf", lambda text: re.sub(r"\t\d+\.(\d{5})", r"\t0.\1", text), {}, "hardly in degrees; say degrees"),
    "degrees in .ang": ("ang", lambda text: text.replace("  0.52360", "  30.00000"), {}, "hardly in radians; say degrees"),
    "another step": ("ang", lambda text: text.replace("XSTEP: 0.5", "XSTEP: 0.7"), {}, "not one each on the square grid"),
    "the user's step": ("ctf", str, {"spacing": 0.3}, "not one each on the square grid"),
    "hexagonal": ("ang", lambda text: text.replace("SqrGrid", "HexGrid"), {}, "not one each on the hexagonal grid"),
    "one point twice": ("ctf", lambda text: text.replace("1\t0.5000\t0.0000", "1\t0.0000\t0.0000"), {}, "not one each on the square grid"),
    "no grid": ("ang", lambda text: text[text.rindex("#") + 1 :], {"symmetry": "m-3m"}, "the distances of points are [0.0, 0.0]; say spacing"),
    "no symmetry": ("ang", lambda text: text.replace("Symmetry ", "Sym"), {}, "the symmetry of phase Nickel is not in the file; say symmetry ="),
    "no such symmetry": ("ang", str, {"symmetry": "m3m"}, "the symmetry of phase Nickel is 'm3m'"),
    "two phases": ("ctf", lambda text: text.replace("Phases\t1\n", "Phases\t2\n" + PHASE.replace("Nickel", "B")).replace("\n1\t0.0000", "\n2\t0.0000"), {}, "has the phases ['B', 'Nickel']; say phases"),
    "a name that no phase has": ("ctf", str, {"symmetry": {"Nickle": "m-3m"}}, "the symmetry of phase Nickel is not that of {'Nickle'}"),
    "axes of space": ("ctf", str, {"spacing": [0.5, 0.5, 0.5]}, "spacing has 3 lengths; give 2, or one"),
    "axes that repeat": ("ctf", str, {"periodic": [True, True, True]}, "has 2 axes; periodic has 3"),
    "spacing of cells": ("tess", str, {"spacing": 1.0}, "spacing is for .ctf, .ang,"),
    "phases of cells": ("tess", str, {"phases": ["A"]}, "phases is for .ctf, .ang,"),
    "sets of a map": ("ang", str, {"sets": "GRAIN*"}, "sets is for .inp; leave it out"),
    "symmetry of a mesh": ("inp", str, {"symmetry": "m-3m"}, "symmetry is for .ctf, .ang,"),
    "no columns": ("ctf", lambda text: text.replace("Phase\tX", "Ph\tX"), {}, "no line of columns"),
    "nothing indexed": ("ctf", lambda text: text.replace("\n1\t", "\n0\t"), {}, "has no grain"),
    "twofold axes along x or y": ("ctf", lambda text: text.replace("\t11\t", "\t7\t"), {}, "the symmetry of phase Nickel is '-3m or -31m'; say symmetry ="),
    "half the step": ("ang", lambda text: text[text.rindex("#") + 1 :], {"symmetry": "m-3m", "spacing": 0.25}, "not one each on the square grid"),
    "one name twice": ("ctf", lambda text: text.replace("Phases\t1\n", "Phases\t2\n" + PHASE).replace("\n1\t0.0000", "\n2\t0.0000"), {"phases": ["Nickel"]}, "names several phases alike: ['Nickel', 'Nickel']"),
    "vertices by other numbers": ("tess", lambda text: text.replace("6\n1 0 0 0 0", "6\n7 0 0 0 0"), {}, "vertices are not numbered from 1"),
    "faces by other numbers": ("tess", lambda text: text.replace("\n2 4 2 3", "\n9 4 2 3"), {}, "9 where number 2 is due"),
    "a section is missing": ("tess", lambda text: text.replace("**vertex", "**vertices"), {}, "lacks **vertex"),
    "cut tessellation": ("tess", half, {}, "lacks ***end"),
    "periodic": ("tess", lambda text: text.replace("***end", "**periodicity\n***end"), {}, "is periodic"),
    "a cell too many": ("tess", lambda text: text.replace("**cell\n  2", "**cell\n  3"), {}, "has 2 cells, and counts 3"),
    "unknown orientations": ("tess", lambda text: text.replace("rodrigues", "rotmat"), {}, "3 numbers of rotmat"),
    "sets overlap": ("inp", lambda text: text + "*Elset, elset=ALL, generate\n1, 3, 1\n", {}, "is in the sets ['GRAIN-1', 'ALL'], not in one"),
    "elements are left out": ("inp", lambda text: text.replace("1, 2\n*Elset", "1\n*Elset"), {}, "is in the sets [], not in one"),
    "several parts": ("inp", lambda text: text + "*Node\n1, 0, 0, 0\n", {}, "several blocks or files of them"),
    "unknown elements": ("inp", lambda text: text.replace("C3D8", "C3D99"), {}, "cannot be read by meshio (ReadError: Element type"),
    "generated elements": ("inp", lambda text: text + "*Elgen, elset=GRAIN-2\n3, 2, 1, 1\n", {}, "has *Elgen, which is not read"),
    "cylindrical places": ("inp", lambda text: text.replace("*NODE", "*NODE, nset=N, system=C", 1), {}, "system=C, which is not read"),
    "two instances": ("inp", lambda text: text + 2 * "*Instance, name=A, part=B\n*End Instance\n", {}, "has *Instance, which is not read"),
    "a set in two parts": ("inp", lambda text: text + "*Elset, elset=GRAIN-2\n1\n", {}, "writes elset=GRAIN-2 in several parts"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files_are_refused_in_a_sentence(case: str, tmp_path: Path) -> None:
    kind, change, table, words = DAMAGED[case]
    (tmp_path / f"a.{kind}").write_bytes(change(text_of(kind, tmp_path)).encode("latin-1"))
    refused(tmp_path, words, kind="microstructure", files=[f"a.{kind}"], **table)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size": (6, 4, 5)}, "EulerAngles has shape (3, 4, 6, 3), and its geometry says (5, 4, 6, 3)"),
        ({"spacing": []}, "the distances of points are [0.0, 0.0, 0.0]; say spacing"),
        ({"unit": 10}, "the distances of points are [0.0, 0.0, 0.0]; say spacing"),
        ({"structure": 999}, "the symmetry of phase 1 is not in the file"),
        ({"size": (2**20, 2**20, 2**20)}, "and its geometry says"),
    ],
)
def test_hdf5_that_lies_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    for newer in (False, True):
        dream3d(tmp_path / "a.dream3d", np.stack([bicrystal()] * 3, axis=2), None, newer, **changes)
        refused(tmp_path, words, kind="microstructure", files=["a.dream3d"])
    (tmp_path / "a.dream3d").write_bytes((tmp_path / "a.dream3d").read_bytes()[:3000])
    refused(tmp_path, "is damaged or incomplete", kind="microstructure", files=["a.dream3d"])


def test_phases_have_classes_and_boundaries_between_them_a_character(tmp_path: Path) -> None:
    phase = np.ones((6, 4), dtype=int)
    phase[3:] = 2
    ctf(tmp_path / "a.ctf", bicrystal(), phase, PHASE + "3.2;3.2;5.2\t90;90;120\tTitan \u00b5, alpha\t9\t194\n")
    graph = build(tmp_path, "a.ctf", phases=["Titan \u00b5, alpha", "Nickel"])
    assert (
        graph["phase"].tolist() == [1, 0] and [CHARACTERS[one] for one in graph["character"]] == ["between phases"] * 2
    )


def test_grains_of_dream3d_stay(tmp_path: Path) -> None:
    ids = np.ones((4, 4, 3), dtype=int)
    ids[2:], ids[0, 0, 0] = 7, 0
    for angles in (None, np.stack([bicrystal(4, 4)] * 3, axis=2)):
        dream3d(tmp_path / "a.dream3d", angles, ids)
        graph = build(tmp_path, "a.dream3d")
        refused(tmp_path, "has grains of its own", kind="microstructure", files=["a.dream3d"], threshold=10.0)
        assert graph["volume"].tolist() == [11.5, 12.0] and ("misorientation" in graph.fields) == (angles is not None)
    dream3d(tmp_path / "b.dream3d", None, ids - 1)
    refused(tmp_path, "FeatureIds that are no whole numbers from 0", kind="microstructure", files=["b.dream3d"])


def crystal_map(path: Path, unit: str = "um", group: str | None = "m-3m") -> None:
    """Write two twins with orix; one point is not indexed."""
    angles = bicrystal().transpose(1, 0, 2).reshape(-1, 3)
    y, x = (one.ravel() * 0.5 for one in np.indices((4, 6)))
    number = np.where(np.arange(24) == 7, -1, 0)
    phases = PhaseList([Phase("Nickel", point_group=group)])
    turns = Rotation.from_euler(angles, degrees=True)
    io.save(path, CrystalMap(turns, phase_id=number, x=x, y=y, phase_list=phases, scan_unit=unit), overwrite=True)


def test_other_maps_are_read_by_orix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crystal_map(tmp_path / "a.h5")
    check_bicrystal(build(tmp_path, "a.h5", smallest=1), 2.0, 3.0)
    assert build(tmp_path, "a.h5")["volume"].sum() == 23 / 4
    crystal_map(tmp_path / "px.h5", "px")
    check_bicrystal(build(tmp_path, "px.h5", smallest=1, spacing=0.5), 2.0, 3.0)
    crystal_map(tmp_path / "b.h5", group="2/m")
    crystal_map(tmp_path / "c.h5", group=None)
    (tmp_path / "d.h5").write_bytes((tmp_path / "a.h5").read_bytes()[:3000])
    h5py.File(tmp_path / "e.h5", "w").close()
    for file, words in {
        "px.h5": "the distances of points are [0.0, 0.0]; say spacing",
        "b.h5": "the symmetry of phase Nickel is '2/m or 112/m'",
        "c.h5": "the symmetry of phase Nickel is not in the file",
        "d.h5": "is damaged or incomplete",
        "e.h5": "is no whole map of Bruker, EMsoft or orix",
    }.items():
        refused(tmp_path, words, kind="microstructure", files=[file])
    refused(tmp_path, "degrees is for .ctf", kind="microstructure", files=["a.h5"], degrees=True)
    for package in (
        "orix",
        "quaternion",
    ):  # without the second, orix's cache of compiled code breaks when several processes start
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            refused(tmp_path, "pip install 'hydragnn-ensemble[ebsd]'", kind="microstructure", files=["a.h5"])


def test_points_outside_the_mask_of_dream3d_belong_to_no_grain(tmp_path: Path) -> None:
    dream3d(tmp_path / "a.dream3d", np.stack([bicrystal()] * 3, axis=2), None)
    with h5py.File(tmp_path / "a.dream3d", "a") as file:
        file["DataContainers/Synthetic/CellData/EulerAngles"][0, 0, :2] = np.nan
        file["DataContainers/Synthetic/CellData/Mask"] = np.ones((3, 4, 6, 1), dtype=bool)
        file["DataContainers/Synthetic/CellData/Mask"][0, 0, :2] = False
    assert build(tmp_path, "a.dream3d")["volume"].tolist() == [17.0, 18.0]


def test_phases_of_dream3d_have_names(tmp_path: Path) -> None:
    dream3d(tmp_path / "a.dream3d", np.stack([bicrystal()] * 3, axis=2), None, structure=10)
    with h5py.File(tmp_path / "a.dream3d", "a") as file:
        file["DataContainers/Synthetic/CellEnsembleData/PhaseName"] = ["Unknown", "Quartz"]
    assert build(tmp_path, "a.dream3d", phases=["Quartz"])["phase"].tolist() == [0, 0]


def test_hexagonal_grids_do_not_repeat(tmp_path: Path) -> None:
    ang(tmp_path / "h.ang", np.zeros((5, 5, 3)) + 20, hexagonal=True)
    refused(tmp_path, "none on hexagonal grids", kind="microstructure", files=["h.ang"], periodic=True)
