"""Settings of the fields and coarser levels of a store."""

from dataclasses import fields
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting
from pydantic import model_validator

from hydragnn.base.settings import Settings
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Dtype, Field, Location, Parity, Role
from hydragnn.graphs.levels import with_contracted_levels


class FieldSettings(Settings):
    """One field of the store and where its values come from."""

    seldom: ClassVar = frozenset({"missing_value"})

    name: str
    """Name in the store."""

    on: Location
    """node, edge or graph."""

    shape: list[int] = Setting(default_factory=list)
    """Shape of one item's value; empty for one number."""

    unit: str = ""
    """Unit, as it shall stand in tables and plots."""

    parity: Parity = "scalar"
    """Kind of the value under rotation: scalar, vector or tensor."""

    role: Role = "input"
    """input, target or auxiliary (kept, but not given to models)."""

    classes: int = Setting(default=0, ge=0)
    """Number of classes of a categorical field (dtype int64); 0 for numbers."""

    dtype: Dtype = "float32"
    """float32, float64 or int64. Absent: float64 for targets that are one number per graph, such as energies, since float32 holds 7 digits."""

    key: str | list[str] | None = None
    """Name in the source (default: the field's own name); several names become the last axis of the value."""

    column: int | list[int] | None = None
    """Take this column, or these, of an array whose last axis holds several quantities, such as a packed ``y``."""

    step: int = 0
    """Take the value of so many frames later, for time series; negative of earlier ones."""

    scale: float = 1.0
    """Factor on the source's values, for units and signs."""

    convert: Literal["virial"] | None = None
    """virial: the source has virials (-stress x volume, in the unit of energies), which become a stress by -1/volume."""

    optional: bool = False
    """True where graphs may lack the field, or labels of a target are missing: NaN, of classes -1, and empty cells of tables; else a missing
    value is an error."""

    missing_value: float | None = Setting(default=None, exclude_if=lambda value: value is None)
    """Number in the source that stands for missing values, such as -999: they are then as missing as NaN."""

    @model_validator(mode="before")
    @classmethod
    def _number_of_a_graph(cls, value: Any) -> Any:
        """Energies have more digits than float32 holds."""
        if not isinstance(value, dict) or "dtype" in value or value.get("classes"):
            return value
        is_one = value.get("on") == "graph" and value.get("role") == "target" and not value.get("shape")
        return {**value, "dtype": "float64"} if is_one else value

    @model_validator(mode="after")
    def _check(self) -> "FieldSettings":
        field = self.field
        if any(column < 0 for column in (self.column if isinstance(self.column, list) else [self.column or 0])):
            raise ValueError(f"field {self.name}: column = {self.column} is negative; count columns from 0")
        if self.scale == 0:
            raise ValueError(f"field {self.name}: scale = 0 makes every value 0; leave it out, or give a factor")
        if self.missing_value is not None and field.dtype == "int64":
            raise ValueError(f"field {self.name}: missing_value is for real numbers; leave it out of classes and int64")
        if self.convert and (field.on != "graph" or field.shape != (3, 3)):
            raise ValueError(
                f'field {self.name}: a virial is a 3 x 3 tensor of a graph; say on = "graph", shape = [3, 3]'
            )
        if _is_virial(self.keys[0]) and not _is_virial(self.name) and self.convert is None and self.scale == 1.0:
            raise ValueError(
                f'field {self.name}: {self.keys[0]} is not yet {self.name}; say convert = "virial" to divide it by minus the volume, or '
                "call the field virial, too"
            )
        return self

    @property
    def field(self) -> Field:
        """The description that goes into the store."""
        values = {one.name: getattr(self, one.name) for one in fields(Field)}
        return Field(**{**values, "shape": tuple(self.shape)})

    def without_fill(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values with NaN for ``missing_value``."""
        if self.missing_value is None:
            return values
        return np.where(np.isclose(values, self.missing_value, rtol=1e-6, atol=0), np.nan, values)

    @property
    def missing(self) -> bool:
        """True where some labels of a graph may be missing."""
        return self.optional and self.role == "target"

    @property
    def keys(self) -> list[str]:
        """Names in the source."""
        return [self.key or self.name] if not isinstance(self.key, list) else self.key


def _is_virial(name: str) -> bool:
    return "virial" in name.lower() and "stress" not in name.lower()


class CoarseningSettings(Settings):
    """Coarser levels of every graph, in the node field ``clusters``.

    Pairs of neighbours are one, the closest ones first.
    """

    removed: ClassVar = {"side": ..., "by": "contraction"}

    levels: int = Setting(default=1, ge=1, le=16)
    """Number of levels; each is made of the last."""

    def applied(self, batch: GraphBatch) -> GraphBatch:
        """The batch with its levels; InputError where it has none such."""
        return with_contracted_levels(batch, self.levels)
