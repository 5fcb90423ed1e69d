"""Stores of a campaign, which may be moved but not changed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError
from hydragnn.datasets import GraphStore, open_store
from hydragnn.hpo.settings import CampaignSettings
from hydragnn.record import read_record
from hydragnn.runs.moved import is_data, write_places


def places_of(settings: CampaignSettings) -> list[tuple[str, str]]:
    """Return branch and path of every store."""
    tables = [run.config.to_json() for run in settings.runs] or [settings.base]
    sections = [section for table in tables for section in table.get("branches") or [table]]
    return [(section.get("name", ""), section["data"]["store"]) for section in sections if "data" in section]


def fingerprints_of(settings: CampaignSettings) -> dict[str, str]:
    """Fingerprint of every store by its path."""
    return {path: open_store(Path(path)).fingerprint for path in sorted({path for _, path in places_of(settings)})}


def check_stores(now: CampaignSettings, saved: CampaignSettings, fingerprints: Mapping[str, str], out: Path) -> None:
    """Raise InputError where a store has other graphs than before.

    A campaign of an earlier version has no ``fingerprints``: the records of its trials say what they were trained on.
    """
    for (branch, before), (_, place) in zip(places_of(saved), places_of(now)):
        if before in fingerprints:
            same = open_store(Path(place)).fingerprint == fingerprints[before]
        else:
            same = place == before or _is_of_trials(open_store(Path(place)), branch, out)
        if not same:
            was = "" if place == before else f" (that was {before})"
            raise InputError(
                f"{now.source}: the store {place} holds other graphs than the one{was} with which the campaign in {out} began; give "
                "that store or a copy of it, or begin in another folder"
            )


def follow_stores(settings: CampaignSettings, saved: CampaignSettings, out: Path) -> None:
    """Write the present paths of stores into all trials."""
    places = {branch: Path(path) for branch, path in places_of(settings)}
    if places != {branch: Path(path) for branch, path in places_of(saved)}:
        for config in sorted(out.glob("trials/*/config.json")):
            write_places(config.parent, places)


def _is_of_trials(store: GraphStore, branch: str, out: Path) -> bool:
    """Return True where the first recorded trial used this store."""
    for record in sorted(out.glob("trials/*/record.json")):
        if trained := read_record(record.parent).of_branch(branch).data_hash:
            return is_data(store, trained)
    return True


def without_places(settings: CampaignSettings) -> dict[str, Any]:
    """The settings as JSON in which no place of a store stands."""
    table = settings.to_json()
    for part in (table, *(run["config"] for run in table.get("runs", []))):
        for section in (part, *part.get("branches", [])):
            section["data"] = {key: value for key, value in section.get("data", {}).items() if key != "store"}
    return table
