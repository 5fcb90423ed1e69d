"""The law of total variance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

Array = np.ndarray  # a class, as shapes need one: an alias of NDArray is none from numpy 2.5 on


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MixtureMoments:
    """Mean and both parts of the variance of a mixture."""

    mean: Float[Array, "*items"]
    epistemic: Float[Array, "*items"]
    """Variance of the members' means: shrinks with more data and better models."""
    aleatoric: Float[Array, "*items"]
    """Mean of the members' variances: noise that stays; zero for members that predict points."""

    @property
    def variance(self) -> Float[Array, "*items"]:
        """Return the variance of the mixture."""
        return self.epistemic + self.aleatoric


def are_shares(weights: Sequence[float]) -> bool:
    """Return True where these are shares of one whole.

    >>> are_shares([0.75, 0.25]), are_shares([1.0, 1.0]), are_shares([1.5, -0.5]), are_shares([float("nan"), 1.0])
    (True, False, False, False)
    """
    return all(weight >= 0 for weight in weights) and abs(math.fsum(weights) - 1) < 1e-6


def total_variance(
    means: Float[Array, "members *items"], variances: Float[Array, "members *items"], weights: Float[Array, " members"]
) -> MixtureMoments:
    """Return the moments of a mixture; all NaN where the mean is.

    Var[y] = Var_members(E[y | member]) + E_members(Var[y | member]).

    >>> total_variance(np.array([[0.0], [2.0]]), np.array([[1.0], [3.0]]), np.array([0.5, 0.5])).variance
    array([3.])
    """
    mean = np.tensordot(weights, means, axes=1)
    epistemic = np.tensordot(weights, (means - mean) ** 2, axes=1)
    aleatoric = np.where(np.isnan(mean), np.nan, np.tensordot(weights, variances, axes=1))
    return MixtureMoments(mean=mean, epistemic=epistemic, aleatoric=aleatoric)


def isotropic(moments: MixtureMoments, axes: tuple[int, ...]) -> MixtureMoments:
    """Return moments with variances averaged over some axes.

    The spread of every component on its own depends on how the axes lie; its mean over components does not, and is
    estimated from several times as many numbers.

    >>> m = MixtureMoments(mean=np.zeros((1, 2)), epistemic=np.array([[1.0, 3.0]]), aleatoric=np.zeros((1, 2)))
    >>> isotropic(m, axes=(-1,)).epistemic
    array([[2., 2.]])
    """
    if not axes:
        return moments

    def average(values: Array) -> Array:
        return np.broadcast_to(values.mean(axis=axes, keepdims=True), values.shape).copy()

    return MixtureMoments(mean=moments.mean, epistemic=average(moments.epistemic), aleatoric=average(moments.aleatoric))
