"""Microstructures: images of grains agree with the cells that they show."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial import cKDTree

from hydragnn.graphs import GraphBatch, edge_vectors, from_labels, grain_numbers, validate
from tests.graphs.voronoi import from_voronoi
from tests.refusals import refuses


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


ONES = np.ones((3, 3), dtype=int)
WRONG: list[tuple[Callable[..., GraphBatch], tuple[Any, ...], str]] = [
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
