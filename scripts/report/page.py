"""From facts to one self-contained page."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hydragnn.hpo.scheduling.events import node_of
from hydragnn.hpo.space.default import left_out_words
from hydragnn.hpo.status.timeline import local_nodes
from hydragnn.scripts.report import (
    class_figures,
    data_figures,
    domain_figures,
    quality_figures,
    quality_tables,
    search_figures,
    tables,
    timeline_figures,
)
from hydragnn.scripts.report.architecture_table import architectures_table
from hydragnn.scripts.report.canvas import Figure, measured, plain_number, thousands
from hydragnn.scripts.report.collect import heads_of
from hydragnn.scripts.report.facts import Facts, Part
from hydragnn.scripts.report.parallel_figures import parallel_coordinates
from hydragnn.scripts.report.reproduce import reproduction
from hydragnn.scripts.report.tables import Table
from hydragnn.scripts.report.verdict import THRESHOLDS, join, pretty_unit, verdict

HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One chapter of the page: a sentence or two, figures, tables."""

    anchor: str
    title: str
    lead: str
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    folded: tuple[Table, ...] = ()
    paired: bool = False
    """Tables are narrow enough to stand side by side."""

    @property
    def empty(self) -> bool:
        """Return True where there is nothing to show but the lead."""
        return not (self.figures or self.tables or self.folded)


def page(facts: Facts, made: str) -> str:
    """The whole HTML document; ``made`` says when and by which version."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(measured=measured, svg=Markup, unit=pretty_unit)
    return environment.get_template("template.html.j2").render(
        facts=facts,
        made=made,
        css=Markup((HERE / "style.css").read_text(encoding="utf-8")),  # our own file, not a user's text
        verdict=verdict(facts),
        thresholds=THRESHOLDS,
        nominal=facts.ensemble.nominal if facts.ensemble else 0.9,
        bar=bar_width,
        sections=[section for section in chapters(facts) if section is not None],
        reproduction=reproduction(facts),
    )


def bar_width(value: float, base: float) -> str:
    """Length of an error's bar in percent of the trivial predictor's; full where the error is larger.

    >>> bar_width(1.0, 4.0), bar_width(5.0, 4.0), bar_width(1.0, 0.0)
    ('25.0', '100.0', '0')
    """
    return f"{min(100.0, 100 * value / base):.1f}" if base > 0 and math.isfinite(value) else "0"


def chapters(facts: Facts) -> list[Section | None]:
    """All chapters between the verdict and the reproduction, in order; None where one does not apply."""
    return [
        task_section(facts),
        data(facts),
        search(facts),
        time_used(facts),
        training(facts),
        members(facts),
        quality(facts),
        uncertainty(facts),
        training_domain(facts),
        worst_cases(facts),
        ablation(facts),
    ]


def present(*items: Any) -> tuple[Any, ...]:
    """The items that are there."""
    return tuple(item for item in items if item is not None)


def task_section(facts: Facts) -> Section:
    """What was asked."""
    heads = heads_of(facts.resolved)
    model = facts.resolved.get("model", {})
    names = [name for head in heads for name in (head["field"], head.get("forces"), head.get("stress")) if name]
    kinds = _model_kinds(facts) or [str(model.get("kind", "graph"))]
    sentences = [f"Predict {join(names)} with {join(kinds, 'or')} models."] if names else []
    if facts.branch:
        sentences.append(
            f"This is branch {facts.branch}: its models share their trunk with {join(facts.other_stores)}."
        )
    if facts.campaign is not None:
        count = facts.campaign.search.get("trials", len(facts.campaign.trials))
        sentences.append(
            f"Search {count} configurations for the smallest {facts.campaign.objective} (sampler: {facts.campaign.sampler})."
        )
        if facts.campaign.left_out:
            sentences.append(
                f"Architectures that cannot do this were left out: {left_out_words(facts.campaign.left_out)}."
            )
        if facts.campaign.measure != facts.campaign.objective:
            sentences.append(
                "Relative error: each field's mean absolute error divided by the trivial predictor's, averaged with the weights "
                "in brackets."
            )
    if facts.ensemble is not None:
        sentences.append(
            f"Combine {len(facts.ensemble.members)} models into an ensemble with {facts.ensemble.nominal * 100:.0f} % intervals."
        )
    space = tables.space_table(facts.campaign) if facts.campaign else None
    return Section(
        anchor="asked",
        title="What was asked",
        lead=" ".join(sentences),
        tables=present(tables.heads_table(heads) if heads else None, space),
        folded=(tables.settings_table(facts.resolved),) if facts.resolved else (),
    )


def _model_kinds(facts: Facts) -> list[str]:
    """The kinds of model that the search could choose from; empty where it had no choice."""
    space = facts.campaign.search.get("space", {}) if facts.campaign else {}
    return [str(choice) for choice in space.get("model.kind", {}).get("choices", [])]


def data(facts: Facts) -> Section:
    """Data at a glance."""
    store_facts = facts.data
    if store_facts is None:
        return Section(anchor="data", title="Data at a glance", lead=f"The data cannot be shown: {facts.data_problem}.")
    branch = (
        f"The data of branch {facts.branch} ({facts.stores[facts.branch]}): " if facts.branch in facts.stores else ""
    )
    source = str(store_facts.attributes.get("source", store_facts.attributes.get("description", "")))
    total = len(store_facts.nodes)
    lead = (
        f"{branch}{thousands(total)} graphs with {thousands(int(store_facts.nodes.sum()))} nodes and {thousands(int(store_facts.edges.sum()))} edges"
        + (f", in {store_facts.dim} dimensions. " if store_facts.dim else ", without geometry. ")
        + (f"Source: {source}. " if source else "")
        + (
            f"Compositions and targets are from an even sample of {store_facts.sampled} graphs."
            if store_facts.sampled < total
            else ""
        )
        + "".join(f" Note: {note}." for note in store_facts.notes)
    )
    return Section(
        anchor="data",
        title="Data at a glance",
        lead=lead,
        figures=present(
            data_figures.sizes(store_facts),
            data_figures.composition(store_facts),
            data_figures.targets(store_facts),
        ),
        tables=(tables.parts_table(store_facts, facts.ensemble is not None and facts.ensemble.cross_validated),),
        folded=(tables.fields_table(store_facts),),
    )


def search(facts: Facts) -> Section | None:
    """The search."""
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
        anchor="search",
        title="The search",
        lead=lead,
        figures=present(
            search_figures.history(campaign),
            search_figures.importance(campaign),
            search_figures.learning_curves(shown),
            parallel_coordinates(shown),
        ),
        tables=present(architectures_table(campaign), tables.trials_table(campaign), tables.failures_table(campaign)),
    )


def time_used(facts: Facts) -> Section | None:
    """What the nodes did, and what faults cost; None without a search or before anything ran."""
    figure = timeline_figures.nodes_over_time(facts.campaign.timeline) if facts.campaign else None
    if facts.campaign is None or figure is None:
        return None
    timeline = facts.campaign.timeline
    hours = timeline.node_hours()
    nodes = dict.fromkeys(node_of(slot) for slot in timeline.slots)
    noun = "worker" if local_nodes(nodes) else "node"
    lead = (
        f"{len(nodes)} {noun}{'' if len(nodes) == 1 else 's'}, {tables.duration(3600 * hours.allocated)} of {noun} time; "
        f"{100 * (hours.goodput or 0):.0f} % of it is training that counts (goodput)."
    )
    return Section(
        anchor="time",
        title="Where the time went",
        lead=lead,
        figures=(figure,),
        tables=present(tables.hours_table(timeline), tables.faults_table(timeline)),
    )


def training(facts: Facts) -> Section | None:
    """The training of a single run."""
    if facts.run is None:
        return None
    record = facts.run.record
    units = {str(field["name"]): str(field["unit"]) for field in facts.data.fields} if facts.data else {}
    lead = (
        f"The run is {record.status} after {record.epochs} epochs and {tables.duration(record.cost.seconds)}; "
        f"{thousands(record.parameters)} parameters"
        + (f"; best epoch {record.best['epoch']:.0f}" if "epoch" in record.best else "")
        + (f". It failed ({record.failure.kind.replace('_', ' ')}): {record.failure.message}" if record.failure else "")
        + "."
    )
    return Section(
        anchor="training",
        title="Training",
        lead=lead,
        figures=present(search_figures.run_curves(record, units)),
    )


def members(facts: Facts) -> Section | None:
    """The members of the ensemble."""
    ensemble = facts.ensemble
    if ensemble is None:
        return None
    seconds = [m.record.cost.seconds for m in ensemble.members if m.record]
    lead = [f"{len(ensemble.members)} models speak as one."]
    if ensemble.cross_validated:
        lead.append(
            "They cross-validate: every graph was held out by some and trained others, and errors of a member are those on the "
            "graphs that it held out."
        )
    selection = ensemble.description.get("selection") or {}
    if selection.get("method") and selection.get("candidates"):
        by = "CRPS, with replacement" if selection["method"] == "greedy" else str(selection.get("by", "valid/loss"))
        lead.append(f"Chosen among {selection['candidates']} finished runs ({selection['method']} by {by}).")
    if selection.get("final_seeds"):
        lead.append(f"Each configuration was trained anew with {selection['final_seeds']} seed(s).")
    if seconds:
        lead.append(f"They took {tables.duration(sum(seconds))} to train.")
    if math.isfinite(ensemble.speed):
        lead.append(
            f"Together they predict {plain_number(ensemble.speed)} graphs per second on the machine that built them."
        )
    return Section(
        anchor="members",
        title="The members",
        lead=" ".join(lead),
        tables=present(
            quality_tables.members_table(facts, ensemble),
            quality_tables.diversity_table(selection.get("diversity") or {}),
        ),
    )


def quality(facts: Facts) -> Section | None:
    """Errors, parity and error distributions of the part with the verdict."""
    part = facts.verdict_part
    if part is None:
        return None
    others = [
        table
        for name, other in facts.parts.items()
        if name != part.name
        for table in quality_tables.score_tables(other)
    ]
    return Section(
        anchor="errors",
        title="How large are the errors",
        lead="Every error stands beside the trivial predictor's, which knows only the mean of the training part (for energies "
        "with reference values: the composition; for forces: zero; for classes: their shares).",
        figures=present(
            quality_figures.error_ratios(part.scores, part.name),
            quality_figures.parity(part),
            quality_figures.errors(part),
            class_figures.confusion(part),
        ),
        tables=(*quality_tables.score_tables(part), *quality_tables.confusion_tables(part)),
        folded=tuple(others),
    )


def uncertainty(facts: Facts) -> Section | None:
    """Calibration, coverage, spread against error."""
    part = facts.verdict_part
    if part is None or facts.ensemble is None:
        return None
    nominal = facts.ensemble.nominal
    figures = present(
        quality_figures.coverage(list(facts.parts.values()), nominal),
        quality_figures.calibration(part, nominal),
        quality_figures.spread_against_error(part),
        class_figures.reliability(part),
    )

    def tables_of(one: Part) -> tuple[Table, ...]:
        return present(
            quality_tables.uncertainty_table(one, nominal), quality_tables.class_uncertainty_table(one, nominal)
        )

    if not figures and not tables_of(part):
        return None
    return Section(
        anchor="uncertainty",
        title="Does it know what it does not know",
        lead=f"Every prediction comes with a spread (between members and within each) and a {nominal * 100:.0f} % interval. "
        "Here both are held against what really happened. "
        + " ".join(f"{name}: {sentence}." for name, sentence in facts.ensemble.calibration.items()),
        figures=figures,
        tables=tables_of(part),
        folded=tuple(table for other in facts.parts.values() if other is not part for table in tables_of(other)),
    )


def training_domain(facts: Facts) -> Section | None:
    """Which graphs are unlike those of training."""
    domain = facts.ensemble.domain if facts.ensemble else None
    if domain is None:
        return None
    return Section(
        anchor="domain",
        title="Does it know where it was never trained",
        lead="Every prediction comes with a score of how unlike the training part its graph is, and with the detector that says so.",
        figures=(domain_figures.domain_scores(domain),),
        tables=(domain_figures.flags_table(domain),),
    )


def worst_cases(facts: Facts) -> Section | None:
    """The graphs with the largest errors."""
    part = facts.verdict_part
    if part is None or not part.points:
        return None
    return Section(
        anchor="worst",
        title="Worst cases",
        lead=f"The graphs of the {part.name} part with the largest errors, by their number in the store. Look at these first: "
        "wrong labels and missing physics show here.",
        paired=True,
        tables=tuple(quality_tables.worst_table(points, facts.data) for points in part.points.values()),
    )


def ablation(facts: Facts) -> Section | None:
    """What the edges are worth."""
    if not facts.ablation:
        return None
    return Section(
        anchor="ablation",
        title="Without edges",
        lead="The same configuration was trained with every edge taken away, so that no node hears of its neighbours.",
        figures=(quality_figures.ablation(facts.ablation),),
        tables=(quality_tables.ablation_table(facts.ablation),),
    )
