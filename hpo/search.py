"""The search as the command line and the Python api call it: a table in, a shown campaign, a result out."""

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from hydragnn.hpo.campaign import CampaignResult, run_search
from hydragnn.hpo.settings import campaign_settings
from hydragnn.hpo.table import CampaignView
from hydragnn.machine import Workers


def run_campaign(
    table: Mapping[str, Any],
    source: Path,
    out: Path,
    *,
    resume: bool = False,
    workers: Workers | None = None,
    quiet: bool = False,
) -> CampaignResult:
    """Search as a parsed CAMPAIGN.toml says, in folder ``out``, with a live table on a terminal and plain lines elsewhere.

    ``source`` names the table in errors, and relative paths count from its folder. ``workers`` overrides search.workers.
    InputError for bad input, for a folder in use, and where every trial fails; see ``run_search``.
    """
    settings = campaign_settings(table, source)
    with nullcontext() if quiet else CampaignView(out) as view:
        note = None if quiet else partial(print, file=sys.stderr, flush=True)
        return run_search(settings, out, resume=resume, workers=workers, on_event=view, on_note=note)
