"""Inputs and outputs that a configuration of the public HydraGNN names."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError
from hydragnn.base.settings import leaves
from hydragnn.frozen import FrozenSettings
from hydragnn.frozen.settings import FIRST, features_of, variables_of
from hydragnn.graphs.field import ATOMIC_NUMBERS, RESERVED, Field, Location
from hydragnn.importing.model import ENCODING, LENGTHS

NUMBERS = re.compile(r"(atomic_?num(ber)?s?|num_?of_?protons|protons?|z)", re.IGNORECASE)
"""Names of columns that are atomic numbers."""
TEXT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|true|false|nan|inf", re.IGNORECASE)
"""Numbers and truth values as texts."""
SIZES, MOST = re.compile(r"(dims?|num_sharedlayers)$"), 10**6
"""Names of widths and numbers, and what all of them are less than together."""
CLASSES = 119
LOSSES = {"mse": "mse", "mae": "mae", "rmse": "mse", "smooth_l1": "huber", "GaussianNLLLoss": "nll"}
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
    weight: float | None = None
    """Weight in the loss; None for an input."""


def variable(name: str, on: Location, dim: int, *, key: str = "", weight: float | None = None, **more: Any) -> Variable:
    """Return a variable under a name that a field can have."""
    clean = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or "value"
    clean = clean if clean[0].isalpha() and clean not in RESERVED else f"x_{clean}"
    shape = () if dim == 1 else (dim,)
    field = Field(name=clean, on=on, shape=shape, role="input" if weight is None else "target")
    if weight is not None and on == "graph":  # such as total energies, of which single precision drops digits
        field = replace(field, dtype="float64")
    if weight is None and on == "node" and dim == 1 and NUMBERS.fullmatch(name):
        field = Field(name=ATOMIC_NUMBERS, on="node", classes=CLASSES, dtype="int64")
    return Variable(field=field, key=key or name, weight=weight, **more)


@contextmanager
def complete(otherwise: str) -> Iterator[None]:
    """Raise InputError for keys that lack, or hold something else."""
    try:
        yield
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InputError(f"{otherwise} ({type(error).__name__}: {error}); copy it again") from error


def as_list(value: Any) -> list[Any]:
    """Return a list, or a list of what is none."""
    return value if isinstance(value, list) else [value]


class Source:
    """Sections of a configuration, of whichever generation."""

    def __init__(self, table: Any, where: Path, bounds: Mapping[str, Any] | None = None) -> None:
        """Take a configuration; ``bounds`` are those of scaled data."""
        self.table, self.where = table if isinstance(table, dict) else {}, where
        self.architecture = self.section("NeuralNetwork", "Architecture")
        self.training = self.section("NeuralNetwork", "Training")
        self.dataset = self.section("Dataset")
        self.named = self.section("Variables")
        self.listed = {**(bounds or {}), **self.section("NeuralNetwork", "Variables_of_interest")}
        self.potential = bool(
            self.architecture.get("enable_interatomic_potential") or self.training.get("compute_grad_energy")
        )
        for key, value in leaves({"Architecture": self.architecture, "Training": self.training}):
            if isinstance(value, str) and TEXT.fullmatch(value):
                raise InputError(f'{where}: {key} = "{value}" is a text; write it without quotes')
            if any(isinstance(one, float) and not math.isfinite(one) for one in as_list(value)):
                raise InputError(f"{where}: {key} = {value} is not finite; correct it")
        sizes = [as_list(value) for key, value in leaves(self.table) if SIZES.search(key)]
        if sum(min(abs(one), MOST) for one in chain(*sizes) if isinstance(one, int | float)) >= MOST:
            raise InputError(f"{where}: widths and numbers of layers add up to more than {MOST:,}; copy it again")
        self.kind = str(self.architecture.get("mpnn_type") or self.architecture.get("model_type"))
        self.loss = str(self.training.get("loss_function_type") or "mse")

    def section(self, *names: str) -> Mapping[str, Any]:
        """Return a section; empty where it is absent."""
        table: Any = self.table
        for name in names:
            table = table.get(name) or {}
            if not isinstance(table, Mapping):
                raise InputError(f"{self.where}: {name} is no section; check the configuration")
        return table

    @cached_property
    def paths(self) -> dict[str, str]:
        """Return the paths of data by part or branch."""
        own = self.dataset.get("path") or {}
        paths = own if isinstance(own, Mapping) else {"total": own}
        for key, one in paths.items():
            if not isinstance(one, str | None):
                raise InputError(
                    f"config.json: Dataset.path {key} is {one}, which is no text; write one path for each key"
                )
        return {key: one for key, one in paths.items() if one}

    def networks(self, level: str) -> list[Mapping[str, Any]]:
        """Return the networks of heads on graphs or nodes, by branch."""
        heads = (self.architecture.get("output_heads") or {}).get(level) or []
        return [one["architecture"] for one in heads] if isinstance(heads, list) else [heads]

    @property
    def branches(self) -> int:
        """Return the number of branches, each with a set of its own."""
        return max(1, *(len(self.networks(level)) for level in ("graph", "node")))

    def inputs(self) -> list[Variable]:
        """Return what the model reads, but for graph attributes and encodings."""
        if self.named:
            rows = [one for one in self.named["inputs"] if one.get("role", "feature") == "feature"]
            if encoded := [one["name"] for one in rows if one.get("encoding")]:
                raise InputError(f"{self.where}: the encoding of {encoded[0]} is not read; train it anew without one")
            return [variable(one["name"], one["level"], one["dim"]) for one in rows]
        names, dims = features_of(self.table, "node")
        parts = [[name] if dim == 1 else [f"{name}_{part}" for part in range(dim)] for name, dim in zip(names, dims)]
        columns = [(name, number) for number, some in enumerate(parts) for name in some]
        result = []
        for place, column in enumerate(_from_zero(self.listed["input_node_features"])):
            name, feature = columns[column] if column < len(columns) else (f"x_{column}", column)
            span = self._span("x", place, "node", feature, 1)
            result.append(variable(name, "node", 1, key="x", first=column, span=span))
        return result

    def outputs(self, used: Iterable[str] = ()) -> list[Variable]:
        """Return what it predicts, under unused names."""
        if self.potential:
            keys = ("energy_weight", "energy_peratom_weight", "force_weight")
            energy, per_atom, force = (float(self.architecture.get(key) or 0) for key in keys)
            result = [variable("energy", "graph", 1, weight=max(energy, per_atom) or 1.0)]
            result.append(variable("forces", "node", 3, weight=force or 1.0))
        else:
            levels, widths, _ = variables_of(self.table)
            weights = [abs(float(one)) for one in self.architecture.get("task_weights") or [1.0] * len(levels)]
            if len(weights) != len(levels):
                raise InputError(
                    f"{self.where} has {len(levels)} outputs and {len(weights)} task_weights; copy it again"
                )
            rows = [*zip(levels, widths, weights, strict=True)]
            if self.named:
                names = [one["name"] for one in self.named["outputs"]]
                result = [variable(name, on, dim, weight=weight) for name, (on, dim, weight) in zip(names, rows)]
            else:
                result = self._columns(rows)
        return distinct(result, [*used, ATOMIC_NUMBERS, LENGTHS, ENCODING])

    def _columns(self, rows: Sequence[tuple[Location, int, float]]) -> list[Variable]:
        """Return outputs that are columns of ``x`` and ``y``, of level, width and weight."""
        indices, labels, result = _from_zero(self.listed["output_index"]), self.listed.get("output_names"), []
        features = {level: features_of(self.table, level) for level in ("node", "graph")}
        for place, ((level, dim, weight), index) in enumerate(zip(rows, indices, strict=True)):
            names, wide = features[level]
            name = labels[place] if labels else (*names[index : index + 1], f"output_{place}")[0]
            wide_by = dict(enumerate(wide))
            if not wide_by:  # the least that is said: widths of outputs, and columns that are inputs
                wide_by = dict.fromkeys(self.listed["input_node_features"], 1) if level == "node" else {}
                wide_by |= {one: width for one, (on, width, _) in zip(indices, rows) if on == level}
            first = sum(wide_by[one] for one in range(index)) if all(one in wide_by for one in range(index)) else None
            span = self._span("y", place, level, index, dim)
            key = "x" if level == "node" else "y"
            result.append(variable(name, level, dim, key=key, first=first, span=span, weight=weight))
        return result

    def _span(self, key: str, place: int, level: str, feature: int, width: int) -> Sequence[Span]:
        """Return the smallest and largest value of a scaled feature."""
        own, low_high = self.listed.get(f"{key}_minmax"), self.listed.get(f"minmax_{level}_feature")
        pair = [*map(float, own[place] if own else [ends[feature] for ends in low_high or ()])]
        if not all(map(math.isfinite, pair)):
            raise ValueError(f"{pair} of feature {feature} are not finite")
        return [(pair[0], pair[1])] * width if pair else ()


def _from_zero(numbers: Sequence[int]) -> Sequence[int]:
    if any(one < 0 for one in numbers):
        raise ValueError(f"{numbers} count from the end")
    return numbers


def distinct(variables: Iterable[Variable], used: Iterable[str] = ()) -> list[Variable]:
    """Return variables with a number behind names that repeat."""
    names, result = {*used}, []
    for one in variables:
        numbered = (f"{one.field.name}_{number}" for number in count(2))
        name = next(name for name in chain([one.field.name], numbered) if name not in names)
        names.add(name)
        result.append(replace(one, field=replace(one.field, name=name)))
    return result


@dataclass(frozen=True, kw_only=True)
class Reading:
    """All that decides how graphs become what the model sees."""

    variables: Sequence[Variable]
    images: bool
    """Edges run through periodic images."""
    edge_lengths: float
    """Unit of lengths that are edge features; 0 for others or none."""
    references: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """Energies by atomic number that labels of an output lacked, by its name."""

    @property
    def by_element(self) -> dict[str, float]:
        """Return the references by atomic number, as text."""
        return {str(z): energy for by in self.references.values() for z, energy in by.items()}

    @property
    def inputs(self) -> list[Variable]:
        """Return what the model reads."""
        return [one for one in self.variables if one.weight is None]

    @property
    def outputs(self) -> list[Variable]:
        """Return what it predicts."""
        return [one for one in self.variables if one.weight is not None]


def reading_of(source: Source, settings: FrozenSettings) -> Reading:
    """Return what a configuration says; InputError where it contradicts itself."""
    with complete("config.json does not say what x and y hold"):
        inputs = [one for one in source.inputs() if one.field.on == "node"]
        outputs = source.outputs([one.field.name for one in inputs])
    if settings.radius is not None and settings.radius <= 0:
        raise InputError(f"config.json: radius = {settings.radius} is no distance; copy it again")
    if settings.interatomic and settings.kind in FIRST:
        raise InputError(f"config.json: {settings.kind} does not depend on positions, so it cannot give forces")
    levels = [(one.field.on, one.field.width) for one in outputs]
    if not settings.interatomic and levels != [(one.level, one.dim) for one in settings.heads]:
        raise InputError(
            "config.json names other outputs than the model has (output_type and output_dim); copy it again"
        )
    if sum(one.field.width for one in inputs) != settings.input_dim:
        raise InputError(
            f"config.json names {len(inputs)} inputs, and the model has {settings.input_dim}; copy it again"
        )
    if settings.graph_attributes:
        inputs.append(variable("graph_attr", "graph", settings.graph_attributes))
    if settings.global_attn_engine == "GPS" and settings.pe_dim:
        inputs.append(variable(ENCODING, "node", settings.pe_dim))
    names = source.architecture.get("edge_features") or ["length"]
    are_lengths = settings.edge_dim == 1 and re.search("length|dist", str(names[0]))
    if settings.edge_dim and not are_lengths:
        inputs.append(variable(LENGTHS, "edge", settings.edge_dim))
    return Reading(
        variables=[*inputs, *outputs],
        images=bool(source.architecture.get("periodic_boundary_conditions", True)),
        edge_lengths=float(bool(are_lengths)),
    )
