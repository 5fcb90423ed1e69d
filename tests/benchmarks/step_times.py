"""Crystals, steps of other packages on them, dynamics by the calculator, and the use of a device: what several measurements share."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.graphs import Field, concatenate
from hydragnn.graphs.atomic import from_ase
from hydragnn.runs import train
from hydragnn.training.data import Share
from tests.benchmarks.step_peers import Predict, peer_of

CUTOFF, RADIAL = 5.0, 20
MODELS: Mapping[str, Mapping[str, Any]] = {
    "mace": {"num_layers": 2, "num_radial": 8, "max_ell": 3, "hidden_l": 1, "correlation": 3}
}
"""Settings of a model where they differ from three layers."""
DYNAMICS: dict[str, Any] = {
    "data": {"store": "in memory"},
    "split": {"train": 0.8, "valid": 0.1},
    "batch": {"max_graphs": 8},
    "model": {"kind": "painn", "num_layers": 3, "cutoff": CUTOFF},
    "heads": [{"kind": "energy", "field": "energy", "forces": "forces"}],
    "train": {"graphs": "off", "learning_rate": 1e-4, "epochs": 1},
}
"""The run whose model moves crystals."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSettings:
    """Sizes of what is measured."""

    device: str
    hidden: int = 128
    repeats: int = 10
    atoms: Sequence[int] = (64, 864, 10976)
    """Copper atoms of dynamics."""


Row = dict[str, Any]


def crystals(count: int, seed: int = 0) -> MemoryStore:
    """Return rattled alloys of 64 atoms with random energies and forces."""
    from ase.build import bulk

    random, graphs = np.random.default_rng(seed), []
    for _ in range(min(count, 32)):
        atoms = bulk("Cu", "fcc", a=random.uniform(3.9, 4.1)).repeat((4, 4, 4))
        atoms.numbers = random.choice([13, 28, 29, 46, 47, 78, 79], len(atoms))
        atoms.rattle(0.1, rng=random)
        graphs.append(from_ase(atoms, cutoff=CUTOFF))
    batch = concatenate([graphs[number % len(graphs)] for number in range(count)])
    fields = [
        Field(name="energy", on="graph", unit="eV", role="target", dtype="float64"),
        Field(
            name="forces", on="node", shape=(3,), unit="eV/Angstrom", parity="vector", role="target", dtype="float64"
        ),
    ]
    values = {
        field.name: torch.from_numpy(random.normal(size=(batch.num_items(field.on), *field.shape))) for field in fields
    }
    return MemoryStore(batch.with_fields(values, fields=fields))


def peer_measured(package: str, kind: str, share: Share, settings: StepSettings) -> Row:
    """Return another package's figures on the batch, or the reason against."""
    sizes: dict[str, Any] = {"hidden": settings.hidden, "layers": 3, "radial": RADIAL, "cutoff": CUTOFF}
    if kind == "mace":
        own = MODELS["mace"]
        sizes |= {"layers": own["num_layers"], "radial": own["num_radial"], "max_ell": own["max_ell"]}
    try:
        model, predict = peer_of(package, kind, tensors_of(share), **sizes)
    except ImportError as error:
        return {"note": f"not installed: {error}"}
    except Exception as error:  # whatever another package may raise
        return {"note": f"failed: {type(error).__name__}: {error}"[:200]}
    return measured(peer_step(model.to(settings.device), predict), settings)


def tensors_of(share: Share) -> dict[str, Tensor]:
    """Return the batch of a share as other packages take it."""
    batch = share.parts[0]
    owner = batch.owner("node")
    sizes = torch.bincount(owner)
    return {
        "numbers": batch.nodes["atomic_numbers"],
        "positions": batch.positions,
        "senders": batch.senders,
        "receivers": batch.receivers,
        "shifts": batch.edge_shifts,
        "graph": owner,
        "cells": torch.zeros(len(sizes), 3, 3, device=batch.device),  # energies and forces follow from the shifts
        "offsets": nn.functional.pad(sizes.cumsum(0), (1, 0)),
    }


def peer_step(model: nn.Module, predict: Predict) -> Callable[[], None]:
    """Return a training step: forward, forces, backward, clipping and AdamW."""
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        torch.stack([value.square().mean() for value in predict()]).sum().backward(inputs=weights)
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()

    return step


def dynamics_rows(settings: StepSettings) -> Iterator[Row]:
    """Yield a row per size of a copper crystal that moves."""
    from ase import units
    from ase.build import bulk
    from ase.md.verlet import VelocityVerlet

    from hydragnn.ensemble import calculator

    with tempfile.TemporaryDirectory() as folder:
        store, run = crystals(24), Path(folder) / "run"
        train(
            RunConfig.parse({**DYNAMICS, "model": {**DYNAMICS["model"], "hidden_dim": settings.hidden}}),
            run,
            store=store,
        )
        for atoms in settings.atoms:
            edge = max(1, round(atoms ** (1 / 3)))
            crystal = bulk("Cu").repeat((edge, edge, max(1, round(atoms / edge**2))))
            crystal.rattle(0.05, seed=0)
            sigma = np.sqrt(units.kB * 300 / crystal.get_masses())[:, None]
            crystal.set_velocities(np.random.default_rng(1).normal(size=(len(crystal), 3)) * sigma)
            with redirect_stderr(StringIO()):  # notes on runs that are used alone
                crystal.calc = calculator(run)
            moving = VelocityVerlet(crystal, timestep=2 * units.fs)
            many = 10 if len(crystal) < 1000 else 3
            figures = measured(partial(moving.run, 1), replace(settings, repeats=many))
            make = partial(crystal.calc.moving.graph, crystal, "the structure")
            figures["graph ms"] = milliseconds(make, many, settings.device)
            yield {"kind": "painn", "atoms": len(crystal), **figures}


def measured(work: Callable[[], object], settings: StepSettings) -> Row:
    """Return a call's milliseconds, and on a GPU its use."""
    for _ in range(4):  # kernels are compiled, and a size is recorded at its third use
        work()
    gpu = settings.device == "cuda"
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    taken = milliseconds(work, settings.repeats, settings.device)
    if not gpu:
        return {"ms": taken}
    working, launches = busy(work, 2)
    share = f"{min(1.0, working / taken):.0%}"
    peak = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    return {"ms": taken, "busy ms": round(working, 2), "busy": share, "launches": round(launches), "GB": peak}


def milliseconds(work: Callable[[], object], repeats: int, device: str) -> float:
    """Return the wall time of a call, the median of three turns."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    taken = []
    for _ in range(3):
        wait()
        begin = time.perf_counter()
        for _ in range(repeats):
            work()
        wait()
        taken.append((time.perf_counter() - begin) / repeats * 1e3)
    return round(median(taken), 3)


def busy(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return the milliseconds of a call in which the GPU works, and the number of its launches."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        for _ in range(repeats):
            work()
        torch.cuda.synchronize()
    spans = [event.time_range for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    total, reached = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.start):
        total += max(0.0, span.end - max(span.start, reached))
        reached = max(reached, span.end)
    return 1e-3 * total / repeats, len(spans) / repeats
