"""Read campaign, ensemble and run folders into facts."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn.base.errors import InputError
from hydragnn.base.files import read_sealed
from hydragnn.base.limits import DAMAGED_ARRAYS, check_readable
from hydragnn.base.places import MADE_BY, absent_store, check_kind, stores_from_json, text_of, weights_folder
from hydragnn.config import BranchedConfig, RunConfig, parse_config
from hydragnn.ensemble.manifest import calibration_from_json
from hydragnn.hpo import TrialHistory, campaign_history, campaign_records, parameter_importance
from hydragnn.hpo.objective import THROUGHPUT
from hydragnn.models import load_model
from hydragnn.record import RunRecord, read_record
from hydragnn.scripts.report.data_facts import (
    data_facts,
    part_graphs,
    run_baselines,
    run_points,
    units_of_branches,
    with_store,
)
from hydragnn.scripts.report.facts import (
    Ablation,
    CampaignFacts,
    ClassPoints,
    DataFacts,
    DomainFacts,
    EnsembleFacts,
    Facts,
    FieldScores,
    Member,
    Part,
    Points,
    Scores,
    Trial,
    evaluation_part,
)
from hydragnn.scripts.report.words import join
from hydragnn.training.baselines import BaselineMetrics

ROWS = ("target", "mean", "graph", "std", "lower", "upper", "probability", "set", "scores", "p_values")
UNCERTAINTY = (
    *("crps", "nll", "coverage", "unknown", "interval_width", "miscalibration_area", "spearman"),
    *("set_size", "empty_sets"),
)
METRICS = (
    *("mae", "rmse", "r2", "mae_per_node"),
    *("accuracy", "balanced_accuracy", "error_rate", "auroc", "nll", "brier", "ece"),
)
"""Metrics of predictors: of numbers, and of classes."""


def collect(
    source: Path, *, campaign: Path | None = None, ensemble: Path | None = None, store: Path | None = None
) -> Facts:
    """Return the facts on ``source``, for ensembles with their campaign.

    ``store`` is where the data lie now, if they were moved; InputError where it holds other graphs.
    """
    kind = check_kind(source, *MADE_BY).split()[-1]
    ensemble = source if kind == "ensemble" else ensemble
    built = ensemble_facts(ensemble) if ensemble else None
    campaign = source if kind == "campaign" else campaign or (_campaign_of(built) if built else None)
    searched = campaign_facts(campaign) if campaign else None
    run = read_record(source) if kind == "run" else None
    records = list(_records(run, searched, built))
    whole = records[0].config if records else searched.config if searched else {}
    branch = built.branch if built else ""
    resolved = of_one_branch(whole, branch)
    if store is not None:
        hashes = [record.of_branch(branch).data_hash for record in records]
        resolved = with_store(resolved, store, next(filter(None, hashes), ""))
    data, problem = _data(resolved, built)
    parts = dict(built.parts) if built else {}
    best = searched.best if searched else None
    record = run or (best.record if best else None)
    if not parts and record is not None:
        fields = {str(field["name"]): str(field["unit"]) for field in data.fields} if data else None
        parts = record_parts(record, units_of_branches(resolved) if fields is None else fields)
        config = record.config if store is None else resolved
        parts = _with_points(parts, source if run or not best else best.folder, config)
    names = [scores.field for part in parts.values() for scores in part.scores]
    names = list(dict.fromkeys(names)) or [str(head["field"]) for head in heads_of(resolved)]
    title = join([name.replace("_", " ") for name in names]) or source.resolve().name
    part = evaluation_part(parts)
    return Facts(
        graphs=part_graphs(data.path, part) if data and part else None,
        title=title[:1].upper() + title[1:],
        kind="ensemble" if built else kind,
        folder="/".join(source.resolve().parts[-2:]),
        config=searched.config if searched else whole,
        resolved=resolved,
        branch=branch,
        stores={one["name"]: text_of(stores_from_json(one["data"]["store"])) for one in whole.get("branches", [])},
        run=run,
        campaign=searched,
        ensemble=built,
        data=data,
        data_problem=problem,
        parts=parts,
        ablation=ablation_facts(ensemble or source),
    )


def _campaign_of(ensemble: EnsembleFacts) -> Path | None:
    """Return the campaign folder that an ensemble names, if present."""
    named = ensemble.selection.get("campaign")
    if not isinstance(named, str) or not named:
        return None
    own = ensemble.folder.resolve()
    places = [own / Path(named).name, own.parent / Path(named).name, own.parent]
    return next((p for p in places if p.name == Path(named).name and (p / "campaign.json").is_file()), None)


def _records(
    run: RunRecord | None, campaign: CampaignFacts | None, ensemble: EnsembleFacts | None
) -> Iterator[RunRecord]:
    """Return the records of the run, best trial, other trials and members."""
    trials = [trial.record for trial in (campaign.best, *campaign.trials) if trial] if campaign else []
    members = [member.record for member in ensemble.members] if ensemble else []
    return filter(None, (run, *trials, *members))


def _data(config: Mapping[str, Any], ensemble: EnsembleFacts | None) -> tuple[DataFacts | None, str]:
    """Return the data of a configuration, or a sentence why not."""
    if not config:
        return None, "no run has left a record of its training"
    if "branches" in config:
        stores = join(
            [
                f"{branch['name']} ({text_of(stores_from_json(branch['data']['store']))})"
                for branch in config["branches"]
            ]
        )
        advice = "and a page shows one; make the report of a branch's ensemble"
        return None, f"there are several data sets, {stores}, {advice}"
    try:
        run = _run_config(config)
        moved = ensemble.description.get("data", {}).get("store") if ensemble else None
        places = moved if isinstance(moved, list) else [moved] if moved else []
        nearby = tuple((ensemble.folder / place).resolve() for place in places) if ensemble else ()
        return data_facts(run, nearby if nearby and absent_store(run.data.store) else run.data.store), ""
    except InputError as error:
        return None, str(error)


def campaign_facts(folder: Path) -> CampaignFacts:
    """Return a campaign's contents; InputError where it is missing or damaged."""
    history = campaign_history(folder)
    records = {number: record for number, record, _ in campaign_records(folder)}
    return CampaignFacts(
        folder=folder,
        config=history.settings.base,
        search=history.settings.search.to_json(),
        objective=objective_name(history.settings.search.objective),
        rungs=history.rungs[:-1],
        trials=tuple(_trial(trial, records.get(trial.number)) for trial in history.trials),
        importances=parameter_importance(folder),
        timeline=history.timeline,
        left_out=history.settings.left_out or {},
        sampler=history.sampler,
    )


def objective_name(objective: str | Mapping[str, float]) -> str:
    """Return the objective in words.

    >>> objective_name({"energy": 1.0, "forces": 2.0})
    'relative error (energy 1, forces 2)'
    """
    if objective == THROUGHPUT:
        return "seconds per graph"
    if isinstance(objective, str):
        return objective
    return "relative error (" + ", ".join(f"{field} {weight:g}" for field, weight in objective.items()) + ")"


def _trial(trial: TrialHistory, record: RunRecord | None) -> Trial:
    """Return a trial, without an objective if it failed or was lost."""
    ended_badly = trial.status in ("failed", "lost")
    kind, _, message = (trial.failure or "").partition(": ") if ended_badly else ("", "", "")
    return Trial(
        number=trial.number,
        folder=trial.folder,
        parameters=trial.values,
        objective=None if ended_badly else trial.value,
        record=record,
        status=trial.status,
        reason=message,
        failure_kind=kind,
        speed=trial.speed,
    )


def ablation_facts(folder: Path) -> tuple[Ablation, ...]:
    """Return the rows of ``ablation.json``, if any; InputError where damaged."""
    path = folder / "ablation.json"
    if not path.is_file():
        return ()
    try:
        return tuple(
            Ablation(
                field=str(field),
                unit=str(values.get("unit", "")),
                **{key: float(values[key]) for key in ("with_edges", "without_edges", "trivial")},
            )
            for field, values in read_sealed(path).items()
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is not an ablation ({error!r}); remove it or repeat the ablation") from error


def ensemble_facts(folder: Path) -> EnsembleFacts:
    """Return an ensemble's contents; InputError where a file is missing or damaged."""
    description = read_sealed(folder / "ensemble.json")
    evaluation = read_sealed(folder / "evaluation.json") if (folder / "evaluation.json").is_file() else {}
    arrays = _arrays(folder / "evaluation.npz")
    try:
        if not all(isinstance(description.get(key, {}), dict) for key in ("data", "selection")):
            raise TypeError("data and selection are no tables")
        nominal = float(evaluation.get("nominal", description.get("nominal", 0.9)))
        if not 0 < nominal < 1:
            raise ValueError(f"intervals that hold a share of {nominal}")
        targets = description.get("targets") or []
        return EnsembleFacts(
            folder=folder,
            nominal=nominal,
            members=tuple(_member(folder, description, number) for number in range(len(description["members"]))),
            parts={name: _part(name, fields, arrays) for name, fields in evaluation.get("parts", {}).items()},
            description=description,
            branch=str(targets[0].get("branch", "")) if targets else "",
            calibration={
                name: calibration_from_json(value).sentence
                for name, value in description.get("calibration", {}).items()
            },
            speed=_number((evaluation.get("timing") or {}).get("graphs_per_second")),
            failed={name: graphs for name, graphs in evaluation.get("failed", {}).items() if graphs},
            domain=_domain(evaluation.get("domain"), arrays),
        )
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{folder} holds a damaged ensemble ({error!r}); build it again") from error


def _arrays(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        check_readable(path)
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            every = {name: arrays[name] for name in arrays.files}  # those without use, too: a changed name is damage
    except DAMAGED_ARRAYS as error:
        words = " ".join(str(error).split())
        raise InputError(f"{path} is damaged ({words}); build the ensemble again, or use another copy") from error
    return {name: values for name, values in every.items() if name.rsplit("/", 1)[-1] in ROWS}


def _member(folder: Path, description: Mapping[str, Any], number: int) -> Member:
    entry, of_fields = description["members"][number], description.get("weights", {})
    place = folder / str(entry.get("folder", f"members/{entry['name']}"))
    record = read_record(place) if (place / "record.json").is_file() else None
    names = [str(target["field"]["name"]) for target in description["targets"]]
    weights = {name: float(of_fields[name][number] if name in of_fields else entry["weight"]) for name in names}
    return Member(name=str(entry["name"]), weights=weights, record=record)


def _part(name: str, fields: Mapping[str, Any], arrays: Mapping[str, Any]) -> Part:
    """Return one part of ``evaluation.json`` with its rows from ``evaluation.npz``."""
    points = {
        field: _points(field, str(scores.get("unit", "")), f"{name}/{field}/", arrays)
        for field, scores in fields.items()
    }
    return Part(
        name=name,
        scores=tuple(field_scores(field, scores) for field, scores in fields.items()),
        points={field: rows for field, rows in points.items() if rows is not None},
    )


def _points(field: str, unit: str, prefix: str, arrays: Mapping[str, Any]) -> Points | ClassPoints | None:
    """Return the labelled rows of a field; None without any."""
    rows = {key: arrays[prefix + key] for key in ROWS if prefix + key in arrays}
    if "probability" in rows:
        return ClassPoints(
            field=field,
            target=np.asarray(rows["target"], dtype=np.int64),
            probability=np.asarray(rows["probability"], dtype=np.float64),
            graph=np.asarray(rows["graph"], dtype=np.int64),
            set=np.asarray(rows["set"], dtype=np.bool_),
        )
    if "mean" not in rows or not len(rows["target"]):
        return None
    labelled = np.isfinite(np.asarray(rows["target"], dtype=np.float64))
    keys = [key for key in ("target", "mean", "std", "lower", "upper") if key in rows]
    values = {key: np.asarray(rows[key], dtype=np.float64)[labelled] for key in keys}
    return Points(field=field, unit=unit, graph=np.asarray(rows["graph"], dtype=np.int64)[labelled], **values)


def _domain(domain: Mapping[str, Any] | None, arrays: Mapping[str, Any]) -> DomainFacts | None:
    """Return the training domain in ``evaluation.json``; None without detectors."""
    if not domain or not domain["detectors"]:
        return None
    names = tuple(str(name) for name in domain["detectors"])
    rows = {part: np.asarray(arrays[f"{part}/domain/scores"], dtype=np.float64) for part in domain["flagged"]}
    if any(values.ndim != 2 or values.shape[1] != len(names) for values in rows.values()):
        raise ValueError("scores of the domain that do not fit its detectors")
    by_detector = domain["flagged_by_detector"].items()
    return DomainFacts(
        allowed=float(domain["false_alarms"]),
        expected=float(domain.get("expected", domain["false_alarms"])),
        flagged={part: float(share) for part, share in domain["flagged"].items()},
        by_detector={part: {name: float(shares[name]) for name in names} for part, shares in by_detector},
        scores={  # ensembles of version 0.2 have none
            part: np.asarray(arrays[f"{part}/domain/p_values"], dtype=np.float64)
            for part in rows
            if f"{part}/domain/p_values" in arrays
        },
        excesses=rows,
    )


def _scores(name: str, values: Mapping[str, Any], prefix: str = "") -> Scores:
    return Scores(name=name, values={key: _number(values[prefix + key]) for key in METRICS if prefix + key in values})


def _baselines(values: Mapping[str, Mapping[str, Any]] | None) -> tuple[Scores, ...]:
    return tuple(_scores(str(name), of) for name, of in (values or {}).items())


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def field_scores(field: str, values: Mapping[str, Any]) -> FieldScores:
    """Return one field's entry of ``evaluation.json``."""
    members = tuple(_scores(str(member["name"]), member) for member in values.get("members", []))
    best = next((member for member in members if member.name == str(values.get("best_member"))), None)
    compared = values.get("best_member") != ""  # else they predicted different graphs
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
        baselines=_baselines(values.get("baselines")),
    )


def record_parts(record: RunRecord, units: Mapping[str, str]) -> dict[str, Part]:
    """Return a run's errors in validation and, where evaluated, test."""
    parts: dict[str, Part] = {}
    for name in ("valid", "test"):
        paths = [key.split("/") for key in record.best if key.count("/") == 2]
        scores = []
        for field in sorted({field for part, field, _ in paths if part == name}):
            model = _scores("model", record.best, f"{name}/{field}/")
            trivial = _scores("trivial", record.trivial, f"{name}/{field}/")
            unit = units.get(field, "")
            scores.append(
                FieldScores(field=field, unit=unit, trivial=trivial, members=(model,), best_member=model, ensemble=None)
            )
        if scores:
            parts[name] = Part(name=name, scores=tuple(scores))
    return parts


def _with_points(parts: dict[str, Part], folder: Path, table: Mapping[str, Any]) -> dict[str, Part]:
    """Add validation predictions of the run's model and baselines, if model and store remain."""
    if "valid" not in parts or not (weights_folder(folder) / "model.json").is_file():
        return parts
    config = BranchedConfig.parse(table) if "branches" in table else _run_config(table)
    names = [branch.name for branch in config.branches]
    models = [load_model(weights_folder(folder), branch=name) for name in names]
    record = read_record(folder)
    points: dict[str, Points | ClassPoints] = {}
    simple: BaselineMetrics = {}
    try:
        for model, name in zip(models, names, strict=True):
            points |= run_points(model, config.of_branch(name))
            simple |= run_baselines(model, config.of_branch(name), record.of_branch(name).data_hash)
    except InputError:
        return parts  # the store is gone, or holds something else by now
    own = {scores.field: points[scores.field] for scores in parts["valid"].scores if scores.field in points}
    scores = tuple(replace(s, baselines=_baselines(simple.get(s.field))) for s in parts["valid"].scores)
    return {**parts, "valid": replace(parts["valid"], points=own, scores=scores)}


def of_one_branch(config: Mapping[str, Any], branch: str) -> Mapping[str, Any]:
    """Return the configuration of the named branch, or the whole one."""
    if not branch or "branches" not in config:
        return config
    return parse_config(dict(config)).of_branch(branch).to_json()


def heads_of(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tables of all heads; fields of branches as ``energy@metals``.

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
    return RunConfig.parse({key: value for key, value in config.items() if key in RunConfig.model_fields})
