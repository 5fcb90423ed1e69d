"""The training domain of an ensemble, and what it flags in the parts of its data."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from hydragnn.datasets import GraphStore, Split
from hydragnn.ensemble.domain import FALSE_ALARMS, Domain, Spread, fitted_domain, graph_doubts, scores_of
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.estimates import AnyCalibration
from hydragnn.ensemble.member_outputs import MemberOutputs
from hydragnn.ensemble.predictions import estimates_of
from hydragnn.ensemble.uncertainty import Array

Calibrations = Mapping[str, AnyCalibration]


def training_domain(
    ensemble: Ensemble,
    store: GraphStore,
    split: Split,
    held_out: Sequence[MemberOutputs],
    calibrations: Calibrations,
) -> Domain:
    """The domain of the training part, with thresholds from all parts that no member was trained on."""
    followed = [target for target in ensemble.targets if calibrations[target.name].follows]
    spread = Spread(
        targets={target.name: estimates_of(target).doubt_name for target in followed},
        per_node=tuple(target.name for target in followed if target.extensive),
    )
    of_parts = [part_doubts(ensemble, outputs, calibrations) for outputs in held_out]
    doubts = {name: np.concatenate([one[name] for one in of_parts]) for name in of_parts[0]}
    graphs = np.concatenate([outputs.graphs for outputs in held_out])
    return fitted_domain(store, split.train, graphs, ensemble.inputs, ensemble.needed(store), doubts, spread)


def flag_evaluation(
    ensemble: Ensemble,
    domain: Domain,
    parts: Mapping[str, tuple[GraphStore, MemberOutputs]],
    calibrations: Calibrations,
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The share of every part that is flagged, in all and by every detector, and the scores behind it as PART/domain/scores."""
    flagged: dict[str, float] = {}
    by_detector: dict[str, dict[str, float]] = {}
    arrays: dict[str, NDArray[Any]] = {}
    for part, (store, outputs) in parts.items():
        doubts = part_doubts(ensemble, outputs, calibrations)
        scores = scores_of(domain, store, outputs.graphs, ensemble.needed(store), doubts)
        rows = np.array([*scores.values()]).reshape(len(scores), len(outputs.graphs)).T
        flagged[part] = float((rows > 1).any(axis=1).mean())
        by_detector[part] = {name: float((values > 1).mean()) for name, values in scores.items()}
        arrays[f"{part}/domain/scores"] = rows
    names = [detector.name for detector in domain.detectors]
    allowed = {"false_alarms": FALSE_ALARMS, "detectors": names}
    return {**allowed, "flagged": flagged, "flagged_by_detector": by_detector}, arrays


def part_doubts(
    ensemble: Ensemble, outputs: MemberOutputs, calibrations: Calibrations
) -> dict[str, Float[Array, " graphs"]]:
    """How unsure the ensemble is about every graph, by target."""
    estimates = {
        target.name: estimates_of(target).of(
            target, outputs.of(target), ensemble.weights, calibrations.get(target.name), outputs.nodes(target)
        )
        for target in ensemble.targets
    }
    owners = {target.name: outputs.positions(target) for target in ensemble.targets}
    return graph_doubts(estimates, owners, len(outputs.graphs))
