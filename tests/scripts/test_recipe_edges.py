"""Edges of recipes: shells of lattices, directions, and levels that reach across a mesh."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from ase.build import bulk

from hydragnn.architectures import architecture_of
from hydragnn.architectures.relational import RelationalSettings
from hydragnn.base.errors import InputError
from hydragnn.graphs import Field, from_ase, graph_from_arrays, relation_field, validate
from hydragnn.models import GraphModel, build_model, parse_head
from hydragnn.scripts.recipes.edge_kinds import (
    direction_bins,
    multilevel_edges,
    shell_radii,
    with_shell_relations,
)


def test_shells_of_one_lattice_number_the_edges_of_another() -> None:
    graph = from_ase(bulk("Cu", "fcc", a=1.0, cubic=True), 1.45)
    radii = shell_radii(graph)
    assert radii == pytest.approx([2**-0.5, 1.0, 1.5**0.5, 2**0.5])
    related = validate(with_shell_relations(graph, radii))
    assert related.fields["relation"].classes == 4
    assert torch.bincount(related["relation"]).tolist() == [4 * n for n in (12, 6, 24, 12)]
    stretched = from_ase(bulk("Cu", "fcc", a=1.01), 1.3)
    assert torch.bincount(with_shell_relations(stretched, radii, tolerance=0.02)["relation"]).tolist() == [12, 6, 24]
    with pytest.raises(InputError, match="in none of the 4 shells"):
        with_shell_relations(stretched, radii)


@pytest.mark.parametrize("sectors", [1, 4, 6, 8])
def test_plane_sectors_are_equal_and_turn_counter_clockwise(sectors: int) -> None:
    angles = np.arange(720) * 2 * np.pi / 720 + 1e-4
    bins = direction_bins(np.column_stack([np.cos(angles), np.sin(angles)]), sectors)
    assert np.bincount(bins).tolist() == [720 // sectors] * sectors
    assert bins[0] == 0 and (sectors == 1 or bins[720 // sectors] == 1)


def test_levels_of_a_grid_are_coarser_grids() -> None:
    grid = np.stack(np.meshgrid(np.arange(17.0), np.arange(9.0)), -1).reshape(-1, 2)
    senders, receivers, level = multilevel_edges(grid, 1.0, 4)
    for number in range(4):
        nodes = np.unique(receivers[level == number])
        assert (grid[nodes] % 2**number == 0).all()
        assert len(nodes) == (16 // 2**number + 1) * (8 // 2**number + 1)
        lengths = np.linalg.norm(grid[senders] - grid[receivers], axis=1)[level == number]
        assert set(lengths.round(6)) == {2.0**number, round(2.0**number * 2**0.5, 6)}


TABLE = {"kind": "hydragnn.scripts.recipes.multilevel:Multilevel", "hidden_dim": 6, "num_layers": 2}
SIZE = Field(name="size", on="node")
LINE = graph_from_arrays(
    None,
    [0, 1, 2, 3, 4, 0],
    [1, 2, 3, 4, 5, 4],
    fields=[relation_field(2), relation_field(2, "level"), SIZE],
    nodes={"size": torch.arange(6.0)},
    edges={"relation": [0, 1, 0, 1, 0, 1], "level": [0, 0, 0, 0, 0, 1]},
)


def model_of(**changes: Any) -> GraphModel:
    table = {**TABLE, **changes}
    head = parse_head({"kind": "scalar", "field": "y"})
    fields = [*LINE.fields.values(), Field(name="y", on="node", role="target")]
    inputs = [name for name in LINE.fields if "cycle" in changes or name != "level"]
    settings = architecture_of(table["kind"]).Settings.parse(table)
    return build_model(settings, [head], fields, inputs=inputs, dim=0, seed=0)  # type: ignore[arg-type]


def test_a_level_changes_only_the_nodes_that_its_edges_touch() -> None:
    model = model_of(cycle=[1, 1])
    states = model.encode(LINE, model.message_graph(LINE, None))[0]
    first = model.encoder.finish({0: model.node_inputs(LINE)}, model.message_graph(LINE, None))[0]
    assert ((first - states).abs().amax(1) > 0).tolist() == [True, False, False, False, True, False]


def test_a_cycle_over_one_level_of_all_edges_is_relational_convolution() -> None:
    batch = replace(LINE, edges={**LINE.edges, "level": torch.zeros(6, dtype=torch.int64)})
    plain, in_levels = model_of(kind="relational"), model_of(cycle=[0, 0])
    for name, values in plain.state_dict().items():
        assert torch.equal(in_levels.state_dict()[name], values)
    torch.testing.assert_close(in_levels(batch)["y"].mean, plain(batch)["y"].mean)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cycle": [0]}, "cycle has 1 entries for num_layers = 2"),
        ({"cycle": [0, 2]}, "model.cycle asks for level 2, but field level has levels 0 to 1"),
        ({"cycle": [0, 0], "schedule": [0, 0]}, "schedule is gone; layers read all edges"),
    ],
)
def test_impossible_cycles_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        model_of(**changes)


def test_stored_settings_without_a_schedule_load() -> None:
    assert "schedule" not in RelationalSettings.parse({"schedule": [], "level": "level"}).to_json()
