"""Thresholds from held-out graphs: few false alarms in all, however many detectors there are."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from hydragnn.ensemble.domain.detector import Channel
from hydragnn.ensemble.domain.view import Array

FALSE_ALARMS = 0.02
"""Share of graphs like those of training that may be flagged, by all detectors together."""

TAIL = 0.3
"""Share of the largest held-out values that say how fast still larger ones become rare."""

HIGHEST = 1000.0
"""Largest score."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Limits:
    """Per channel the value of a usual graph and the one above which a graph is flagged."""

    usual: Float[Array, " channels"]
    limit: Float[Array, " channels"]

    def scores(self, values: Float[Array, "graphs channels"]) -> Float[Array, "graphs channels"]:
        """0 for usual values and below, 1 at the limit; also 0 where there is no value."""
        scores = (values - self.usual) / (self.limit - self.usual)
        return np.nan_to_num(scores, nan=0.0, posinf=HIGHEST).clip(0.0, HIGHEST)


def fitted_limits(values: Float[Array, "graphs channels"], channels: Sequence[Channel]) -> Limits:
    """Limits that flag at most ``FALSE_ALARMS`` of graphs like these, as far as their number can tell.

    Every channel flags the same share. It is as large as it may be with at most ``FALSE_ALARMS`` of the graphs flagged by any
    channel, each against limits that are set without it; at most an equal part of ``FALSE_ALARMS`` where graphs are too few to
    tell, and never less than a tenth of that.
    """
    exact = np.array([channel.exact for channel in channels], dtype=np.bool_)
    known = [np.sort(column[np.isfinite(column)]) for column in values.T]
    usual = np.array([np.median(column) if len(column) else 0.0 for column in known])
    usual[exact] = 0.0
    least = usual + np.array([channel.slack for channel in channels])

    def limits(share: float, without: int = 0) -> Limits:
        tails = np.array([upper_value(column[: len(column) - without], share) for column in known])
        return Limits(usual=usual, limit=np.where(exact, least, np.maximum(tails, least)))

    equal = FALSE_ALARMS / max(1, int(np.count_nonzero(~exact)))
    for share in np.geomspace(FALSE_ALARMS if len(values) * FALSE_ALARMS >= 1 else equal, equal / 10, 30):
        alone = limits(float(share), without=1).scores(values)[:, ~exact]  # the largest is what a limit hangs on
        if np.count_nonzero((alone > 1).any(axis=1)) <= FALSE_ALARMS * len(values):
            return limits(float(share))
    return limits(equal / 10)


def upper_value(ordered: Float[Array, " graphs"], share: float) -> float:
    """The value that a new graph exceeds with probability ``share``; beyond the largest seen the tail is exponential.

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
