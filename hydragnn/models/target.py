"""Targets: fields with all that learning and judging them needs."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from hydragnn.graphs.field import Field, field_from_json
from hydragnn.models.distributions import Distribution, Point, distribution_kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A predicted field: distribution, loss, weight and scaling with size."""

    field: Field
    loss: str = "mse"
    """Name of the loss, or ``package.module:function``."""
    weight: float = 1.0
    """Weight of the field's mean loss in the total."""
    stage_two_factor: float = 1.0
    """Factor of the weight in the second stage of training, and in the validation loss throughout."""
    distribution: type[Distribution] = Point
    """Distribution that is predicted for every item."""
    extensive: bool = False
    """The value grows with the number of nodes: no mean is taken off, and errors are stated per graph and per node."""
    odd: bool = False
    """The value of an edge changes its sign with the edge's direction: zero stays where it is."""
    total: str | None = None
    """Graph input that the values of nodes add up to; empty where that is zero, None where nothing holds for their sum."""
    per_node: bool = False
    """The loss divides errors by the number of nodes; those of a stress are multiplied by the volume before."""
    references: bool = False
    """Reference values per atomic number are taken off first."""
    given_references: tuple[tuple[int, float], ...] = ()
    """Atomic numbers and their reference values, where they are given; empty: they are fitted on the training part."""
    derivative: Literal["", "forces", "stress"] = ""
    """Derivative that the field is of the energy ``source``; empty for a field with a head of its own."""
    source: str = ""
    """The energy field that this one is a derivative of."""
    class_weights: tuple[float, ...] | Literal["balanced"] | None = None
    """Weight of each class in the loss; ``balanced`` until the training part has been counted."""
    branch: str = ""
    """The branch that predicts the field; empty where a model has one."""

    @property
    def name(self) -> str:
        """Return the name in files: ``field``, or ``field@branch``.

        >>> Target(field=Field(name="energy", on="graph"), branch="metals").name
        'energy@metals'
        """
        return f"{self.field.name}@{self.branch}" if self.branch else self.field.name

    @property
    def centred(self) -> bool:
        """Return True where normalisation may shift zero.

        Not for errors relative to the label, nor for values with a sign of direction.
        """
        return self.loss != "relative" and not self.odd

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; ``target_from_json`` gives the same target back."""
        plain = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        if self.total is None:
            del plain["total"]  # which older versions would not read
        weights = list(self.class_weights) if isinstance(self.class_weights, tuple) else self.class_weights
        values = {"field": self.field.to_json(), "distribution": self.distribution.kind, "class_weights": weights}
        return {**plain, **values, "given_references": [list(one) for one in self.given_references]}


def target_from_json(value: Mapping[str, Any]) -> Target:
    """The target that ``Target.to_json`` wrote; KeyError or TypeError on anything else."""
    weights = value["class_weights"]
    return Target(
        **{
            **value,
            "field": field_from_json(value["field"]),
            "distribution": distribution_kind(value["distribution"]),
            "class_weights": tuple(weights) if isinstance(weights, list) else weights,
            "given_references": tuple((int(z), float(energy)) for z, energy in value.get("given_references", ())),
        }
    )
