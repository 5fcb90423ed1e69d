"""Cost models of configurations, fitted to measured trials."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from hydragnn.hpo.scheduling.events import Event, Reached
from hydragnn.hpo.scheduling.scheduler import State
from hydragnn.hpo.scheduling.state import speed_of
from hydragnn.hpo.space.parameters import Choices, Parameter
from hydragnn.hpo.space.points import Point, Space

FEWEST = 4  # below so many measurements nothing is predicted

MOST = 1000
"""Most measurements that are fitted, drawn evenly where there are more: the law is smooth, and a refit must stay short."""

BEYOND = math.log(3)  # predictions leave the range of the measurements by no more than this factor (as a logarithm)

GROWTH = 1.1
"""The model is fitted again once the measured trials have grown by this factor, because a fit takes its time."""

PENALTIES = np.logspace(-4, 3, 15)

Vector = NDArray[np.float64]


class Sized(Struct, frozen=True, kw_only=True):
    """Duration of a trial's epoch on some number of slots."""

    trial: int
    slots: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CostLaw:
    """Ridge regression of the logarithm of a positive quantity.

    Penalty and features (the parameters alone, or with their products) are those with the smallest leave-one-out error.
    """

    space: Space
    products: bool
    centre: Vector
    weights: Vector
    level: float
    low: float
    high: float
    error: float
    """Mean relative error where every measurement is predicted from all others."""

    def __call__(self, values: Mapping[str, Any]) -> float:
        """Return the predicted quantity, never far outside the measurements."""
        row = _columns(np.array([features(self.space, values)]), self.products)[0]
        logarithm = self.level + float((row - self.centre) @ self.weights)
        return math.exp(min(max(logarithm, self.low - BEYOND), self.high + BEYOND))


class Estimates:
    """Expected costs of the next trials, fitted again as measurements grow."""

    def __init__(self, space: Space) -> None:
        self._space, self._fitted = space, 0
        self.measured: dict[int, None] = {}
        """Measured trials, in their order."""
        self._sizes: list[Sized] = []
        self.law: CostLaw | None = None
        """Seconds per epoch on one slot; None below four measurements."""
        self.scaling: float | None = None
        """Slots at which half of the speed is lost; None where no trial ran on several sizes."""

    def follow(self, event: Event, after: State) -> None:
        """Note the cost of a segment that an event ended."""
        if not isinstance(event, Reached) or not after.ended:
            return
        if after.trials[event.trial].measured:
            self.measured[event.trial] = None
        trial = after.ended[0]
        seconds, epochs = event.seconds - trial.seconds, event.epochs - trial.passed
        if seconds > 0 and epochs > 0 and trial.epochs == trial.passed and after.most > after.least:
            as_fastest = speed_of(after.plan, trial.slots) / len(trial.slots)
            self._sizes.append(Sized(trial=event.trial, slots=len(trial.slots), seconds=seconds / epochs * as_fastest))

    def fit(self, state: State) -> None:
        """Fit again where enough was measured since."""
        count = len(self.measured)
        if count >= FEWEST and count > GROWTH * self._fitted:
            measured = [state.trials[number] for number in list(self.measured)]
            history = [(trial.values, trial.work) for trial in measured if trial.work is not None]
            self.law, self.scaling = law_of(history, self._space), scaling_of(list(self._sizes))
            self._fitted = len(history)

    def of(self, values: Point) -> tuple[float | None, float | None]:
        """Return seconds per epoch on one slot, and the scaling, or None."""
        return None if self.law is None else self.law(values), self.scaling


def law_of(history: Sequence[tuple[Point, float]], space: Space) -> CostLaw | None:
    """Fit a law to a positive quantity; None below four measurements."""
    usable = [(values, value) for values, value in history if math.isfinite(value) and value > 0]
    if len(usable) < FEWEST:
        return None
    if len(usable) > MOST:
        usable = [usable[int(k)] for k in np.linspace(0, len(usable) - 1, MOST)]
    logarithms = np.log([value for _, value in usable])
    rows = np.array([features(space, values) for values, _ in usable])
    fits = [(_ridge(_columns(rows, products), logarithms), products) for products in (False, True)]
    (weights, residuals), products = min(fits, key=lambda fit: float(np.mean(fit[0][1] ** 2)))
    return CostLaw(
        space=space,
        products=products,
        centre=_columns(rows, products).mean(axis=0),
        weights=weights,
        level=float(logarithms.mean()),
        low=float(logarithms.min()),
        high=float(logarithms.max()),
        error=float(np.mean(np.abs(np.expm1(np.clip(residuals, -50, 50))))),
    )


def scaling_of(sizes: Iterable[Sized]) -> float | None:
    """Fit the number of slots at half of the speed.

    None where no trial ran on several sizes. Epochs on p slots take ``work / p * (1 + (p - 1) / scaling)``. Every trial has its own work, all share the scaling.
    """
    sizes = list(sizes)
    if len({size.slots for size in sizes}) < 2:
        return None
    by_trial: dict[int, list[Sized]] = {}
    for size in sizes:
        if math.isfinite(size.seconds) and size.seconds > 0:
            by_trial.setdefault(size.trial, []).append(size)
    groups = [group for group in by_trial.values() if len({size.slots for size in group}) > 1]
    if not groups:
        return None
    from scipy.optimize import minimize_scalar  # takes long to load, and few campaigns need it

    slots = np.array([size.slots for group in groups for size in group], dtype=float)
    costs = np.log([size.seconds * size.slots for group in groups for size in group])
    counts = np.array([len(group) for group in groups])
    owners = np.repeat(np.arange(len(groups)), counts)

    def misfit(log_scaling: float) -> float:
        work = costs - np.log1p((slots - 1) * math.exp(-log_scaling))
        means = np.bincount(owners, work) / counts
        return float(((work - means[owners]) ** 2).sum())

    grid = np.linspace(math.log(0.1), math.log(1e5), 40)
    best = int(np.argmin([misfit(value) for value in grid]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    return math.exp(minimize_scalar(misfit, bounds=(low, high), method="bounded", options={"xatol": 1e-4}).x)


def features(space: Space, values: Mapping[str, Any]) -> list[float]:
    """Return a configuration as numbers between -1 and 1.

    Ranges have their scale, choices a column each, absent parameters a flag.
    """
    return [number for path, parameter in space.parameters.items() for number in _encoded(parameter, values.get(path))]


def _encoded(parameter: Parameter, value: Any) -> list[float]:
    present = [float(value is not None)] if parameter.when else []
    if not isinstance(parameter, Choices):
        return [*present, _position(value, parameter.low, parameter.high)]
    choices = [float(type(value) is type(choice) and value == choice) for choice in parameter.choices]
    numbers = [choice for choice in parameter.choices if is_number(choice)]
    if len(numbers) < len(parameter.choices):
        return [*present, *choices]
    return [*present, *choices, _position(value, min(numbers), max(numbers))]


def _position(value: Any, low: int | float, high: int | float) -> float:
    """Return a number's position in its range, from -1 to 1.

    0 for an absent value, another type, or an empty range. Positive ranges count in logarithms, because costs are powers of widths and depths.
    """
    if not is_number(value) or not math.isfinite(value) or high <= low:
        return 0.0
    if low > 0 and value > 0:
        value, low, high = math.log(value), math.log(low), math.log(high)
    return (2 * value - low - high) / (high - low)


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return True for a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _columns(rows: Vector, products: bool) -> Vector:
    """The features, and where asked for all their products of two."""
    if not products:
        return rows
    first, second = np.triu_indices(rows.shape[1])
    return np.concatenate([rows, rows[:, first] * rows[:, second]], axis=1)


def _ridge(rows: Vector, targets: Vector) -> tuple[Vector, Vector]:
    """Return the weights of the best penalty, and leave-one-out residuals."""
    centred, aims = rows - rows.mean(axis=0), targets - targets.mean()
    modes, sizes, right = np.linalg.svd(centred, full_matrices=False)
    turned = modes.T @ aims
    best: tuple[float, Vector, Vector] | None = None
    for penalty in PENALTIES:
        shrinkage = sizes**2 / (sizes**2 + penalty)
        leverage = 1 / len(aims) + (modes**2) @ shrinkage
        residuals = ((modes * shrinkage) @ turned - aims) / np.maximum(1 - leverage, 1e-9)
        score = float(np.mean(residuals**2))
        if best is None or score < best[0]:
            best = score, right.T @ (sizes / (sizes**2 + penalty) * turned), residuals
    assert best is not None
    return best[1], best[2]
