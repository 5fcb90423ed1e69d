"""Thresholds from held-out graphs, with few false alarms in all."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from hydragnn.ensemble.domain.detector import Channel
from hydragnn.ensemble.domain.view import Array

FALSE_ALARMS = 0.02
"""Share of graphs like those of training that may be flagged, by all detectors together."""

TAIL = 0.3
"""Share of the largest held-out values that set how fast still larger ones become rare."""

HIGHEST = 1000.0
"""Largest score."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Limits:
    """Usual value and limit of every channel."""

    usual: Float[Array, " channels"]
    limit: Float[Array, " channels"]

    def scores(self, values: Float[Array, "graphs channels"]) -> Float[Array, "graphs channels"]:
        """Return 0 for usual values, 1 at the limit, 0 without a value."""
        scores = (values - self.usual) / (self.limit - self.usual)
        return np.nan_to_num(scores, nan=0.0, posinf=HIGHEST).clip(0.0, HIGHEST)


def fitted_limits(values: Float[Array, "graphs channels"], channels: Sequence[Channel]) -> Limits:
    """Return limits exceeded with probability ``FALSE_ALARMS`` at most.

    First every channel has the limit that it exceeds with an equal part of ``FALSE_ALARMS``, if its tail is exponential. Then
    all limits move away from the usual values, or towards them, by one factor. Every graph has the factor that just spares it,
    against limits that are set without it; of n graphs the k-th largest of these is taken, k being ``FALSE_ALARMS`` (n + 1), so
    that whatever the tails are a new graph exceeds it with probability k / (n + 1) (split conformal, of the strangest
    channel). Where k is below 1 the graphs are too few to tell; limits then only move away, until each graph is spared.
    """
    exact = np.array([channel.exact for channel in channels], dtype=np.bool_)
    usual = np.array([np.median(column) if len(column) else 0.0 for column in map(_ordered, values.T)])
    usual[exact] = 0.0
    least = usual + np.array([channel.slack for channel in channels])
    share = FALSE_ALARMS / max(1, int(np.count_nonzero(~exact)))
    first = np.array([upper_value(_ordered(column), share) for column in values.T])
    first = np.where(exact, least, np.maximum(first, least))
    allowed = int(FALSE_ALARMS * (len(values) + 1) + 1e-9)
    if not len(values) or exact.all():
        return Limits(usual=usual, limit=first)
    inexact = [_sparing_factors(values[:, c], usual[c], least[c], share) for c in np.flatnonzero(~exact)]
    strangest = np.max(inexact, axis=0)
    finite = _ordered(strangest)  # no limit spares a graph that is infinitely strange
    factor = float(finite[-max(1, allowed - (len(strangest) - len(finite))) :][0]) if len(finite) else 1.0
    factor = factor if allowed else max(1.0, factor)
    return Limits(usual=usual, limit=np.where(exact, least, np.maximum(usual + factor * (first - usual), least)))


def _sparing_factors(values: Float[Array, " graphs"], usual: float, least: float, share: float) -> Array:
    """Return for every graph its excess over the limit set without it.

    Only the largest values move a limit where they are left out; all others are as good as the smallest.
    """
    ordered = _ordered(values)
    if not len(ordered):
        return np.zeros(len(values))
    limits = np.full(len(values), max(upper_value(ordered[1:], share), least))
    for value in np.unique(ordered[-2 - round(max(TAIL if len(ordered) * share < 1 else 0.0, share) * len(ordered)) :]):
        without = np.delete(ordered, np.searchsorted(ordered, value))
        limits[values == value] = max(upper_value(without, share), least)
    return np.nan_to_num((values - usual) / (limits - usual), nan=0.0, posinf=np.inf)


def _ordered(values: Float[Array, " graphs"]) -> Array:
    """Return the finite values, from the smallest."""
    return np.sort(values[np.isfinite(values)])


def upper_value(ordered: Float[Array, " graphs"], share: float) -> float:
    """Return the value exceeded with probability ``share``; beyond the largest, exponentially.

    The order statistic of split-conformal prediction where there are enough values, which are sorted. Where there are not, the
    predictive quantile of an exponential tail beyond the upper ``TAIL`` of them, exact however few they are if that is the
    tail; minus infinity where there are no values.

    >>> upper_value(np.arange(99.0), 0.1)
    89.0
    """
    count = len(ordered)
    if count < 2:
        return float(ordered[-1]) if count else -np.inf
    rank = int(np.ceil((1 - share) * (count + 1) - 1e-9))
    if rank <= count:
        return float(ordered[rank - 1])
    above = max(1, round(TAIL * count))
    start = float(ordered[-above - 1])
    excess = float((ordered[-above:] - start).sum())
    return start + excess * float(((above + 1) / (count + 1) / share) ** (1 / above) - 1)
