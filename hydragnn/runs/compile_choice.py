"""Choice whether a run compiles its steps, made before the first."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from hydragnn.runs.plan import BranchPlan, RunPlan

MARGIN = 3
"""Compiling must save so many times what it takes: runs end early, and machines differ."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileGain:
    """Gain of compiled training steps on CPUs, measured by ``tests.benchmarks.bench_compile``."""

    nanoseconds: float
    """CPU time that a training step saves for every edge, channel and layer."""
    compiling: float
    """Seconds to compile where nothing was compiled before."""


@cache
def compile_gains() -> Mapping[tuple[str, bool], CompileGain]:
    """Return the measured gains by architecture and derivatives."""
    table = tomllib.loads(Path(__file__).with_name("compile_gains.toml").read_text())
    return {
        (row["kind"], row["derivatives"]): CompileGain(nanoseconds=row["nanoseconds"], compiling=row["compiling"])
        for row in table["gains"]
    }


def choose_compiling(plan: RunPlan, device: torch.device, ranks: int) -> tuple[bool, list[str]]:
    """Return whether to compile, and the note for the record.

    The same for the same configuration, graphs, kind of device and number of ranks. ``auto`` compares what all epochs would save
    with what compiling takes; where nothing was measured, steps stay as they are.
    """
    if plan.training.compile != "auto":
        return plan.training.compile == "on", []
    if device.type != "cpu":
        return False, [
            f"steps are not compiled: what that brings beside recorded ones was not measured on {device.type}"
        ]
    encoder = plan.branches[0].model.model
    gains = [gain_of(branch) for branch in plan.branches]
    if not all(gains):
        return False, [f"steps are not compiled: it brings nothing for {encoder.kind} with these heads"]
    compiling = sum(gain.compiling for gain in gains if gain)
    saved = sum(seconds_saved(branch, gain) for branch, gain in zip(plan.branches, gains) if gain)
    saved *= plan.training.epochs / ranks
    compiles = saved >= MARGIN * compiling
    say = "steps are compiled" if compiles else "steps are not compiled"
    return compiles, [f"{say}: about {saved:,.0f} s to save, about {compiling:,.0f} s to compile"]


def gain_of(branch: BranchPlan) -> CompileGain | None:
    """Return the gain that was measured for a data set, or None."""
    model = branch.model
    encoder = model.model
    if encoder.checkpoint_activations or encoder.global_attention is not None or encoder.pooling is not None:
        return None
    derivatives = any(head.derivatives for head in model.heads)
    return compile_gains().get((encoder.kind, derivatives))


def seconds_saved(branch: BranchPlan, gain: CompileGain) -> float:
    """CPU time that compiled steps save in an epoch."""
    encoder = branch.model.model
    edges = int(branch.store.sizes().edges[branch.split.train].sum())
    work = edges * encoder.hidden_dim * encoder.num_layers
    return 1e-9 * gain.nanoseconds * float(branch.weight) * work
