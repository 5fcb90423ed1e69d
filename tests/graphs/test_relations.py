"""Kinds of edges: shells of lattices, directions, and levels that reach across a mesh."""

import numpy as np
import pytest
import torch
from ase.build import bulk

from hydragnn.base.errors import InputError
from hydragnn.graphs import (
    Field,
    direction_bins,
    from_ase,
    graph_from_arrays,
    multilevel_edges,
    shell_radii,
    validate,
    with_direction_relations,
    with_multilevel_edges,
    with_relations,
    with_shell_relations,
)


def test_shells_of_fcc_have_their_coordination_numbers() -> None:
    graph = from_ase(bulk("Cu", "fcc", a=1.0, cubic=True), 1.45)
    radii = shell_radii(graph)
    assert radii == pytest.approx([2**-0.5, 1.0, 1.5**0.5, 2**0.5])
    related = validate(with_shell_relations(graph, radii))
    assert related.fields["relation"].classes == 4
    assert torch.bincount(related["relation"]).tolist() == [4 * n for n in (12, 6, 24, 12)]


def test_shells_of_one_lattice_number_the_edges_of_another() -> None:
    radii = shell_radii(from_ase(bulk("Cu", "fcc", a=1.0), 1.3))
    stretched = from_ase(bulk("Cu", "fcc", a=1.01), 1.3)
    assert torch.bincount(with_shell_relations(stretched, radii, tolerance=0.02)["relation"]).tolist() == [12, 6, 24]
    with pytest.raises(InputError, match="in none of the 3 shells"):
        with_shell_relations(stretched, radii)


@pytest.mark.parametrize("sectors", [1, 4, 6, 8])
def test_plane_sectors_are_equal_and_turn_counter_clockwise(sectors: int) -> None:
    angles = np.arange(720) * 2 * np.pi / 720 + 1e-4
    bins = direction_bins(np.column_stack([np.cos(angles), np.sin(angles)]), sectors)
    assert np.bincount(bins).tolist() == [720 // sectors] * sectors
    assert bins[0] == 0 and (sectors == 1 or bins[720 // sectors] == 1)


@pytest.mark.parametrize("sectors", [6, 26])
def test_sectors_of_space_are_those_of_the_cube(sectors: int) -> None:
    directions = np.stack(np.meshgrid(*[[-1.0, 0.0, 1.0]] * 3), -1).reshape(-1, 3)
    directions = directions[np.abs(directions).sum(axis=1).astype(bool)]
    if sectors == 6:
        directions = directions[np.abs(directions).sum(axis=1) == 1]
    bins = direction_bins(directions, sectors)
    assert sorted(bins) == list(range(sectors))
    assert direction_bins(np.array([[2.0, 0.0, 0.0]]), sectors).tolist() == [0]


def test_sectors_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InputError, match="6 or 26 in three"):
        direction_bins(np.ones((1, 3)), 8)


def test_the_two_directions_of_an_edge_are_opposite() -> None:
    points = np.random.default_rng(0).random((20, 2))
    senders, receivers = np.triu_indices(20, 1)
    graph = graph_from_arrays(points, [*senders, *receivers], [*receivers, *senders])
    related = with_direction_relations(graph, 8)
    bins = dict(zip(zip(graph.senders.tolist(), graph.receivers.tolist()), related["relation"].tolist()))
    assert all(bins[r, s] == (b + 4) % 8 for (s, r), b in bins.items())


def test_levels_of_a_grid_are_coarser_grids() -> None:
    grid = np.stack(np.meshgrid(np.arange(17.0), np.arange(9.0)), -1).reshape(-1, 2)
    senders, receivers, level = multilevel_edges(grid, 1.0, 4)
    for number in range(4):
        nodes = np.unique(receivers[level == number])
        assert (grid[nodes] % 2**number == 0).all()
        assert len(nodes) == (16 // 2**number + 1) * (8 // 2**number + 1)
        lengths = np.linalg.norm(grid[senders] - grid[receivers], axis=1)[level == number]
        assert set(lengths.round(6)) == {2.0**number, round(2.0**number * 2**0.5, 6)}


def test_levels_connect_irregular_points_in_few_steps() -> None:
    points = np.random.default_rng(1).random((600, 2)) * [3.0, 1.0]
    temperature = Field(name="temperature", on="node", role="target")
    plain = graph_from_arrays(points, [], [], fields=[temperature], nodes={"temperature": np.zeros(600)})
    graph = validate(with_multilevel_edges(plain, 0.08, 5, sectors=8))
    assert graph.fields["relation"].classes == 40
    assert torch.equal(graph["relation"] // 8, graph["level"])
    assert torch.equal(graph["temperature"], plain["temperature"])
    coarsest = graph.receivers[graph["level"] == 4].unique()
    reached = torch.zeros(600, dtype=torch.bool)
    reached[coarsest[0]] = True
    for number in (4, 3, 2, 1, 0):
        for _ in range(3):
            step = (graph["level"] == number) & reached[graph.senders]
            reached[graph.receivers[step]] = True
    assert reached.float().mean() > 0.99


def test_multilevel_edges_want_one_bounded_graph() -> None:
    graph = with_relations(graph_from_arrays(np.eye(2), [0, 1], [1, 0]), [0, 0], 1)
    with pytest.raises(InputError, match="without edge fields"):
        with_multilevel_edges(graph, 1.0, 2)
    with pytest.raises(InputError, match="must be positive"):
        multilevel_edges(np.eye(2), 0.0, 2)
