"""Padding changes no number: losses, gradients, forces, stress and metrics are those of the batch as it is."""

from typing import Any

import pytest
import torch
from torch import Tensor

from hydragnn.architectures import architectures
from hydragnn.conformance.cases import AROUND, CORNERS, make_model
from hydragnn.graphs import GraphBatch
from hydragnn.graphs.joining import concatenate
from hydragnn.graphs.padding import STEP, UNIT, padded, padded_size
from hydragnn.models import GraphModel
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


CASES = [(kind, {}) for kind in sorted(architectures())] + [
    (kind, around) for kind in ("painn", "schnet") for name, around in AROUND.items() if name != "clusters"
]


@pytest.mark.parametrize(
    ("kind", "around"), CASES, ids=lambda value: value if isinstance(value, str) else str([*value.values()])
)
def test_a_padded_batch_has_the_numbers_of_the_batch(kind: str, around: dict[str, Any]) -> None:
    model = make_model(kind, **around)
    batch = labelled(model)
    theirs = numbers(model, padded(batch, 9.0, reverse=False), batch)
    for name, values in numbers(model, batch, batch).items():
        torch.testing.assert_close(theirs[name], values, **EXACT, msg=lambda text, name=name: f"{name}: {text}")


def test_volumes_and_reverse_edges_of_a_padded_batch_are_those_of_the_batch() -> None:
    batch = concatenate([CORNERS["two graphs"](), CORNERS["two graphs"]()])
    both = padded(batch, 9.0, volume=True)
    assert both._derived["volume", "graph"].shape == (both.num_graphs,)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 100, 101, 1000, 75898, 3_000_000])
def test_padding_costs_at_most_eight_percent_or_a_few_items(count: int) -> None:
    assert count <= padded_size(count) <= max(count * (1 + STEP), count + UNIT)
    assert padded_size(padded_size(count)) == padded_size(count)
