"""Calibration, training domain and evaluation, by validation graphs or by cross-validation.

In an ensemble by cross-validation, graphs calibrate only members that have not seen them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.datasets import Budget
from hydragnn.ensemble.building.evaluation import HELD_OUT, Evaluation, Part, evaluate_parts, target_rows
from hydragnn.ensemble.building.held_out import Fold, Parts, Setup
from hydragnn.ensemble.building.training_domain import (
    flag_evaluation,
    growth_among,
    part_doubts,
    part_scores,
    training_domain,
)
from hydragnn.ensemble.building.weights import fitted_weights
from hydragnn.ensemble.domain import Domain, Doubts
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.estimates.calibration.cross_validation import shares
from hydragnn.ensemble.estimates.calibration.protocol import NO_GROWTH, AnyCalibration, Distance
from hydragnn.ensemble.estimates.estimate import Estimate, FoldLabels
from hydragnn.ensemble.estimates.moments import Array
from hydragnn.ensemble.estimates.predictions import estimates_of
from hydragnn.ensemble.members.outputs import MemberOutputs, member_outputs
from hydragnn.ensemble.reading.structures import reads_atoms
from hydragnn.models import Target
from hydragnn.training import errors_of_folds, trivial_predictor
from hydragnn.training.baselines import Baselines, baseline_errors, fitted_baselines


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Basis:
    """Calibration and training domain, and the evaluation of the ensemble with them."""

    calibrations: Mapping[str, AnyCalibration]
    domain: Domain
    diversity: Mapping[str, Mapping[str, float]]
    evaluation: Evaluation
    arrays: Mapping[str, NDArray[Any]]
    """The rows behind the evaluation."""


def weighted(setup: Setup) -> tuple[Setup, MemberOutputs]:
    """Return the setup with weights, and predictions of validation graphs.

    These set weights by field; simple predictors with one are members.
    """
    ensemble, simple = setup.ensemble, simple_members(setup)
    manifest = replace(ensemble.manifest, simple=simple)
    valid = replace(setup, ensemble=ensemble.with_manifest(manifest)).outputs(setup.split.valid)
    weights = fitted_weights(valid, ensemble.targets, ensemble.weights)
    names = {field: name for field, own in simple.fitted.items() for name in own if weights.get(field, (0,))[-1] > 0}
    weights = {field: own if field in names else own[: len(ensemble.members)] for field, own in weights.items()}
    manifest = replace(manifest, weights=weights, simple=simple.only(names))
    valid = replace(valid, simple={field: valid.simple[field] for field in names})
    return replace(setup, ensemble=ensemble.with_manifest(manifest)), valid


def simple_members(setup: Setup) -> Baselines:
    """Return the best simple predictor of every number.

    Best on validation graphs. None where graphs may lack inputs or edges, of classes, of nodes that are atoms, and of what grows with
    graphs, such as energies: sums over nodes extrapolate to larger graphs, and counts of neighbours jump. None of what has the meaning
    and the unit of an input on nodes or edges either: a roll-out may feed it back, and only models roll out.
    """
    ensemble, baselines = setup.ensemble, setup.baselines
    have_edges = any(one.model.description.edges for one in ensemble.members)
    is_optional = any(field.name in ensemble.optional for field in baselines.features.inputs)
    if is_optional or not have_edges or not all(one.config.data.edges for one in ensemble.members):
        return Baselines()
    are_atoms, meanings = reads_atoms(ensemble.manifest), {field.meaning for field in ensemble.inputs}
    targets = [
        one
        for one in ensemble.targets
        if not (one.extensive or one.field.classes)
        and (one.field.on == "graph" or not (are_atoms or one.field.meaning in meanings))
    ]
    errors = baseline_errors([(baselines, setup.split.valid)], setup.store, targets)
    return baselines.only({field: min(own, key=lambda name: own[name]["mae"] or 0.0) for field, own in errors.items()})


def validated(setup: Setup, parts: Parts, valid: MemberOutputs | None = None) -> Basis:
    """Return the basis on the calibration part, else on validation.

    ``valid`` are predictions of validation graphs, where they are there already.
    """
    ensemble, store, split = setup.ensemble, setup.store, setup.split
    held_out: dict[str, MemberOutputs] = {"valid": valid or setup.outputs(split.valid)}
    if len(split.calibration):
        held_out["calibration"] = setup.outputs(split.calibration)
    valid, separate = held_out["valid"], held_out.get("calibration")
    calibrations: dict[str, AnyCalibration] = {}
    for target in ensemble.targets:
        own = separate.labelled(target) if separate else None
        calibrations[target.name] = estimates_of(target).calibration(
            target, valid.labelled(target), own or None, ensemble.weights_of(target.name), setup.nominal
        )
    doubts = [part_doubts(ensemble.targets, one, ensemble.weights_of, calibrations) for one in held_out.values()]
    graphs = [one.graphs for one in held_out.values()]
    domain, own_scores = training_domain(setup, split.train, [*zip(graphs, doubts)])
    every: Parts = {"valid": valid, **parts}
    scores = {part: part_scores(ensemble, domain, store, outputs, calibrations) for part, outputs in every.items()}
    growth, of_graphs = growth_among(domain, own_scores)
    if growth:
        distances = dict(zip(held_out, np.split(of_graphs, np.cumsum([*map(len, graphs)])[:-1])))
        for target in ensemble.targets:
            fitted, weights_of = calibrations[target.name], ensemble.weights_of(target.name)
            rows = held_out[fitted.part].labelled(target, distances[fitted.part])
            folds = [FoldLabels(members=tuple(range(len(rows.members))), rows=rows)]
            distance = growth[target.field.on]
            calibrations[target.name] = estimates_of(target).calibration_at(target, fitted, folds, weights_of, distance)
    evaluation, arrays = evaluate_parts(setup, every, calibrations, scores)
    flagged, flags = flag_evaluation(domain, scores)
    return Basis(
        calibrations=calibrations,
        domain=domain,
        diversity={
            target.name: estimates_of(target)
            .evidence(target, rows.labels, rows.members)
            .diversity(ensemble.weights_of(target.name))
            for target in ensemble.targets
            for rows in [valid.labelled(target)]
        },
        evaluation=replace(evaluation, domain=flagged),
        arrays=arrays | flags,
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FoldOutputs:
    """Predictions of the members of a fold for its graphs."""

    fold: Fold
    outputs: MemberOutputs
    distances: Float[Array, "graphs three"] | None = None

    def labelled(self, target: Target) -> FoldLabels:
        """Return the usable items of a target."""
        return FoldLabels(members=self.fold.members, rows=self.outputs.labelled(target, self.distances))


def cross_validated(setup: Setup, parts: Parts, folds: Sequence[Fold]) -> Basis:
    """Return the basis on all graphs that some members have not seen."""
    ensemble, store, nominal = setup.ensemble, setup.store, setup.nominal
    members, inputs = ensemble.members, ensemble.needed(store)
    of_every_fold = tuple(
        FoldOutputs(fold=fold, outputs=member_outputs([members[m] for m in fold.members], store, fold.graphs, inputs))
        for fold in folds
    )
    calibrations = {
        target.name: estimates_of(target).cross_calibration(
            target, _with_labels(target, of_every_fold), ensemble.weights, nominal
        )
        for target in ensemble.targets
    }
    alone = {name: calibration.without_folds() for name, calibration in calibrations.items()}

    def doubts(one: FoldOutputs) -> Doubts:
        own = one.fold.members
        return part_doubts(ensemble.targets, one.outputs, lambda name: shares(ensemble.weights_of(name), own), alone)

    everything = np.setdiff1d(np.arange(len(store)), setup.split.test)
    domain, scores = training_domain(setup, everything, [(one.fold.graphs, doubts(one)) for one in of_every_fold])
    of_parts = {part: part_scores(ensemble, domain, store, outputs, calibrations) for part, outputs in parts.items()}
    growth, of_graphs = growth_among(domain, scores)
    if growth:
        of_folds = np.split(of_graphs, np.cumsum([len(one.fold.graphs) for one in of_every_fold])[:-1])
        of_every_fold = tuple(replace(one, distances=own) for one, own in zip(of_every_fold, of_folds))
        calibrations = {
            target.name: estimates_of(target).calibration_at(
                target,
                calibrations[target.name],
                _with_labels(target, of_every_fold),
                ensemble.weights,
                growth[target.field.on],
            )
            for target in ensemble.targets
        }
    held_out, rows = held_out_evaluation(setup, of_every_fold, growth)
    evaluation, arrays = evaluate_parts(setup, parts, calibrations, of_parts)
    flagged, flags = flag_evaluation(domain, {**of_parts, HELD_OUT: scores})
    failures = {graph: why for one in of_every_fold for graph, why in one.outputs.failures.items()}
    return Basis(
        calibrations=calibrations,
        domain=domain,
        diversity=fold_diversity(ensemble, of_every_fold),
        evaluation=Evaluation(
            nominal=nominal,
            parts={HELD_OUT: held_out, **evaluation.parts},
            failed={HELD_OUT: failures, **evaluation.failed},
            seconds_per_graph=fold_seconds(of_every_fold, ensemble.names),
            domain=flagged,
        ),
        arrays=rows | arrays | flags,
    )


def _with_labels(target: Target, folds: Sequence[FoldOutputs]) -> list[FoldLabels]:
    labelled = [one.labelled(target) for one in folds]
    some = [one for one in labelled if len(one.rows)]
    if not some:
        raise InputError(
            f"field {target.name} has no labelled graph to calibrate on; leave it out or label some graphs"
        )
    return some


def held_out_estimate(
    target: Target,
    folds: Sequence[FoldLabels],
    weights: Float[Array, " members"],
    nominal: float,
    distance: Distance = NO_GROWTH,
) -> Estimate:
    """Return estimates for held-out graphs, each calibrated on the other folds."""
    estimates = []
    for fold in folds:
        others = [one for one in folds if one is not fold]
        calibration = estimates_of(target).cross_calibration(target, others, weights, nominal)
        calibration = (
            estimates_of(target).calibration_at(target, calibration, others, weights, distance).without_folds()
        )
        own = shares(weights, fold.members)
        one = estimates_of(target).of(target, fold.rows.members, own, calibration, fold.rows.nodes)
        one = one.at(calibration, fold.rows.distances)
        estimates.append(one.spread_members(fold.members, len(weights)))
    return type(estimates[0]).join_parts(estimates)


def held_out_evaluation(
    setup: Setup, folds: Sequence[FoldOutputs], growth: Mapping[str, Distance]
) -> tuple[Part, dict[str, NDArray[Any]]]:
    """Return scores of the cross-validated ensemble and its members, with rows.

    The trivial predictor and simple baselines are fitted without the fold, too. A target with labels in one fold alone is left out.
    """
    ensemble, store = setup.ensemble, setup.store
    everything = np.setdiff1d(np.arange(len(store)), setup.split.test)
    predictors, simple = [], []
    for one in folds:
        model, graphs = ensemble.members[one.fold.members[0]].model, one.fold.graphs
        learnt = np.setdiff1d(everything, graphs)
        fine = np.setdiff1d(graphs, np.array(sorted(one.outputs.failures), dtype=np.int64))
        if len(fine):
            predictors.append((trivial_predictor(store, learnt, model.targets, model.normalisation), fine))
            simple.append((fitted_baselines(store, learnt, model.targets, model.inputs), fine))
    trivial = errors_of_folds(predictors, store, ensemble.targets, Budget(max_graphs=1024))
    baselines = baseline_errors(simple, store, ensemble.targets)
    metrics: Part = {}
    arrays: dict[str, NDArray[Any]] = {}
    for target in ensemble.targets:
        labelled = _with_labels(target, folds)
        if len(labelled) < 2:
            continue
        distance = growth.get(target.field.on, NO_GROWTH)
        estimate = held_out_estimate(target, labelled, ensemble.weights, setup.nominal, distance)
        rows = [fold.rows for fold in labelled]
        metrics[target.name], own = target_rows(estimate, rows, ensemble.names, trivial, baselines)
        arrays |= {f"{HELD_OUT}/{name}": values for name, values in own.items()}
    return metrics, arrays


def fold_diversity(ensemble: Ensemble, folds: Sequence[FoldOutputs]) -> dict[str, dict[str, float]]:
    """Return the mean diversity over folds of several members."""
    result: dict[str, dict[str, float]] = {}
    for target in ensemble.targets:
        values = [
            estimates_of(target)
            .evidence(target, one.rows.labels, one.rows.members)
            .diversity(shares(ensemble.weights, one.members))
            for one in _with_labels(target, folds)
            if len(one.members) > 1
        ]
        if values:
            result[target.name] = {key: float(np.mean([one[key] for one in values])) for key in values[0]}
    return result


def fold_seconds(folds: Sequence[FoldOutputs], names: Sequence[str]) -> dict[str, float]:
    """Return seconds per graph of every member; the mean where unknown."""
    seconds, graphs = np.zeros(len(names)), np.zeros(len(names))
    for one in folds:
        members = list(one.fold.members)
        seconds[members] += one.outputs.seconds
        graphs[members] += len(one.fold.graphs)
    per_graph = np.where(graphs > 0, seconds, seconds.sum()) / np.where(graphs > 0, graphs, graphs.sum())
    return dict(zip(names, per_graph.tolist()))
