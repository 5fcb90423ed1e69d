"""One self-contained page of a campaign, an ensemble or a run."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hydragnn import __version__
from hydragnn.base.files import check_page_target, write_atomically
from hydragnn.base.shown import visible
from hydragnn.hpo.scheduling.events import node_of
from hydragnn.hpo.space.default import left_out_words
from hydragnn.scripts.report import data_figures, field_maps, quality_figures, search_figures, tables
from hydragnn.scripts.report.canvas import Figure
from hydragnn.scripts.report.collect import collect, heads_of
from hydragnn.scripts.report.facts import Facts, Scores
from hydragnn.scripts.report.reproduce import reproduction
from hydragnn.scripts.report.tables import Table
from hydragnn.scripts.report.timeline_figures import nodes_over_time
from hydragnn.scripts.report.verdict import THRESHOLDS, verdict
from hydragnn.scripts.report.words import duration, join, measured, plain_number, pretty_unit, thousands

FOLDER = Path(__file__).parent
REPORT = " – HydraGNN Ensemble</title>".encode()
"""End of the title of every report."""


@dataclass(frozen=True, slots=True)
class Section:
    """Chapter of the page; figures that are None and tables without rows are not shown."""

    anchor: str
    title: str
    lead: str
    figures: Sequence[Figure | None] = ()
    tables: Sequence[Table | None] = ()
    folded: Sequence[Table] = ()


def page(facts: Facts, made: str) -> str:
    """Return the HTML document; ``made`` says when and by which version."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(measured=measured, svg=Markup, unit=pretty_unit)
    html = environment.get_template("template.html.j2").render(
        facts=facts,
        made=made,
        css=Markup((FOLDER / "style.css").read_text(encoding="utf-8")),  # our own file, not a user's text
        verdict=verdict(facts),
        thresholds=THRESHOLDS,
        nominal=facts.nominal,
        bar=bar_width,
        sections=[chapter for make in CHAPTERS if (chapter := make(facts)) is not None],
        reproduction=reproduction(facts),
    )
    return visible(html)


def bar_width(value: float, rows: Iterable[tuple[str, Scores | None]]) -> str:
    """Return an error's bar length in percent of the largest error's of rows."""
    base = max((one.error for _, one in rows if one and math.isfinite(one.error)), default=0.0)
    return f"{100 * value / base:.1f}" if base > 0 and math.isfinite(value) else "0"


def asked(facts: Facts) -> Section:
    """Return the chapter on the task and its configuration."""
    campaign, heads = facts.campaign, heads_of(facts.resolved)
    names = [name for head in heads for name in (head["field"], head.get("forces"), head.get("stress")) if name]
    space = campaign.search.get("space", {}) if campaign else {}
    kinds = [str(choice) for choice in space.get("model.kind", {}).get("choices", [])]
    kinds = kinds or [str(facts.resolved.get("model", {}).get("kind", "graph"))]
    lead = [f"Predict {join(names)} with {join(kinds, 'or')} models."] if names else []
    if facts.branch:
        lead.append(f"This is branch {facts.branch}: its models share their trunk with {join(facts.other_stores)}.")
    if campaign is not None:
        count = campaign.search.get("trials", len(campaign.trials))
        lead.append(
            f"Search {count} configurations for the smallest {campaign.objective} (sampler: {campaign.sampler})."
        )
        if campaign.left_out:
            lead.append(f"Architectures that cannot do this were left out: {left_out_words(campaign.left_out)}.")
        if campaign.measure != campaign.objective:
            lead.append(
                "Relative error: each field's mean absolute error divided by the trivial predictor's, averaged with the weights "
                "in brackets."
            )
    if facts.ensemble is not None:
        intervals = f"{facts.nominal * 100:.0f} % intervals"
        lead.append(f"Combine {len(facts.ensemble.members)} models into an ensemble with {intervals}.")
    return Section(
        "asked",
        "What was asked",
        " ".join(lead),
        tables=[tables.heads_table(heads), tables.space_table(campaign) if campaign else None],
        folded=[tables.settings_table(facts.resolved)] if facts.resolved else (),
    )


def data(facts: Facts) -> Section:
    """Return the chapter on the data."""
    store = facts.data
    if store is None:
        return Section("data", "Data at a glance", f"The data cannot be shown: {facts.data_problem}.")
    branch = (
        f"The data of branch {facts.branch} ({facts.stores[facts.branch]}): " if facts.branch in facts.stores else ""
    )
    source = str(store.attributes.get("source", store.attributes.get("description", "")))
    total, nodes, edges = len(store.nodes), int(store.nodes.sum()), int(store.edges.sum())
    lead = (
        f"{branch}{thousands(total)} graphs with {thousands(nodes)} nodes and {thousands(edges)} edges"
        + (f", in {store.dim} dimensions. " if store.dim else ", without geometry. ")
        + (f"Source: {source}. " if source else "")
    )
    if store.sampled < total:
        lead += f"Compositions and targets are from an even sample of {store.sampled} graphs."
    return Section(
        "data",
        "Data at a glance",
        lead + "".join(f" Note: {note}." for note in store.notes),
        [data_figures.sizes(store), data_figures.composition(store), data_figures.targets(store)],
        [tables.parts_table(store, facts.ensemble is not None and facts.ensemble.cross_validated)],
        [tables.fields_table(store)],
    )


def search(facts: Facts) -> Section | None:
    """Return the chapter on the search."""
    campaign = facts.campaign
    if campaign is None:
        return None
    best = campaign.best
    lead = f"{len(campaign.trials)} trials: {tables.trial_status(campaign.trials)}. " + (
        f"The best is trial {best.number} with {campaign.objective} = {plain_number(best.objective or 0.0)}."
        if best
        else "None has a result yet."
    )
    shown = campaign.thin()
    if shown is not campaign:
        lead += f" Pictures with a line for every trial show {len(shown.trials)}: the best, and an even sample of the others."
    return Section(
        "search",
        "The search",
        lead,
        [
            search_figures.history(campaign),
            search_figures.importance(campaign),
            search_figures.learning_curves(shown),
            search_figures.parallel_coordinates(shown),
        ],
        [
            tables.architectures_table(campaign),
            tables.layouts_table(campaign),
            tables.trials_table(campaign),
            tables.failures_table(campaign),
        ],
    )


def time_used(facts: Facts) -> Section | None:
    """Return the chapter on the use of nodes; None before anything ran."""
    figure = nodes_over_time(facts.campaign.timeline) if facts.campaign else None
    if facts.campaign is None or figure is None:
        return None
    timeline = facts.campaign.timeline
    hours, noun = timeline.node_hours(), tables.noun_of(timeline)
    nodes = len(set(map(node_of, timeline.slots)))
    lead = (
        f"{nodes} {noun}{'' if nodes == 1 else 's'}, {duration(3600 * hours.allocated)} of {noun} time; "
        f"{100 * (hours.goodput or 0):.0f} % of it is training that counts (goodput)."
    )
    both = [tables.hours_table(timeline), tables.faults_table(timeline)]
    return Section("time", "Where the time went", lead, [figure], both)


def training(facts: Facts) -> Section | None:
    """Return the chapter on the training of a single run."""
    record = facts.run
    if record is None:
        return None
    lead = (
        f"The run is {record.status} after {record.epochs} epochs and {duration(record.cost.seconds)}; "
        f"{thousands(record.parameters)} parameters"
        + (f"; best epoch {record.best['epoch']:.0f}" if "epoch" in record.best else "")
        + (f". It failed ({record.failure.kind.replace('_', ' ')}): {record.failure.message}" if record.failure else "")
        + "."
    )
    figures = [search_figures.run_curves({"": record}, facts.units)]
    return Section("training", "Training", lead, figures, [tables.forgetting_table(record)])


def members(facts: Facts) -> Section | None:
    """Return the chapter on the members of the ensemble."""
    ensemble = facts.ensemble
    if ensemble is None:
        return None
    selection = ensemble.selection
    seconds = [m.record.cost.seconds for m in ensemble.members if m.record]
    lead = [f"{len(ensemble.members)} models speak as one."]
    if ensemble.cross_validated:
        lead.append(
            "They cross-validate: every graph was held out by some and trained others, and errors of a member are those on the "
            "graphs that it held out."
        )
    if selection.get("method") and selection.get("candidates"):
        by = "CRPS, with replacement" if selection["method"] == "greedy" else str(selection.get("by", "valid/loss"))
        lead.append(f"Chosen among {selection['candidates']} finished runs ({selection['method']} by {by}).")
    if selection.get("final_seeds"):
        lead.append(f"Each configuration was trained anew with {selection['final_seeds']} seed(s).")
    if seconds:
        lead.append(f"They took {duration(sum(seconds))} to train.")
    if math.isfinite(ensemble.speed):
        speed = plain_number(ensemble.speed)
        lead.append(f"Together they predict {speed} graphs per second on the machine that built them.")
    diversity = tables.diversity_table(selection.get("diversity") or {})
    both = [tables.members_table(facts, ensemble), diversity]
    curves = search_figures.run_curves({m.name: m.record for m in ensemble.members if m.record}, facts.units)
    return Section("members", "The members", " ".join(lead), [curves], both)


def quality(facts: Facts) -> Section | None:
    """Return the chapter on errors."""
    part = facts.evaluation_part
    if part is None:
        return None
    others = [other for name, other in facts.parts.items() if name != part.name]
    scores_of = partial(tables.score_table, facts)
    return Section(
        "errors",
        "How large are the errors",
        "Every error stands beside the trivial predictor's, which knows only the mean of the training part (for energies "
        "with reference values: the composition; for forces: zero; for classes: their shares), and beside those of simple "
        "baselines: a linear fit to composition, ridge and boosting on statistics of inputs, ridge on means by volume.",
        [
            quality_figures.error_ratios(part.scores, part.name),
            quality_figures.parity(part, facts.data.nodes if facts.data else None),
            quality_figures.errors(part),
            quality_figures.confusion(part),
        ],
        [scores_of(part), tables.class_table(part), *tables.confusion_tables(part)],
        [make(other) for other in others for make in (scores_of, tables.class_table)],
    )


def where(facts: Facts) -> Section | None:
    """Return the chapter on the graphs and places with errors."""
    part = facts.evaluation_part
    if part is None or not part.numbers:
        return None
    lead = f"Errors on the {part.name} part by what values have in common, and in space; all but those by size are of an even sample if graphs are many."
    groups = [tables.groups_table(facts, part, scores) for scores in part.scores]
    return (
        Section("where", "Where the errors are", lead, list(field_maps.field_maps(facts)), groups)
        if any(groups)
        else None
    )


def uncertainty(facts: Facts) -> Section | None:
    """Return the chapter on spreads and intervals."""
    part = facts.evaluation_part
    if part is None or facts.ensemble is None:
        return None
    nominal, others = facts.nominal, [other for other in facts.parts.values() if other is not part]
    chapter = Section(
        "uncertainty",
        "Does it know what it does not know",
        f"Every prediction comes with a spread (between members and within each) and a {nominal * 100:.0f} % interval. "
        "Here both are held against what really happened. "
        + " ".join(f"{name}: {sentence}." for name, sentence in facts.ensemble.calibration.items()),
        [
            quality_figures.coverage(list(facts.parts.values()), nominal),
            quality_figures.calibration(part, nominal),
            quality_figures.spread_against_error(part),
            quality_figures.reliability(part),
        ],
        tables.uncertainty_tables(part, nominal),
        [table for other in others for table in tables.uncertainty_tables(other, nominal)],
    )
    return chapter if any(chapter.figures) or any(chapter.tables) else None


def training_domain(facts: Facts) -> Section | None:
    """Return the chapter on graphs that are unlike those of training."""
    domain = facts.ensemble.domain if facts.ensemble else None
    if domain is None:
        return None
    return Section(
        "domain",
        "Does it know where it was never trained",
        "Every prediction comes with a score of how unlike the training part its graph is, and with the detector that says so.",
        [quality_figures.domain_scores(domain)],
        [tables.flags_table(domain)],
    )


def worst_cases(facts: Facts) -> Section | None:
    """Return the chapter on the graphs with the largest errors."""
    part = facts.evaluation_part
    if part is None or not part.numbers:
        return None
    return Section(
        "worst",
        "Worst cases",
        f"The graphs of the {part.name} part with the largest errors, by their number in the store. Look at these first: "
        "wrong labels and missing physics show here.",
        tables=[tables.worst_table(points, facts) for points in part.numbers.values()],
    )


def ablation(facts: Facts) -> Section | None:
    """Return the chapter on trainings without edges."""
    if not facts.ablation:
        return None
    return Section(
        "ablation",
        "Without edges",
        "The same configuration was trained with every edge taken away, so that no node hears of its neighbours.",
        [quality_figures.ablation(facts.ablation)],
        [tables.ablation_table(facts.ablation)],
    )


CHAPTERS = (
    asked,
    data,
    search,
    time_used,
    training,
    members,
    quality,
    where,
    uncertainty,
    training_domain,
    worst_cases,
    ablation,
)
"""Chapters between the verdict and the reproduction, in order; each is None where it does not apply."""


def write_report(
    source: Path,
    out: Path | None = None,
    *,
    campaign: Path | None = None,
    ensemble: Path | None = None,
    store: Path | None = None,
    now: datetime | None = None,
) -> Path:
    """Write one self-contained HTML file on ``source`` and return its path.

    ``source`` is the folder of a campaign, an ensemble or a run, ``out`` is ``source/report.html`` by default. An ensemble finds
    the campaign that it names. ``store`` is where the data lie now, if they were moved. InputError where the folder is none of
    these, a file of it is damaged, or ``out`` cannot be written or is something else than an earlier report.
    """
    place = source / "report.html" if out is None else out
    check_page_target(place, REPORT, "report")
    facts = collect(source, campaign=campaign, ensemble=ensemble, store=store)
    time = (now or datetime.now().astimezone()).strftime("%d %B %Y, %H:%M")
    write_atomically(place, page(facts, f"Made on {time} with hydragnn-ensemble {__version__}."))
    return place
