"""Settings of heads as a union by ``kind``, so that a key which a kind does not use is an error; and heads of version 1."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Tag, field_validator, model_validator
from pydantic import Field as Setting

from hydragnn.base.errors import InputError, nearest
from hydragnn.graphs.field import Field
from hydragnn.models.head_kinds import (
    HEAD_KINDS,
    WITH_DERIVATIVES,
    ClassesHeadSettings,
    EnergyHeadSettings,
    HeadBase,
    NumberLoss,
    ScalarHeadSettings,
    TensorHeadSettings,
    VectorHeadSettings,
)
from hydragnn.models.target import Target


class UnnamedHeadSettings(HeadBase):
    """A head without ``kind``, as in version 1: its keys and its field say which kind is meant."""

    acts_with: ClassVar = {key: WITH_DERIVATIVES[key] for key in ("forces_weight", "stress_weight")}

    kind: Literal[""] = ""

    pool: Literal["sum", "mean", "max"] = "mean"
    distribution: Literal["point", "gaussian"] = "point"
    loss: NumberLoss = "mse"
    graph_scale: bool = False
    per_node: bool = False
    references: bool = False
    forces: str | None = None
    forces_weight: float = Setting(default=1.0, ge=0)
    stress: str | None = None
    stress_weight: float = Setting(default=1.0, ge=0)

    @field_validator("references", mode="before")
    @classmethod
    def _are_fitted(cls, value: Any) -> Any:
        if isinstance(value, dict | str):
            raise ValueError('given references need kind = "energy"; add it to the head')
        return value

    @model_validator(mode="after")
    def _check(self) -> "UnnamedHeadSettings":
        if (self.distribution == "gaussian") != (self.loss == "nll"):
            raise ValueError(f'head {self.field}: distribution = "gaussian" and loss = "nll" go together')
        if self._is_energy and self.pool != "sum":
            raise ValueError(f'head {self.field}: references, forces and stress need kind = "energy"')
        if self.distribution == "gaussian" and (self.forces or self.stress):
            raise ValueError(f"head {self.field}: forces and stress come from a point energy; use distribution = point")
        return self

    @property
    def _is_energy(self) -> bool:
        return bool(self.references or self.forces or self.stress)

    @property
    def derivatives(self) -> dict[str, str]:
        """``forces`` and ``stress`` to the names of their fields, where they are predicted."""
        named = {"forces": self.forces, "stress": self.stress}
        return {what: name for what, name in named.items() if name}

    @property
    def weights(self) -> dict[str, float]:
        """Loss weight of every field that this head predicts."""
        known = {"forces": self.forces_weight, "stress": self.stress_weight}
        return {self.field: self.weight, **{name: known[what] for what, name in self.derivatives.items()}}

    def named(self, field: Field, *, strict: bool = True) -> "HeadSettings":
        """The head of the kind that keys and field ask for.

        A key that this kind does not have is refused where it says something; with ``strict`` off, for models that are
        trained already, it is passed over, as version 1 did.
        """
        kind = "energy" if self._is_energy else _kind_for(field)
        settings = HEAD_KINDS[kind]
        given = {**settings.before, **self.model_dump(exclude={"kind"})}
        if kind == "energy":
            given.pop("pool")
        elif field.on == "graph" and kind in ("scalar", "vector"):
            given["extensive"] = self.per_node or self.pool == "sum"
        defaults = {name: entry.default for name, entry in type(self).model_fields.items()}
        foreign = {key for key in given if key not in settings.model_fields}
        foreign |= {"pool", "per_node"} & set(given) if field.on != "graph" else set()
        if kind == "classes":
            foreign |= {"loss"}
        for key in sorted(foreign):
            if strict and given[key] != defaults[key]:
                kinds = f'head {field.name} is read as kind = "{kind}" (a field on {field.on}s)'
                raise InputError(f'{kinds}, which has no use for {key}; say kind = "{kind}" and leave {key} out')
        own = {key: value for key, value in given.items() if key not in foreign}
        head: HeadSettings = settings.parse(own, f"head {field.name}")  # type: ignore[assignment]
        return head

    def targets(self, fields: Mapping[str, Field]) -> tuple[Target, ...]:
        """The targets of the head that this one stands for."""
        return self.named(fields[self.field]).targets(fields)

    def check(self, field: Field) -> None:
        """What the head that this one stands for checks."""
        self.named(field).check(field)


READABLE: dict[str, type[HeadBase]] = {**HEAD_KINDS, "": UnnamedHeadSettings}


def _kind_of(value: Any) -> str:
    return str(value.get("kind", "") if isinstance(value, dict) else getattr(value, "kind", ""))


HeadSettings = Annotated[
    Annotated[ScalarHeadSettings, Tag("scalar")]
    | Annotated[EnergyHeadSettings, Tag("energy")]
    | Annotated[VectorHeadSettings, Tag("vector")]
    | Annotated[TensorHeadSettings, Tag("tensor")]
    | Annotated[ClassesHeadSettings, Tag("classes")]
    | Annotated[UnnamedHeadSettings, Tag("")],
    Discriminator(
        _kind_of,
        custom_error_type="kind_of_head",
        custom_error_message=f"unknown kind of head; use one of {', '.join(HEAD_KINDS)}",
    ),
]


def parse_head(value: Mapping[str, Any], source: str = "head", *, stored: bool = False) -> HeadSettings:
    """The settings that a table describes; InputError on a kind or key that there is not.

    A ``stored`` table was written by a program, maybe an earlier one (``Settings.parse``).

    >>> parse_head({"kind": "classes", "field": "phase"}).loss
    'cross_entropy'
    """
    kind = _kind_of(dict(value))
    if kind not in READABLE:
        raise InputError(f"{source}: unknown kind of head {kind!r}; {nearest(kind, list(HEAD_KINDS))}")
    head: HeadSettings = READABLE[kind].parse(dict(value), source, stored=stored)  # type: ignore[assignment]
    return head


def _kind_for(field: Field) -> str:
    """The kind of head that a field asks for."""
    if field.classes:
        return "classes"
    return "vector" if field.parity == "vector" else "scalar"
