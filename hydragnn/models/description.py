"""Everything needed to build a model again, apart from its weights."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch

from hydragnn.architectures import Architecture, ArchitectureSettings, GraphSpec, GraphStatistics, architecture_of
from hydragnn.base.errors import InputError, nearest
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field, field_from_json
from hydragnn.layers import CloseRangeLimits, limits_from_json
from hydragnn.models.heads import HeadSettings, parse_head
from hydragnn.models.target import Target


def degree_statistics(batches: Iterable[GraphBatch]) -> GraphStatistics:
    """Return the statistics of all nodes, with species if there are any.

    InputError where there is no node.
    The order of the batches does not matter beyond rounding.
    """
    species: set[int] = set()

    def sums(batch: GraphBatch) -> tuple[float, int, int]:
        species.update(species_in(batch))
        return degree_sums(batch)

    return replace(merged_degrees(map(sums, batches)), species=tuple(sorted(species)))


def species_in(batch: GraphBatch) -> list[int]:
    """Return the distinct atomic numbers of a batch, ascending."""
    return batch.nodes[ATOMIC_NUMBERS].unique().tolist() if ATOMIC_NUMBERS in batch.nodes else []


def degree_sums(batch: GraphBatch) -> tuple[float, int, int]:
    """Return the sum of log(degree + 1), the nodes and the edges."""
    degrees = torch.bincount(batch.receivers, minlength=batch.num_nodes)
    return float(torch.log1p(degrees.double()).sum()), batch.num_nodes, batch.num_edges


def merged_degrees(sums: Iterable[tuple[float, int, int]]) -> GraphStatistics:
    """Return the statistics of several batches; InputError without nodes."""
    total, nodes, edges = 0.0, 0, 0
    for sum_here, nodes_here, edges_here in sums:
        total, nodes, edges = total + sum_here, nodes + nodes_here, edges + edges_here
    if not nodes:
        raise InputError("there is no node to count the edges of; give at least one training graph")
    return GraphStatistics(mean_log_degree=total / nodes, mean_degree=edges / nodes)


MOST_SPECIES = 118
"""Largest atomic number."""
DEGREE_OF = {"scalar": 0, "vector": 1, "tensor": 1}
"""Degree of the states that a field of each parity is read from; tensors are products of vectors."""


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """Encoder, heads, their fields, and statistics of the training data."""

    model: ArchitectureSettings
    heads: tuple[HeadSettings, ...]
    fields: Mapping[str, Field]
    inputs: tuple[str, ...]
    dim: int
    statistics: GraphStatistics | None = None
    edges: bool = True
    """False: trained without edges (an ablation), so edges are taken away before prediction, too."""
    branch: str = ""
    """The branch that the heads belong to, where the model has several."""
    close_range: CloseRangeLimits | None = None
    """Limits beyond which atoms repel each other; None for models without repulsion, and for those saved before there was any."""
    shared_degrees: frozenset[int] = frozenset()
    """Degrees of states that the heads of other branches on the same trunk are read from."""

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        """All targets, in the order of the heads."""
        return tuple(replace(target, branch=self.branch) for head in self.heads for target in head.targets(self.fields))

    @property
    def degrees(self) -> frozenset[int]:
        """Degrees of states that heads are read from."""
        own = {DEGREE_OF[self.fields[head.field].parity] for head in self.heads}
        return frozenset(own) & self.architecture.gives | {0} | self.shared_degrees

    @property
    def input_fields(self) -> tuple[Field, ...]:
        """Meanings of the inputs."""
        return tuple(self.fields[name] for name in self.inputs)

    @property
    def repels(self) -> bool:
        """Return True where atoms nearer than in training repel each other."""
        return self.has_close_atoms and self.model.repulsion == "zbl"

    @property
    def has_close_atoms(self) -> bool:
        """Return True for energies with forces of atoms."""
        return bool(self.has_derivatives and self.dim == 3 and self.edges and ATOMIC_NUMBERS in self.inputs)

    @property
    def has_derivatives(self) -> bool:
        """Return True for energies with forces or stress."""
        return any(head.kind == "energy" and head.derivatives for head in self.heads)

    @property
    def architecture(self) -> type[Architecture]:
        """The class of the encoder."""
        return architecture_of(self.model.kind)

    @property
    def optional_inputs(self) -> Sequence[str]:
        """Return the inputs that graphs may lack."""
        return self.architecture.optional_inputs(self.model)

    @property
    def required_inputs(self) -> list[str]:
        """Return the inputs that every graph must have."""
        return [name for name in self.inputs if name not in self.optional_inputs]

    @property
    def bounded_inputs(self) -> Sequence[str]:
        """Return graph inputs whose values may not leave the training range."""
        return self.architecture.bounded_inputs(self.model)

    @cached_property
    def kind_fields(self) -> tuple[str, ...]:
        """Categorical edge fields that the encoder reads as they are."""
        return self.architecture.kind_fields(self.model)

    def spec(self, edge_width: int) -> GraphSpec:
        """Return what data and heads ask of the encoder."""
        kinds, statistics = {name: self.fields[name].classes for name in self.kind_fields}, self.statistics
        return GraphSpec(
            dim=self.dim, edge_width=edge_width, edge_kinds=kinds, degrees=self.degrees, statistics=statistics
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; ``description_from_json`` gives the same description back."""
        statistics: dict[str, Any] | None = None
        if self.statistics is not None:
            ranges = {name: list(ends) for name, ends in self.statistics.ranges.items()}
            table = {**asdict(self.statistics), "species": list(self.statistics.species), "ranges": ranges}
            statistics = {name: value for name, value in table.items() if value not in ([], {})}
        return {
            "model": self.model.to_json(),
            "heads": [head.to_json() for head in self.heads],
            "fields": [field.to_json() for field in self.fields.values()],
            "inputs": list(self.inputs),
            "dim": self.dim,
            "statistics": statistics,
            "edges": self.edges,
            **({"branch": self.branch} if self.branch else {}),
            **({"close_range": self.close_range.to_json()} if self.close_range else {}),
        }


def description_from_json(value: Mapping[str, Any]) -> ModelDescription:
    """Return the description in ``to_json``'s value; an error if damaged."""
    fields = {field.name: field for field in map(field_from_json, value["fields"])}
    heads = [parse_head(head, "model.json") for head in value["heads"]]
    named = [*value["inputs"], *(name for head in heads for name in head.outputs)]
    unknown = [name for name in named if name not in fields]
    if unknown:
        raise ValueError(f"{unknown[0]} is among the inputs or in a head, and no field")
    dim, edges, branch = value["dim"], value.get("edges", True), value.get("branch", "")
    if dim not in range(4) or not isinstance(edges, bool) or not isinstance(branch, str):
        raise ValueError(f"dim = {dim}, edges = {edges}, branch = {branch}")
    return ModelDescription(
        model=architecture_of(value["model"]["kind"]).Settings.parse(value["model"], "model"),
        heads=tuple(heads),
        fields=fields,
        inputs=tuple(value["inputs"]),
        dim=int(dim),
        statistics=_statistics(value["statistics"]),
        edges=edges,
        branch=branch,
        close_range=limits_from_json(value["close_range"]) if value.get("close_range") else None,
    )


def _statistics(value: Mapping[str, Any] | None) -> GraphStatistics | None:
    """The statistics; TypeError or ValueError unless they are numbers."""
    if value is None:
        return None
    species, ranges = value.get("species", []), value.get("ranges", {})
    numbers = [number for name, number in value.items() if name not in ("species", "ranges")]
    bounds = [bound for ends in ranges.values() for bound in ends]
    sound = all(type(number) in (int, float) and 0 <= number < math.inf for number in numbers)
    sound &= isinstance(species, list) and all(type(one) is int and 0 <= one <= MOST_SPECIES for one in species)
    if not sound or not all(type(bound) in (int, float) and math.isfinite(bound) for bound in bounds):
        raise ValueError(f"statistics = {value}")
    ranges = {str(name): (float(low), float(high)) for name, (low, high) in ranges.items()}
    return GraphStatistics(**{**value, "species": tuple(species), "ranges": ranges})


def make_description(
    model: ArchitectureSettings,
    heads: Sequence[HeadSettings],
    fields: Mapping[str, Field] | Sequence[Field],
    *,
    inputs: Sequence[str],
    dim: int,
    statistics: GraphStatistics | None = None,
    edges: bool = True,
    branch: str = "",
) -> ModelDescription:
    """Return a description with the fields it needs; InputError for others."""
    by_name = dict(fields) if isinstance(fields, Mapping) else {field.name: field for field in fields}
    needed = [*inputs, *(name for head in heads for name in head.outputs)]
    for name in needed:
        if name not in by_name:
            raise InputError(f"the data have no field {name}; {nearest(name, list(by_name))}")
    for head in heads:
        for what, name in head.derivatives.items():
            shape, parity = {"forces": ((dim,), "vector"), "stress": ((dim, dim), "tensor")}[what]
            if by_name[name].shape == shape:
                by_name[name] = replace(by_name[name], parity=parity)  # type: ignore[arg-type]
    return ModelDescription(
        model=model,
        heads=tuple(heads),
        fields={name: by_name[name] for name in dict.fromkeys(needed)},
        inputs=tuple(inputs),
        dim=dim,
        statistics=statistics,
        edges=edges,
        branch=branch,
    )
