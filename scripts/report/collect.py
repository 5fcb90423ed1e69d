"""Reading campaign, ensemble and run folders into facts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hydragnn.base.errors import InputError
from hydragnn.base.files import DAMAGED_ARRAYS, read_sealed
from hydragnn.config import BranchedConfig, RunConfig, parse_config
from hydragnn.ensemble.calibration.reading import calibration_from_json
from hydragnn.models import load_model
from hydragnn.record import RunRecord, read_record
from hydragnn.scripts.report.ablation_facts import ablation_facts
from hydragnn.scripts.report.campaign_facts import campaign_facts
from hydragnn.scripts.report.data_facts import data_facts, units_of_branches, with_store
from hydragnn.scripts.report.domain_figures import domain_facts
from hydragnn.scripts.report.facts import (
    CampaignFacts,
    ClassPoints,
    DataFacts,
    EnsembleFacts,
    Facts,
    FieldScores,
    Member,
    Part,
    Points,
    RunFacts,
    Scores,
    Values,
)
from hydragnn.scripts.report.run_points import run_points
from hydragnn.scripts.report.verdict import join

Kind = Literal["ensemble", "campaign", "run"]
MARKS: dict[str, Kind] = {"ensemble.json": "ensemble", "campaign.json": "campaign", "record.json": "run"}
ROWS = ("target", "mean", "graph", "std", "lower", "upper", "probability", "set", "scores")
UNCERTAINTY = (
    *("crps", "nll", "coverage", "interval_width", "miscalibration_area", "spearman"),
    *("set_size", "empty_sets"),
)
METRICS = (
    *("mae", "rmse", "r2"),
    *("accuracy", "balanced_accuracy", "error_rate", "auroc", "nll", "brier", "ece"),
)
"""What predictors are compared by: numbers, and classes."""


def folder_kind(folder: Path) -> Kind:
    """What made a folder; InputError where it is none of the three.

    The order matters: an ensemble's member holds a record, an ensemble may lie inside a campaign.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} does not exist or is no folder; give the --out of an earlier command")
    for mark, kind in MARKS.items():
        if (folder / mark).is_file():
            return kind
    raise InputError(
        f"{folder} is neither a campaign, an ensemble nor a run (no {', '.join(MARKS)}); give the --out of an earlier command"
    )


def collect(
    source: Path, *, campaign: Path | None = None, ensemble: Path | None = None, store: Path | None = None
) -> Facts:
    """Everything that the report on ``source`` shows; companions are used where they are given or known.

    ``store`` is where the data lie now, if they were moved; InputError where it holds other graphs.
    """
    kind = folder_kind(source)
    campaign = source if kind == "campaign" else campaign
    ensemble = source if kind == "ensemble" else ensemble
    ensemble_part = ensemble_facts(ensemble) if ensemble else None
    campaign = campaign or (_campaign_of(ensemble_part) if ensemble_part else None)
    searched = campaign_facts(campaign) if campaign else None
    run = RunFacts(folder=source, record=read_record(source)) if kind == "run" else None
    whole, branch = _resolved(ensemble_part, searched, run), ensemble_part.branch if ensemble_part else ""
    resolved = of_one_branch(whole, branch)
    if store is not None:
        resolved = with_store(resolved, store, _data_hash(ensemble_part, searched, run, branch))
    data, problem = _data(resolved, ensemble_part)
    units = {str(field["name"]): str(field["unit"]) for field in data.fields} if data else units_of_branches(resolved)
    parts = dict(ensemble_part.parts) if ensemble_part else {}
    record = run.record if run else searched.best.record if searched and searched.best else None
    if not parts and record is not None:
        parts = record_parts(record, units)
        there = record if store is None else replace(record, config=dict(resolved))
        parts = _with_points(
            parts, source if run else searched.best.folder if searched and searched.best else source, there
        )
    return Facts(
        title=_title(source, parts, resolved),
        kind="ensemble" if ensemble_part else kind,
        folder="/".join(source.resolve().parts[-2:]),
        config=searched.config if searched else whole,
        resolved=resolved,
        branch=branch,
        stores={one["name"]: str(one["data"]["store"]) for one in whole.get("branches", [])},
        run=run,
        campaign=searched,
        ensemble=ensemble_part,
        data=data,
        data_problem=problem,
        parts=parts,
        ablation=ablation_facts(ensemble or source),
    )


def _title(source: Path, parts: Mapping[str, Part], config: Mapping[str, Any]) -> str:
    """What is predicted, as a heading; the folder's name where that is unknown."""
    names = [scores.field for part in parts.values() for scores in part.scores]
    names = list(dict.fromkeys(names)) or [str(head["field"]) for head in heads_of(config)]
    title = join([name.replace("_", " ") for name in names]) or source.resolve().name
    return title[:1].upper() + title[1:]


def _campaign_of(ensemble: EnsembleFacts) -> Path | None:
    """The campaign that an ensemble names, if it lies in the ensemble's folder or beside it."""
    named = (ensemble.description.get("selection") or {}).get("campaign")
    if not isinstance(named, str) or not named:
        return None
    here = ensemble.folder.resolve()
    places = [place / Path(named).name for place in (here, here.parent)] + [here.parent]
    return next((p for p in places if p.name == Path(named).name and (p / "campaign.json").is_file()), None)


def _records(ensemble: EnsembleFacts | None, campaign: CampaignFacts | None, run: RunFacts | None) -> list[RunRecord]:
    """The records of all runs, first those that speak for all: of the run, of the best trial, of the first member that has one."""
    trials = [trial.record for trial in (campaign.best, *campaign.trials) if trial] if campaign else []
    members = [member.record for member in ensemble.members] if ensemble else []
    return [record for record in (run.record if run else None, *trials, *members) if record is not None]


def _resolved(
    ensemble: EnsembleFacts | None, campaign: CampaignFacts | None, run: RunFacts | None
) -> Mapping[str, Any]:
    """A complete configuration that speaks for all; that of the campaign where no run has one."""
    records = _records(ensemble, campaign, run)
    return records[0].config if records else campaign.config if campaign else {}


def _data_hash(
    ensemble: EnsembleFacts | None, campaign: CampaignFacts | None, run: RunFacts | None, branch: str
) -> str:
    """The hash of the data that the runs were trained on; empty where none says so."""
    hashes = [record.of_branch(branch).data_hash for record in _records(ensemble, campaign, run)]
    return next(filter(None, hashes), "")


def _data(config: Mapping[str, Any], ensemble: EnsembleFacts | None) -> tuple[DataFacts | None, str]:
    """The data behind the configuration, or one sentence on why it cannot be shown."""
    if not config:
        return None, "no run has left a record of its training"
    if "branches" in config:
        stores = [f"{branch['name']} ({branch['data']['store']})" for branch in config["branches"]]
        return (
            None,
            f"there are several data sets, {join(stores)}, and a page shows one; make the report of a branch's ensemble",
        )
    try:
        run = _run_config(config)
        moved = ensemble.description.get("data", {}).get("store") if ensemble else None
        beside = (ensemble.folder / moved).resolve() if ensemble and moved else run.data.store
        return data_facts(run, run.data.store if run.data.store.exists() else beside), ""
    except InputError as error:
        return None, str(error)


def ensemble_facts(folder: Path) -> EnsembleFacts:
    """An ensemble folder; InputError where a file of it is missing or damaged."""
    description = read_sealed(folder / "ensemble.json")
    evaluation = read_sealed(folder / "evaluation.json") if (folder / "evaluation.json").is_file() else {}
    arrays = _arrays(folder / "evaluation.npz")
    try:
        if not all(isinstance(description.get(key, {}), dict) for key in ("data", "selection")):
            raise TypeError("data and selection are no tables")
        nominal = float(evaluation.get("nominal", description.get("nominal", 0.9)))
        if not 0 < nominal < 1:
            raise ValueError(f"intervals that hold a share of {nominal}")
        members = tuple(_member(folder, entry) for entry in description["members"])
        parts = {
            name: Part(
                name=name,
                scores=tuple(field_scores(field, scores) for field, scores in fields.items()),
                points=_all_points(name, fields, arrays),
                class_points=_class_points(name, fields, arrays),
            )
            for name, fields in evaluation.get("parts", {}).items()
        }
        return EnsembleFacts(
            folder=folder,
            nominal=nominal,
            members=members,
            parts=parts,
            description=description,
            branch=_branch_of(description.get("targets") or []),
            calibration={
                name: calibration_from_json(value).sentence
                for name, value in description.get("calibration", {}).items()
            },
            speed=_number((evaluation.get("timing") or {}).get("graphs_per_second")),
            failed={name: graphs for name, graphs in evaluation.get("failed", {}).items() if graphs},
            domain=domain_facts(evaluation, arrays),
        )
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{folder} holds a damaged ensemble ({error!r}); build it again") from error


def _arrays(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            every = {name: arrays[name] for name in arrays.files}  # those without use, too: a changed name is damage
    except DAMAGED_ARRAYS as error:
        words = " ".join(str(error).split())
        raise InputError(f"{path} is damaged ({words}); build the ensemble again, or use another copy") from error
    return {name: values for name, values in every.items() if name.rsplit("/", 1)[-1] in ROWS}


def _member(folder: Path, entry: Mapping[str, Any]) -> Member:
    place = folder / str(entry.get("folder", f"members/{entry['name']}"))
    record = read_record(place) if (place / "record.json").is_file() else None
    return Member(name=str(entry["name"]), weight=float(entry["weight"]), record=record)


def _scores(name: str, values: Mapping[str, Any]) -> Scores:
    return Scores(name=name, values={key: _number(values[key]) for key in METRICS if key in values})


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def field_scores(field: str, values: Mapping[str, Any]) -> FieldScores:
    """One field's entry of ``evaluation.json``."""
    members = tuple(_scores(str(member["name"]), member) for member in values.get("members", []))
    best = next((member for member in members if member.name == str(values.get("best_member"))), None)
    compared = values.get("best_member") != ""  # else they were asked about different graphs
    ensemble = values.get("ensemble") or {}
    return FieldScores(
        field=field,
        unit=str(values.get("unit", "")),
        trivial=_scores("trivial", values.get("trivial") or {}),
        members=members,
        best_member=best or (min(members, key=lambda member: member.error, default=None) if compared else None),
        ensemble=_scores("ensemble", ensemble) if ensemble else None,
        uncertainty={key: float(ensemble[key]) for key in UNCERTAINTY if isinstance(ensemble.get(key), int | float)},
        confusion=tuple(tuple(int(count) for count in row) for row in values.get("confusion", [])),
    )


def _all_points(part: str, fields: Mapping[str, Any], arrays: Mapping[str, Any]) -> dict[str, Points]:
    points_of: dict[str, Points] = {}
    for field, scores in fields.items():
        prefix = f"{part}/{field}/"
        if f"{prefix}mean" not in arrays:
            continue
        rows = {key: arrays.get(prefix + key) for key in ("std", "lower", "upper")}
        floats = {key: None if value is None else np.asarray(value, dtype=np.float64) for key, value in rows.items()}
        points = Points(
            field=field,
            unit=str(scores.get("unit", "")),
            target=np.asarray(arrays[f"{prefix}target"], dtype=np.float64),
            mean=np.asarray(arrays[f"{prefix}mean"], dtype=np.float64),
            graph=np.asarray(arrays[f"{prefix}graph"], dtype=np.int64),
            **floats,
        )
        if len(points.target):
            points_of[field] = _labelled(points)
    return points_of


def _class_points(part: str, fields: Mapping[str, Any], arrays: Mapping[str, Any]) -> dict[str, ClassPoints]:
    return {
        field: ClassPoints(
            field=field,
            target=np.asarray(arrays[f"{part}/{field}/target"], dtype=np.int64),
            probability=np.asarray(arrays[f"{part}/{field}/probability"], dtype=np.float64),
            graph=np.asarray(arrays[f"{part}/{field}/graph"], dtype=np.int64),
            set=np.asarray(arrays[f"{part}/{field}/set"], dtype=np.bool_),
        )
        for field in fields
        if f"{part}/{field}/probability" in arrays
    }


def _labelled(points: Points) -> Points:
    """The rows that have a target: a missing label is NaN."""
    known = np.isfinite(points.target)
    if known.all():
        return points

    def first_rows(values: Values | None) -> Values | None:
        return None if values is None else values[known]

    return replace(
        points,
        target=points.target[known],
        mean=points.mean[known],
        graph=points.graph[known],
        std=first_rows(points.std),
        lower=first_rows(points.lower),
        upper=first_rows(points.upper),
    )


def record_parts(record: RunRecord, units: Mapping[str, str]) -> dict[str, Part]:
    """The errors that a single run kept, as parts: validation always, test where it was evaluated."""
    parts: dict[str, Part] = {}
    for name in ("valid", "test"):
        fields = sorted(
            {key.split("/")[1] for key in record.best if key.startswith(f"{name}/") and key.count("/") == 2}
        )
        if fields:
            scores = tuple(_record_scores(record, name, field, units.get(field, "")) for field in fields)
            parts[name] = Part(name=name, scores=scores)
    return parts


def _with_points(parts: dict[str, Part], folder: Path, record: RunRecord) -> dict[str, Part]:
    """The validation part with predictions of the run's own model, where the run still has model and store; InputError where the model is damaged."""
    if "valid" not in parts or not (folder / "model" / "model.json").is_file():
        return parts
    points = _points_of_branches(folder, record)
    known = {scores.field for scores in parts["valid"].scores}
    own = {name: values for name, values in points.items() if name in known}
    numbers = {name: values for name, values in own.items() if isinstance(values, Points)}
    classes = {name: values for name, values in own.items() if isinstance(values, ClassPoints)}
    return {**parts, "valid": replace(parts["valid"], points=numbers, class_points=classes)}


def _points_of_branches(folder: Path, record: RunRecord) -> dict[str, Points | ClassPoints]:
    """What the run's model says about validation graphs, of every branch."""
    branched = "branches" in record.config
    config = BranchedConfig.parse(record.config) if branched else _run_config(record.config)
    names = [branch.name for branch in config.branches]
    models = [load_model(folder / "model", branch=name) for name in names]
    try:
        every = [run_points(model, config.of_branch(name)) for model, name in zip(models, names, strict=True)]
    except InputError:
        return {}  # the store is gone, or holds something else by now
    return {name: points for each in every for name, points in each.items()}


def _branch_of(targets: Sequence[Mapping[str, Any]]) -> str:
    """The branch that an ensemble predicts; empty where there are no branches."""
    return str(targets[0].get("branch", "")) if targets else ""


def of_one_branch(config: Mapping[str, Any], branch: str) -> Mapping[str, Any]:
    """The configuration as an ensemble of one branch sees it; that of all where no branch is named."""
    if not branch or "branches" not in config:
        return config
    return parse_config(dict(config)).of_branch(branch).to_json()


def heads_of(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tables of all heads, with their targets' names: ``energy@metals`` where there are branches.

    >>> heads_of({"branches": [{"name": "metals", "heads": [{"field": "energy", "forces": None}]}]})
    [{'field': 'energy@metals', 'forces': None}]
    """
    heads = [dict(head) for head in config.get("heads", [])]
    for branch in config.get("branches", []):
        for head in branch["heads"]:
            named = {key: f"{head[key]}@{branch['name']}" for key in ("field", "forces", "stress") if head.get(key)}
            heads.append({**head, **named})
    return heads


def _run_config(config: Mapping[str, Any]) -> RunConfig:
    known = {key: value for key, value in config.items() if key in RunConfig.model_fields}
    return RunConfig.parse(known)


def _record_scores(record: RunRecord, part: str, field: str, unit: str) -> FieldScores:
    def scores(name: str, values: Mapping[str, float]) -> Scores:
        known = {key: values.get(f"{part}/{field}/{key}") for key in METRICS}
        return _scores(name, {key: value for key, value in known.items() if value is not None})

    model = scores("model", record.best)
    return FieldScores(
        field=field,
        unit=unit,
        trivial=scores("trivial", record.trivial),
        members=(model,),
        best_member=model,
        ensemble=None,
    )
