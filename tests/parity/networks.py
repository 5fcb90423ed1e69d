"""Our networks, made for the weights of other implementations, and one comparison of what both give."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from hydragnn.architectures import GraphStatistics, architecture_of
from hydragnn.graphs import ATOMIC_NUMBERS_FIELD
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field
from hydragnn.models import GraphModel, build_model, parse_head
from tests.parity.rows import Pairs

FIELDS = [
    ATOMIC_NUMBERS_FIELD,
    Field(name="energy", on="graph", role="target"),
    Field(name="forces", on="node", shape=(3,), parity="vector", role="target"),
    Field(name="stress", on="graph", shape=(3, 3), parity="tensor", role="target"),
    Field(name="charge", on="node", role="target"),
    Field(name="relation", on="edge", classes=3, dtype="int64"),
    Field(name="flow", on="node", shape=(3,), parity="vector", role="target"),
]
FLOW = {"kind": "vector", "field": "flow"}
NODE_HEAD = {"kind": "scalar", "field": "charge", "hidden_dims": []}


def energy_head(*hidden: int, **derivatives: str) -> dict[str, Any]:
    return {"kind": "energy", "field": "energy", "hidden_dims": [*hidden], "forces": "forces", **derivatives}


def network(
    table: Mapping[str, Any], heads: Sequence[Mapping[str, Any]], statistics: GraphStatistics | None = None
) -> GraphModel:
    """Return our network, whose weights are to be replaced; its first states are the rows of a table alone, as in others."""
    settings, parsed = architecture_of(table["kind"]).Settings.parse(dict(table)), [parse_head(head) for head in heads]
    inputs = [ATOMIC_NUMBERS, *(["relation"] if table["kind"] == "relational" else [])]
    shape: Any = {"inputs": inputs, "dim": 3, "seed": 0, "statistics": statistics}
    model = build_model(settings, parsed, FIELDS, **shape).double()  # type: ignore[arg-type]
    nn.init.zeros_(model.node_inputs.origin)
    return model.requires_grad_(False)


def table_of(model: GraphModel) -> nn.Embedding:
    """Return the rows that our nodes start from."""
    return model.node_inputs.node_tables[0].table


def compared(model: GraphModel, batch: GraphBatch, expected: Mapping[str, Tensor]) -> Pairs:
    """Yield predictions, and final states of scalars and vectors, with all that is expected."""
    predictions, states = model.with_states(batch)
    actual = {name: value.mean for name, value in predictions.items()}
    actual |= dict(zip(("scalars", "vectors"), (states[degree] for degree in (0, 1) if degree in states)))
    for name, values in expected.items():
        assert values.abs().max() > 1e-5  # there is something to compare
        yield actual[name], values


class Stored(dict[str, Tensor]):
    """Weights and outputs of another implementation, kept in a file; ``docs/parity.md`` says what made it."""

    @classmethod
    def read(cls, name: str) -> "Stored":
        """Return those of a file beside the tests, in double precision."""
        values = load_file(Path(__file__).with_name(f"{name}.safetensors"))
        return cls({key: value.double() for key, value in values.items()})

    def under(self, prefix: str) -> "Stored":
        """Return the part with this prefix, without it."""
        return Stored({key.removeprefix(prefix): value for key, value in self.items() if key.startswith(prefix)})

    def outputs(self, *names: str) -> dict[str, Tensor]:
        return {name: self[name] for name in names}

    def take(self, module: nn.Module, name: str) -> None:
        module.load_state_dict({key: self[f"{name}.{key}"] for key in ("weight", "bias")})

    def with_constant(self, name: str) -> Tensor:
        """Return weight and bias as the weight of a map of features that end with a constant."""
        return torch.cat([self[f"{name}.weight"], self[f"{name}.bias"].unsqueeze(1)], dim=1)
