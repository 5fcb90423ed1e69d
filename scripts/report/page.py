"""One self-contained page of a campaign, an ensemble or a run."""

from datetime import datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hydragnn import __version__
from hydragnn.base.files import check_page_target, write_atomically
from hydragnn.base.shown import visible
from hydragnn.scripts.report import (
    ablation,
    data,
    domain,
    errors,
    members,
    node_time,
    search,
    task,
    training,
    uncertainty,
    where,
    worst,
)
from hydragnn.scripts.report.collect import collect
from hydragnn.scripts.report.facts import Facts
from hydragnn.scripts.report.reproduce import reproduction
from hydragnn.scripts.report.verdict import THRESHOLDS, verdict
from hydragnn.scripts.report.words import measured, pretty_unit

FOLDER = Path(__file__).parent
REPORT = " – HydraGNN Ensemble</title>".encode()
"""End of the title of every report."""
CHAPTERS = (
    *(task, data, search, node_time, training, members),
    *(errors, where, uncertainty, domain, worst, ablation),
)
"""Chapters between the verdict and the reproduction, in order; each is None where it does not apply."""


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
        nominal=facts.evaluation.nominal,
        sections=[section for one in CHAPTERS if (section := one.chapter(facts)) is not None],
        reproduction=reproduction(facts),
    )
    return visible(html)


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
