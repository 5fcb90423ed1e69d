"""Errors of predictions and quality of their uncertainties, in the field's unit."""

import math

import numpy as np
from jaxtyping import Float
from scipy.integrate import trapezoid
from scipy.special import ndtr, ndtri

Rows = Float[np.ndarray, " rows"]


def point_metrics(
    target: Float[np.ndarray, "items components"], mean: Float[np.ndarray, "items components"]
) -> dict[str, float]:
    """Return MAE, RMSE and R2 over all components.

    R2 compares with the mean of each component, and is 0 where the target is constant. Missing labels are NaN.

    >>> point_metrics(np.array([[1.0], [2.0], [3.0]]), np.array([[1.0], [2.0], [4.0]]))["mae"]
    0.3333333333333333
    """
    target = np.ma.masked_invalid(target) if np.isnan(target).any() else target
    error = mean - target
    spread = float(np.mean((target - target.mean(axis=0)) ** 2))
    mse = float(np.mean(error**2))
    explained = 1.0 - mse / spread if spread > 0 else 0.0
    return {"mae": float(np.mean(np.abs(error))), "rmse": math.sqrt(mse), "r2": explained}


def volume_scores(
    target: Float[np.ndarray, "items *shape"],
    mean: Float[np.ndarray, "items *shape"],
    volumes: Rows,
    climatology: Float[np.ndarray, "items *shape"] | None = None,
) -> dict[str, float]:
    """Return RMSE and correlation of anomalies with volumes as weights.

    On a sphere volumes are areas of cells, on a grid of latitudes in proportion to their cosines. The correlation is sum v (x - c)(y - c) over the root of sum v (x - c)^2
    times sum v (y - c)^2, over all items and components together; c is the ``climatology``. Missing labels are NaN.

    >>> volume_scores(np.array([0.0, 1.0]), np.array([0.0, 3.0]), np.array([3.0, 1.0]), np.zeros(2))
    {'volume_rmse': 1.0, 'anomaly_correlation': 1.0}
    """
    weights = np.broadcast_to(volumes.reshape(-1, *[1] * (target.ndim - 1)), target.shape)
    present = np.isfinite(weights + target + (0.0 if climatology is None else climatology))
    weights = weights[present]
    if not weights.any():
        return {}
    error = (mean - target)[present]
    scores = {"volume_rmse": math.sqrt(float(weights @ error**2 / weights.sum()))}
    if climatology is not None:
        one, other = ((values - climatology)[present] for values in (mean, target))
        size = math.sqrt(float(weights @ one**2) * float(weights @ other**2))
        scores["anomaly_correlation"] = float(weights @ (one * other)) / size if size > 0 else 0.0
    return scores


def gaussian_crps(target: Rows, mean: Rows, std: Rows) -> Rows:
    """Return the continuous ranked probability score of normal predictions.

    It is the absolute error where the std is zero. Gneiting and Raftery 2007, doi:10.1198/016214506000001437, eq. 21; lower is better, in the unit of the target.

    >>> gaussian_crps(np.array([0.0]), np.array([0.0]), np.array([1.0])).round(4)
    array([0.2337])
    """
    error = target - mean
    safe = np.where(std > 0, std, 1.0)
    z = error / safe
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    crps = safe * (z * (2.0 * ndtr(z) - 1.0) + 2.0 * density - 1.0 / math.sqrt(math.pi))
    return np.where(std > 0, crps, np.abs(error))


def gaussian_nll(target: Rows, mean: Rows, std: Rows) -> Rows:
    """Return the negative log likelihood in nats; the std must be positive.

    >>> gaussian_nll(np.array([0.0]), np.array([0.0]), np.array([1.0])).round(4)
    array([0.9189])
    """
    z = (target - mean) / std
    return 0.5 * z * z + np.log(std) + 0.5 * math.log(2.0 * math.pi)


def miscalibration_area(target: Rows, mean: Rows, std: Rows) -> float:
    """Return the area between calibration curve and diagonal, 0 to 0.5.

    Kuleshov et al. 2018, arXiv:1807.00263; trapezoid over 101 levels.
    """
    levels = np.linspace(0.0, 1.0, 101)
    half_widths = ndtri(0.5 + levels[1:-1] / 2.0)
    inside = np.searchsorted(np.sort(np.abs(target - mean) / std), half_widths, side="right") / len(target)
    observed = np.concatenate([[0.0], inside, [1.0]])
    return float(trapezoid(np.abs(observed - levels), levels))


def rank_correlation(first: Rows, second: Rows) -> float:
    """Return Spearman's rank correlation; 0 where one side is constant.

    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 90.0]))
    1.0
    """
    from scipy.stats import spearmanr

    is_constant = not (np.ptp(first) and np.ptp(second))
    return 0.0 if is_constant else float(spearmanr(first, second).statistic)
