"""Calibrations of every kind, as estimates use them."""

from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from hydragnn.ensemble.calibration.cross_validation import FoldScores
from hydragnn.ensemble.uncertainty import Array
from hydragnn.graphs.field import Field

Part = Literal["valid", "calibration", "held-out"]
"""Graphs that an ensemble was calibrated on."""
Labels = Float[Array, "items *shape"]
"""Labels in the field's unit, classes as whole numbers."""
Owners = Int[np.ndarray, " items"]
"""The number of the graph that each item belongs to."""


@runtime_checkable
class AnyCalibration(Protocol):
    """Calibration of one target, fitted on held-out graphs."""

    @property
    def sentence(self) -> str:
        """Return the words of a report: widths, and graphs behind them."""

    @property
    def follows(self) -> bool:
        """Return True where the uncertainty differs from item to item."""

    def fits(self, field: Field) -> bool:
        """Return True where it is for fields like this one."""

    @property
    def folds(self) -> tuple[FoldScores, ...]:
        """Return the scores of folds of a cross-validation ensemble."""

    def without_folds(self) -> "AnyCalibration":
        """The same for one fold alone, around what its own members say."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
