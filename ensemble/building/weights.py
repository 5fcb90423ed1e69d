"""Weights of members per field, from validation graphs.

A field and its derivatives (an energy, its forces and stress) share weights, so that forces stay the gradient of the energy.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import minimize

from hydragnn.ensemble.estimates.estimate import CandidateEvidence
from hydragnn.ensemble.estimates.moments import Array
from hydragnn.ensemble.estimates.predictions import estimates_of
from hydragnn.ensemble.members.outputs import MemberOutputs
from hydragnn.models import Target

FOLDS = 5
"""Parts of validation graphs, each of which judges weights fitted on the others."""

SHRINKAGE = (1.0, 0.75, 0.5, 0.25, 0.0)
"""Shares of the starting weights in the mixture that the folds choose from; the first of equals is taken."""

LEAST = 10
"""Validation graphs with labels below which the starting weights stand."""

ROWS = 20_000
"""Most labelled numbers of a field that weights are fitted on, at equal steps."""

SMALL = 0.02
"""Fitted weights below it are none."""

SECOND = 0.01
"""Weight of the second best member where only one is left, so that members can still disagree: a member with three times the error costs two percent, and one with more weighs less."""

REST = 0.1
"""Share of the mean over fields beside the worst field."""

Shares = Float[Array, " members"]
Rows = Float[Array, " rows"]


def fitted_weights(
    valid: MemberOutputs, targets: Sequence[Target], start_weights: Shares
) -> dict[str, tuple[float, ...]]:
    """Return weights of members by field, which validation graphs set.

    They lie on the simplex, where the worst field of those that share them is best beside its best member. Folds of graphs choose how far they move away from ``start_weights``. Fields with too few labelled graphs keep those, and are absent.
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
    fold_of = np.full(len(valid.graphs), -1)
    fold_of[graphs] = np.random.default_rng(0).permutation(len(graphs)) % FOLDS
    every = np.append(start_weights, 0.0)
    base = every[speaking]
    everything = _evidence(valid, targets, usable, speaking, fold_of >= 0)
    folds = [
        (
            optimum(_evidence(valid, targets, usable, speaking, (fold_of >= 0) & (fold_of != fold)), base),
            _evidence(valid, targets, usable, speaking, fold_of == fold),
        )
        for fold in range(FOLDS)
    ]
    alone = _joined([errors_alone(judge) for _, judge in folds])
    scores = [
        worst_ratio(_joined([errors_of(judge, mixed(fitted, base, share)) for fitted, judge in folds]), alone)
        for share in SHRINKAGE
    ]
    own = mixed(optimum(everything, base), base, SHRINKAGE[int(np.argmin(scores))])
    own = normalised(np.where((base > 0) | (own >= SMALL), own, 0.0))
    if np.count_nonzero(own) == 1 and any(base[own == 0]):
        rivals = errors_alone(everything)
        of_each = [worst_ratio(errors_of(everything, one), rivals) for one in np.eye(len(base))]
        second = next(one for one in np.argsort(of_each, kind="stable") if own[one] == 0 < base[one])
        times = max(float(one[second].mean() / (one[own > 0].mean() or np.inf)) for one in rivals.values())
        share = SECOND * 3 / max(3.0, times)
        own = (1 - share) * own
        own[second] = share
    every[speaking] = own
    return every if len(start_weights) in speaking else every[:-1]


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
        every = valid.of(target, use)
        result[target.name] = estimates_of(target).evidence(
            target, valid.labels[target.name][use], [every[one] for one in speaking]
        )
    return result


def errors_of(evidence: Mapping[str, CandidateEvidence], weights: Shares) -> dict[str, Rows]:
    """Return the error of every row of every field with these weights."""
    return {name: one.row_errors(weights) for name, one in evidence.items()}


def errors_alone(evidence: Mapping[str, CandidateEvidence]) -> dict[str, Float[Array, "members rows"]]:
    """Return the errors of every member alone."""
    return {
        name: np.stack([one.row_errors(alone) for alone in np.eye(len(one.values))]) for name, one in evidence.items()
    }


def _joined(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the rows of all parts, by field."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: np.concatenate([part[name] for part in parts if name in part], axis=-1) for name in names}


def worst_ratio(own: Mapping[str, Rows], alone: Mapping[str, Float[Array, "members rows"]]) -> float:
    """Return the largest ratio to the error of a best member.

    A small share of the mean over fields decides where the worst fields are equal. 0 where nothing is known.
    """
    ratios = []
    for name, errors in own.items():
        best = float(alone[name].mean(axis=1).min())
        ratios.append(1.0 + (float(errors.mean()) - best) / (best or 1.0))
    return max(ratios) + REST * float(np.mean(ratios)) if ratios else 0.0


def optimum(evidence: Mapping[str, CandidateEvidence], base: Shares) -> Shares:
    """Return the weights with the least worst ratio, without small ones.

    A local search from the base weights and from the best member alone.
    """
    rivals = errors_alone(evidence)

    def score(weights: Shares) -> float:
        return worst_ratio(errors_of(evidence, weights), rivals)

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


def mixed(fitted: Shares, base: Shares, share: float) -> Shares:
    """Return the fitted weights moved towards the base weights.

    Below a ``share`` of 1 members without a fitted weight stay without.

    >>> mixed(np.array([1.0, 0.0]), np.array([0.5, 0.5]), 1.0), mixed(np.array([0.8, 0.2, 0.0]), np.full(3, 1 / 3), 0.5)
    (array([0.5, 0.5]), array([0.65, 0.35, 0.  ]))
    """
    common = np.where(fitted > 0, base, 0.0)
    if share == 1.0 or not common.any():
        return (base if share == 1.0 else fitted).copy()
    return (1 - share) * fitted + share * normalised(common)


def normalised(weights: Shares) -> Shares:
    """Return non-negative weights that sum to 1."""
    positive = np.maximum(weights, 0.0)
    return positive / positive.sum()
