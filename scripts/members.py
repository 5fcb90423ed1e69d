"""Sources of ``hydragnn ensemble``: one campaign, or runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError
from hydragnn.base.files import kind_of_folder
from hydragnn.ensemble.building.build import check_finished
from hydragnn.hpo import campaign_records


def campaign_or_runs(sources: Sequence[Path]) -> Path | list[Path]:
    """Return the campaign or the finished runs; InputError for anything else."""
    if not sources:
        raise InputError("an ensemble needs a campaign or finished runs; give their folders")
    kinds = [_kind(source) for source in sources]
    campaigns = [source for source, kind in zip(sources, kinds) if kind == "a campaign"]
    if not campaigns:
        _check_once(sources)
        for run in sources:
            check_finished(run)
        return list(sources)
    if len(sources) > 1:
        other = next(source for source in sources if source != campaigns[0] or sources.count(source) > 1)
        raise InputError(
            f"{campaigns[0]} is a campaign, and {other} was given beside it; give one campaign, whose best trials are chosen, or "
            f"runs alone, which all become members (those of a campaign lie in {campaigns[0]}/trials)"
        )
    return campaigns[0]


def recorded_runs(campaign: Path) -> list[Path]:
    """Return the folders of a campaign's trials that have a record."""
    return [folder for _, _, folder in campaign_records(campaign)]


def check_no_options(options: Mapping[str, Any]) -> None:
    """Raise InputError for options of campaigns where the sources are runs."""
    names = [name for name, value in options.items() if value]
    if names:
        raise InputError(
            f"{names[0]} has no meaning for given runs, which all become members as they are; leave it out, or give the campaign "
            "instead of its runs"
        )


def _kind(source: Path) -> str:
    """Return "a campaign" or "a run"; InputError for whatever else is there."""
    if not source.is_dir():
        problem = "is a file" if source.exists() else "does not exist"
        raise InputError(
            f"{source} {problem}; give a folder made by hydragnn search, or folders made by hydragnn train"
        )
    kind = "a campaign" if (source / "campaign.json").is_file() else kind_of_folder(source)
    if kind not in ("a campaign", "a run"):
        raise InputError(
            f"{source} is {kind or 'neither a campaign nor a run'}; give a folder made by hydragnn search, or folders made by "
            "hydragnn train"
        )
    return kind


def _check_once(runs: Sequence[Path]) -> None:
    places = [run.resolve() for run in runs]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise InputError(f"the run {runs[number]} is given twice; give every member once")
