"""What a file holds of one detector, checked before anything computes with it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hydragnn.ensemble.domain.view import FEATURES, Array, Numbers
from hydragnn.graphs.field import Field


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """The tensors of a detector, and the graphs that it is to look at."""

    tensors: Mapping[str, Array]
    fields: Mapping[str, Field]
    """What members read, and by target what they predict."""
    dim: int

    @property
    def features(self) -> int:
        """How many numbers describe the geometry around a node."""
        return len(FEATURES) if self.dim else 1

    def numbers(self, name: str, *shape: int | None, largest: float = np.finfo(np.float64).max) -> Array:
        """The tensor of that name, of any length where the shape says None; ValueError where it is another, or not of numbers."""
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
        """The tensor of that name as classes of a field, in ascending order; ValueError unless it is that."""
        values = self.numbers(name, None)
        known = self.field(field, classes=True)
        ascend = len(values) > 0 and bool((np.diff(values) > 0).all())
        # the ends tell of all: what a field may count to comes from a file, and is not laid out
        if not ascend or (values % 1 != 0).any() or values[0] < 0 or values[-1] >= known.classes:
            raise ValueError(f"the tensor {name} does not hold classes of {field}")
        return values.astype(np.int64)

    def field(self, name: str, *, classes: bool) -> Field:
        """The field of that name; ValueError unless it is there, with classes or without."""
        if name not in self.fields or bool(self.fields[name].classes) != classes:
            raise ValueError(f"there is no field {name} of {'classes' if classes else 'numbers'}")
        return self.fields[name]
