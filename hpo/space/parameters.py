"""Parameters of a search: ranges of numbers, and choices."""

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from hydragnn.base.errors import InputError, nearest
from hydragnn.base.settings import Settings

Scalar = bool | int | float | str
"""A value that TOML, JSON and Optuna all hold."""

Choice = Scalar | list[Scalar]
"""One of the values of a categorical parameter; a list, for example, for ``heads.0.hidden_dims``."""


class _Parameter(Settings):
    """Base of parameters."""

    when: dict[str, Choice | list[Choice]] = Field(default_factory=dict)
    """Only searched where the named parameters have (one of) these values, for example ``{"model.kind" = ["egnn"]}``."""


class _Range(_Parameter):
    """Base of ranges."""

    low: float
    """Smallest value."""

    high: float
    """Largest value."""

    log: bool = False
    """Searched on a logarithmic scale."""

    step: float | None = Field(default=None, gt=0)
    """Only ``low + k * step``."""

    @model_validator(mode="after")
    def _check(self) -> "_Range":
        if self.low > self.high:
            raise ValueError(f"low = {self.low:g} lies above high = {self.high:g}; swap them")
        if self.log and self.low <= 0:
            raise ValueError(f"low = {self.low:g}: a logarithmic scale needs low > 0")
        if self.log and self.step != type(self).model_fields["step"].default:
            raise ValueError("log and step exclude each other; drop one")
        return self


class FloatRange(_Range):
    """A real number between two bounds."""

    type: Literal["float"] = "float"


class IntRange(_Range):
    """A whole number between two bounds, both included."""

    type: Literal["int"] = "int"

    low: int
    high: int
    step: int = Field(default=1, ge=1)


class Choices(_Parameter):
    """One of several values; a single one is a conditional constant."""

    type: Literal["categorical"] = "categorical"

    choices: list[Choice] = Field(min_length=1)
    """The values."""

    @field_validator("choices")
    @classmethod
    def _distinct(cls, choices: list[Choice]) -> list[Choice]:
        """Return the choices, of equal numbers (1 and 1.0) the first."""
        if len({json.dumps(choice) for choice in choices}) < len(choices):
            raise ValueError(f"choices = {choices} names a value twice; keep one")
        first: dict[str, Choice] = {}
        for choice in choices:
            first.setdefault(json.dumps(_whole(choice)), choice)
        return list(first.values())

    def index(self, value: Any) -> int:
        """Return the place of a value; true is not 1."""
        alike = [type(choice) is type(value) and choice == value for choice in self.choices]
        return alike.index(True) if True in alike else self.choices.index(value)


def _whole(value: Any) -> Any:
    """Return a value whose whole numbers are int."""
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


Parameter = FloatRange | IntRange | Choices
PARAMETERS: dict[str, type[Parameter]] = {"float": FloatRange, "int": IntRange, "categorical": Choices}


def place_of(path: str) -> str:
    """Return the configuration path of a parameter.

    Several with other ranges share a path, and differ in what follows a #.

    >>> place_of("model.hidden_dim#mace")
    'model.hidden_dim'
    """
    return path.partition("#")[0]


def parsed_parameter(path: str, table: Any, source: str) -> Parameter:
    """Return the parameter of a table; InputError names its path."""
    where = f'{source}: search.space."{path}"'
    kind = table.get("type") if isinstance(table, Mapping) else None
    if kind is None:
        quotes = 'and write its path in quotes, as [search.space."model.hidden_dim"]'
        raise InputError(f"{where}: give a table with type = float, int or categorical, {quotes}")
    if kind not in PARAMETERS:
        raise InputError(f"{where}: unknown type {kind}; {nearest(str(kind), list(PARAMETERS))}")
    return PARAMETERS[kind].parse(dict(table), source=where)
