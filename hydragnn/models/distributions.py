"""Predictions as distributions: point, normal, or probabilities of classes.

Losses, metrics, normalisation and ensembles ask at most whether one is of numbers or of classes. So a further distribution
is one subclass of ``Number``, in the file of its head.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from dataclasses import field as entry
from typing import ClassVar, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hydragnn.base.imports import class_of_kind
from hydragnn.graphs.field import Field

VARIANCE_FLOOR = 1e-6

D = TypeVar("D", bound="Distribution")
N = TypeVar("N", bound="Number")

GROUP = "hydragnn.distributions"
"""Entry-point group in which packages announce distributions."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Distribution(ABC):
    """Prediction of every item of a field; one row per item."""

    kind: ClassVar[str]
    """Name in files; ``package.module:Name`` or an entry point of other packages."""

    @classmethod
    @abstractmethod
    def blank(cls, field: Field, items: int) -> "Distribution":
        """A distribution of ``items`` items that says nothing: NaN, float64."""

    @abstractmethod
    def error(self, target: Tensor) -> Float[Tensor, "items *shape"]:
        """Return prediction minus label, or 1 for a wrong class."""

    @abstractmethod
    def nll(self, target: Tensor, divisor: Tensor | None = None) -> Float[Tensor, "items *shape"]:
        """Return the negative log-likelihood of value over ``divisor``, without constants."""

    @abstractmethod
    def denormalise(self, mean: Tensor, std: Tensor) -> "Distribution":
        """Return the distribution of value times ``std`` plus ``mean``."""

    @abstractmethod
    def shift_by(self, by: Tensor) -> "Distribution":
        """The distribution of value plus ``by``; classes stay as they are."""

    def mapped(self: D, function: Callable[[Tensor], Tensor]) -> D:
        """The same kind of distribution with ``function`` of every tensor."""
        return type(self)(**{name: function(values) for name, values in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def detach(self: D) -> D:
        """The distribution without the history of its computation."""
        return self.mapped(Tensor.detach)

    def to(self: D, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> D:
        """The distribution on ``device`` in ``dtype``; None keeps what there is."""
        return self.mapped(lambda values: values.to(device=device, dtype=dtype))

    def rows(self: D, index: Int[Tensor, " kept"] | Bool[Tensor, " items"] | slice) -> D:
        """The distribution of some of the items."""
        return self.mapped(lambda values: values[index])

    def finite(self) -> Bool[Tensor, " items"]:
        """Return which items have finite numbers only."""
        every = [values.isfinite().unsqueeze(-1).flatten(1).all(dim=1) for values in self.tensors().values()]
        return torch.stack(every).all(dim=0)

    def blank_items(self: D, items: Bool[Tensor, " items"]) -> D:
        """The distribution that says nothing (NaN) about the marked items."""
        return self.mapped(lambda values: torch.where(items.view(-1, *[1] * (values.ndim - 1)), float("nan"), values))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Number(Distribution):
    """A distribution of numbers around a mean."""

    mean: Float[Tensor, "items *shape"]

    @property
    @abstractmethod
    def variance(self) -> Float[Tensor, "items *shape"]:
        """Variance of every item; zero where the distribution has none."""

    @classmethod
    def blank(cls: type[N], field: Field, items: int) -> N:
        """NaN for every item."""
        nan = torch.full((items, *field.shape), math.nan, dtype=torch.float64)
        return cls(**{one.name: nan for one in fields(cls)})

    @abstractmethod
    def scale_by(self, factor: Tensor) -> "Number":
        """The distribution of value times ``factor``."""

    def shift_by(self: N, by: Tensor) -> N:
        """The distribution of value plus ``by``."""
        return type(self)(**self.tensors() | {"mean": self.mean + by})

    def mean_over(self: N, counts: Tensor) -> N:
        """Return the distribution of a mean of ``counts`` independent values."""
        return self

    def error(self, target: Tensor) -> Float[Tensor, "items *shape"]:
        """Mean minus label."""
        return self.mean - target

    def denormalise(self, mean: Tensor, std: Tensor) -> "Number":
        """The distribution of value times ``std`` plus ``mean``."""
        return self.scale_by(std).shift_by(mean)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Point(Number):
    """One value for every item and nothing about its uncertainty."""

    kind = "point"

    @property
    def variance(self) -> Float[Tensor, "items *shape"]:
        """Zero."""
        return torch.zeros_like(self.mean)

    def nll(self, target: Tensor, divisor: Tensor | None = None) -> Float[Tensor, "items *shape"]:
        """Return half the squared error."""
        error = self.error(target)
        return 0.5 * (error if divisor is None else error / divisor).square()

    def scale_by(self, factor: Tensor) -> "Point":
        """The value times ``factor``."""
        return Point(mean=self.mean * factor)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Normal(Number):
    """A normal distribution for every item; components are independent."""

    kind = "normal"

    # a field of its own, whose default is not the property of the base
    variance: Float[Tensor, "items *shape"] = entry()

    def nll(self, target: Tensor, divisor: Tensor | None = None) -> Float[Tensor, "items *shape"]:
        """Return (log variance + (mean - label)^2 / variance) / 2.

        Nix and Weigend 1994, doi:10.1109/ICNN.1994.374138.
        """
        error, variance = self.error(target), self.variance
        if divisor is not None:
            error, variance = error / divisor, variance / divisor.square()
        return 0.5 * (variance.log() + error.square() / variance)

    def scale_by(self, factor: Tensor) -> "Normal":
        """Mean times ``factor``, variance times its square."""
        return Normal(mean=self.mean * factor, variance=self.variance * factor.square())

    def mean_over(self, counts: Tensor) -> "Normal":
        """Divide means and variances of ``counts`` independent values."""
        counts = counts.to(self.variance.dtype).view(-1, *[1] * (self.variance.dim() - 1))
        return Normal(mean=self.mean, variance=self.variance / counts)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Categorical(Distribution):
    """Probabilities of classes, as logits over the last axis."""

    kind = "categorical"

    logits: Float[Tensor, "items *shape_and_classes"]

    @classmethod
    def blank(cls, field: Field, items: int) -> "Categorical":
        """NaN for every item and class."""
        return Categorical(logits=torch.full((items, *field.shape, field.classes), math.nan, dtype=torch.float64))

    @property
    def classes(self) -> int:
        """Return the number of classes."""
        return self.logits.shape[-1]

    @property
    def probabilities(self) -> Float[Tensor, "items *shape_and_classes"]:
        """Probabilities that sum to 1 over the last axis."""
        return self.logits.softmax(dim=-1)

    @property
    def labels(self) -> Int[Tensor, "items *shape"]:
        """The likeliest class of every item; the first of equals."""
        return self.logits.argmax(dim=-1)

    def error(self, target: Tensor) -> Float[Tensor, "items *shape"]:
        """1 where the likeliest class is not the label, else 0."""
        return (self.labels != target).to(self.logits.dtype)

    def nll(self, target: Tensor, divisor: Tensor | None = None) -> Float[Tensor, "items *shape"]:
        """Cross-entropy: minus the logarithm of the label's probability."""
        assert divisor is None, "classes are not extensive"
        # no gather, whose gradient adds atomically on a GPU
        mine = target.unsqueeze(-1) == torch.arange(self.classes, device=target.device)
        value = -torch.where(mine, self.logits.log_softmax(dim=-1), 0.0).sum(-1)
        return value.masked_fill(~mine.any(-1), math.nan)  # a label that is no class

    def denormalise(self, mean: Tensor, std: Tensor) -> "Categorical":
        """The same: classes have no unit."""
        return self

    def shift_by(self, by: Tensor) -> "Categorical":
        """The same: classes cannot be added to."""
        return self


OWN: dict[str, type[Distribution]] = {kind.kind: kind for kind in (Point, Normal, Categorical)}


def distribution_kind(kind: str) -> type[Distribution]:
    """Return the distribution of a name; InputError names the nearest."""
    words = {"where": "distribution", "noun": "distribution", "parent": "hydragnn.models.Number"}
    return class_of_kind(kind, OWN, Distribution, group=GROUP, **words)


def concatenate_distributions(parts: Sequence[Distribution]) -> Distribution:
    """Concatenate distributions; several kinds of numbers become normal ones, points without variance."""
    if len({type(part) for part in parts}) > 1:
        parts = [Normal(mean=part.mean, variance=part.variance) for part in parts if isinstance(part, Number)]
    first = parts[0]
    return type(first)(**{name: torch.cat([part.tensors()[name] for part in parts]) for name in first.tensors()})
