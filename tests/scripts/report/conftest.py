"""Folders as search, ensemble and training leave them, filled with invented but lawful numbers."""

import json
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from hydragnn.base.files import write_json
from hydragnn.config import RunConfig
from hydragnn.datasets import StoreWriter
from hydragnn.ensemble import Evaluation, Manifest, NumberEstimate, TargetEvaluation
from hydragnn.ensemble.manifest import MemberEntry, write_manifest
from hydragnn.graphs import Field, GraphBatch, concatenate, graph_from_arrays
from hydragnn.hpo import campaign_settings
from hydragnn.hpo.journal import Entry, Journal
from hydragnn.hpo.preflight import write_settings
from hydragnn.hpo.scheduling.events import Failed, Launched, Opened, Plan, Propose, Proposed, Reached, Start
from hydragnn.hpo.scheduling.scheduler import State, decide
from hydragnn.importing.diagnosis import Finding
from hydragnn.importing.page import Import, Page
from hydragnn.models import Target
from hydragnn.record import Cost, Failure, RunRecord, Usage, write_record
from hydragnn.scripts.report import write_report
from tests.once import shared

UNITS = {"energy": "eV", "forces": "eV/Angstrom", "charge": "e"}
TRIVIAL = {"energy": 0.84, "forces": 1.31, "charge": 0.071}
SIMPLE = {"composition": 0.6, "ridge": 0.3, "boosting": 0.5}  # shares of the errors of the trivial predictor
NAMES = ("0012", "0019", "0003")
DETECTORS = ("kinds", "structure", "spread")
RUNGS = (4, 12, 36)
GRAPHS = 240
SPACE: dict[str, Any] = {
    "model.kind": {"type": "categorical", "choices": ["schnet", "painn"]},
    "model.hidden_dim": {"type": "int", "low": 16, "high": 128, "log": True},
    "model.num_layers": {"type": "int", "low": 2, "high": 6},
    "train.learning_rate": {"type": "float", "low": 1e-4, "high": 1e-2, "log": True},
    "model.dropout": {"type": "float", "low": 0.0, "high": 0.3, "when": {"model.kind": ["schnet"]}},
}


PHASES = {
    "data": 9.0,
    "forward": 14.0,
    "backward": 21.0,
    "optimizer": 3.0,
    "validation": 5.0,
    "saving": 0.4,
    "other": 6.0,
}
COUNTS: Any = {"flops": 4e13, "bytes": 9e12, "peak_flops": 6e13, "peak_bytes": 2e12}
USAGE = Usage(phases=PHASES, busy=0.61, joules=5400.0, energy_source="NVML", **COUNTS)
"""Of every training, whatever its length."""


@dataclass(frozen=True)
class Samples:
    """Folders; that of a disturbed campaign has no records of its trials on twelve nodes."""

    campaign: Path
    ensemble: Path
    run: Path
    disturbed: Path
    imported: Path


@shared
def samples(tmp_path_factory: pytest.TempPathFactory, disturbed: Any) -> Samples:
    root = tmp_path_factory.mktemp("report")
    store = write_alloys(root / "alloys.h5")
    write_record(record_of(base_config(store), {}, quality=0.1, epochs=36, seed=3), root / "run")
    place = write_settings_of(root / "disturbed", store, trials=60)
    disturbed.write(place / "journal.jsonl")
    campaign, ensemble = write_campaign(root / "campaign", store), write_ensemble(root / "ensemble", store)
    imported = write_import(shutil.copytree(root / "run", root / "imported"))
    return Samples(campaign=campaign, ensemble=ensemble, run=root / "run", disturbed=place, imported=imported)


def write_import(run: Path) -> Path:
    """Let a run be one of two imported models, with long names and evidence."""
    words = (
        "outputs change by up to .29 of the largest; mean absolute error on 80 test graphs 2.558, read by today's code 2.531; "
        * 3
    )
    findings = [Finding(number=n, name="squared distances", verdict="suffered", evidence=words) for n in (3, 26)]
    shared_by_all: Any = {
        "kind": "EGNN",
        "generation": "2024",
        "evidence": ["config.json has model_type"],
        "notes": [words],
    }
    models = [
        Page(run=f"EGNN-r-3.0-{name}", file="a.pk", inputs=["x"] * 9, outputs=["energy"], test={"energy": {"mae": 1.0, "rmse": None}}, findings=findings, **shared_by_all)
        for name in ("hd-6-ne-3-lr-0.02-bs-6-data", "b")
    ]  # fmt: skip
    page = Import(out=run, source="/lustre/group/users/somebody/HydraGNN/logs", models=models, left_out=[words])
    write_json(run / "import.json", page.to_json())
    return run


@pytest.fixture(scope="session")
def disturbed(played: ModuleType) -> Any:
    """Sixty trials on twelve nodes, one of them bad, with faults, an interruption and a resume."""
    plan = Plan(trials=60, rungs=RUNGS, finalists=5, max_slots=4)
    player = played.play(plan, 12, seed=2, own=0.1, machine=0.06, bad=("n4",), work=60.0)
    player.session(stop_after=2000)
    player.session()
    return player


@shared
def pages(samples: Samples, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    return {kind: write_report(source, folder / f"{kind}.html") for kind, source in vars(samples).items()}


def write_alloys(path: Path) -> Path:
    """Small clusters of three elements with an energy, forces and charges."""
    fields = [
        Field(name="atomic_numbers", on="node", classes=119, dtype="int64"),
        Field(name="energy", on="graph", unit="eV", role="target", dtype="float64"),
        Field(name="forces", on="node", shape=(3,), unit="eV/Angstrom", parity="vector", role="target"),
        Field(name="charge", on="node", unit="e", role="target"),
    ]
    generator = torch.Generator().manual_seed(0)
    attributes = {"source": "invented for the tests of the report", "close_nuclei": True}
    with StoreWriter(path, fields, dim=3, attributes=attributes) as writer:
        writer.write(concatenate([_cluster(fields, generator) for _ in range(GRAPHS)]))
    return path


def _cluster(fields: list[Field], generator: torch.Generator) -> GraphBatch:
    nodes = int(torch.randint(8, 40, (1,), generator=generator))
    receivers = torch.arange(nodes).repeat_interleave(2)
    senders = (receivers + torch.tensor([1, 2]).repeat(nodes)) % nodes
    values = {"atomic_numbers": torch.tensor([26, 78, 29])[torch.randint(0, 3, (nodes,), generator=generator)]}
    places = 4 * torch.rand(nodes, 3, generator=generator, dtype=torch.float64)
    values |= {"forces": torch.randn(nodes, 3, generator=generator)}
    values |= {"charge": 0.1 * torch.randn(nodes, generator=generator)}
    energy = {"energy": -3.2 * nodes + torch.randn((), generator=generator, dtype=torch.float64)}
    return graph_from_arrays(places, senders, receivers, fields=fields, nodes=values, graphs=energy)


def base_config(store: Path) -> dict[str, Any]:
    return {
        "data": {"store": str(store)},
        "split": {"train": 0.7, "valid": 0.1},
        "model": {"kind": "painn", "hidden_dim": 32},
        "heads": [
            {"kind": "energy", "field": "energy", "references": True, "forces": "forces"},
            {"kind": "scalar", "field": "charge", "loss": "huber"},
        ],
        "train": {"epochs": 36},
    }


def record_of(config: dict[str, Any], values: dict[str, Any], *, quality: float, epochs: int, seed: int) -> RunRecord:
    """A record whose errors fall to ``quality`` times those of the trivial predictor."""
    table: dict[str, Any] = json.loads(json.dumps(config))
    for path, value in values.items():
        section, key = path.split(".")
        table[section][key] = value
    resolved, full = RunConfig.parse(table), epochs == RUNGS[-1]
    noise = np.random.default_rng(seed)
    fall = quality + (1 - quality) * np.exp(-np.arange(1, epochs + 1) / 5)
    wiggle = fall * np.exp(0.06 * noise.normal(size=epochs))
    curves = {"train/loss": list(0.8 * fall**2), "valid/loss": list(wiggle**2), "learning_rate": [1e-3] * epochs}
    for field, base in TRIVIAL.items():
        curves[f"valid/{field}/mae"] = list(base * wiggle)
        curves[f"valid/{field}/rmse"] = list(1.3 * base * wiggle)
        curves[f"valid/{field}/r2"] = list(1 - wiggle**2)
    best, factors = int(np.argmin(curves["valid/loss"])), {"mae": 1.0, "rmse": 1.3, "r2": 0.0}
    trivial = {f"valid/{name}/{key}": one * base for name, base in TRIVIAL.items() for key, one in factors.items()}
    return RunRecord(
        config=resolved.to_json(),
        config_hash=resolved.hash,
        data_hash="5be1c0ffee00aa11",
        seed=seed,
        status="finished" if full else "paused",
        epochs=epochs,
        parameters=41_217,
        parts={"train": 168, "valid": 24, "test": 48},
        curves=curves,
        best={**{name: values[best] for name, values in curves.items()}, "epoch": float(best + 1)},
        trivial=trivial,
        cost=Cost(seconds=1.9 * epochs, cpu_seconds=1.8 * epochs, peak_memory_mb=512.0, graphs_per_second=410.0),
        usage=USAGE,
        versions={"hydragnn": "0.2.0", "python": "3.11.9", "torch": "2.8.0"},
        hardware={"processor": "2 cores", "gpus": []},
    )


def write_campaign(folder: Path, store: Path) -> Path:
    """Twenty-four trials through three rungs by the real scheduler and journal; the training is invented."""
    config = base_config(store)
    write_settings_of(folder, store, trials=24)
    generator = np.random.default_rng(7)
    values: dict[int, dict[str, Any]] = {}
    clock = 0.0
    pending: list[Any] = [Opened(plan=Plan(trials=24, rungs=RUNGS, finalists=4), slots=("worker-0",))]
    with Journal(folder / "journal.jsonl") as journal:
        state = State()
        while pending:
            event = pending.pop(0)
            clock += 1.0
            changes, actions = decide(state, event, clock)
            journal.extend([Entry(clock, event, changes or {})])
            for action in actions:
                if isinstance(action, Propose):
                    values[action.trial] = _point(generator)
                    pending.append(Proposed(trial=action.trial, values=values[action.trial]))
                elif isinstance(action, Start):
                    pending.append(Launched(trial=action.trial, attempt=action.attempt, identity={"pid": 1}))
                    pending.append(_trained(folder, config, action, values[action.trial]))
    return folder


def write_settings_of(folder: Path, store: Path, *, trials: int) -> Path:
    search = {"trials": trials, "seed": 1, "rungs": list(RUNGS[:-1]), "finalists": 4, "space": SPACE}
    write_settings(campaign_settings({**base_config(store), "search": search}, folder / "CAMPAIGN.toml"), [], folder)
    return folder


def _point(generator: np.random.Generator) -> dict[str, Any]:
    point: dict[str, Any] = {"model.kind": str(generator.choice(["schnet", "painn"]))}
    point |= {"model.hidden_dim": int(2 ** generator.uniform(4, 7)), "model.num_layers": int(generator.integers(2, 7))}
    point |= {"train.learning_rate": float(10 ** generator.uniform(-4, -2))}
    return {**point, **({"model.dropout": float(generator.uniform(0, 0.3))} if point["model.kind"] == "schnet" else {})}


def _trained(folder: Path, config: dict[str, Any], start: Start, values: dict[str, Any]) -> Reached | Failed:
    place = folder / "trials" / f"{start.trial:04d}"
    distance = abs(np.log10(values["train.learning_rate"]) + 2.7)
    kind = 0.05 * (values["model.kind"] == "schnet")
    quality = min(float(0.05 + 0.12 * distance**2 + kind + 0.4 / values["model.hidden_dim"]), 0.7)
    record = record_of(config, values, quality=quality, epochs=start.until, seed=start.trial)
    if values["train.learning_rate"] > 5e-3:
        failure = Failure(kind="diverged", message="the loss is not finite in epoch 2; lower train.learning_rate")
        write_record(replace(record, status="failed", failure=failure, best={}, curves={}, epochs=1), place)
        return Failed(trial=start.trial, attempt=start.attempt, kind=failure.kind, message=failure.message)
    write_record(record, place)
    loss = record.best["valid/loss"]
    return Reached(trial=start.trial, attempt=start.attempt, epochs=start.until, value=loss, seconds=2.0)


def write_ensemble(folder: Path, store: Path) -> Path:
    """Three members with errors, spreads and intervals that obey the law of total variance."""
    generator = np.random.default_rng(11)
    arrays: dict[str, Any] = {}
    parts: dict[str, dict[str, TargetEvaluation]] = {"valid": {}, "test": {}}
    for part, graphs in {"valid": np.arange(24), "test": np.arange(100, 148)}.items():
        for field, per_graph in (("energy", 1), ("forces", 60), ("charge", 20)):
            scores, rows = _evaluated(field, np.repeat(graphs, per_graph), generator)
            parts[part][field] = scores
            arrays |= {f"{part}/{field}/{name}": value for name, value in rows.items()}
    places = {name: f"members/{number}" for number, name in enumerate(NAMES)}
    equal: Any = {"weight": 1 / 3, "checksums": {}, "summary": {}}
    choice = {"method": "top-k", "by": "valid/loss", "k": 3, "candidates": 4, "final_seeds": 0, "campaign": "campaign"}
    diversity = {field: {"error_correlation": 0.71, "ambiguity": 0.12} for field in UNITS}
    manifest = Manifest(
        members=tuple(MemberEntry(name=name, folder=place, **equal) for name, place in places.items()),
        targets=tuple(Target(field=Field(name=name, on="graph", unit=unit)) for name, unit in UNITS.items()),
        inputs=(),
        dim=3,
        data={"store": "../alloys.h5"},
        selection={**choice, "diversity": diversity},
    )
    write_manifest(manifest, folder)
    for number in range(3):
        values = {"model.hidden_dim": 32 + 16 * number}
        record = record_of(base_config(store), values, quality=0.07 + 0.01 * number, epochs=36, seed=number)
        write_json(folder / "members" / str(number) / "record.json", asdict(record))
    arrays |= {f"{part}/domain/scores": generator.gamma(2, 0.2, size=(40, 3)) for part in parts}
    arrays |= {f"{part}/domain/p_values": generator.uniform(size=40) for part in parts}
    domain = {"false_alarms": 0.02, "detectors": DETECTORS, "flagged": dict.fromkeys(parts, 0.025)}
    domain |= {"flagged_by_detector": {part: dict.fromkeys(DETECTORS, 0.01) for part in parts}}
    evaluation = Evaluation(nominal=0.9, parts=parts, failed={}, seconds_per_graph={}, domain=domain)
    write_json(folder / "evaluation.json", evaluation.to_json())
    np.savez(folder / "evaluation.npz", **arrays)
    return folder


def _evaluated(
    field: str, graph: np.ndarray[Any, Any], generator: np.random.Generator
) -> tuple[TargetEvaluation, dict[str, Any]]:
    base, rows = TRIVIAL[field], len(graph)
    labels = 1.25 * base * generator.normal(size=rows)
    sigma = 0.07 * base * np.exp(0.5 * generator.normal(size=rows))
    common = sigma * generator.normal(size=rows)
    members = labels + common + 0.6 * sigma * generator.normal(size=(3, rows))
    mean, width = members.mean(axis=0), 1.645 * sigma * 1.06
    estimate = NumberEstimate(
        target=Target(field=Field(name=field, on="node", unit=UNITS[field])),
        mean=mean,
        std=sigma,
        epistemic=members.std(axis=0),
        aleatoric=(field == "charge") * 0.9 * sigma,
        lower=mean - width,
        upper=mean + width,
        members=members,
    )
    trivial, shares = estimate.scores(np.zeros(rows), labels), SIMPLE if field == "energy" else {}
    simple = {name: {key: value * share for key, value in trivial.items()} for name, share in shares.items()}
    return estimate.evaluation(labels, np.ones(rows, int), NAMES, trivial, simple), estimate.rows(labels, graph)
