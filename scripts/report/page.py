"""One self-contained page of a folder, and its table for terminals."""

import math
import shlex
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import tomli_w
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hydragnn import __version__
from hydragnn.base.errors import InputError
from hydragnn.base.files import check_page_target, write_atomically
from hydragnn.base.places import text_of
from hydragnn.base.shown import visible
from hydragnn.ensemble import TargetEvaluation
from hydragnn.scripts.report import data, errors, node_time, origin, search, training, uncertainty, where
from hydragnn.scripts.report.collect import collect, ensemble_facts
from hydragnn.scripts.report.facts import Facts, better_baseline, error, is_categorical, metric, predictors, ratio
from hydragnn.scripts.report.verdict import THRESHOLDS, verdict
from hydragnn.scripts.report.words import join, measured, pretty_unit, text, with_unit
from hydragnn.scripts.showing import Result

FOLDER = Path(__file__).parent
REPORT = " – HydraGNN Ensemble</title>".encode()
"""End of the title of every report."""
CHAPTERS = (
    origin.chapter,
    *(data.task_chapter, data.chapter, search.chapter, node_time.chapter, training.chapter, training.members_chapter),
    *(errors.chapter, where.chapter, uncertainty.chapter, uncertainty.domain_chapter),
    errors.worst_chapter,
)
"""Chapters between the verdict and the reproduction, in order; each is None where it does not apply."""


def page(facts: Facts, origin: str) -> str:
    """Return the HTML document; ``origin`` has its time and version."""
    blocks: Any = {"trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, **blocks)
    environment.filters.update(measured=measured, svg=Markup, unit=pretty_unit)
    html = environment.get_template("template.html.j2").render(
        facts=facts,
        made=origin,
        css=Markup((FOLDER / "style.css").read_text(encoding="utf-8")),  # our own file, not a user's text
        verdict=verdict(facts),
        thresholds=THRESHOLDS,
        nominal=facts.evaluation.nominal,
        sections=[section for one in CHAPTERS if (section := one(facts)) is not None],
        reproduction=reproduction(facts),
    )
    return visible(html)


def write_report(
    source: Path, out: Path | None = None, *, store: Path | None = None, now: datetime | None = None
) -> Path:
    """Write one self-contained HTML file on ``source`` and return its path.

    ``source`` is the folder of a campaign, an ensemble or a run, ``out`` is ``source/report.html`` by default. An ensemble finds
    the campaign that it names. ``store`` is where the data lie now, if they were moved. InputError where the folder is none of
    these, a file of it is damaged, or ``out`` cannot be written or is something else than an earlier report.
    """
    place = source / "report.html" if out is None else out
    check_page_target(place, REPORT, "report")
    facts = collect(source, store=store)
    time = (now or datetime.now().astimezone()).strftime("%d %B %Y, %H:%M")
    write_atomically(place, page(facts, f"Made on {time} with hydragnn-ensemble {__version__}."))
    return place


def reproduction(facts: Facts) -> dict[str, Any]:
    """Return commands, configuration and provenance of everything in the report."""
    searched = {} if facts.campaign is None else {"search": facts.campaign.search}
    name = "CAMPAIGN.toml" if searched else "CONFIG.toml"
    return {
        "commands": "\n".join([*_commands(facts, name), f"hydragnn report {facts.kind.upper()}"]),
        "file_name": name,
        "toml": tomli_w.dumps(_without_none({**facts.config, **searched})),
        "provenance": _provenance(facts),
    }


def _commands(facts: Facts, name: str) -> list[str]:
    if facts.origin is not None:
        return [f"hydragnn import {shlex.quote(facts.origin.source)} --out IMPORTED"]
    lines = [f"hydragnn train {name} --out RUN"] if facts.run is not None else []
    lines += [f"hydragnn search {name} --out CAMPAIGN"] if facts.campaign is not None else []
    if facts.manifest is None:
        return lines
    branch = f" --branch {facts.branch}" if facts.branch else ""
    members, selection = facts.manifest.members, facts.manifest.selection
    if selection.get("campaign") or facts.campaign is not None:
        named = {"--final-seeds": "final_seeds", "--epochs": "final_epochs"}
        options = [f" {option} {selection[key]}" for option, key in named.items() if selection.get(key)]
        choice = f"--top-k {selection.get('k', len(members))}{''.join(options)}"
        return [*lines, f"hydragnn ensemble CAMPAIGN {choice}{branch} --out ENSEMBLE"]
    runs = [shlex.quote(member.name) for member in members]
    others = "  # the others as members/*/config.json of the ensemble say" if len(runs) > 1 else ""
    first = f"hydragnn train {name} --out {runs[0]}{others}"
    return [*lines, first, f"hydragnn ensemble {' '.join(runs)}{branch} --out ENSEMBLE"]


def _without_none(value: Any) -> Any:
    """Return the value without keys whose value is None, which TOML lacks."""
    if isinstance(value, Mapping):
        return {str(key): _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value if item is not None]
    return str(value) if isinstance(value, Path) else value


def _provenance(facts: Facts) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if facts.data is not None:
        rows += [("store", text_of(facts.data.path)), ("store fingerprint", facts.data.store.fingerprint)]
    members, campaign = list(facts.members.values()), facts.campaign
    record = facts.run or next(iter(members), campaign.best_record if campaign else None)
    if record is not None:
        if facts.data is None or record.data_hash != facts.data.store.fingerprint:
            rows.append(("data hash at training", record.data_hash))
        rows.append(("configuration hash", record.config_hash))
        rows.append(("training seed", str(record.seed)))
        rows += [(name, version) for name, version in record.versions.items()]
        rows += [(key.replace("_", " "), text(value)) for key, value in record.hardware.items()]
    sentences = dict.fromkeys(one for each in (record, *members) if each is not None for one in each.continued)
    rows.append(("continued, unlike one run of this configuration", "; ".join(sentences)))
    hashes = dict.fromkeys(member.config_hash for member in members) if len(members) > 1 else ()
    rows.append(("members' configurations", ", ".join(hashes)))
    seconds = [record.cost.cpu_seconds for record in campaign.records.values()] if campaign else []
    rows.append(("CPU time of the search", f"{sum(seconds) / 60:.1f} min" * bool(seconds)))
    return [(key, value) for key, value in rows if value]


def summary(ensemble_folder: Path) -> Result:
    """Return errors and coverage of an ensemble beside simpler predictors.

    Of the test part, else of graphs that members held out, else of validation. InputError where the folder is no ensemble or was
    never evaluated.
    """
    facts = ensemble_facts(ensemble_folder)
    part = facts.part
    if part is None:
        raise InputError(
            f"{ensemble_folder} was never evaluated (no evaluation.json); build it with data that has labels"
        )
    sets = " or set of classes" * any(map(is_categorical, part.scores.values()))
    lines = [
        f"{ensemble_folder.resolve().name}: mean absolute errors on the {part.name} part; ratio: ensemble / trivial predictor; "
        f"covered: share inside the {facts.evaluation.nominal * 100:.0f} % interval{sets}."
    ]
    lost = [f"{field} ({better})" for field, one in part.scores.items() if (better := better_baseline(one))]
    lines += [f"A simple predictor is better for {join(lost)}."] if lost else []
    lines += [f"Note: {note}." for note in facts.notes]
    return Result(value={}, table=[_row(field, one) for field, one in part.scores.items()], lines=lines)


def _row(field: str, one: TargetEvaluation) -> dict[str, str]:
    share, covered = ratio(one) if one.ensemble else math.nan, metric(one.ensemble, "coverage")
    errors = {name: measured(error(scores)) for name, scores in predictors(one).items()}
    return {
        "field": with_unit(field, one.unit),
        **dict.fromkeys(("trivial", "best simple", "best member", "ensemble"), "–") | errors,
        "ratio": f"{share:.3f}" if math.isfinite(share) else "–",
        "covered": f"{covered * 100:.1f} %" if math.isfinite(covered) else "–",
    }
