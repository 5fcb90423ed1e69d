"""Read campaign, ensemble and run folders into facts."""

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
from hydragnn.ensemble import Ensemble, Evaluation, Manifest, TargetEvaluation
from hydragnn.ensemble.building.evaluation import evaluation_from_json
from hydragnn.ensemble.domain import Domain
from hydragnn.ensemble.manifest import manifest_from_json
from hydragnn.hpo import campaign_history, campaign_records, parameter_effects, parameter_importance
from hydragnn.importing.page import read_page
from hydragnn.record import RunRecord, read_record
from hydragnn.scripts.report.data_facts import data_facts, part_graphs, run_rows, units_of_branches, with_store
from hydragnn.scripts.report.facts import Campaign, ClassPoints, Data, Facts, Points, Values
from hydragnn.scripts.report.words import join
from hydragnn.training.baselines import BaselineMetrics

CERTAIN = ("target", "mean", "graph", "probability")
"""Rows of predictions without uncertainty."""
ROWS = (*CERTAIN, "std", "lower", "upper", "set", "scores", "p_values")
NOMINAL = 0.9
"""Share of values in the intervals of models that have none."""


def collect(source: Path, *, store: Path | None = None) -> Facts:
    """Return the facts on ``source``, for ensembles with their campaign.

    ``store`` is where the data lie now, if they were moved; InputError where it holds other graphs.
    """
    kind = check_kind(source, *MADE_BY).split()[-1]
    ensemble = source if kind == "ensemble" else None
    facts = ensemble_facts(source) if ensemble else Facts(kind=kind, evaluation=_evaluation({}))
    campaign = source if kind == "campaign" else _campaign_of(source, facts.manifest) if facts.manifest else None
    searched = campaign_facts(campaign) if campaign else None
    run = read_record(source) if kind == "run" else None
    records = list(_records(run, searched, facts.members))
    whole = records[0].config if records else searched.history.settings.base if searched else {}
    named = facts.branch and "branches" in whole
    resolved: Mapping[str, Any] = parse_config(dict(whole)).of_branch(facts.branch).to_json() if named else whole
    if store is not None:
        hashes = [record.of_branch(facts.branch).data_hash for record in records]
        resolved = with_store(resolved, store, next(filter(None, hashes), ""))
    data, problem = _data(resolved, ensemble, facts.manifest)
    best = searched.best if searched else None
    record = run or (searched.best_record if searched else None)
    if not facts.evaluation.parts and record is not None:
        units = {own.name: own.unit for own in data.store.fields()} if data else units_of_branches(resolved)
        facts = replace(facts, evaluation=run_evaluation(record, units))
        config = record.config if store is None else resolved
        facts = _with_points(facts, source if run or not best else best.folder, config)
    names = list(dict.fromkeys(name for scores in facts.evaluation.parts.values() for name in scores))
    names = names or [str(head["field"]) for head in heads_of(resolved)]
    title = join([name.replace("_", " ") for name in names]) or source.resolve().name
    part = facts.part
    return replace(
        facts,
        graphs=part_graphs(data.path, part) if data and part else None,
        title=title[:1].upper() + title[1:],
        folder="/".join(source.resolve().parts[-2:]),
        config=searched.history.settings.base if searched else whole,
        resolved=resolved,
        stores=_stores(whole),
        run=run,
        origin=read_page(source),
        campaign=searched,
        data=data,
        data_problem=problem,
    )


def _stores(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the store of every branch."""
    return {one["name"]: text_of(stores_from_json(one["data"]["store"])) for one in config.get("branches", [])}


def _evaluation(parts: Mapping[str, dict[str, TargetEvaluation]]) -> Evaluation:
    """Return the evaluation of a model without intervals."""
    return Evaluation(nominal=NOMINAL, parts=parts, failed={}, seconds_per_graph={})


def _campaign_of(folder: Path, manifest: Manifest) -> Path | None:
    """Return the campaign folder that an ensemble names, if present."""
    named = manifest.selection.get("campaign")
    if not isinstance(named, str) or not named:
        return None
    own = folder.resolve()
    places = [own / Path(named).name, own.parent / Path(named).name, own.parent]
    return next((p for p in places if p.name == Path(named).name and (p / "campaign.json").is_file()), None)


def _records(run: RunRecord | None, campaign: Campaign | None, members: Mapping[str, RunRecord]) -> Iterator[RunRecord]:
    """Return the records of the run, best trial, other trials and members."""
    trials = [trial for trial in (campaign.best, *campaign.history.trials) if trial] if campaign else []
    of_trials = [campaign.records.get(trial.number) for trial in trials] if campaign else []
    return filter(None, (run, *of_trials, *members.values()))


def _data(config: Mapping[str, Any], folder: Path | None, manifest: Manifest | None) -> tuple[Data | None, str]:
    """Return the data of a configuration, or a sentence why not."""
    if not config:
        return None, "no run has left a record of its training"
    if "branches" in config:
        stores = join([f"{name} ({store})" for name, store in _stores(config).items()])
        advice = "and a page shows one; make the report of a branch's ensemble"
        return None, f"there are several data sets, {stores}, {advice}"
    try:
        run = _run_config(config)
        moved = manifest.data.get("store") if manifest else None
        places = moved if isinstance(moved, list) else [moved] if moved else []
        nearby = tuple((folder / place).resolve() for place in places) if folder else ()
        return data_facts(run, nearby if nearby and absent_store(run.data.store) else run.data.store), ""
    except InputError as error:
        return None, str(error)


def campaign_facts(folder: Path) -> Campaign:
    """Return a campaign's contents; InputError where it is missing or damaged."""
    history = campaign_history(folder)
    try:
        effects = parameter_effects(history)
    except ImportError:  # the figure of importances names the package
        effects = None
    return Campaign(
        history=history,
        records={number: record for number, record, _ in campaign_records(folder)},
        importances={} if effects else parameter_importance(folder),
        effects=effects,
    )


def ensemble_facts(folder: Path) -> Facts:
    """Return an ensemble's contents; InputError where a file is missing or damaged."""
    description = read_sealed(folder / "ensemble.json")
    if isinstance(description, dict):
        description["domain"] = Domain().to_json()  # detectors are not shown, and their file may be large
    manifest = manifest_from_json(description, folder)
    evaluation = replace(_evaluation({}), nominal=manifest.nominal)
    arrays = _arrays(folder / "evaluation.npz")
    try:
        if (folder / "evaluation.json").is_file():
            evaluation = evaluation_from_json(read_sealed(folder / "evaluation.json"))
        domain = evaluation.domain if evaluation.domain.get("detectors") else {}
        excesses = {part: _floats(arrays[f"{part}/domain/scores"]) for part in domain.get("flagged", {})}
        if any(own.ndim != 2 or own.shape[1] != len(domain["detectors"]) for own in excesses.values()):
            raise ValueError("scores of the domain that do not fit its detectors")
        points = {part: _part_points(f"{part}/", scores, arrays) for part, scores in evaluation.parts.items()}
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{folder} holds a damaged evaluation ({error!r}); build the ensemble again") from error
    p_values = {part: f"{part}/domain/p_values" for part in excesses}  # ensembles of version 0.2 have none
    return Facts(
        kind="ensemble",
        manifest=manifest,
        members={
            entry.name: read_record(folder / entry.folder)
            for entry in manifest.members
            if (folder / entry.folder / "record.json").is_file()
        },
        evaluation=replace(evaluation, domain=domain),
        points=points,
        p_values={part: _floats(arrays[key]) for part, key in p_values.items() if key in arrays},
        excesses=excesses,
        branch=manifest.targets[0].branch,
    )


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


def _floats(values: Any) -> Values:
    return np.asarray(values, dtype=np.float64)


def _part_points(prefix: str, scores: Mapping[str, TargetEvaluation], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the labelled rows of all fields that have any."""
    points = {name: _points(name, one.unit, f"{prefix}{name}/", arrays) for name, one in scores.items()}
    return {name: own for name, own in points.items() if own is not None}


def _points(field: str, unit: str, prefix: str, arrays: Mapping[str, Any]) -> Points | ClassPoints | None:
    """Return the labelled rows of a field; None without any."""
    rows = {key: arrays[prefix + key] for key in ROWS if prefix + key in arrays}
    if "probability" in rows:
        return ClassPoints(
            field=field,
            target=np.asarray(rows["target"], dtype=np.int64),
            probability=_floats(rows["probability"]),
            graph=np.asarray(rows["graph"], dtype=np.int64),
            set=np.asarray(rows["set"], dtype=np.bool_) if "set" in rows else None,
        )
    if "mean" not in rows or not len(rows["target"]):
        return None
    labelled = np.isfinite(_floats(rows["target"]))
    keys = [key for key in ("target", "mean", "std", "lower", "upper") if key in rows]
    values = {key: _floats(rows[key])[labelled] for key in keys}
    return Points(field=field, unit=unit, graph=np.asarray(rows["graph"], dtype=np.int64)[labelled], **values)


def run_evaluation(record: RunRecord, units: Mapping[str, str]) -> Evaluation:
    """Return a run's errors in validation and, where evaluated, test."""
    parts: dict[str, dict[str, TargetEvaluation]] = {}
    for part, field in sorted({tuple(key.split("/")[:2]) for key in record.best if key.count("/") == 2}):
        if part in ("valid", "test"):
            prefix = f"{part}/{field}/"
            model, trivial = (
                {key.removeprefix(prefix): value for key, value in metrics.items() if key.startswith(prefix)}
                for metrics in (record.best, record.trivial)
            )
            parts.setdefault(part, {})[field] = TargetEvaluation(
                unit=units.get(field, ""), trivial=trivial, members={"model": model}, best_member="model", ensemble={}
            )
    return _evaluation(parts)


def _with_points(facts: Facts, folder: Path, table: Mapping[str, Any]) -> Facts:
    """Add validation predictions of model and baselines, if both remain."""
    valid = facts.evaluation.parts.get("valid")
    if valid is None or not (weights_folder(folder) / "model.json").is_file():
        return facts
    config = BranchedConfig.parse(table) if "branches" in table else _run_config(table)
    models = {branch.name: Ensemble.load(folder, branch=branch.name) for branch in config.branches}
    arrays: dict[str, Any] = {}
    simple: BaselineMetrics = {}
    try:
        for name, model in models.items():
            rows, errors = run_rows(model, config.of_branch(name))
            arrays |= {key: own for key, own in rows.items() if key.rpartition("/")[2] in CERTAIN}
            simple |= errors
    except InputError:
        return facts  # the store is gone, or holds something else by now
    scores = {name: replace(one, baselines=simple.get(name, {})) for name, one in valid.items()}
    return replace(
        facts,
        evaluation=replace(facts.evaluation, parts={**facts.evaluation.parts, "valid": scores}),
        points={"valid": _part_points("", scores, arrays)},
    )


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
