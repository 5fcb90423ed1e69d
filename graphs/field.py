"""Fields: the meaning of tensors."""

import math
import re
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar, get_args

import torch
from numpy.typing import NDArray

from hydragnn.base.errors import InputError

Location = Literal["node", "edge", "graph"]
LOCATIONS: tuple[Location, ...] = get_args(Location)
Parity = Literal["scalar", "vector", "tensor"]
Role = Literal["input", "target", "auxiliary"]
Dtype = Literal["float32", "float64", "int64"]

ATOMIC_NUMBERS = "atomic_numbers"
RESERVED = ("positions", "senders", "receivers", "edge_shifts", "cell", "periodic", "node_offsets", "edge_offsets")
MOST_CLASSES, MOST_NUMBERS = 1_000_000, 2**63 - 1
"""Every class of an input or a target takes a row of weights, so that more of them are a damaged number; those of an auxiliary field only number."""

LONGEST_UNIT = 1000  # characters of a unit, also of one that has no meaning
MISSING_CLASS = -1  # class of a target whose label is missing; missing numbers are NaN
Values = TypeVar("Values", torch.Tensor, NDArray[Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """Meaning of one tensor ``[items, *shape]`` of nodes, edges or graphs.

    A field with ``classes > 0`` is categorical: integers from 0 to classes - 1, dtype int64.

    >>> Field(name="forces", on="node", shape=(3,), unit="eV/Angstrom", parity="vector", role="target").width
    3
    """

    name: str
    on: Location
    shape: tuple[int, ...] = ()
    unit: str = ""
    parity: Parity = "scalar"
    role: Role = "input"
    classes: int = 0
    dtype: Dtype = "float32"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", self.name) or self.name in RESERVED:
            raise InputError(
                f"field name {self.name!r} is not usable; use letters, digits and _, and none of {', '.join(RESERVED)}"
            )
        for value, allowed, what in (
            (self.on, LOCATIONS, "on"),
            (self.parity, get_args(Parity), "parity"),
            (self.role, get_args(Role), "role"),
            (self.dtype, get_args(Dtype), "dtype"),
        ):
            if value not in allowed:
                raise InputError(f"field {self.name}: {what} is {value!r}; use one of {', '.join(allowed)}")
        if not self.unit.isprintable() or len(self.unit) > LONGEST_UNIT:
            raise InputError(
                f"field {self.name}: the unit {self.unit!r:.60} holds characters that cannot be printed, or more than {LONGEST_UNIT:,}; "
                "write its name"
            )
        if any(size < 1 for size in self.shape):
            raise InputError(f"field {self.name}: shape {self.shape} has an axis below 1; use () for a number per item")
        if (self.classes > 0) != (self.dtype == "int64"):
            raise InputError(f"field {self.name}: categorical fields have classes > 0 and dtype int64, others neither")
        most = MOST_NUMBERS if self.role == "auxiliary" else MOST_CLASSES
        if self.classes > most:
            raise InputError(f"field {self.name}: {self.classes} classes are too many; use at most {most:,}")
        if self.parity == "vector" and not self.shape:
            raise InputError(f"field {self.name}: a vector needs a last axis of length dim; give shape=(3,), say")
        if self.parity == "tensor" and (len(self.shape) < 2 or self.shape[-1] != self.shape[-2]):
            raise InputError(f"field {self.name}: a tensor needs two last axes of equal length; give shape=(3, 3)")

    @property
    def kind(self) -> Literal["regression", "classification"]:
        """regression for numbers, classification for classes."""
        return "classification" if self.classes else "regression"

    @property
    def width(self) -> int:
        """Numbers per item."""
        return math.prod(self.shape)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype that tensors of this field have in stores."""
        return {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64}[self.dtype]

    @property
    def meaning(self) -> tuple[Location, tuple[int, ...], str, int]:
        """Facts that a prediction shares with the input that it may become."""
        return self.on, self.shape, self.unit, self.classes

    def shown(self) -> dict[str, Any]:
        """The field as tables show it, without the parity."""
        return {name: value for name, value in self.to_json().items() if name != "parity"}

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; ``field_from_json`` gives the same field back."""
        return {**asdict(self), "shape": list(self.shape)}


def is_labelled(values: Values, field: Field) -> Values:
    """Return a bool per number: it is no missing label.

    >>> is_labelled(torch.tensor([1.0, torch.nan]), Field(name="charge", on="node", role="target"))
    tensor([ True, False])
    """
    return values != MISSING_CLASS if field.classes else values == values


def field_from_json(value: dict[str, Any]) -> Field:
    """Return the field of a JSON table; InputError where it is invalid."""
    try:
        sizes = [*value.get("shape", ()), value.get("classes", 0)]
        words = [word for key, word in value.items() if key not in ("shape", "classes")]
        if {type(size) for size in sizes} != {int} or min(sizes) < 0 or {type(word) for word in words} != {str}:
            raise TypeError(f"{value} are not words, and whole numbers as shape and classes")
        return Field(**{**value, "shape": tuple(value.get("shape", ()))})
    except (TypeError, AttributeError) as error:
        raise InputError(f"a field description is damaged or from a newer version: {error}") from error


def columns_of(values: Any, column: int | list[int], where: str) -> Any:
    """Return columns of the last axis; InputError where there are fewer."""
    most = max(column, default=0) if isinstance(column, list) else column
    if values.ndim == 0 or most >= values.shape[-1]:
        raise InputError(f"{where}: there is no column {most} in values of shape {tuple(values.shape)}; count from 0")
    return values[..., column]
