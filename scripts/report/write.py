"""Writing the report of a campaign, an ensemble or a run."""

from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from hydragnn.base.files import check_page_target, write_atomically
from hydragnn.scripts.report.collect import collect
from hydragnn.scripts.report.page import page

REPORT = " – HydraGNN Ensemble</title>".encode()
"""What the title of every report ends with."""


def write_report(
    source: Path,
    out: Path | None = None,
    *,
    campaign: Path | None = None,
    ensemble: Path | None = None,
    store: Path | None = None,
    now: datetime | None = None,
) -> Path:
    """Write one self-contained HTML file on ``source`` and return its path; ``source/report.html`` unless ``out`` is given.

    ``source`` is the folder of a campaign, an ensemble or a run. A campaign and an ensemble that belong together make one
    report; an ensemble that names its campaign finds it by itself. ``store`` is where the data lie now, if they were moved. InputError where the folder is none of these, a file of
    it is damaged, or ``out`` cannot be written or is something else than an earlier report.
    """
    place = source / "report.html" if out is None else out
    check_page_target(place, REPORT, "report")
    facts = collect(source, campaign=campaign, ensemble=ensemble, store=store)
    time = (now or datetime.now().astimezone()).strftime("%d %B %Y, %H:%M")
    write_atomically(place, page(facts, f"Made on {time} with hydragnn-ensemble {installed_version()}."))
    return place


def installed_version() -> str:
    """The version of this package; a bare checkout says so."""
    try:
        return version("hydragnn-ensemble")
    except PackageNotFoundError:
        return "from a checkout"
