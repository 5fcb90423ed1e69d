"""Numbers: mean, where its uncertainty comes from, and intervals."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from hydragnn.ensemble.estimates import metrics
from hydragnn.ensemble.estimates.calibration import numbers
from hydragnn.ensemble.estimates.calibration.cross_validation import graph_scores, shares
from hydragnn.ensemble.estimates.calibration.forms import GrowthForm, forms
from hydragnn.ensemble.estimates.calibration.numbers import Calibration, calibrated, fit_calibration
from hydragnn.ensemble.estimates.calibration.protocol import AnyCalibration, Distance, Labels, Owners, with_fold_scores
from hydragnn.ensemble.estimates.estimate import CandidateEvidence, Counts, Estimate, Labelled, Members, Weights
from hydragnn.ensemble.estimates.moments import Array, MixtureMoments, total_variance
from hydragnn.graphs.field import Field
from hydragnn.models import Distribution, Number, Point, Target


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NumberEstimate(Estimate):
    """One numeric field of all graphs, in its unit.

    Rows of graphs that failed are NaN.

    ``std`` is the calibrated standard deviation and ``epistemic`` and ``aleatoric`` are its two parts as standard
    deviations (their squares sum to that of ``std``, but for the calibration's floor and the typical spread that its form may add). Vectors and tensors have one
    uncertainty for all their components. ``lower`` and ``upper`` enclose the truth with the nominal probability; they are NaN where the graph is further from training data than
    all graphs that calibrate. Without
    a calibration the std is the members' raw one and there are no intervals (NaN). One member alone disagrees with nobody, so that its
    ``epistemic`` part is not known (NaN); where it predicts points, neither is ``aleatoric``, nor without a calibration ``std``.
    """

    quantities = ("mean", "std", "epistemic", "aleatoric", "lower", "upper")
    headline = "mean"
    scored = "mean"
    doubt_name = "std"
    score_names = ("mae", "rmse", "r2")
    ranking = "rmse"

    mean: Float[Array, "items *shape"]
    std: Float[Array, "items *shape"]
    epistemic: Float[Array, "items *shape"]
    aleatoric: Float[Array, "items *shape"]
    lower: Float[Array, "items *shape"]
    upper: Float[Array, "items *shape"]

    @classmethod
    def of(
        cls, target: Target, members: Members, weights: Weights, calibration: AnyCalibration | None, nodes: Counts
    ) -> "NumberEstimate":
        """Return the mixture of the members by the law of total variance."""
        assert calibration is None or isinstance(calibration, Calibration)
        moments, folds = moments_of(members, weights), calibration.folds if calibration is not None else ()
        of_folds = [moments_of([members[m] for m in fold.members], shares(weights, fold.members)) for fold in folds]
        values = numbers.quantities_of(target.field, calibration, moments, of_folds, nodes)
        absent = cls.absent(target, int(np.count_nonzero(weights)), calibrated=calibration is not None)
        values |= dict.fromkeys(absent, np.full_like(moments.mean, np.nan))
        return NumberEstimate(target=target, mean=moments.mean, members=member_means(members), **values)

    @classmethod
    def absent(cls, target: Target, members: int, *, calibrated: bool) -> frozenset[str]:
        """Return the quantities that one member or no calibration leaves unknown."""
        points = members == 1 and target.distribution is Point
        facts = {"std": calibrated or not points, "epistemic": members > 1, "aleatoric": not points}
        facts |= dict.fromkeys(("lower", "upper"), calibrated)
        return frozenset(name for name, is_known in facts.items() if not is_known)

    @classmethod
    def calibration(
        cls, target: Target, valid: Labelled, separate: Labelled | None, weights: Weights, nominal: float
    ) -> Calibration:
        """Return conformal intervals on a scale chosen by validation."""
        field, on, scale = target.field, separate or valid, None
        if separate and valid:
            valid_moments = moments_of(valid.members, weights)
            rows = numbers.labelled_rows(field, valid.labels, valid_moments, valid.graph, valid.nodes)
            scale = numbers.fit_scale(rows, _forms(target), by_thirds=True)
        moments = moments_of(on.members, weights)
        fitted = fit_calibration(field, on.labels, moments, on.graph, nominal=nominal, nodes=on.nodes, scale=scale)
        return replace(fitted, part="calibration" if separate else "valid")

    @classmethod
    def cross_calibration(
        cls, target: Target, folds: Sequence[Labelled], weights: Weights, nominal: float
    ) -> Calibration:
        """Return CV+ on a scale chosen by the same graphs."""
        field = target.field
        moments = [moments_of(one.members, shares(weights, one.fold)) for one in folds]
        parts = ("mean", "epistemic", "aleatoric")
        together = MixtureMoments(**{name: np.concatenate([getattr(one, name) for one in moments]) for name in parts})
        labels, graph, nodes = map(np.concatenate, zip(*((one.labels, one.graph, one.nodes) for one in folds)))
        rows = numbers.labelled_rows(field, labels, together, graph, nodes)
        scale = numbers.fit_scale(rows, _forms(target), by_thirds=True)
        fitted = fit_calibration(field, labels, together, graph, nominal=nominal, nodes=nodes, scale=scale)
        scores = [_by_graph(fitted, *_relative(field, fitted, rows, one)) for rows, one in zip(folds, moments)]
        return with_fold_scores(fitted, [one.fold for one in folds], scores)

    @classmethod
    def calibration_at(
        cls,
        target: Target,
        calibration: AnyCalibration,
        folds: Sequence[Labelled],
        weights: Weights,
        distance: Distance,
    ) -> Calibration:
        """Return the calibration with quantiles of scores at a distance."""
        assert isinstance(calibration, Calibration)
        grown, field = replace(calibration, distance=distance), target.field
        moments = [moments_of(one.members, shares(weights, one.fold)) for one in folds]
        of_folds = [_relative(field, grown, rows, one) for rows, one in zip(folds, moments)]
        relative, graph = (np.concatenate(parts) for parts in zip(*of_folds))
        columns = zip(relative.T, ~np.isnan(relative.T))
        quantiles = [numbers.conformal_quantile(own[has], graph[has], calibration.nominal)[0] for own, has in columns]
        components = (replace(one, quantile=own) for one, own in zip(grown.components, quantiles, strict=True))
        grown = replace(grown, components=tuple(components))
        if not calibration.folds:
            return grown
        return with_fold_scores(grown, [one.fold for one in folds], [_by_graph(grown, *one) for one in of_folds])

    def at(self, calibration: AnyCalibration | None, distances: Float[Array, "items three"] | None) -> "NumberEstimate":
        """Return uncertainties that grow; beyond all calibrating graphs intervals are NaN."""
        if not isinstance(calibration, Calibration) or distances is None or not calibration.distance.power:
            return self
        growth = calibration.distance.growth(distances)
        reach = np.where(calibration.distance.beyond(distances[:, 0]), np.nan, growth)
        growth, reach = (one.reshape(-1, *[1] * len(self.field.shape)) for one in (growth, reach))
        parts = {name: self[name] * growth for name in ("std", "epistemic", "aleatoric")}
        lower, upper = (self.mean + (self[end] - self.mean) * reach for end in ("lower", "upper"))
        return replace(self, lower=lower, upper=upper, **parts)

    @classmethod
    def evidence(cls, target: Target, labels: Labels, members: Members) -> CandidateEvidence:
        """Return labels and means in units of each component's spread."""
        known = np.isfinite(labels).ravel()
        columns = np.ma.masked_invalid(labels.reshape(len(labels), -1)) if not known.all() else labels
        scale = np.asarray(columns.reshape(len(labels), -1).std(axis=0)).reshape(target.field.shape)
        scale = np.where(scale > 0, scale, 1.0) if target.field.parity == "scalar" else np.asarray(scale.max() or 1.0)
        return CandidateEvidence(
            target=(labels / scale).ravel()[known],
            values=(member_means(members) / scale).reshape(len(members), -1)[:, known],
        )

    @classmethod
    def columns(cls, target: Target, quantity: str) -> list[str]:
        """Return one for each component."""
        return component_names(target.field)

    def scores(self, values: Float[Array, "items *shape"], labels: Labels) -> dict[str, float]:
        """Return MAE, RMSE and R2."""
        return metrics.point_metrics(labels.reshape(-1, self.field.width), values.reshape(-1, self.field.width))

    def uncertainty_scores(self, labels: Labels) -> dict[str, float]:
        """Return scores of the uncertainty, as far as it is known.

        The error of a vector or tensor is its length where it is compared with the spread, since both belong to the item.
        """
        labelled = np.isfinite(labels)
        y, mean, std = labels[labelled], self.mean[labelled], self.std[labelled]
        if np.isnan(std).all():
            return {}
        error, spread, axes = np.abs(labels - self.mean), self.std, numbers.turning_axes(self.field)
        if axes:
            error, spread = np.sqrt((error**2).sum(axis=axes)), self.std.mean(axis=axes)
        compared = np.isfinite(error)
        lower, upper = self.lower[labelled], self.upper[labelled]
        known = np.isfinite(upper - lower)
        intervals = {"unknown": float(np.mean(~known))}
        if known.any():
            intervals["coverage"] = float(np.mean(((lower <= y) & (y <= upper))[known]))
            intervals["interval_width"] = float(np.mean((upper - lower)[known]))
        return {
            "crps": float(np.mean(metrics.gaussian_crps(y, mean, std))),
            "nll": float(np.mean(metrics.gaussian_nll(y, mean, std))),
            **intervals,
            "miscalibration_area": metrics.miscalibration_area(y, mean, std),
            "spearman": metrics.rank_correlation(error[compared], spread[compared]),
        }

    def rows(self, labels: Labels, graph: Owners) -> dict[str, NDArray[Any]]:
        """Return target, all quantities, graph and members."""
        return {
            "target": labels.ravel(),
            **{quantity: self[quantity].ravel() for quantity in self.quantities},
            "graph": np.repeat(graph, self.field.width),
            "members": self.members.reshape(len(self.members), -1),
        }


def _relative(
    field: Field, calibration: Calibration, rows: Labelled, moments: MixtureMoments
) -> tuple[Float[Array, "rows components"], Owners]:
    """Return errors in calibrated standard deviations at a distance, with their graphs."""
    std, _, _ = calibrated(field, calibration, moments, rows.nodes)
    if rows.distances is not None:
        std = std * calibration.distance.growth(rows.distances).reshape(-1, *[1] * len(field.shape))
    relative = (np.abs(rows.labels - moments.mean) / std).reshape(-1, len(calibration.components))
    return relative, np.repeat(rows.graph, len(relative) // max(1, len(rows)))


def _by_graph(
    calibration: Calibration, relative: Float[Array, "rows components"], graph: Owners
) -> tuple[tuple[float, ...], ...]:
    return tuple(
        graph_scores(scores[known], graph[known], calibration.graphs)
        for scores, known in zip(relative.T, ~np.isnan(relative.T))
    )


def _forms(target: Target) -> list[GrowthForm]:
    return forms(target.extensive and target.field.on == "graph")


def moments_of(members: Members, weights: Weights) -> MixtureMoments:
    """Return the moments of the mixture of members with these weights."""
    variances = np.stack([_number(one).variance.numpy() for one in members])
    return total_variance(member_means(members), variances, weights)


def member_means(members: Members) -> Float[Array, "members items *shape"]:
    """Return the means of every member."""
    return np.stack([_number(one).mean.numpy() for one in members])


def component_names(field: Field) -> list[str]:
    """Return suffixes of components: none, _x _y _z, or _0 _1.

    >>> component_names(Field(name="forces", on="node", shape=(3,), parity="vector"))
    ['_x', '_y', '_z']
    """
    if not field.shape:
        return [""]
    if field.parity == "scalar" or max(field.shape) > 3:
        return [f"_{i}" for i in range(field.width)]
    return ["_" + "".join("xyz"[i] for i in index) for index in np.ndindex(*field.shape)]


def _number(one: Distribution) -> Number:
    assert isinstance(one, Number), f"{one.kind} is not a distribution of numbers"
    return one
