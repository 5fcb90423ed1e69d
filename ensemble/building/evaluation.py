"""Scores of an ensemble beside its members and the trivial predictor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as member
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from hydragnn.base.errors import InputError, as_note
from hydragnn.base.shown import Shown
from hydragnn.datasets import Budget, GraphStore
from hydragnn.ensemble.building.held_out import Parts, Setup
from hydragnn.ensemble.domain import DomainScores
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.estimates.calibration.protocol import AnyCalibration
from hydragnn.ensemble.estimates.estimate import Estimate, Labelled, Metrics, TargetEvaluation
from hydragnn.ensemble.estimates.metrics import point_metrics, volume_scores
from hydragnn.ensemble.estimates.moments import Array
from hydragnn.ensemble.estimates.predictions import estimates_of
from hydragnn.ensemble.members.outputs import PERSISTENCE, MemberOutputs
from hydragnn.ensemble.uses.foreign import Baseline
from hydragnn.models import Target
from hydragnn.training import errors_on, trivial_predictor
from hydragnn.training.baselines import VOLUME, baseline_errors
from hydragnn.training.class_metrics import values_of

VERSION = 1
"""Version of ``evaluation.json``."""
HELD_OUT: Final = "held-out"
"""The part in which every graph is predicted by the members that have not seen it, of ensembles by cross-validation."""

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})

Part = dict[str, TargetEvaluation]
"""Scores by target; a target without labels is absent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation(Shown):
    """Scores of an ensemble: ``evaluation.parts["test"]["energy"].ensemble["rmse"]``."""

    nominal: float
    """Fraction of labels that intervals and sets are meant to cover."""
    parts: Mapping[str, Part]
    """``valid``, ``test`` and other stores by their names; ``all`` where one store was evaluated. Of an ensemble by
    cross-validation ``held-out`` instead of ``valid``: every graph is predicted by the members that have not seen it."""
    failed: Mapping[str, Mapping[int, str]]
    """Reasons of graphs that could not be predicted, by part and number in the store."""
    seconds_per_graph: Mapping[str, float]
    """Time of every member."""
    domain: Mapping[str, Any] = member(default_factory=dict)
    """The share of every part that is flagged as outside the training domain, in all and by every detector."""

    @property
    def graphs_per_second(self) -> float:
        """Return the speed of all members one after the other."""
        return 1.0 / max(sum(self.seconds_per_graph.values()), 1e-12)

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``evaluation.json``."""
        return {
            "version": VERSION,
            "nominal": self.nominal,
            "parts": {part: {name: one.to_json() for name, one in of.items()} for part, of in self.parts.items()},
            "failed": {part: {str(graph): why for graph, why in of.items()} for part, of in self.failed.items()},
            "timing": {"seconds_per_graph": dict(self.seconds_per_graph), "graphs_per_second": self.graphs_per_second},
            **({"domain": dict(self.domain)} if self.domain else {}),
        }

    @property
    def caveat(self) -> str:
        """Return a sentence where held-out graphs are too few; else empty."""
        if "expected" not in self.domain:
            return ""
        return (
            f"{self.domain['held_out']} held-out graphs are too few for {self.domain['asked'] * 100:g} % false alarms: about "
            f"{self.domain['expected'] * 100:.0f} % of graphs like those of training are flagged and have no interval; a larger "
            "validation or calibration part makes them rarer"
        )

    def __str__(self) -> str:
        """Return the scores on the test part, or on the first part."""
        part = "test" if "test" in self.parts else next(iter(self.parts))
        return f"{part}: " + "; ".join(f"{name} {one}" for name, one in self.parts[part].items())


def evaluation_from_json(value: Mapping[str, Any]) -> Evaluation:
    """Return the evaluation of ``to_json``; KeyError, TypeError or ValueError on anything else."""
    nominal, parts = float(value["nominal"]), value["parts"]
    if not 0 < nominal < 1:
        raise ValueError(f"intervals that hold a share of {nominal}")
    failed = value.get("failed", {})
    return Evaluation(
        nominal=nominal,
        parts={part: {name: target_evaluation(one) for name, one in of.items()} for part, of in parts.items()},
        failed={part: {int(graph): str(why) for graph, why in of.items()} for part, of in failed.items()},
        seconds_per_graph=value.get("timing", {}).get("seconds_per_graph", {}),
        domain=value.get("domain", {}),
    )


def target_evaluation(value: Mapping[str, Any]) -> TargetEvaluation:
    """Return the scores of one target that ``to_json`` wrote."""
    return TargetEvaluation(
        unit=value["unit"],
        trivial=value["trivial"],
        members={one["name"]: {key: score for key, score in one.items() if key != "name"} for one in value["members"]},
        best_member=value["best_member"],
        ensemble=value["ensemble"],
        confusion=tuple(tuple(map(int, row)) for row in value.get("confusion", ())),
        baselines=value.get("baselines", {}),
    )


def part_evaluation(
    model: Ensemble | Baseline,
    outputs: MemberOutputs,
    calibrations: Mapping[str, AnyCalibration] = NOTHING,
    trivial: Mapping[str, Metrics] = NOTHING,
    baselines: Mapping[str, Mapping[str, Metrics]] = NOTHING,
    climatologies: Mapping[str, Array] = NOTHING,
) -> tuple[Part, dict[str, NDArray[Any]]]:
    """Return scores of every target on one part, with their rows.

    Rows are the labelled items with their components flattened. A target without labels in this part is left out.
    """
    metrics: Part = {}
    arrays: dict[str, NDArray[Any]] = {}
    for target in model.targets:
        rows, weights = outputs.labelled(target), model.weights_of(target.name)
        if not len(rows):
            continue
        calibration = calibrations.get(target.name)
        one = estimates_of(target).of(target, rows.members, weights, calibration, rows.nodes)
        one = one.at(calibration, rows.distances)
        metrics[target.name], own = target_rows(one, [rows], model.names, trivial, baselines)
        arrays |= own
        if outputs.weights and target.field.on == "node" and not target.field.classes:
            usual = climatologies.get(target.field.name)
            metrics[target.name] = with_fields(metrics[target.name], target, outputs, model.names, weights, usual)
    if not metrics:
        raise InputError(
            "this part of the data has no labelled graph that could be predicted; give the split a larger fraction"
        )
    return metrics, arrays


def with_fields(
    one: TargetEvaluation,
    target: Target,
    outputs: MemberOutputs,
    names: Sequence[str],
    weights: Float[Array, " members"],
    usual: Array | None,
) -> TargetEvaluation:
    """Return the evaluation with scores by volumes, persistence and climatology."""
    use, width = outputs.usable(target), target.field.width
    known = {PERSISTENCE: outputs.weights.get(f"{PERSISTENCE} {target.field.name}")}
    if usual is not None and {*outputs.nodes_per_graph.tolist()} == {len(usual)}:
        known["climatology"] = np.concatenate([usual] * len(outputs.graphs))
    simple = {name: values[use] for name, values in known.items() if values is not None}
    labels, volumes = outputs.labels[target.name][use], outputs.weights.get(VOLUME)

    def scores(mean: Array) -> dict[str, float]:
        return {} if volumes is None else volume_scores(labels, mean, volumes[use], simple.get("climatology"))

    means = [own.tensors()["mean"].double().numpy() for own in outputs.of(target, use)]
    members = {own: {**one.members[own], **scores(mean)} for own, mean in zip(names, means) if own in one.members}
    ensemble = {**one.ensemble, **scores(np.tensordot(weights, means, 1))} if one.ensemble else one.ensemble
    baselines = dict(one.baselines)
    for name, values in simple.items():
        if np.isfinite(values).all():
            rows = point_metrics(labels.reshape(-1, width), values.reshape(-1, width))
            baselines[name] = {**rows, **scores(values)}
    return replace(one, members={**one.members, **members}, ensemble=ensemble, baselines=baselines)


def climatologies_of(
    store: GraphStore, train: Int[np.ndarray, " graphs"], targets: Sequence[Target]
) -> dict[str, Array]:
    """Return training means by node; empty where graphs have other nodes."""
    fields, sizes = {field.name for field in store.fields()}, store.sizes().nodes
    if VOLUME not in fields or len({*sizes.tolist()}) > 1 or not len(train):
        return {}
    first, last = (store.read(np.array([number]), []).positions for number in (0, len(store) - 1))
    if not bool((first == last).all()):
        return {}
    own = [one.field for one in targets if one.field.on == "node" and not one.field.classes]
    values = {field: values_of(field, store, train)[0].astype(np.float64) for field in own}
    rows = {field: np.ma.masked_invalid(one.reshape(-1, sizes[0], *field.shape)) for field, one in values.items()}
    return {field.name: np.ma.filled(one.mean(axis=0), np.nan) for field, one in rows.items()}


def target_rows(
    estimate: Estimate,
    parts: Sequence[Labelled],
    names: Sequence[str],
    trivial: Mapping[str, Metrics],
    baselines: Mapping[str, Mapping[str, Metrics]],
) -> tuple[TargetEvaluation, dict[str, NDArray[Any]]]:
    """Return the scores of an estimate of these items, with their rows."""
    name = estimate.target.name
    labels, nodes, graph = (np.concatenate(own) for own in zip(*((one.labels, one.nodes, one.graph) for one in parts)))
    scores = estimate.evaluation(labels, nodes, names, trivial.get(name, {}), baselines.get(name, {}))
    return scores, {f"{name}/{what}": values for what, values in estimate.rows(labels, graph).items()}


def evaluate_parts(
    setup: Setup, parts: Parts, calibrations: Mapping[str, AnyCalibration], scores: Mapping[str, DomainScores]
) -> tuple[Evaluation, dict[str, NDArray[Any]]]:
    """Return the evaluation of all parts, and the rows behind it.

    ``scores`` are those of the parts in the training domain.
    """
    ensemble, model = setup.ensemble, setup.ensemble.members[0].model
    trivial = trivial_predictor(setup.store, setup.split.train, model.targets, model.normalisation)
    climatologies = climatologies_of(setup.store, setup.split.train, model.targets)
    metrics: dict[str, Part] = {}
    arrays: dict[str, NDArray[Any]] = {}
    for part, outputs in parts.items():
        fine = np.setdiff1d(outputs.graphs, np.array(sorted(outputs.failures), dtype=np.int64))
        baseline = errors_on(trivial, setup.store, fine, model.targets, Budget(max_graphs=1024)) if len(fine) else {}
        baselines = baseline_errors([(setup.baselines, fine)], setup.store, model.targets) if len(fine) else {}
        metrics[part], rows = part_evaluation(
            ensemble,
            replace(outputs, distances=scores[part].distances),
            calibrations,
            baseline,
            baselines,
            climatologies,
        )
        arrays |= {f"{part}/{name}": values for name, values in rows.items()}
    return joint_evaluation(ensemble.names, parts, metrics, setup.nominal), arrays


def with_baselines(
    evaluation: Evaluation,
    baselines: Sequence[Baseline],
    store: GraphStore,
    parts: Mapping[str, Int[np.ndarray, " graphs"]],
) -> Evaluation:
    """Return the evaluation with scores of calculators beside the simple predictors."""
    scores = {part: dict(of_targets) for part, of_targets in evaluation.parts.items()}
    for baseline in baselines:
        (who,) = baseline.names
        for part, of_targets in scores.items():
            with as_note(f"baseline {who} has no errors of {part}"):
                own, _ = part_evaluation(baseline, baseline.outputs(store, parts[part]))
                for name in own.keys() & of_targets.keys():
                    every = {**of_targets[name].baselines, who: own[name].members[who]}
                    of_targets[name] = replace(of_targets[name], baselines=every)
    return replace(evaluation, parts=scores)


def joint_evaluation(
    names: Sequence[str], parts: Mapping[str, MemberOutputs], metrics: Mapping[str, Part], nominal: float
) -> Evaluation:
    """Return the metrics of parts with failures and times."""
    graphs = max(1, sum(len(outputs.graphs) for outputs in parts.values()))
    seconds = (sum(own) / graphs for own in zip(*(outputs.seconds for outputs in parts.values())))
    failed = {part: outputs.failures for part, outputs in parts.items()}
    return Evaluation(nominal=nominal, parts=metrics, failed=failed, seconds_per_graph=dict(zip(names, seconds)))
