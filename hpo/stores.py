"""Stores of a campaign, which may be moved but not changed."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError
from hydragnn.base.places import StorePlace, stores_from_json, text_of
from hydragnn.datasets import open_store
from hydragnn.hpo.settings import CampaignSettings


def places_of(settings: CampaignSettings) -> list[tuple[str, StorePlace]]:
    """Return branch and place of every store."""
    tables = [run.config.to_json() for run in settings.runs] or [settings.base]
    sections = [section for table in tables for section in table.get("branches") or [table]]
    return [
        (section.get("name", ""), stores_from_json(section["data"]["store"]))
        for section in sections
        if "data" in section
    ]


def fingerprints_of(settings: CampaignSettings) -> dict[str, str]:
    """Fingerprint of every store by its path."""
    places = {text_of(place): place for _, place in places_of(settings)}
    return {name: open_store(places[name]).fingerprint for name in sorted(places)}


def check_stores(now: CampaignSettings, saved: CampaignSettings, fingerprints: Mapping[str, str], out: Path) -> None:
    """Raise InputError where a store has other graphs than before."""
    for (_, before), (_, place) in zip(places_of(saved), places_of(now)):
        if open_store(place).fingerprint != fingerprints.get(text_of(before)):
            was = "" if place == before else f" (that was {text_of(before)})"
            raise InputError(
                f"{now.source}: the store {text_of(place)} holds other graphs than the one{was} with which the campaign in {out} began; give "
                "that store or a copy of it, or begin in another folder"
            )


def without_places(settings: CampaignSettings) -> dict[str, Any]:
    """The settings as JSON in which no place of a store stands."""
    table = deepcopy(settings.to_json())
    for part in (table, *(run["config"] for run in table.get("runs", []))):
        for section in (part, *part.get("branches", [])):
            section["data"] = {key: value for key, value in section.get("data", {}).items() if key != "store"}
    return table
