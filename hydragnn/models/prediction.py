"""What a head says about its field."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Prediction:
    """Mean of a field for every item, and the variance around it where the head was trained to give one."""

    mean: Float[Tensor, "items *shape"]
    variance: Float[Tensor, "items *shape"] | None = None
