"""Tensors of one detector from a file, checked before use."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hydragnn.ensemble.domain.view import FEATURES, Array, Numbers
from hydragnn.graphs.field import Field


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """Tensors of a detector, with fields and dimension of its graphs."""

    tensors: Mapping[str, Array]
    fields: Mapping[str, Field]
    """What members read, and by target what they predict."""
    dim: int

    @property
    def features(self) -> int:
        """Return the number of features of the geometry around a node."""
        return len(FEATURES) if self.dim else 1

    def numbers(self, name: str, *shape: int | None, largest: float = np.finfo(np.float64).max) -> Array:
        """Return the tensor of that name and shape; ValueError otherwise."""
        values = self.tensors[name]
        fits = len(shape) == values.ndim and all(
            size is None or size == actual for size, actual in zip(shape, values.shape)
        )
        if values.dtype != np.float64 or not fits or not (np.abs(values) <= largest).all():
            raise ValueError(
                f"the tensor {name} is {values.dtype} {list(values.shape)}, not float64 {list(shape)}, or not finite"
            )
        return values

    def kinds(self, name: str, field: str) -> Numbers:
        """Return the tensor of that name as ascending classes; ValueError otherwise."""
        values = self.numbers(name, None)
        declared = self.field(field, classes=True)
        ascend = len(values) > 0 and bool((np.diff(values) > 0).all())
        # the ends tell of all: what a field may count to comes from a file, and is not laid out
        if not ascend or (values % 1 != 0).any() or values[0] < 0 or values[-1] >= declared.classes:
            raise ValueError(f"the tensor {name} does not hold classes of {field}")
        return values.astype(np.int64)

    def field(self, name: str, *, classes: bool) -> Field:
        """Return the field of that name; ValueError unless it exists."""
        if name not in self.fields or bool(self.fields[name].classes) != classes:
            raise ValueError(f"there is no field {name} of {'classes' if classes else 'numbers'}")
        return self.fields[name]
