"""Calibration, training domain and evaluation of members that share validation graphs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from hydragnn.datasets import GraphStore, Split
from hydragnn.ensemble.building.evaluation import Evaluation, Parts, evaluate_parts
from hydragnn.ensemble.building.training_domain import flag_evaluation, training_domain
from hydragnn.ensemble.calibration.protocol import AnyCalibration
from hydragnn.ensemble.domain import Domain
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.estimates import Evidence
from hydragnn.ensemble.member_outputs import MemberOutputs, member_outputs
from hydragnn.ensemble.predictions import estimates_of
from hydragnn.models import Target


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Basis:
    """Calibration and training domain, and how good the ensemble is with them."""

    calibrations: Mapping[str, AnyCalibration]
    domain: Domain
    diversity: Mapping[str, Mapping[str, float]]
    evaluation: Evaluation
    arrays: Mapping[str, NDArray[Any]]
    """The rows behind the evaluation."""


def validated(ensemble: Ensemble, store: GraphStore, split: Split, parts: Parts, nominal: float) -> Basis:
    """Return the basis on the calibration part, else on validation."""
    inputs = ensemble.needed(store)
    valid = member_outputs(ensemble.members, store, split.valid, inputs)
    separate = member_outputs(ensemble.members, store, split.calibration, inputs) if len(split.calibration) else None
    calibrations = with_calibration(ensemble, valid, separate, nominal)
    domain = training_domain(ensemble, store, split, [valid, *([separate] if separate else [])], calibrations)
    every: Parts = {"valid": (store, valid), **parts}
    evaluation, arrays = evaluate_parts(ensemble, every, calibrations, store, split, nominal)
    flagged, flags = flag_evaluation(ensemble, domain, every, calibrations)
    return Basis(
        calibrations=calibrations,
        domain=domain,
        diversity={name: one.diversity(ensemble.weights) for name, one in evidence_of(valid, ensemble.targets).items()},
        evaluation=replace(evaluation, domain=flagged),
        arrays=arrays | flags,
    )


def with_calibration(
    ensemble: Ensemble, valid: MemberOutputs, separate: MemberOutputs | None, nominal: float
) -> dict[str, AnyCalibration]:
    """Return the calibration of every field on graphs ``apart``, else on validation."""
    result: dict[str, AnyCalibration] = {}
    for target in ensemble.targets:
        own = separate.labelled(target, "calibration") if separate else None
        result[target.name] = estimates_of(target).calibration(
            target, valid.labelled(target, "valid"), own or None, ensemble.weights, nominal
        )
    return result


def evidence_of(outputs: MemberOutputs, targets: Sequence[Target]) -> dict[str, Evidence]:
    """Return predictions of all members for labelled items, for selection."""
    result: dict[str, Evidence] = {}
    for target in targets:
        use = outputs.usable(target)
        result[target.name] = estimates_of(target).evidence(
            target, outputs.labels[target.name][use], outputs.of(target, use)
        )
    return result
