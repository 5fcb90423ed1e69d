"""Base class of head kinds, and the registry that finds them."""

import pkgutil
import sys
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from pydantic import Field as Setting
from pydantic import SerializeAsAny
from torch import nn

from hydragnn.architectures import Architecture, ArchitectureSettings, GraphSpec, architecture_of
from hydragnn.architectures.base import Use
from hydragnn.base.errors import InputError, about, nearest
from hydragnn.base.imports import class_of_kind, classes_of
from hydragnn.base.settings import Settings, by_kind
from hydragnn.graphs.field import Field
from hydragnn.layers import CloseRangeLimits, RadialFeatures
from hydragnn.models.target import Target

GROUP = "hydragnn.heads"
"""Entry-point group in which packages announce heads; the name of an entry is its kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadContext:
    """The model that a head is built into."""

    model: ArchitectureSettings
    spec: GraphSpec
    input_fields: tuple[Field, ...]
    channels: int
    """Channels of the states that heads read."""
    basis: RadialFeatures | None
    """The encoder's radial basis; None where it sees no lengths."""
    conditioned: bool
    """Graph inputs act on states as a condition."""
    close_range: CloseRangeLimits | None = None
    """Limits of the repulsion of atoms; None without."""

    @property
    def architecture(self) -> type[Architecture]:
        """Class of the encoder."""
        return architecture_of(self.model.kind)


class HeadSettings(Settings):
    """Base of head kinds: settings, targets and network of one predicted field.

    A subclass gives ``build`` and usually ``check``, ``targets`` and keys of its own. It is registered by lying in a file of this folder, by
    an entry point of the group ``hydragnn.heads``, or by its name: ``kind = "package.module:Name"``.
    """

    kind: str

    field: str
    """Name of the target field in the store; its location, width and parity come from there."""

    hidden_dims: list[Annotated[int, Setting(ge=1, le=4096)]] = Setting(default_factory=lambda: [64])
    """Widths of the head's hidden layers."""

    weight: float = Setting(default=1.0, ge=0)
    """Weight of this field's mean loss in the total."""

    @classmethod
    def class_for(cls, value: Any) -> "type[HeadSettings]":
        """Return the class of a table's kind; this one if unknown."""
        if cls is HeadSettings and isinstance(value, Mapping):
            try:
                return head_kind(value.get("kind"))
            except InputError:
                pass  # named where the table is parsed
        return cls

    cuttable: ClassVar[bool] = False
    """True if the network sums over nodes by ``graph.sum_over_nodes`` and ``pooled_nodes`` alone: then ranks may share one graph. A
    class says so itself, and does not inherit it."""

    def limit(self, use: Use) -> str:
        """Return the reason, after "head ...", against a use, or ""."""
        if use == "pooling" and self.derivatives:
            return "has forces or stress, whose backward pass lies in the forward pass, over nodes of one level"
        if use == "graph" and not vars(type(self)).get("cuttable", False):
            return f"does not say how {type(self).__name__} sums over nodes (cuttable = True in its class)"
        return ""

    @property
    def derivatives(self) -> dict[str, str]:
        """Names of the fields predicted as ``forces`` and ``stress`` of this head."""
        return {}

    @property
    def outputs(self) -> list[str]:
        """All fields that this head predicts."""
        return [self.field, *self.derivatives.values()]

    @property
    def weights(self) -> dict[str, float]:
        """Loss weight of every field that this head predicts."""
        return {self.field: self.weight}

    @property
    def own_layers(self) -> int:
        """Message-passing layers of the head's own."""
        return 0

    @property
    def corrected_input(self) -> str:
        """Name of the node input that the head corrects; empty for none."""
        return ""

    @property
    def traits(self) -> dict[str, Any]:
        """Entries of the target beside field and weight."""
        return {}

    def targets(self, fields: Mapping[str, Field]) -> tuple[Target, ...]:
        """Return the targets that this head predicts, in the order of ``outputs``."""
        return (Target(field=fields[self.field], weight=self.weight, **self.traits),)

    def check(self, field: Field) -> None:
        """Raise InputError, with the remedy, for an unsuitable field."""

    @abstractmethod
    def build(self, field: Field, context: HeadContext) -> nn.Module:
        """Return the network: from states, message graph and batch to a Distribution."""


@cache
def head_kinds() -> Mapping[str, type[HeadSettings]]:
    """Return the head kinds of this folder by name."""
    room = sys.modules[__package__].__path__
    modules = [import_module(f"{__package__}.{info.name}") for info in pkgutil.iter_modules(room)]
    return MappingProxyType(
        {
            value.model_fields["kind"].default: value
            for module in modules
            for value in classes_of(module, HeadSettings)
            if isinstance(value.model_fields["kind"].default, str)
        }
    )


def head_kind(kind: Any) -> type[HeadSettings]:
    """Return the class of a kind; InputError names the nearest."""
    if not isinstance(kind, str):
        raise InputError(f"a head has no kind; add one of {', '.join(head_kinds())}")
    words = {"where": "heads.kind", "noun": "head", "parent": "hydragnn.models.HeadSettings"}
    return class_of_kind(kind, head_kinds(), HeadSettings, group=GROUP, **words)


def _class_of(value: Mapping[str, Any]) -> type[HeadSettings]:
    """Return the class of a table; InputError for another kind's key."""
    cls = head_kind(value.get("kind"))
    for key in value:
        owners = [f'"{kind}"' for kind, other in head_kinds().items() if key in other.model_fields]
        if owners and key not in cls.model_fields:
            raise InputError(
                f'{key} belongs to kind = {" or ".join(owners)}, not to kind = "{value["kind"]}"; '
                f"{nearest(key, sorted(cls.model_fields))}"
            )
    return cls


AnyHead = Annotated[SerializeAsAny[HeadSettings], by_kind(HeadSettings, _class_of)]
"""An entry of ``[[heads]]``: the settings of whichever head its ``kind`` names."""


def parse_head(value: Mapping[str, Any], source: str = "head") -> HeadSettings:
    """Return the settings in a table; InputError for unknown kinds or keys.

    >>> parse_head({"kind": "classes", "field": "phase"}).loss
    'cross_entropy'
    """
    with about(source):
        cls = _class_of(value)
    return cls.parse(dict(value), source)
