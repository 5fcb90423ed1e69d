"""The training domain of an ensemble, and the graphs that it flags."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from hydragnn.datasets import GraphStore, Split, SplitSettings, make_split
from hydragnn.ensemble.calibration.protocol import AnyCalibration
from hydragnn.ensemble.domain import (
    FALSE_ALARMS,
    STATES,
    Detector,
    Domain,
    Latent,
    Spread,
    fitted_domain,
    graph_doubts,
    references_of,
    scores_of,
    state_doubts,
    views,
)
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.latent import LatentFit
from hydragnn.ensemble.member_outputs import MemberOutputs
from hydragnn.ensemble.members import final_states
from hydragnn.ensemble.predictions import estimates_of
from hydragnn.ensemble.uncertainty import Array
from hydragnn.models import Target

Calibrations = Mapping[str, AnyCalibration]


def with_latent_spaces(ensemble: Ensemble, store: GraphStore) -> Ensemble:
    """Return the ensemble with the final states of training graphs fitted."""
    splits: list[tuple[SplitSettings, Split]] = []
    members = []
    for member in ensemble.members:
        split = next((split for settings, split in splits if settings == member.config.split), None)
        if split is None:
            split = make_split(store, member.config.split)
            splits.append((member.config.split, split))
        fit = LatentFit(member.model.model.channels)
        for _, view in views(store, references_of(split.train), ensemble.needed(store), 1.0):
            fit.show(final_states(member, view.batch))
        members.append(replace(member, latent=fit.space()))
    return Ensemble(members, ensemble.manifest, ensemble.digest)


def training_domain(
    ensemble: Ensemble,
    store: GraphStore,
    split: Split,
    held_out: Sequence[MemberOutputs],
    calibrations: Calibrations,
) -> Domain:
    """Return the domain of the training part, with thresholds from held-out parts."""
    of_members = detectors_of_members(ensemble, calibrations)
    of_parts = [part_doubts(ensemble.targets, outputs, ensemble.weights_of, calibrations) for outputs in held_out]
    doubts = {name: np.concatenate([one[name] for one in of_parts]) for name in of_parts[0]}
    graphs = np.concatenate([outputs.graphs for outputs in held_out])
    return fitted_domain(store, split.train, graphs, ensemble.inputs, ensemble.needed(store), doubts, of_members)


def detectors_of_members(ensemble: Ensemble, calibrations: Calibrations) -> list[Detector]:
    """Return the detectors of spread and of final states."""
    followed = [target for target in ensemble.targets if calibrations[target.name].follows]
    spread = Spread(
        targets={target.name: estimates_of(target).doubt_name for target in followed},
        per_node=tuple(target.name for target in followed if target.extensive),
    )
    spaces = tuple(member.latent for member in ensemble.members)
    spaces_of = [Latent(spaces=tuple(space for space in spaces if space is not None))] if None not in spaces else []
    return [*([spread] if followed else []), *spaces_of]


def flag_evaluation(
    ensemble: Ensemble,
    domain: Domain,
    parts: Mapping[str, tuple[GraphStore, MemberOutputs]],
    calibrations: Calibrations,
    spaces_of: Mapping[str, Array] | None = None,
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the flagged share of every part, and the scores behind it.

    The scores of some parts, graphs by detectors, may be ``known``.
    """
    flagged: dict[str, float] = {}
    by_detector: dict[str, dict[str, float]] = {}
    arrays: dict[str, NDArray[Any]] = {}
    names = [detector.name for detector in domain.detectors]
    rows_of = dict(spaces_of or {})
    for part, (store, outputs) in parts.items():
        doubts = part_doubts(ensemble.targets, outputs, ensemble.weights_of, calibrations)
        scores = scores_of(domain, store, outputs.graphs, ensemble.needed(store), doubts)
        rows_of[part] = np.array([*scores.values()]).reshape(len(scores), len(outputs.graphs)).T
    for part, rows in rows_of.items():
        flagged[part] = float((rows > 1).any(axis=1).mean())
        by_detector[part] = {name: float((values > 1).mean()) for name, values in zip(names, rows.T, strict=True)}
        arrays[f"{part}/domain/scores"] = rows
    allowed = {"false_alarms": FALSE_ALARMS, "detectors": names}
    return {**allowed, "flagged": flagged, "flagged_by_detector": by_detector}, arrays


def part_doubts(
    targets: Sequence[Target],
    outputs: MemberOutputs,
    weights_of: Callable[[str], Float[Array, " members"]],
    calibrations: Calibrations,
) -> dict[str, Float[Array, " graphs"]]:
    """Return the uncertainty of members with these weights, per graph and target."""
    estimates = {
        target.name: estimates_of(target).of(
            target, outputs.of(target), weights_of(target.name), calibrations.get(target.name), outputs.nodes(target)
        )
        for target in targets
    }
    owners = {target.name: outputs.positions(target) for target in targets}
    return graph_doubts(estimates, owners, len(outputs.graphs)) | state_doubts(outputs.outcomes, weights_of(STATES))
