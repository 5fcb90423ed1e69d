"""Inputs and outputs that a configuration of the public HydraGNN names."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, count
from typing import Any

from hydragnn.base.errors import InputError
from hydragnn.frozen import FrozenSettings
from hydragnn.graphs.field import ATOMIC_NUMBERS, RESERVED, Field, Location
from hydragnn.importing.model import ENCODING, LENGTHS, OUTPUT

NUMBERS = re.compile(r"(atomic_?num(ber)?s?|num_?of_?protons|protons?|z)", re.IGNORECASE)
"""Names of columns that are atomic numbers."""
CLASSES = 119
LOSSES = {"mae": "mae", "GaussianNLLLoss": "nll"}
Span = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Variable:
    """Input or output, and where data have it."""

    field: Field
    key: str
    """Name of the tensor there."""
    first: int | None = None
    """First column of it; None takes all."""
    span: Sequence[Span] = ()
    """Smallest and largest values, where data are scaled to 0 to 1."""
    head: Mapping[str, Any] | None = None
    """Settings of its head; None for an input."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """All that decides how graphs become what the model sees."""

    variables: Sequence[Variable]
    images: bool
    """Edges run through periodic images."""
    edge_lengths: float
    """Unit of lengths that are edge features; 0 for others or none."""

    @property
    def inputs(self) -> list[Variable]:
        """Return what the model reads."""
        return [one for one in self.variables if one.head is None]

    @property
    def outputs(self) -> list[Variable]:
        """Return what it predicts."""
        return [one for one in self.variables if one.head is not None]


def reading_of(config: Mapping[str, Any], settings: FrozenSettings) -> Reading:
    """Return what a configuration says, where no data say it better."""
    return Reading(
        variables=variables_of(config, settings),
        images=bool(config["NeuralNetwork"]["Architecture"].get("periodic_boundary_conditions", True)),
        edge_lengths=float(bool(settings.edge_dim)),
    )


def variables_of(config: Mapping[str, Any], settings: FrozenSettings) -> list[Variable]:
    """Return inputs and outputs; InputError where a configuration contradicts itself."""
    network = config["NeuralNetwork"]
    table = config.get("Variables")
    try:
        every = [*(_named(table, settings) if table else _listed(config, network["Variables_of_interest"]))]
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise InputError(f"config.json does not say what x and y hold ({error!r}); copy it again") from error
    inputs, outputs = [one for one in every if one.head is None], [one for one in every if one.head is not None]
    if settings.interatomic:
        outputs = [_variable("energy", "graph", 1, head={"extensive": True})]
        outputs += [_variable("forces", "node", 3, head={"derivative_of": "energy"})]
    elif [(one.field.on, one.field.width) for one in outputs] != [(one.level, one.dim) for one in settings.heads]:
        raise InputError(
            "config.json names other outputs than the model has (output_type and output_dim); copy it again"
        )
    if sum(one.field.width for one in inputs) != settings.input_dim:
        raise InputError(
            f"config.json names {len(inputs)} inputs, and the model has {settings.input_dim}; copy it again"
        )
    if settings.graph_attributes:
        inputs.append(_variable("graph_attr", "graph", settings.graph_attributes))
    if settings.global_attn_engine == "GPS" and settings.pe_dim:
        inputs.append(_variable(ENCODING, "node", settings.pe_dim))
    training = network.get("Training", {})
    outputs = _distinct(outputs, [one.field.name for one in inputs])
    return [*inputs, *_heads(outputs, training, network["Architecture"], settings)]


def _variable(name: str, on: Location, dim: int, **more: Any) -> Variable:
    clean = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or "value"
    clean = clean if clean[0].isalpha() and clean not in RESERVED else f"x_{clean}"
    head = more.get("head")
    shape = () if dim == 1 else (dim,)
    field = Field(name=clean, on=on, shape=shape, role="input" if head is None else "target")
    if head is None and on == "node" and dim == 1 and NUMBERS.fullmatch(name):
        field = Field(name=ATOMIC_NUMBERS, on="node", classes=CLASSES, dtype="int64")
    return Variable(**{"field": field, "key": name, **more})


def _named(table: Mapping[str, Any], settings: FrozenSettings) -> Iterator[Variable]:
    for one in table["inputs"]:
        if one.get("role", "feature") == "feature" and one["level"] == "node":
            yield _variable(one["name"], "node", one["dim"])
    for one in table["outputs"]:
        yield _variable(one["name"], one["level"], one["dim"], head={})


def _listed(config: Mapping[str, Any], table: Mapping[str, Any]) -> Iterator[Variable]:
    """Columns of ``x`` and ``y`` by number."""
    names: dict[str, list[tuple[str, int]]] = {}
    for level in ("node", "graph"):
        own = config.get("Dataset", {}).get(f"{level}_features", {})
        pairs = zip(
            own.get("name") or table.get(f"{level}_feature_names", ()),
            own.get("dim") or table.get(f"{level}_feature_dims", ()),
        )
        names[level] = [*pairs]
    columns = [name if dim == 1 else f"{name}_{part}" for name, dim in names["node"] for part in range(dim)]
    spans = table.get("x_minmax") or []
    for place, column in enumerate(table["input_node_features"]):
        name = columns[column] if column < len(columns) else f"x_{column}"
        span = [tuple(spans[place])] if len(spans) > place else ()
        yield _variable(name, "node", 1, key="x", first=column, span=span)
    widths = table.get("output_dim") or [
        names[level][index][1] for level, index in zip(table["type"], table["output_index"])
    ]
    labels = table.get("output_names") or [f"output_{number}" for number in range(len(widths))]
    ends = table.get("y_minmax") or []
    for place, (level, index, dim, name) in enumerate(
        zip(table["type"], table["output_index"], widths, labels, strict=True)
    ):
        starts = [*accumulate((width for _, width in names[level]), initial=0)]
        first = starts[index] if index < len(starts) else index
        span = [tuple(ends[place])] * dim if len(ends) > place else ()
        yield _variable(name, level, dim, key="x" if level == "node" else "y", first=first, span=span, head={})


def _distinct(outputs: Sequence[Variable], used: Sequence[str]) -> list[Variable]:
    """Return outputs with a number behind names that repeat."""
    names, result = {*used, ATOMIC_NUMBERS, LENGTHS, ENCODING}, []
    for one in outputs:
        numbered = (f"{one.field.name}_{number}" for number in count(2))
        name = next(name for name in chain([one.field.name], numbered) if name not in names)
        names.add(name)
        result.append(replace(one, field=replace(one.field, name=name)))
    return result


def _heads(
    outputs: Sequence[Variable], training: Mapping[str, Any], architecture: Mapping[str, Any], settings: FrozenSettings
) -> Iterator[Variable]:
    """Yield outputs with the settings of their heads, one after the other."""
    column, loss = 0, LOSSES.get(str(training.get("loss_function_type")), "mse")
    if settings.interatomic:
        weights = [architecture.get("energy_weight") or architecture.get("energy_peratom_weight") or 1.0]
        weights.append(architecture.get("force_weight") or 1.0)
        loss = "mse" if loss == "nll" else loss
    else:
        weights = architecture.get("task_weights") or [1.0] * len(outputs)
    for one, weight in zip(outputs, weights, strict=True):
        gaussian = settings.variance and not settings.interatomic
        more = {"distribution": "gaussian", "loss": "nll"} if gaussian else {"loss": loss}
        head = {
            "kind": OUTPUT,
            "field": one.field.name,
            "column": column,
            "weight": abs(weight),
            **more,
            **(one.head or {}),
        }
        column += one.field.width * (1 + gaussian)
        yield replace(one, head=head)
