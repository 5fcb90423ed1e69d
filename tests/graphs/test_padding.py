"""Padding changes no number: losses, gradients, forces, stress and metrics are those of the batch as it is."""

from dataclasses import replace
from typing import Any

import ase.build
import numpy as np
import pytest
import torch
from torch import Tensor

from hydragnn.architectures import architectures
from hydragnn.conformance.cases import AROUND, CORNERS, STRESS, make_graph, make_model, small_settings
from hydragnn.graphs import Field, GraphBatch
from hydragnn.graphs.atomic import from_ase
from hydragnn.graphs.joining import concatenate
from hydragnn.graphs.padding import MOST_SHAPES, STEP, UNIT, best_shapes, padded, padded_size
from hydragnn.graphs.topology import Topology
from hydragnn.models import GraphModel, build_model, parse_head
from hydragnn.models.replay import padding_of
from hydragnn.training.loss import label_counts, loss_sums
from hydragnn.training.metrics import Errors


def labelled(model: GraphModel) -> GraphBatch:
    """Graphs of all sizes with labels of every target, some of them missing."""
    random = torch.Generator().manual_seed(0)
    batch = concatenate([CORNERS["two graphs"](), CORNERS["lone node"](), CORNERS["self loop"]()])
    fields = [target.field for target in model.description.targets]
    values: dict[str, Tensor] = {}
    for field in fields:
        shape = (batch.num_items(field.on), *field.shape)
        drawn = torch.randint(field.classes, shape, generator=random) if field.classes else None
        values[field.name] = torch.randn(shape, generator=random, dtype=torch.float64) if drawn is None else drawn
    some = torch.arange(batch.num_graphs) != 1
    return batch.with_fields(values, fields=fields, masks={"gap": some, "charge": some})


def numbers(model: GraphModel, batch: GraphBatch, rows: GraphBatch) -> dict[str, Tensor]:
    """Losses, gradient, errors and predictions of a batch, of those rows that ``rows`` has."""
    targets = model.description.targets
    model.zero_grad()
    predictions = model(batch)
    sums = loss_sums(targets, predictions, batch)
    (sums / label_counts(targets, batch)).sum().backward()
    errors = Errors(targets)
    for target in targets:
        errors.add(target, predictions[target.name], batch)
    gradients = {f"gradient of {name}": weight.grad.clone() for name, weight in model.named_parameters()}
    of_rows = {
        f"{t.name} {part}": values[: rows.num_items(t.field.on)].detach()
        for t in targets
        for part, values in predictions[t.name].tensors().items()
    }
    return {"losses": sums.detach(), "errors": errors.sums, **gradients, **of_rows}


def assert_same(theirs: dict[str, Tensor], ours: dict[str, Tensor]) -> None:
    for name, values in ours.items():
        say = f"{name}: {{}}".format
        torch.testing.assert_close(theirs[name], values, rtol=1e-12, atol=1e-12, msg=say)


CASES = [
    *((kind, {}) for kind in sorted(architectures())),
    *((kind, around) for kind in ("painn", "schnet") for name, around in AROUND.items() if name != "clusters"),
    ("egnn", AROUND["multihead"] | AROUND["film"]),
    ("painn", AROUND["equivariant"] | AROUND["checkpointing"]),
    ("gin", {"global_attention": {"kind": "multihead", "heads": 2}}),
]


@pytest.mark.parametrize(
    ("kind", "around"), CASES, ids=lambda value: value if isinstance(value, str) else str([*value.values()])
)
def test_a_padded_batch_has_the_numbers_of_the_batch(kind: str, around: dict[str, Any]) -> None:
    model = make_model(kind, **around)
    batch = labelled(model)
    again = padding_of(model)(batch)
    assert len(again) > len(batch) and padding_of(model)(again) is again
    theirs = numbers(model, again, batch)
    assert_same(theirs, numbers(model, batch, batch))


def test_symmetric_edges_and_relative_errors_are_those_of_the_batch() -> None:
    """Reverse edges and volumes are computed before the batch is padded."""
    cells = [ase.build.bulk("Cu", "fcc", a=3.6, cubic=True), ase.build.bulk("Ni", "fcc", a=3.5), ase.Atoms("Au")]
    fields = [Field(name="flow", on="edge", role="target"), Field(name="energy", on="graph", role="target"), STRESS]
    heads = [
        parse_head({"kind": "scalar", "field": "flow", "symmetry": "antisymmetric", "loss": "relative"}),
        parse_head({"kind": "energy", "field": "energy", "stress": "stress"}),
    ]
    batch = concatenate([from_ase(atoms, cutoff=4.0) for atoms in cells])
    everything = [*batch.fields.values(), *fields]
    settings = small_settings("painn", cutoff=4.0)
    model = build_model(settings, heads, everything, inputs=["atomic_numbers"], dim=3, seed=0).double()
    random = torch.Generator().manual_seed(0)
    labels = {
        field.name: torch.randn(batch.num_items(field.on), *field.shape, generator=random, dtype=torch.float64)
        for field in fields
    }
    batch = batch.with_fields(labels, fields=fields)
    theirs = numbers(model, padded(batch, 4.0, volume=True, reverse=True), batch)
    assert_same(theirs, numbers(model, batch, batch))


def test_no_further_node_has_many_more_edges_than_those_of_the_batch() -> None:
    dense = from_ase(ase.build.bulk("Cu", "fcc", a=3.6, cubic=True).repeat(3), cutoff=5.0)
    for graphs in range(1, 20):
        batch = concatenate([dense] * graphs)
        degrees = padded(batch, 5.0).topology.degrees[batch.num_nodes :]
        assert degrees.max() <= 2 * batch.topology.degrees.double().mean() + 2
        assert padded(batch, 5.0).num_nodes <= (1 + STEP) ** 2 * batch.num_nodes + 2 * UNIT


@pytest.mark.parametrize("count", [1, 7, 8, 9, 100, 101, 1000, 75898, 3_000_000])
def test_a_size_is_larger_by_at_most_a_step(count: int) -> None:
    assert count <= padded_size(count) <= max(count * (1 + STEP), count + UNIT)
    assert padded_size(padded_size(count)) == padded_size(count)


def drawn(kind: str) -> np.ndarray:
    """Random nodes and edges of graphs, in ranges like those of stores ``[graphs, 2]``."""
    random = np.random.default_rng(0)
    lattice, grains, points = random.integers(1, 4, 700), random.integers(20, 41, 700), random.integers(60, 195, 400)
    sizes = {
        "supercells": (9 * lattice + random.integers(-5, 5, 700), lattice * random.integers(12, 280, 700)),
        "polycrystals": (grains, 6 * grains - random.integers(0, 6, 700)),
        "plates": (points, 5 * points + random.integers(-20, 100, 400)),
        "molecules": (atoms := random.integers(3, 30, 2000), atoms * (atoms - 1) * 3 // 5),
        "crystals": (np.full(2000, 64), random.normal(2372, 150, 2000).astype(np.int64)),
    }
    return np.stack(sizes[kind], axis=1)


@pytest.mark.parametrize("kind", ["supercells", "polycrystals", "plates", "molecules", "crystals"])
def test_shapes_of_a_store_cost_at_most_eight_percent_in_epochs_that_were_not_looked_at(kind: str) -> None:
    graphs = drawn(kind)

    def batches(seed: int) -> list[tuple[int, int, int]]:
        order = np.random.default_rng(seed).permutation(len(graphs))
        parts = [graphs[order[start : start + 16]] for start in range(0, len(graphs), 16)]
        return [(int(part[:, 0].sum()), int(part[:, 1].sum()), len(part)) for part in parts]

    shapes = best_shapes([batch for seed in range(16) for batch in batches(seed)][:500])
    assert len(shapes) <= MOST_SHAPES
    real, grown, outside = np.zeros(2), np.zeros(2), 0
    for nodes, edges, count in batches(100) + batches(101):
        batch = empty_graphs(nodes, edges, count)
        after = padded(batch, 3.0, shapes=shapes)
        outside += (after.num_nodes, after.num_edges, len(after)) not in shapes
        real += [nodes, edges]
        grown += [after.num_nodes, after.num_edges]
    assert (grown <= 1.08 * real).all(), grown / real
    assert outside <= 0.1 * (2 * len(graphs) / 16)


def empty_graphs(nodes: int, edges: int, count: int) -> GraphBatch:
    """A batch of that many items, all edges around the first nodes of its graphs."""
    ends = torch.arange(edges) % nodes
    whole = make_graph(0, nodes, edges=0)
    whole = whole.with_fields(drop=whole.fields)
    return replace(
        whole,
        topology=Topology.square(ends, ends, nodes),
        edge_shifts=torch.zeros(edges, 3, dtype=torch.float64),
        cell=whole.cell.expand(count, 3, 3),
        periodic=whole.periodic.expand(count, 3),
        node_offsets=torch.linspace(0, nodes, count + 1).long(),
        edge_offsets=torch.linspace(0, edges, count + 1).long(),
    )
