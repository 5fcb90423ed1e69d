"""Write the report of a campaign, an ensemble or a run."""

from datetime import datetime
from pathlib import Path

from hydragnn import __version__
from hydragnn.base.files import check_page_target, write_atomically
from hydragnn.scripts.report.collect import collect
from hydragnn.scripts.report.page import page

REPORT = " – HydraGNN Ensemble</title>".encode()
"""End of the title of every report."""


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
