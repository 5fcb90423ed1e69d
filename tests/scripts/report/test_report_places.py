"""Errors by element, composition, size, magnitude and place, and pictures of fields, against numbers computed by hand."""

import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import ase
import numpy as np
import pytest
import torch

from hydragnn.datasets import StoreWriter, open_store
from hydragnn.ensemble import Evaluation, TargetEvaluation
from hydragnn.graphs import Field, GraphBatch, concatenate, graph_from_arrays
from hydragnn.scripts.report.collect import collect
from hydragnn.scripts.report.data_facts import part_graphs
from hydragnn.scripts.report.errors import relative_errors
from hydragnn.scripts.report.facts import Data, Facts, Part, PartGraphs, Points
from hydragnn.scripts.report.page import page
from hydragnn.scripts.report.verdict import verdict
from hydragnn.scripts.report.where import field_maps, groups_of, groups_table, scales_of, view_of
from tests.once import shared

HOSTILE = "<script>alert('x')</script> & \"a\""
LATTICE = np.array([(x, y) for y in range(3) for x in range(3)], dtype=float)
SIDES = [(i, j) for i in range(9) for j in range(9) if np.abs(LATTICE[i] - LATTICE[j]).sum() == 1]


def points(field: str, target: Any, mean: Any, graph: Any, **more: Any) -> Points:
    rows = {"target": target, "mean": mean, **more}
    values = {name: np.array(own, dtype=float) for name, own in rows.items()}
    return Points(field=field, unit="K", graph=np.array(graph), **values)


def scores(name: str = "model", **more: Any) -> TargetEvaluation:
    facts = {"members": {name: {"mae": 0.5, "rmse": 0.6, "r2": 0.1}}, "ensemble": {}, **more}
    return TargetEvaluation(unit="K", trivial={"mae": 1.0}, best_member=name, **facts)


def facts_on(*columns: Points, domain: dict[str, Any] | None = None, **own: Any) -> Facts:
    points = {one.field: one for one in columns}
    parts = {"test": dict.fromkeys(points, scores())}
    evaluation = Evaluation(nominal=0.9, parts=parts, failed={}, seconds_per_graph={}, domain=domain or {})
    return Facts(kind="run", evaluation=evaluation, points={"test": points}, **own)


def part_of(*columns: Points) -> Part:
    return facts_on(*columns).part


def lattice(heat: list[float], flow: Any) -> GraphBatch:
    """Nine nodes of a square grid and their neighbours, a temperature and a flow with holes."""
    fields = [Field(name=name, on="node", shape=shape, role="target") for name, shape in (("heat", ()), ("flow", (2,)))]
    values = {"heat": heat, "flow": flow}
    return graph_from_arrays(torch.tensor(LATTICE), *np.array(SIDES).T, fields=fields, nodes=values, optional=values)


@shared
def plates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two grids; of the second, two labels are missing, one of them a component."""
    path = tmp_path_factory.mktemp("plates") / "plates.h5"
    flow = [[3.0, 4.0]] * 9
    first = lattice([1.0] * 9, flow)
    second = lattice([2.0] * 8 + [math.nan], [[math.nan, 1.0], *flow[1:]])
    with StoreWriter(path, list(first.fields.values()), dim=2, attributes={}) as writer:
        writer.write(concatenate([first, second]).with_texts({"name": [HOSTILE, HOSTILE]}))
    return path


def heat() -> Points:
    """Errors of 0.1 in the first grid, and of 0.2 in the second, whose last node has no label."""
    return points("heat", [1.0] * 9 + [2.0] * 8, [1.1] * 9 + [1.8] * 8, [0] * 9 + [1] * 8, std=[0.1] * 17)


def graphs_of(plates: Path, *columns: Points) -> PartGraphs:
    return part_graphs(plates, part_of(*columns))


def facts_of(plates: Path, *columns: Points) -> Facts:
    store = open_store(plates)
    every = {field.name: {"test": 2} for field in store.fields()}
    all_labels = {name: {"test": (2, 2)} for name in every}
    data = Data(path=plates, store=store, sizes=store.sizes(), parts={"test": 2}, present=every, labels=all_labels)
    graphs = part_graphs(plates, part_of(*columns))
    return facts_on(*columns, graphs=graphs, data=data, resolved={"heads": [{"field": "heat"}]})


def test_relative_errors_are_norms_of_whole_graphs() -> None:
    errors = points("heat", [3.0, 4.0, 0.0], [3.0, 3.0, 1.0], [7, 7, 9]).graph_errors()
    assert errors.number.tolist() == [7, 9]
    assert errors.relative[0] == pytest.approx(1 / 5) and math.isnan(errors.relative[1])
    assert errors.mae.tolist() == [0.5, 1.0] and errors.rmse == pytest.approx([math.sqrt(0.5), 1.0])


def test_every_row_finds_its_node_though_labels_are_missing(plates: Path) -> None:
    flow = points("flow", [3.0, 4.0] * 9 + [1.0] + [3.0, 4.0] * 8, [0.0] * 35, [0] * 18 + [1] * 17)
    own = graphs_of(plates, heat(), flow)
    assert own.items["heat"].tolist() == list(range(17))
    assert own.items["flow"].tolist() == [*np.repeat(np.arange(9), 2), 9, *np.repeat(np.arange(10, 18), 2)]


def test_rows_with_other_labels_than_the_store_are_not_placed(plates: Path) -> None:
    own = graphs_of(plates, replace(heat(), target=np.array([1.0] * 9 + [2.0] * 7 + [2.5])))
    assert own.items["heat"].tolist() == list(range(9)) + [-1] * 8
    assert view_of(heat(), own, 1) is None


def test_nodes_of_meshes_are_grouped_by_their_distance_from_the_boundary(plates: Path) -> None:
    own = graphs_of(plates, heat())
    rows = {(kind, name): rows.tolist() for kind, name, rows in groups_of(heat(), own, None)}
    assert rows["distance from boundary", "farthest third"] == [4, 13]
    assert rows["distance from boundary", "on it"] == [k for k in range(17) if k not in (4, 13)]
    assert rows["size of the truth (K)", "2"] == list(range(9, 17))


def atoms_of(kinds: Any, **nodes: Any) -> GraphBatch:
    """Atoms without edges, with forces where there are some."""
    fields = [
        Field(name="atomic_numbers", on="node", classes=119, dtype="int64"),
        *(Field(name=name, on="node", shape=(3,), role="target", parity="vector") for name in nodes),
    ]
    places = torch.arange(3.0 * len(kinds)).reshape(-1, 3).double()
    return graph_from_arrays(places, [], [], fields=fields, nodes={"atomic_numbers": kinds, **nodes})


def cells() -> tuple[PartGraphs, Points, Points]:
    """Copper, and copper with two of gold: energies of graphs and forces on their atoms."""
    graphs = [atoms_of([29], forces=[[0.0, 0.0, 5.0]]), atoms_of([29, 79, 79], forces=[[0.0, 0.0, 1.0]] * 3)]
    energy = points("energy", [1.0, 2.0], [1.5, 2.3], [4, 6], lower=[0.5, 2.2], upper=[2.5, 2.4])
    forces = points("forces", [0, 0, 5] + [0, 0, 1] * 3, [0, 0, 4] + [0, 0, 1] + [3, 0, 1] * 2, [4] * 3 + [6] * 9)
    items = {"forces": np.repeat(np.arange(4), 3)}
    return PartGraphs(numbers=np.array([4, 6]), batch=concatenate(graphs), items=items), energy, forces


def test_errors_are_grouped_by_element_composition_and_magnitude() -> None:
    own, energy, forces = cells()
    facts, part = facts_on(energy, forces, graphs=own), part_of(energy, forces)
    by_field = {name: groups_table(facts, part, name) for name in part.scores}
    assert by_field["energy"] is not None and by_field["energy"].rows == [
        ("composition", "Au–Cu", "0.300", "0.300", "0.0 %", "1", "1"),
        ("", "Cu", "0.500", "0.500", "100.0 %", "1", "1"),
    ]
    assert by_field["forces"] is not None and by_field["forces"].rows == [
        ("element", "Cu", "0.167", "0.408", "6", "2"),
        ("", "Au", "1.00", "1.73", "6", "1"),
        ("composition", "Au–Cu", "0.667", "1.41", "9", "1"),
        ("", "Cu", "0.333", "0.577", "3", "1"),
        ("size of the truth (K)", "1", "0.667", "1.41", "9", "1"),
        ("", "5", "0.333", "0.577", "3", "1"),
    ]
    assert by_field["energy"].bars == pytest.approx([0.6, 1.0])


def test_graphs_of_the_same_elements_are_grouped_by_formula() -> None:
    own, energy, _ = cells()
    own = replace(own, batch=own.batch.with_fields({"atomic_numbers": torch.tensor([29, 29, 29, 29])}))
    assert not [one for one in groups_of(energy, own, None) if one[0] == "composition"]
    graphs = [atoms_of(ase.Atoms(formula).numbers) for formula in ("Au2O4", "AuO")]
    own = replace(own, batch=concatenate(graphs), items={})
    assert [one[1] for one in groups_of(energy, own, None) if one[0] == "composition"] == ["AuO", "AuO2"]


def test_maps_show_norms_and_leave_missing_nodes_blank(plates: Path) -> None:
    own = graphs_of(plates, heat())
    view = view_of(heat(), own, 1)
    assert view is not None and view.mesh is not None
    assert list(view.values) == ["truth", "prediction", "error", "spread"]
    assert view.values["error"][:8] == pytest.approx(-0.2) and math.isnan(view.values["truth"][8])
    value, error = scales_of([view], signed=True)
    assert (value.vmin, value.vmax, error.vmin, error.vmax) == pytest.approx((1.8, 2.0, -0.2, 0.2))
    own, _, forces = cells()
    atoms = view_of(forces, own, 6)
    assert atoms is not None and atoms.mesh is None
    assert sorted(atoms.values["error"].tolist()) == [0.0, 3.0, 3.0]
    assert sorted(atoms.values["prediction"].tolist()) == pytest.approx([1.0, math.sqrt(10), math.sqrt(10)])


def test_fields_of_edges_have_groups_and_no_pictures() -> None:
    field, current = Field(name="current", on="edge", role="target"), np.repeat([1.0, 2.0, 3.0], 8)
    edges = {"current": current.tolist()}
    graph = graph_from_arrays(torch.tensor(LATTICE), *np.array(SIDES).T, fields=[field], edges=edges)
    own = PartGraphs(numbers=np.array([0]), batch=graph, items={"current": np.arange(24)})
    column = points("current", current, current + 1, [0] * 24)
    assert not list(field_maps(facts_on(column, graphs=own)))
    assert [one[:2] for one in groups_of(column, own, None)] == [("size of the truth (K)", name) for name in "123"]


def test_one_graph_has_one_picture_and_its_name_cannot_become_markup(plates: Path) -> None:
    own = heat()
    first = replace(own, target=own.target[:9], mean=own.mean[:9], graph=own.graph[:9], std=None)
    (figure,) = field_maps(facts_of(plates, first))
    assert [panel.label for panel in figure.panels] == ["only graph"] and figure.panels[0].note.startswith(HOSTILE)
    text = page(facts_of(plates, own), "now")
    assert "<script" not in text and text.count("&lt;script&gt;") >= 3
    words = "".join(ET.fromstring(text.removeprefix("<!DOCTYPE html>")).itertext())
    assert "RMSE 0.100\u00a0K, relative L2 10.0\u00a0%" in words
    assert sum(len(svg) for svg in text.split("<svg")[1:]) < 1_000_000


def test_graphs_outside_the_domain_are_named_with_the_detectors() -> None:
    domain = {"false_alarms": 0.02, "detectors": ["kinds", "spread", "latent"]}
    own = points("heat", [1.0, 2.0, 2.0], [1.0, 2.5, 2.0], [3, 1, 1])
    excesses = {"test": np.array([[0.0, 0.1, 0.2], [3.0, 5.0, 1.0]])}
    facts = facts_on(own, domain=domain, p_values={"test": np.array([0.5, 0.01])}, excesses=excesses)
    assert facts.outside == {3: "", 1: "spread and kinds"}
    assert replace(facts, points={"test": {"heat": replace(own, graph=np.array([1, 1, 1]))}}).outside == {}


def test_tables_of_groups_and_relative_errors_need_no_store(samples: Any) -> None:
    facts = replace(collect(samples.ensemble), graphs=None)
    part = facts.part
    table = groups_table(facts, part, "energy")
    assert table is not None and {row[0] for row in table.rows} == {"nodes per graph", ""} and max(table.bars) == 1.0
    assert relative_errors(facts, part) == {}


def test_the_verdict_says_when_one_member_or_a_simple_baseline_is_better() -> None:
    errors = {"members": {"0007": {"mae": 0.2}, "0009": {"mae": 0.4}}, "ensemble": {"mae": 0.3}}
    worse = scores("0007", **errors, baselines={"ridge": {"mae": 0.25}})
    evaluation = Evaluation(nominal=0.9, parts={"test": {"heat": worse}}, failed={}, seconds_per_graph={})
    text = verdict(Facts(kind="ensemble", evaluation=evaluation, points={"test": {"heat": heat()}})).explanation
    assert "One member alone is better for heat (0007)." in text
    assert "A simple baseline is better for heat (ridge)." in text
