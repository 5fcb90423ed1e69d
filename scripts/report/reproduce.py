"""Commands, configuration, versions, hashes and hardware that reproduce a report."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from hydragnn.base.places import text_of
from hydragnn.ensemble import Manifest
from hydragnn.record import RunRecord
from hydragnn.scripts.report.facts import Facts
from hydragnn.scripts.report.words import text


@dataclass(frozen=True, kw_only=True, slots=True)
class Reproduction:
    """Commands and provenance of the work."""

    commands: str
    file_name: str
    toml: str
    provenance: tuple[tuple[str, str], ...]


def reproduction(facts: Facts) -> Reproduction:
    """Return commands and provenance of everything in the report."""
    table = dict(facts.config)
    name = "CONFIG.toml"
    if facts.campaign is not None:
        table["search"] = facts.campaign.search
        name = "CAMPAIGN.toml"
    return Reproduction(
        commands="\n".join(_commands(facts, name)),
        file_name=name,
        toml=tomli_w.dumps(_without_none(table)),
        provenance=tuple(_provenance(facts)),
    )


def _commands(facts: Facts, name: str) -> list[str]:
    lines: list[str] = []
    last = "RUN"
    if facts.run is not None:
        lines.append(f"hydragnn train {name} --out RUN")
    if facts.campaign is not None:
        lines.append(f"hydragnn search {name} --out CAMPAIGN")
        last = "CAMPAIGN"
    if facts.manifest is not None:
        branch = f" --branch {facts.branch}" if facts.branch else ""
        lines += _ensemble_commands(facts.manifest, name if facts.campaign is None else "", branch)
        last = "ENSEMBLE"
    return [*lines, f"hydragnn report {last}"]


def _ensemble_commands(ensemble: Manifest, config: str, branch: str) -> list[str]:
    """Return the commands of an ensemble from a campaign, or from runs."""
    members = ensemble.members
    if ensemble.selection.get("campaign") or not config:
        return [f"hydragnn ensemble CAMPAIGN {_choice(ensemble, len(members))}{branch} --out ENSEMBLE"]
    runs = [shlex.quote(member.name) for member in members]
    first = f"hydragnn train {config} --out {runs[0]}"
    others = "  # the others as members/*/config.json of the ensemble say" if len(runs) > 1 else ""
    return [first + others, f"hydragnn ensemble {' '.join(runs)}{branch} --out ENSEMBLE"]


def _choice(ensemble: Manifest, members: int) -> str:
    """Return the options of ``hydragnn ensemble`` that chose these members."""
    selection = ensemble.selection
    named = {"--final-seeds": "final_seeds", "--epochs": "final_epochs"}
    options = [f"{option} {selection[key]}" for option, key in named.items() if selection.get(key)]
    return " ".join([f"--top-k {selection.get('k', members)}", *options])


def _without_none(value: Any) -> Any:
    """Return the value without keys whose value is None, which TOML lacks."""
    if isinstance(value, Mapping):
        return {str(key): _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value if item is not None]
    return str(value) if isinstance(value, Path) else value


def _record(facts: Facts) -> RunRecord | None:
    """Return the record of the run, first member or best trial."""
    if facts.run is not None:
        return facts.run
    if facts.members:
        return next(iter(facts.members.values()))
    best = facts.campaign.best if facts.campaign else None
    return facts.campaign.records.get(best.number) if facts.campaign and best else None


def _provenance(facts: Facts) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if facts.data is not None:
        rows += [("store", text_of(facts.data.path)), ("store fingerprint", facts.data.store.fingerprint)]
    record = _record(facts)
    if record is not None:
        if facts.data is None or record.data_hash != facts.data.store.fingerprint:
            rows.append(("data hash at training", record.data_hash))
        rows.append(("configuration hash", record.config_hash))
        rows.append(("training seed", str(record.seed)))
        rows += [(name, version) for name, version in record.versions.items()]
        rows += [(key.replace("_", " "), text(value)) for key, value in record.hardware.items()]
    members = list(facts.members.values())
    sentences = dict.fromkeys(one for each in (record, *members) if each is not None for one in each.continued)
    if sentences:
        rows.append(("continued, unlike one run of this configuration", "; ".join(sentences)))
    if len(members) > 1:
        hashes = dict.fromkeys(member.config_hash for member in members)
        rows.append(("members' configurations", ", ".join(hashes)))
    seconds = [record.cost.cpu_seconds for record in facts.campaign.records.values()] if facts.campaign else []
    if seconds:
        rows.append(("CPU time of the search", f"{sum(seconds) / 60:.1f} min"))
    return [(key, value) for key, value in rows if value]
