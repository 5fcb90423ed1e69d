"""Rarity of a graph: its score against those of held-out graphs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from hydragnn.ensemble.domain.detector import Array, Channel

FALSE_ALARMS = 0.02
"""Share of graphs like those of training that may be flagged."""

UPPER = 0.95
"""Quantile of held-out values whose distance from their median is the unit of a channel."""

JOINED = 3
"""Channels with the largest excesses, whose mean is the joint score."""

HIGHEST = 1000.0
"""Largest value of a channel in its units; that of an exact channel for what training never showed."""

QUANTILES = 1000
"""Scores of held-out nodes that are kept."""

UNKNOWN = 1e300
"""Unit of a channel without values among held-out graphs, which then never counts."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rarity:
    """Usual values and units of channels, and scores of held-out graphs."""

    usual: Float[Array, " channels"]
    unit: Float[Array, " channels"]
    held_out: Float[Array, " scores"]
    """Joint scores of graphs that trained nothing, or quantiles of those of their nodes, ascending; empty where nothing is known of them."""
    false_alarms: float = FALSE_ALARMS

    @property
    def limit(self) -> float:
        """Return the p-value up to which graphs are flagged.

        ``false_alarms`` but for fewer graphs than tell of it, beyond whose largest score graphs are flagged.
        """
        return max(self.false_alarms, 1 / (len(self.held_out) + 1))

    def standardised(self, values: Float[Array, "graphs channels"]) -> Float[Array, "graphs channels"]:
        """Return excesses over usual values in units; 0 without a value."""
        excesses = (values - self.usual) / self.unit
        return np.nan_to_num(excesses, nan=0.0, posinf=HIGHEST).clip(0.0, HIGHEST)

    def p_values(self, excesses: Float[Array, "items channels"], graphs: int | None = None) -> Float[Array, " items"]:
        """Return probabilities that a usual graph is as rare; NaN if unknown.

        k / (n + 1) at the k-th largest joint score of n held-out graphs, which a usual graph reaches as often, and linear between
        two of them. Beyond all of them, 1 / (n + 1) times the largest of their scores over the graph's: a rank, and no probability. What training never
        showed (exact channels) is beyond all of them, whatever their scores. Of nodes k is the share of held-out nodes, times the number of their ``graphs``.
        """
        joint, scores = joint_scores(excesses), len(self.held_out)
        if not scores:
            return np.full(len(joint), np.nan)
        foreign = (excesses[:, self.unit == 1 / HIGHEST] >= HIGHEST).any(axis=1)
        place = np.where(foreign, scores, np.searchsorted(self.held_out, joint, side="left"))
        ends = np.concatenate([[0.0], self.held_out, [np.inf]])
        away = (joint - ends[place]) / np.maximum(ends[place + 1] - ends[place], 1e-300)
        beyond = np.where(place == scores, max(float(self.held_out[-1]), 1e-3) / np.maximum(joint, 1e-3), 1.0)
        graphs = scores if graphs is None else graphs
        return (1 + (scores - place - away) * (graphs / scores)) / (graphs + 1) * np.minimum(beyond, 1.0)

    def outside(self, excesses: Float[Array, "graphs channels"]) -> Bool[np.ndarray, " graphs"]:
        """Return the flagged graphs; without held-out ones by units of channels."""
        if not len(self.held_out):
            return np.asarray(excesses.max(axis=1, initial=0.0) > 1)
        exactly = (excesses >= HIGHEST).any(axis=1)
        return np.asarray(exactly | (self.p_values(excesses) <= self.limit + 1e-12))


def expected_alarms(values: Float[Array, "graphs channels"], channels: Sequence[Channel], false_alarms: float) -> float:
    """Return the share of graphs like held-out ones that is flagged.

    Of enough held-out graphs it is ``false_alarms``. Each of fewer is left out in turn: units are of the same few graphs, so that more than
    1 / (n + 1) can be beyond all of them.
    """
    graphs = len(values)
    least = 1 / (graphs + 1)
    if least <= false_alarms or graphs < 2:
        return max(least, false_alarms)
    others = [fitted_rarity(np.delete(values, n, axis=0), channels, false_alarms) for n in range(graphs)]
    flagged = [one.outside(one.standardised(values[n : n + 1]))[0] for n, one in enumerate(others)]
    return max(least, float(np.mean(flagged)))


def joint_scores(excesses: Float[Array, "graphs channels"]) -> Float[Array, " graphs"]:
    """Return the mean of the ``JOINED`` largest excesses."""
    return np.asarray(np.sort(excesses, axis=1)[:, -JOINED:].sum(axis=1) / max(1, min(JOINED, excesses.shape[1])))


def fitted_rarity(
    values: Float[Array, "items channels"],
    channels: Sequence[Channel],
    false_alarms: float = FALSE_ALARMS,
    graph: Int[np.ndarray, " items"] | None = None,
) -> Rarity:
    """Return usual values, units and joint scores of held-out graphs.

    Of nodes (``graph`` is that of each) scores are quantiles with the same weight for every graph: nodes of one graph are not
    exchangeable with those of others, graphs are (Lee, Barber and Willett 2023, arXiv:2306.06342).

    The unit of a channel is the distance of its ``UPPER`` quantile from the median, at least its slack. Both change
    little where one graph is left out, so that a new graph is scored like held-out ones. Exact channels flag by
    themselves and leave scores of held-out graphs alone. Graphs without any value do not count.
    """
    exact = np.array([channel.exact for channel in channels], dtype=np.bool_)
    slack = np.array([channel.slack for channel in channels])
    usual, unit = np.zeros(len(channels)), np.where(exact, 1 / HIGHEST, slack)
    for number in np.flatnonzero(~exact):
        finite = values[np.isfinite(values[:, number]), number]
        if len(finite):
            usual[number], upper = np.quantile(finite, [0.5, UPPER])
            unit[number] = max(upper - usual[number], slack[number])
        elif len(values):
            unit[number] = UNKNOWN
    rarity = Rarity(usual=usual, unit=unit, held_out=np.zeros(0), false_alarms=false_alarms)
    valid = ~np.isnan(values).all(axis=1) if len(channels) else np.ones(len(values), dtype=np.bool_)
    held_out = np.sort(joint := joint_scores(np.where(exact, 0.0, rarity.standardised(values[valid]))))
    if graph is not None and len(joint):
        held_out = _quantiles(joint, graph[valid])
    return Rarity(usual=usual, unit=unit, held_out=held_out, false_alarms=false_alarms)


def _quantiles(scores: Float[Array, " nodes"], graph: Int[np.ndarray, " nodes"]) -> Float[Array, " quantiles"]:
    """Return scores at equal steps of weight, the same for every graph."""
    _, inverse, counts = np.unique(graph, return_inverse=True, return_counts=True)
    order = np.argsort(scores, kind="stable")
    reached = np.cumsum(1.0 / counts[inverse[order]]) / len(counts)
    steps = np.arange(1, min(QUANTILES, len(scores)) + 1) / min(QUANTILES, len(scores))
    return np.asarray(scores[order[np.minimum(np.searchsorted(reached, steps * (1 - 1e-9)), len(scores) - 1)]])
