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
from hydragnn.ensemble.building.training_domain import flag_evaluation, part_scores, training_domain
from hydragnn.ensemble.building.weights import fitted_weights
from hydragnn.ensemble.domain import Domain
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.estimates.calibration.cross_validation import shares
from hydragnn.ensemble.estimates.calibration.protocol import NO_GROWTH, AnyCalibration, Distance
from hydragnn.ensemble.estimates.estimate import Estimate, Labelled
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
        data = (valid.labelled(target), own or None, ensemble.weights_of(target.name), setup.nominal)
        calibrations[target.name] = estimates_of(target).calibration(target, *data)
    domain, _, growth, outputs = training_domain(setup, split.train, [*held_out.values()], calibrations)
    every: Parts = {"valid": valid, **parts}
    scores = {part: part_scores(ensemble, domain, store, one, calibrations) for part, one in every.items()}
    at_distances = dict(zip(held_out, outputs))
    for target in ensemble.targets if growth else ():
        fitted, weights_of = calibrations[target.name], ensemble.weights_of(target.name)
        rows, distance = [at_distances[fitted.part].labelled(target)], growth[target.field.on]
        calibrations[target.name] = estimates_of(target).calibration_at(target, fitted, rows, weights_of, distance)
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


def cross_validated(setup: Setup, parts: Parts, folds: Sequence[Fold]) -> Basis:
    """Return the basis on all graphs that some members have not seen."""
    ensemble, store, nominal = setup.ensemble, setup.store, setup.nominal
    members, inputs = ensemble.members, ensemble.needed(store)
    outputs: Sequence[MemberOutputs] = [
        replace(member_outputs([members[m] for m in one.members], store, one.graphs, inputs), fold=one.members)
        for one in folds
    ]
    calibrations: dict[str, AnyCalibration] = {}
    for target in ensemble.targets:
        rows = _with_labels(target, outputs)
        calibrations[target.name] = estimates_of(target).cross_calibration(target, rows, ensemble.weights, nominal)
    everything = np.setdiff1d(np.arange(len(store)), setup.split.test)
    domain, scores, growth, outputs = training_domain(setup, everything, outputs, calibrations)
    of_parts = {part: part_scores(ensemble, domain, store, one, calibrations) for part, one in parts.items()}
    for target in ensemble.targets if growth else ():
        rows, distance = _with_labels(target, outputs), growth[target.field.on]
        calibrations[target.name] = estimates_of(target).calibration_at(
            target, calibrations[target.name], rows, ensemble.weights, distance
        )
    held_out, own = held_out_evaluation(setup, outputs, growth)
    evaluation, arrays = evaluate_parts(setup, parts, calibrations, of_parts)
    flagged, flags = flag_evaluation(domain, {**of_parts, HELD_OUT: scores})
    failures = {graph: why for one in outputs for graph, why in one.failures.items()}
    return Basis(
        calibrations=calibrations,
        domain=domain,
        diversity=fold_diversity(ensemble, outputs),
        evaluation=Evaluation(
            nominal=nominal,
            parts={HELD_OUT: held_out, **evaluation.parts},
            failed={HELD_OUT: failures, **evaluation.failed},
            seconds_per_graph=fold_seconds(outputs, ensemble.names),
            domain=flagged,
        ),
        arrays=own | arrays | flags,
    )


def _with_labels(target: Target, folds: Sequence[MemberOutputs]) -> list[Labelled]:
    some = [rows for one in folds if len(rows := one.labelled(target))]
    if not some:
        raise InputError(
            f"field {target.name} has no labelled graph to calibrate on; leave it out or label some graphs"
        )
    return some


def held_out_estimate(
    target: Target,
    folds: Sequence[Labelled],
    weights: Float[Array, " members"],
    nominal: float,
    distance: Distance = NO_GROWTH,
) -> Estimate:
    """Return estimates for held-out graphs, each calibrated on the other folds."""
    estimates = []
    for fold in folds:
        others = [one for one in folds if one is not fold]
        calibration = estimates_of(target).cross_calibration(target, others, weights, nominal)
        calibration = estimates_of(target).calibration_at(target, calibration, others, weights, distance)
        calibration = replace(calibration, folds=())  # around the prediction of this fold
        one = estimates_of(target).of(target, fold.members, shares(weights, fold.fold), calibration, fold.nodes)
        one = one.at(calibration, fold.distances)
        every = np.full((len(weights), *one.members.shape[1:]), np.nan)
        every[list(fold.fold)] = one.members
        estimates.append(replace(one, members=every))
    return type(estimates[0]).join_parts(estimates)


def held_out_evaluation(
    setup: Setup, folds: Sequence[MemberOutputs], growth: Mapping[str, Distance]
) -> tuple[Part, dict[str, NDArray[Any]]]:
    """Return scores of the cross-validated ensemble and its members, with rows.

    The trivial predictor and simple baselines are fitted without the fold, too. A target with labels in one fold alone is left out.
    """
    ensemble, store = setup.ensemble, setup.store
    everything = np.setdiff1d(np.arange(len(store)), setup.split.test)
    predictors, simple = [], []
    for one in folds:
        model, learnt = ensemble.members[one.fold[0]].model, np.setdiff1d(everything, one.graphs)
        fine = np.setdiff1d(one.graphs, np.array(sorted(one.failures), dtype=np.int64))
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
        metrics[target.name], own = target_rows(estimate, labelled, ensemble.names, trivial, baselines)
        arrays |= {f"{HELD_OUT}/{name}": values for name, values in own.items()}
    return metrics, arrays


def fold_diversity(ensemble: Ensemble, folds: Sequence[MemberOutputs]) -> dict[str, dict[str, float]]:
    """Return the mean diversity over folds of several members."""
    result: dict[str, dict[str, float]] = {}
    for target in ensemble.targets:
        values = [
            estimates_of(target).evidence(target, one.labels, one.members).diversity(shares(ensemble.weights, one.fold))
            for one in _with_labels(target, folds)
            if len(one.fold) > 1
        ]
        if values:
            result[target.name] = {key: float(np.mean([one[key] for one in values])) for key in values[0]}
    return result


def fold_seconds(folds: Sequence[MemberOutputs], names: Sequence[str]) -> dict[str, float]:
    """Return seconds per graph of every member; the mean where unknown."""
    seconds, graphs = np.zeros(len(names)), np.zeros(len(names))
    for one in folds:
        seconds[list(one.fold)] += one.seconds
        graphs[list(one.fold)] += len(one.graphs)
    per_graph = np.where(graphs > 0, seconds, seconds.sum()) / np.where(graphs > 0, graphs, graphs.sum())
    return dict(zip(names, per_graph.tolist()))
