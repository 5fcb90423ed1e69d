"""The training domain of an ensemble, and the graphs that it flags."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from hydragnn.datasets import GraphStore
from hydragnn.ensemble.building.held_out import Setup, splits_of
from hydragnn.ensemble.domain.detector import Detector, Doubts
from hydragnn.ensemble.domain.domain import Domain, DomainScores
from hydragnn.ensemble.domain.doubts import STATES, Latent, Spread, doubts_of
from hydragnn.ensemble.domain.fitting import fitted_domain, references_of, scores_of, views
from hydragnn.ensemble.domain.kinds import OpenReferences
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.estimates.calibration.cross_validation import shares
from hydragnn.ensemble.estimates.calibration.protocol import AnyCalibration, Distance, held_out_p_values
from hydragnn.ensemble.estimates.moments import Array
from hydragnn.ensemble.estimates.predictions import estimates_of
from hydragnn.ensemble.members.latent import fitted_space
from hydragnn.ensemble.members.member import final_states
from hydragnn.ensemble.members.outputs import MemberOutputs
from hydragnn.graphs.field import ATOMIC_NUMBERS, Location
from hydragnn.models import Point
from hydragnn.runs.label_notes import open_compositions

Calibrations = Mapping[str, AnyCalibration]


def with_latent_spaces(ensemble: Ensemble, store: GraphStore) -> Ensemble:
    """Return the ensemble with the final states of training graphs fitted."""
    members = []
    for member, split in zip(ensemble.members, splits_of(ensemble.members, store), strict=True):
        batches = (view.batch for _, view in views(store, references_of(split.train), ensemble.needed(store), 1.0))
        states = ((final_states(member, one), one.owner("node"), len(one)) for one in batches)
        members.append(replace(member, latent=fitted_space(member.model.model.channels, states)))
    return Ensemble(members, ensemble.manifest, ensemble.digest)


def training_domain(
    setup: Setup, train: Int[np.ndarray, " train"], held_out: Sequence[MemberOutputs], calibrations: Calibrations
) -> tuple[Domain, DomainScores, dict[str, Distance], Sequence[MemberOutputs]]:
    """Return the domain of the graphs ``train``, and scores and growths of held-out graphs.

    Growths are by location of fields, empty if they are not known; else held-out graphs, the last value, have distances, each with the
    p-value against the others.
    """
    ensemble, store = setup.ensemble, setup.store
    alone = {name: replace(one, folds=()) for name, one in calibrations.items()}
    doubts = [(one.graphs, part_doubts(ensemble, one, alone)) for one in held_out]
    of_members = [*reference_detectors(ensemble, store, train), *detectors_of_members(ensemble)]
    needed = ensemble.needed(store)
    domain, scores = fitted_domain(store, train, doubts, ensemble.inputs, needed, of_members, setup.false_alarms)
    graphs = len(domain.rarity.held_out) if domain.rarity else 0
    if not graphs:
        return domain, scores, {}, held_out
    distances = scores.distances.copy()
    distances[:, 0] = held_out_p_values(scores.p_values, graphs)
    known = distances[~np.isnan(scores.p_values)]
    growth = {on: Distance.among(known, further=float(on == "graph")) for on in get_args(Location)}
    of_parts = np.split(distances, np.cumsum([len(one.graphs) for one in held_out])[:-1])
    return domain, scores, growth, [replace(one, distances=own) for one, own in zip(held_out, of_parts)]


def reference_detectors(ensemble: Ensemble, store: GraphStore, train: Int[np.ndarray, " train"]) -> list[Detector]:
    """Return the detector of compositions with open reference energies, if any."""
    if ATOMIC_NUMBERS not in [field.name for field in ensemble.inputs]:
        return []
    for target in ensemble.targets:
        if target.references and not target.given_references:
            elements, directions = open_compositions(store, train, target.field.name)
            if len(directions):
                return [OpenReferences(elements=elements, directions=directions)]
    return []


def detectors_of_members(ensemble: Ensemble) -> list[Detector]:
    """Return the detectors of spread and of final states."""
    alone = np.count_nonzero(ensemble.weights_of(STATES)) < 2
    doubted = [target for target in ensemble.targets if not (alone and target.distribution is Point)]
    spread = Spread(
        targets={target.name: estimates_of(target).doubt_name for target in doubted},
        per_node=tuple(target.name for target in doubted if target.extensive),
        of_graphs=tuple(target.name for target in doubted if target.field.on == "graph"),
        of_nodes=tuple(target.name for target in doubted if target.field.on == "node"),
    )
    spaces = tuple(member.latent for member in ensemble.members)
    spaces_of = [Latent(spaces=tuple(space for space in spaces if space is not None))] if None not in spaces else []
    return [*([spread] if doubted else []), *spaces_of]


def part_scores(
    ensemble: Ensemble, domain: Domain, store: GraphStore, outputs: MemberOutputs, calibrations: Calibrations
) -> DomainScores:
    """Return the scores of the graphs of a part."""
    doubts = part_doubts(ensemble, outputs, calibrations)
    return scores_of(domain, store, outputs.graphs, ensemble.needed(store), doubts)


def flag_evaluation(
    domain: Domain, scores: Mapping[str, DomainScores]
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the flagged share of every part, and the scores behind it."""
    flagged: dict[str, float] = {}
    by_detector: dict[str, dict[str, float]] = {}
    arrays: dict[str, NDArray[Any]] = {}
    names = [detector.name for detector in domain.detectors]
    for part, one in scores.items():
        flagged[part] = float(np.mean([bool(reason) for reason in one.reasons]))
        reasons = [reason.split("; ") for reason in one.reasons]
        by_detector[part] = {name: float(np.mean([name in own for own in reasons])) for name in names}
        arrays[f"{part}/domain/scores"] = np.array([*one.scores.values()]).reshape(len(names), len(one.reasons)).T
        arrays |= {f"{part}/domain/p_values": one.p_values, f"{part}/domain/further": one.distances[:, 2]}
    allowed = {"false_alarms": domain.rarity.limit if domain.rarity else 0.0, "detectors": names}
    if domain.rarity and domain.rarity.limit > domain.rarity.false_alarms:
        allowed |= {"held_out": len(domain.rarity.held_out), "asked": domain.rarity.false_alarms}
        allowed |= {"expected": domain.expected_alarms}
    return {**allowed, "flagged": flagged, "flagged_by_detector": by_detector}, arrays


def part_doubts(ensemble: Ensemble, outputs: MemberOutputs, calibrations: Calibrations) -> Doubts:
    """Return the uncertainty of members about graphs, nodes and targets."""

    def weights_of(field: str) -> Float[Array, " members"]:
        weights = ensemble.weights_of(field)
        return shares(weights, outputs.fold) if outputs.fold else weights

    estimates = {
        target.name: estimates_of(target).of(
            target, outputs.of(target), weights_of(target.name), calibrations.get(target.name), outputs.nodes(target)
        )
        for target in ensemble.targets
    }
    owners = {target.name: outputs.positions(target) for target in ensemble.targets}
    # weights of no field: members disagree whatever weighs in a field
    return doubts_of(estimates, owners, outputs.outcomes, weights_of(STATES))[0]
