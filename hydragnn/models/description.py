"""Everything needed to build a model again, apart from its weights."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

import torch

from hydragnn.errors import InputError, nearest
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field, field_from_json
from hydragnn.models.settings import HeadSettings, ModelSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class DegreeStatistics:
    """How many edges nodes receive in the training part; what PNA measures degrees against."""

    mean_log_degree: float
    """Mean of log(degree + 1) over nodes."""


def degree_statistics(batches: Iterable[GraphBatch]) -> DegreeStatistics:
    """Statistics over all nodes of ``batches``; InputError where there is no node.

    The order of the batches does not matter beyond rounding.
    """
    total, nodes = 0.0, 0
    for batch in batches:
        degrees = torch.bincount(batch.receivers, minlength=batch.num_nodes)
        total += float(torch.log1p(degrees.double()).sum())
        nodes += batch.num_nodes
    if not nodes:
        raise InputError("there is no node to count the edges of; give at least one training graph")
    return DegreeStatistics(mean_log_degree=total / nodes)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelDescription:
    """Settings of the encoder and the heads, the fields they speak of, and what was measured on the training part."""

    model: ModelSettings
    heads: tuple[HeadSettings, ...]
    fields: Mapping[str, Field]
    inputs: tuple[str, ...]
    dim: int
    statistics: DegreeStatistics | None = None
    edges: bool = True
    """False: trained without edges (an ablation), so edges are taken away before prediction, too."""

    @property
    def targets(self) -> tuple[str, ...]:
        """All predicted fields, in the order of the heads."""
        return tuple(name for head in self.heads for name in head.outputs)

    @property
    def input_fields(self) -> tuple[Field, ...]:
        """Meanings of the inputs."""
        return tuple(self.fields[name] for name in self.inputs)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; ``description_from_json`` gives the same description back."""
        return {
            "model": self.model.to_json(),
            "heads": [head.to_json() for head in self.heads],
            "fields": [field.to_json() for field in self.fields.values()],
            "inputs": list(self.inputs),
            "dim": self.dim,
            "statistics": asdict(self.statistics) if self.statistics else None,
            "edges": self.edges,
        }


def description_from_json(value: Mapping[str, Any]) -> ModelDescription:
    """The description that ``ModelDescription.to_json`` wrote; KeyError, TypeError or ValueError where it is damaged."""
    fields = [field_from_json(item) for item in value["fields"]]
    statistics = value["statistics"]
    return ModelDescription(
        model=_encoder_settings(value["model"]),
        heads=tuple(HeadSettings.parse(head, "model.json") for head in value["heads"]),
        fields={field.name: field for field in fields},
        inputs=tuple(value["inputs"]),
        dim=value["dim"],
        statistics=DegreeStatistics(**statistics) if statistics else None,
        edges=value.get("edges", True),
    )


def _encoder_settings(value: Mapping[str, Any]) -> ModelSettings:
    """The settings of the encoder that ``kind`` names."""
    union, *_ = get_args(ModelSettings)
    by_kind = {cls.model_fields["kind"].default: cls for cls in get_args(union)}
    if value["kind"] not in by_kind:
        raise InputError(f"unknown kind of model {value['kind']!r}; {nearest(str(value['kind']), list(by_kind))}")
    settings: ModelSettings = by_kind[value["kind"]].parse(value, "model")
    return settings


def described(
    model: ModelSettings,
    heads: Sequence[HeadSettings],
    fields: Mapping[str, Field] | Sequence[Field],
    *,
    inputs: Sequence[str],
    dim: int,
    statistics: DegreeStatistics | None = None,
    edges: bool = True,
) -> ModelDescription:
    """A description that keeps the fields it needs; InputError names a field that the data do not have."""
    known = dict(fields) if isinstance(fields, Mapping) else {field.name: field for field in fields}
    wanted = [*inputs, *(name for head in heads for name in head.outputs)]
    for name in wanted:
        if name not in known:
            raise InputError(f"the data have no field {name}; {nearest(name, list(known))}")
    return ModelDescription(
        model=model,
        heads=tuple(heads),
        fields={name: known[name] for name in dict.fromkeys(wanted)},
        inputs=tuple(inputs),
        dim=dim,
        statistics=statistics,
        edges=edges,
    )
