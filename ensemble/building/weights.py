"""Weights of members per field, from validation graphs.

A field and its derivatives (an energy, its forces and stress) share weights, so that forces stay the gradient of the energy.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import minimize

from hydragnn.ensemble.estimates import Evidence
from hydragnn.ensemble.member_outputs import MemberOutputs
from hydragnn.ensemble.numbers import MEANS
from hydragnn.ensemble.predictions import estimates_of
from hydragnn.ensemble.uncertainty import Array
from hydragnn.models import Target

FOLDS = 5
"""Parts of validation graphs, each of which judges weights fitted on the others."""

SHRINKAGE = (1.0, 0.75, 0.5, 0.25, 0.0)
"""Shares of the given weights in the mixture that the folds choose from; the first of equals is taken."""

LEAST = 10
"""Validation graphs with labels below which the given weights stand."""

ROWS = 20_000
"""Most labelled numbers of a field that weights are fitted on, at equal steps."""

SMALL = 0.02
"""Fitted weights below it are none."""

SECOND = 0.05
"""Weight of the second best member where only one is left, so that members can still disagree."""

Shares = Float[Array, " members"]


def fitted_weights(valid: MemberOutputs, targets: Sequence[Target], given: Shares) -> dict[str, tuple[float, ...]]:
    """Return weights of members by field, which validation graphs set.

    They lie on the simplex at the least CRPS of means with one width, since widths are calibrated later (classes: Brier score). Folds of graphs choose how far they move away from the ``given`` weights. Fields with too few labelled graphs
    keep those, and are absent.
    """
    groups: dict[str, list[Target]] = {}
    for target in targets:
        groups.setdefault(target.source or target.name, []).append(target)
    weights: dict[str, tuple[float, ...]] = {}
    speaking = np.flatnonzero(given > 0)
    for group in groups.values():
        own = _of_group(valid, group, given, speaking) if len(speaking) > 1 else None
        if own is not None:
            weights |= {target.name: tuple(own.tolist()) for target in group}
    return weights


def _of_group(valid: MemberOutputs, targets: Sequence[Target], given: Shares, speaking: np.ndarray) -> Shares | None:
    """Return the weights of fields that share them; None where graphs are too few."""
    usable = {target.name: valid.usable(target) for target in targets}
    labelled = [np.unique(valid.positions(target)[usable[target.name]]) for target in targets]
    graphs = np.unique(np.concatenate(labelled))
    if min(map(len, labelled)) < LEAST:
        return None
    fold_of = np.full(len(valid.graphs), -1)
    fold_of[graphs] = np.random.default_rng(0).permutation(len(graphs)) % FOLDS
    base = given[speaking]
    everything = _evidence(valid, targets, usable, speaking, fold_of >= 0)
    scores = np.zeros(len(SHRINKAGE))
    for fold in range(FOLDS):
        fitted = optimum(_evidence(valid, targets, usable, speaking, (fold_of >= 0) & (fold_of != fold)), base)
        judge = _evidence(valid, targets, usable, speaking, fold_of == fold)
        scores += [relative_score(judge, mixed(fitted, base, share), base) for share in SHRINKAGE]
    own = mixed(optimum(everything, base), base, SHRINKAGE[int(scores.argmin())])
    if np.count_nonzero(own) == 1:
        alone = [relative_score(everything, one, base) for one in np.eye(len(base))]
        second = next(one for one in np.argsort(alone, kind="stable") if own[one] == 0)
        own = (1 - SECOND) * own
        own[second] = SECOND
    result = np.zeros(len(given))
    result[speaking] = own
    return result


def _evidence(
    valid: MemberOutputs,
    targets: Sequence[Target],
    usable: Mapping[str, Bool[np.ndarray, " items"]],
    speaking: np.ndarray,
    graphs: Bool[np.ndarray, " graphs"],
) -> list[Evidence]:
    """Return the evidence of these graphs for every field that has labels there."""
    result = []
    for target in targets:
        items = np.flatnonzero(usable[target.name] & graphs[valid.positions(target)])
        if not len(items):
            continue
        use = np.zeros(len(usable[target.name]), dtype=np.bool_)
        use[items[:: max(1, len(items) * target.field.width // ROWS)]] = True
        every = valid.of(target, use)
        result.append(
            estimates_of(target).evidence(target, valid.labels[target.name][use], [every[one] for one in speaking])
        )
    return result


def relative_score(evidence: Sequence[Evidence], weights: Shares, base: Shares) -> float:
    """Return the mean over fields of the score over that of the base weights.

    1 where nothing is known.
    """
    pairs = [(one.weighted_score(weights, MEANS), one.weighted_score(base, MEANS)) for one in evidence]
    return float(np.mean([own / given if given > 0 else 1.0 + own for own, given in pairs])) if pairs else 1.0


def optimum(evidence: Sequence[Evidence], base: Shares) -> Shares:
    """Return the weights on the simplex with the least score, without small ones.

    A local search from the base weights and from the best member alone.
    """
    alone = np.eye(len(base))
    best = alone[int(np.argmin([relative_score(evidence, one, base) for one in alone]))]
    candidates = [base, best]
    for start in (base, 0.5 * (base + best)):
        found = minimize(
            lambda weights: relative_score(evidence, normalised(weights), base),
            start,
            method="SLSQP",
            bounds=[(0.0, 1.0)] * len(base),
            constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1.0},
            options={"maxiter": 100, "ftol": 1e-8},
        )
        if np.isfinite(found.x).all() and found.x.clip(0.0).sum() > 0:
            weights = normalised(found.x)
            candidates.append(normalised(np.where(weights < SMALL, 0.0, weights)))
    return min(candidates, key=lambda weights: relative_score(evidence, weights, base))


def mixed(fitted: Shares, base: Shares, share: float) -> Shares:
    """Return the fitted weights moved towards the base weights.

    Below a ``share`` of 1 members without a fitted weight stay without.

    >>> mixed(np.array([1.0, 0.0]), np.array([0.5, 0.5]), 1.0), mixed(np.array([0.8, 0.2, 0.0]), np.full(3, 1 / 3), 0.5)
    (array([0.5, 0.5]), array([0.65, 0.35, 0.  ]))
    """
    if share == 1.0:
        return base.copy()
    return (1 - share) * fitted + share * normalised(np.where(fitted > 0, base, 0.0))


def normalised(weights: Shares) -> Shares:
    """Return non-negative weights that sum to 1."""
    positive = np.maximum(weights, 0.0)
    return positive / positive.sum()
