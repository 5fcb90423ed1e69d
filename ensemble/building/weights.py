"""Weights of members per field, from validation graphs.

A field and its derivatives (an energy, its forces and stress) share weights, so that forces stay the gradient of the energy.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import minimize

from hydragnn.ensemble.estimates.estimate import CandidateEvidence
from hydragnn.ensemble.estimates.moments import Array
from hydragnn.ensemble.estimates.predictions import estimates_of
from hydragnn.ensemble.members.outputs import MemberOutputs
from hydragnn.models import Target

HALVES = 10
"""Random halves of validation graphs, whose best weights are averaged: those of few graphs follow chance."""

LEAST = 10
"""Validation graphs with labels below which the starting weights stand."""

ROWS = 20_000
"""Most labelled numbers of a field that weights are fitted on, at equal steps."""

SMALL = 0.02
"""Fitted weights below it are none."""

SECOND = 0.01
"""Weight of the second best member where only one is left, so that members can still disagree: a member with three times the error costs two percent, and one with more weighs less, which costs no more."""

REST = 0.1
"""Share of the mean over fields beside the worst field."""

Shares = Float[Array, " members"]


def fitted_weights(
    valid: MemberOutputs, targets: Sequence[Target], start_weights: Shares
) -> dict[str, tuple[float, ...]]:
    """Return weights of members by field, which validation graphs set.

    They lie on the simplex, where the worst field of those that share them is best beside its best member: the mean of the best weights of halves of the graphs, which is on all graphs no worse than the best member. Fields with too few labelled graphs keep ``start_weights``, and are absent.
    """
    groups: dict[str, list[Target]] = {}
    for target in targets:
        groups.setdefault(target.source or target.name, []).append(target)
    weights: dict[str, tuple[float, ...]] = {}
    speaking = np.flatnonzero(start_weights > 0)
    for group in groups.values():
        of_simple = [len(start_weights)] if group[0].name in valid.simple else []
        candidates = np.array([*speaking, *of_simple])
        own = _of_group(valid, group, start_weights, candidates) if len(candidates) > 1 else None
        if own is not None:
            weights |= {target.name: tuple(own.tolist()) for target in group}
    return weights


def _of_group(
    valid: MemberOutputs, targets: Sequence[Target], start_weights: Shares, speaking: np.ndarray
) -> Float[Array, " candidates"] | None:
    """Return weights of fields that share them; None for few graphs."""
    usable = {target.name: valid.usable(target) for target in targets}
    labelled = [np.unique(valid.positions(target)[usable[target.name]]) for target in targets]
    graphs = np.unique(np.concatenate(labelled))
    if min(map(len, labelled)) < LEAST:
        return None
    base = np.append(start_weights, 0.0)[speaking]
    generator, halves = np.random.default_rng(0), []
    for _ in range(HALVES):
        half = generator.permutation(graphs)[: len(graphs) // 2]
        some = _evidence(valid, targets, usable, speaking, np.isin(np.arange(len(valid.graphs)), half))
        halves.append(optimum(some, base))
    everything = _evidence(valid, targets, usable, speaking, np.ones(len(valid.graphs), dtype=np.bool_))
    own = cautious(everything, np.mean(halves, axis=0), base)
    if np.count_nonzero(own) == 1 and any(base[own == 0]):
        rivals = errors_alone(everything)
        of_each = [worst_ratio(everything, rivals, one) for one in np.eye(len(base))]
        second = next(one for one in np.argsort(of_each, kind="stable") if own[one] == 0 < base[one])
        times = max(float(one[second].mean() / (one[own > 0].mean() or np.inf)) for one in rivals.values())
        share = SECOND * 2 / max(2.0, times - 1)
        own = (1 - share) * own
        own[second] = share
    every = np.zeros(len(start_weights) + (speaking[-1] == len(start_weights)))
    every[speaking] = own
    return every


def _evidence(
    valid: MemberOutputs,
    targets: Sequence[Target],
    usable: Mapping[str, Bool[np.ndarray, " items"]],
    speaking: np.ndarray,
    graphs: Bool[np.ndarray, " graphs"],
) -> dict[str, CandidateEvidence]:
    """Return the evidence of these graphs for every labelled field."""
    result: dict[str, CandidateEvidence] = {}
    for target in targets:
        items = np.flatnonzero(usable[target.name] & graphs[valid.positions(target)])
        if not len(items):
            continue
        use = np.zeros(len(usable[target.name]), dtype=np.bool_)
        use[items[:: max(1, len(items) * target.field.width // ROWS)]] = True
        every, labels = valid.of(target, use), valid.labels[target.name][use]
        result[target.name] = estimates_of(target).evidence(target, labels, [every[one] for one in speaking])
    return result


def errors_alone(evidence: Mapping[str, CandidateEvidence]) -> dict[str, Float[Array, "members rows"]]:
    """Return the errors of every member alone."""
    return {name: np.stack([*map(one.row_errors, np.eye(len(one.values)))]) for name, one in evidence.items()}


def worst_ratio(
    evidence: Mapping[str, CandidateEvidence], alone: Mapping[str, Float[Array, "members rows"]], weights: Shares
) -> float:
    """Return the largest ratio to the error of a best member.

    A small share of the mean over fields decides where the worst fields are equal. 0 where nothing is known.
    """
    ratios = []
    for name, one in evidence.items():
        best = float(alone[name].mean(axis=1).min())
        ratios.append(1.0 + (float(one.row_errors(weights).mean()) - best) / (best or 1.0))
    return max(ratios) + REST * float(np.mean(ratios)) if ratios else 0.0


def optimum(evidence: Mapping[str, CandidateEvidence], base: Shares) -> Shares:
    """Return the weights with the least worst ratio, without small ones.

    A local search from the base weights and from the best member alone.
    """
    score = partial(worst_ratio, evidence, errors_alone(evidence))
    alone = list(np.eye(len(base)))
    candidates = [base, *alone]
    for start in (base, 0.5 * (base + min(alone, key=score))):
        minimum = minimize(
            lambda weights: score(normalised(weights)),
            start,
            method="SLSQP",
            bounds=[(0.0, 1.0)] * len(base),
            constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1.0},
            options={"maxiter": 100, "ftol": 1e-8},
        )
        if np.isfinite(minimum.x).all() and minimum.x.clip(0.0).sum() > 0:
            weights = normalised(minimum.x)
            candidates.append(normalised(np.where(weights < SMALL, 0.0, weights)))
    return min(candidates, key=score)


def cautious(evidence: Mapping[str, CandidateEvidence], own: Shares, base: Shares) -> Shares:
    """Return weights moved towards the optimum until no member alone is better.

    Simple members below ``SMALL`` are left out.
    """
    score, best = partial(worst_ratio, evidence, errors_alone(evidence)), optimum(evidence, base)
    most = min(map(score, np.eye(len(base))))
    mixtures = [(1 - share) * own + share * best for share in np.linspace(0.0, 1.0, 11)]
    steps = [normalised(np.where((base > 0) | (one >= SMALL), one, 0.0)) for one in mixtures]
    return next((one for one in steps if score(one) <= most), best)


def normalised(weights: Shares) -> Shares:
    """Return non-negative weights that sum to 1."""
    positive = np.maximum(weights, 0.0)
    return positive / positive.sum()
