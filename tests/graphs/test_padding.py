"""Padding changes no number: losses, gradients, forces, stress and metrics are those of the batch as it is."""

from typing import Any

import ase.build
import pytest
import torch
from torch import Tensor

from hydragnn.architectures import architectures
from hydragnn.conformance.cases import AROUND, CORNERS, STRESS, make_model, small_settings
from hydragnn.graphs import Field, GraphBatch
from hydragnn.graphs.atomic import from_ase
from hydragnn.graphs.joining import concatenate
from hydragnn.graphs.padding import STEP, UNIT, padded, padded_size
from hydragnn.models import GraphModel, build_model, parse_head
from hydragnn.models.replay import padding_of
from hydragnn.training.loss import label_counts, loss_sums
from hydragnn.training.metrics import Errors

EXACT = {"rtol": 1e-12, "atol": 1e-12}


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


CASES = [
    *((kind, {}) for kind in sorted(architectures())),
    *((kind, around) for kind in ("painn", "schnet") for around in AROUND.values()),
    ("relational", AROUND["clusters"]),
    ("egnn", AROUND["multihead"] | AROUND["film"]),
    ("dimenet", {"angle": "at_receiver"}),
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
    for name, values in numbers(model, batch, batch).items():
        torch.testing.assert_close(theirs[name], values, **EXACT, msg=lambda text, name=name: f"{name}: {text}")


def test_symmetric_edges_and_relative_errors_are_those_of_the_batch() -> None:
    """Reverse edges and volumes are computed before the batch is padded."""
    cells = [ase.build.bulk("Cu", "fcc", a=3.6, cubic=True), ase.build.bulk("Ni", "fcc", a=3.5), ase.Atoms("Au")]
    fields = [Field(name="flow", on="edge", role="target"), Field(name="energy", on="graph", role="target"), STRESS]
    heads = [
        parse_head({"kind": "scalar", "field": "flow", "symmetry": "antisymmetric", "loss": "relative"}),
        parse_head({"kind": "energy", "field": "energy", "stress": "stress"}),
    ]
    batch = concatenate([from_ase(atoms, cutoff=4.0) for atoms in cells])
    model = build_model(
        small_settings("painn", cutoff=4.0),
        heads,
        [*batch.fields.values(), *fields],
        inputs=["atomic_numbers"],
        dim=3,
        seed=0,
    ).double()
    random = torch.Generator().manual_seed(0)
    labels = {
        field.name: torch.randn(batch.num_items(field.on), *field.shape, generator=random, dtype=torch.float64)
        for field in fields
    }
    batch = batch.with_fields(labels, fields=fields)
    theirs = numbers(model, padded(batch, 4.0, volume=True, reverse=True), batch)
    for name, values in numbers(model, batch, batch).items():
        torch.testing.assert_close(theirs[name], values, **EXACT, msg=lambda text, name=name: f"{name}: {text}")


def test_no_further_node_has_many_more_edges_than_those_of_the_batch() -> None:
    dense = from_ase(ase.build.bulk("Cu", "fcc", a=3.6, cubic=True).repeat(3), cutoff=5.0)
    for graphs in range(1, 20):
        batch = concatenate([dense] * graphs)
        degrees = padded(batch, 5.0).topology.degrees[batch.num_nodes :]
        assert degrees.max() <= 2 * batch.topology.degrees.double().mean() + 2
        assert padded(batch, 5.0).num_nodes <= (1 + STEP) ** 2 * batch.num_nodes + 2 * UNIT


@pytest.mark.parametrize("count", [1, 7, 8, 9, 100, 101, 1000, 75898, 3_000_000])
def test_padding_costs_at_most_eight_percent_or_a_few_items(count: int) -> None:
    assert count <= padded_size(count) <= max(count * (1 + STEP), count + UNIT)
    assert padded_size(padded_size(count)) == padded_size(count)
