"""Microstructures: cells fill the box, faces close around cells, images of grains agree with the cells they show."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.spatial import cKDTree

from hydragnn.graphs import Field, GraphBatch, edge_vectors, from_labels, from_voronoi, grain_numbers, validate
from tests.refusals import refuses


def closure(graph: GraphBatch) -> np.ndarray:
    """Sum of area times normal over all faces and walls of every cell."""
    total = np.zeros((graph.num_nodes, graph.dim))
    np.add.at(total, graph.receivers.numpy(), (graph["area"][:, None] * graph["normal"]).numpy())
    walls = graph["boundary_area"].numpy()
    return total + walls[:, 1::2] - walls[:, 0::2]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(1, 40),
    st.lists(st.floats(0.3, 4.0), min_size=2, max_size=3),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.integers(0, 2**32 - 1),
)
def test_cells_fill_the_box_and_faces_close(count: int, box: list[float], periodic: list[bool], seed: int) -> None:
    generator = np.random.default_rng(seed)
    seeds = (0.001 + 0.998 * generator.random((count, len(box)))) * box
    graph = validate(from_voronoi(seeds, box, periodic[: len(box)]))
    assert float(graph["volume"].sum()) == pytest.approx(np.prod(box), rel=1e-10)
    assert np.abs(closure(graph)).max() < 1e-10 * max(box) ** (len(box) - 1)
    # the face between two seeds is perpendicular to the line through them
    vectors = edge_vectors(graph)
    torch.testing.assert_close(vectors / vectors.norm(dim=1, keepdim=True), graph["normal"], atol=1e-9, rtol=0)


@pytest.mark.parametrize("periodic", [True, False, [True, False, False]])
def test_volumes_agree_with_counting_random_points(periodic: bool | list[bool]) -> None:
    generator = np.random.default_rng(5)
    box = np.array([1.0, 2.0, 1.5])
    seeds = generator.random((12, 3)) * box
    graph = from_voronoi(seeds, box, periodic)
    samples = generator.random((200_000, 3)) * box
    _, owner = cKDTree(seeds, boxsize=np.where(np.broadcast_to(periodic, 3), box, 0.0)).query(samples)
    counted = np.bincount(owner, minlength=12) / len(samples) * box.prod()
    # five standard deviations of a binomial share
    assert np.abs(counted - graph["volume"].numpy()).max() < 5 * box.prod() * np.sqrt(0.25 / len(samples))


@pytest.mark.parametrize(("dim", "neighbours"), [(2, 4), (3, 6)])
def test_a_cubic_lattice_has_square_faces_only(dim: int, neighbours: int) -> None:
    lattice = np.stack(np.meshgrid(*[np.arange(5) / 5 + 0.07] * dim), -1).reshape(-1, dim)
    graph = from_voronoi(lattice, [1.0] * dim)
    assert (graph.topology.degrees == neighbours).all()
    torch.testing.assert_close(graph["area"], torch.full_like(graph["area"], 0.2 ** (dim - 1)))


def test_one_cell_in_a_periodic_box_touches_itself_through_every_face() -> None:
    graph = from_voronoi([[0.3, 0.4, 0.5]], [1.0, 2.0, 3.0])
    assert graph.senders.tolist() == [0] * 6
    assert sorted(edge_vectors(graph).norm(dim=1).tolist()) == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    assert sorted(graph["area"].tolist()) == pytest.approx([2.0, 2.0, 3.0, 3.0, 6.0, 6.0])
    bounded = from_voronoi([[0.3, 0.4]], [1.0, 2.0], periodic=False)
    assert bounded.num_edges == 0
    assert bounded["boundary_area"].tolist() == [pytest.approx([2.0, 2.0, 1.0, 1.0])]


def test_two_cells_that_touch_through_two_images_have_two_edges_each_way() -> None:
    graph = from_voronoi([[0.25, 0.5], [0.75, 0.5]], [1.0, 1.0], periodic=[True, False])
    assert graph.receivers.tolist() == [0, 0, 1, 1]
    assert sorted(edge_vectors(graph)[:2, 0].tolist()) == [-0.5, 0.5]
    torch.testing.assert_close(graph["area"], torch.ones(4, dtype=torch.float64))


def test_translation_of_a_periodic_structure_changes_no_area() -> None:
    seeds = np.random.default_rng(1).random((30, 3))
    first, second = from_voronoi(seeds, [1, 1, 1]), from_voronoi(seeds + np.array([0.3, 0.9, -2.2]), [1, 1, 1])
    torch.testing.assert_close(first["volume"], second["volume"])
    torch.testing.assert_close(first["area"].sort().values, second["area"].sort().values)


def test_own_fields_ride_along() -> None:
    phase = Field(name="phase", on="node", classes=2, dtype="int64")
    strength = Field(name="strength", on="graph", unit="MPa", role="target")
    values = {"nodes": {"phase": [1, 0]}, "graphs": {"strength": 200.0}}
    graph = from_voronoi([[0.2, 0.3], [0.6, 0.8]], [1, 1], fields=[phase, strength], **values)
    assert graph["phase"].tolist() == [1, 0] and graph["strength"].tolist() == [200.0]


def picture(seeds: np.ndarray, box: np.ndarray, shape: tuple[int, ...], periodic: bool) -> np.ndarray:
    steps = box / shape
    centres = (np.moveaxis(np.indices(shape), 0, -1) + 0.5) * steps
    return cKDTree(seeds, boxsize=box if periodic else None).query(centres)[1]


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("shape", [(256, 192), (64, 48, 56)], ids=["2-D", "3-D"])
def test_an_image_of_cells_has_nearly_their_graph(shape: tuple[int, ...], periodic: bool) -> None:
    box = np.array([1.0, 1.3, 0.9])[: len(shape)]
    seeds = np.random.default_rng(8).random((14, len(shape))) * box
    exact = from_voronoi(seeds, box, periodic)
    image = validate(from_labels(picture(seeds, box, shape, periodic), box / shape, periodic))
    assert float(image["volume"].sum()) == pytest.approx(box.prod())
    voxel = (box / shape).max()
    # a voxel's misplacement over the surface of a cell
    assert (image["volume"] - exact["volume"]).abs().max() < 3 * voxel * exact["area"].sum() / 14
    by_pair = {}
    for graph, weight in ((exact, exact["area"]), (image, image["area_vector"].norm(dim=1).double())):
        for s, r, a in zip(graph.senders.tolist(), graph.receivers.tolist(), weight.tolist()):
            by_pair.setdefault((s, r), []).append(a)
    both = [values for values in by_pair.values() if len(values) == 2]
    areas = np.array(both)
    assert len(both) > 20
    # faces smaller than some voxels may be missing; the shared ones agree to a few voxel widths of their rim
    assert np.abs(areas[:, 0] - areas[:, 1]).max() < 8 * voxel * max(1.0, areas.max() ** 0.5) ** (len(shape) - 2)


def test_edges_of_images_come_in_both_directions_with_opposite_vectors() -> None:
    graph = from_labels(np.random.default_rng(0).integers(0, 5, (8, 9)), 0.5, True)
    shifts, vectors = graph.edge_shifts.numpy().round(6) + 0.0, graph["area_vector"].numpy() + 0.0
    ends = zip(graph.senders.tolist(), graph.receivers.tolist(), shifts)
    rows = {(s, r, *shift): i for i, (s, r, shift) in enumerate(ends)}
    back = [rows[(r, s, *(-np.array(shift) + 0.0))] for s, r, *shift in rows]
    assert torch.equal(graph["area"], graph["area"][back])
    np.testing.assert_allclose(vectors, -vectors[back])


def test_the_areas_of_an_image_count_its_unlike_neighbours() -> None:
    labels = np.random.default_rng(0).integers(0, 4, (6, 7, 5))
    graph = from_labels(labels, [0.5, 1.0, 2.0], False)
    expected = sum(area * int((np.diff(labels, axis=axis) != 0).sum()) for axis, area in enumerate((2.0, 1.0, 0.5)))
    assert float(graph["area"].sum()) == pytest.approx(2 * expected)


def test_the_centroid_of_a_grain_across_the_boundary_is_inside_it() -> None:
    labels = np.zeros((10, 4), dtype=int)
    labels[[0, 1, 9]] = 1
    graph = from_labels(labels, 1.0, [True, False])
    assert graph.positions[1].tolist() == pytest.approx([0.5, 2.0])
    assert graph.positions[0].tolist() == pytest.approx([5.5, 2.0])
    assert sorted(edge_vectors(graph)[graph.receivers == 1, 0].tolist()) == pytest.approx([-5.0, 5.0])


def test_rolling_a_periodic_image_moves_nothing_but_the_centroids() -> None:
    seeds = np.random.default_rng(2).random((9, 2))
    labels = picture(seeds, np.ones(2), (60, 60), True)
    first, second = from_labels(labels, 1 / 60, True), from_labels(np.roll(labels, (17, 31), (0, 1)), 1 / 60, True)
    assert first.num_edges == second.num_edges
    torch.testing.assert_close(first["volume"], second["volume"])
    moved = (first.positions + torch.tensor([17.0, 31.0], dtype=torch.float64) / 60 - second.positions) % 1.0
    assert (torch.minimum(moved, 1 - moved) < 1e-9).all()
    lengths = [edge_vectors(graph).norm(dim=1).sort().values for graph in (first, second)]
    torch.testing.assert_close(*lengths, atol=1e-9, rtol=0)


def test_background_belongs_to_no_grain_and_one_grain_has_no_edges() -> None:
    labels = np.array([[5, 0, 7], [5, 0, 7]])
    graph = from_labels(labels, background=0)
    assert graph.num_nodes == 2 and graph.num_edges == 0
    assert grain_numbers(labels, background=0).tolist() == [[0, -1, 1], [0, -1, 1]]
    assert graph.positions.tolist() == [[1.0, 0.5], [1.0, 2.5]]
    alone = from_labels(np.ones((4, 4), dtype=int), 0.25, True)
    assert alone.num_edges == 0 and alone["volume"].tolist() == [1.0]


ONES, ROOT = np.ones((3, 3), dtype=int), [[0.1, 0.1]]
WRONG: list[tuple[Callable[..., GraphBatch], tuple[Any, ...], str]] = [
    (from_voronoi, ([[0.1, 0.1], [0.1, 0.1]], [1, 1], True), "seeds 0 and 1 coincide"),
    (from_voronoi, ([[0.0, 0.1], [1.0, 0.1]], [1, 1], True), "coincide"),  # through the box
    (from_voronoi, ([[1.5, 0.1]], [1, 1], False), "outside the wall of axis 0"),
    (from_voronoi, ([[0.5, 1.0]], [1, 1], False), "outside the wall of axis 1"),  # on it
    (from_voronoi, (np.zeros((0, 2)), [1, 1], True), "at least one"),
    (from_voronoi, ([[np.nan, 0.1]], [1, 1], True), "seed 0 is NaN"),
    (from_voronoi, (ROOT, [1, 0], True), "positive edge lengths"),
    (from_voronoi, (ROOT, [1, 1, 1], True), "one per axis"),
    (from_voronoi, (ROOT, [1, 1], [True] * 3), "3 flags for 2 axes"),
    (from_labels, (np.ones((3, 3)),), "integer labels"),
    (from_labels, (np.ones(3, dtype=int),), "2 or 3 axes"),
    (from_labels, (np.ones((0, 3), dtype=int),), "2 or 3 axes"),
    (partial(from_labels, background=1), (ONES,), "no grain"),
    (from_labels, (ONES, [1.0, 0.0]), "positive lengths"),
    (from_labels, (ONES, [1.0] * 3), "positive lengths"),
]


@pytest.mark.parametrize(("make", "arguments", "message"), WRONG)
def test_what_is_wrong_is_named(make: Callable[..., GraphBatch], arguments: tuple[Any, ...], message: str) -> None:
    refuses(message, make, *arguments)
