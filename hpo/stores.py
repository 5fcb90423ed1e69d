"""Stores of a campaign, which may be moved but not changed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError
from hydragnn.datasets import open_store
from hydragnn.hpo.settings import CampaignSettings
from hydragnn.runs.moved import write_places


def places_of(settings: CampaignSettings) -> list[tuple[str, str]]:
    """Return branch and path of every store."""
    tables = [run.config.to_json() for run in settings.runs] or [settings.base]
    sections = [section for table in tables for section in table.get("branches") or [table]]
    return [(section.get("name", ""), section["data"]["store"]) for section in sections if "data" in section]


def fingerprints_of(settings: CampaignSettings) -> dict[str, str]:
    """Fingerprint of every store by its path."""
    return {path: open_store(Path(path)).fingerprint for path in sorted({path for _, path in places_of(settings)})}


def check_stores(now: CampaignSettings, saved: CampaignSettings, fingerprints: Mapping[str, str], out: Path) -> None:
    """Raise InputError where a store has other graphs than before."""
    for (_, before), (_, place) in zip(places_of(saved), places_of(now)):
        if open_store(Path(place)).fingerprint != fingerprints.get(before):
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


def without_places(settings: CampaignSettings) -> dict[str, Any]:
    """The settings as JSON in which no place of a store stands."""
    table = settings.to_json()
    for part in (table, *(run["config"] for run in table.get("runs", []))):
        for section in (part, *part.get("branches", [])):
            section["data"] = {key: value for key, value in section.get("data", {}).items() if key != "store"}
    return table
