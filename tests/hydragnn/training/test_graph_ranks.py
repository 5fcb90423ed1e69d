"""Runs whose ranks share every graph: the curves of one rank, and what is refused before anything starts."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hydragnn.base.errors import InputError
from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.record import read_record
from hydragnn.runs import train
from hydragnn.runs.plan import plan_run
from tests.forked import Forked

Configs = Callable[..., RunConfig]
Launch = Callable[..., subprocess.Popen[str] | Forked]

ROUNDING = 1e-10
"""Relative: sums over ranks are added in another order, and a few steps later curves differ by some hundred roundings of 1e-16."""


def test_two_ranks_that_share_graphs_have_the_curves_of_one(
    store: MemoryStore, make_config: Configs, launch: Launch, tmp_path: Path
) -> None:
    changes: dict[str, dict[str, Any]] = {
        "whole graphs": {"model": "schnet", "train__ema_decay": 0.9},
        "every graph cut": {"model": "painn", "batch__max_graphs": 1, "train__epochs": 2},
        "in parts": {"model": "mace", "batch__max_graphs": 4, "parallel__micro_batches": 3, "train__epochs": 1},
    }
    configs = {name: make_config(**{**change, "parallel__graph": 2}) for name, change in changes.items()}
    step = {"SLURM_JOB_ID": "80", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    runs = {tmp_path / name: config for name, config in configs.items()}
    processes = [launch(runs, **step, SLURM_PROCID=str(rank)) for rank in range(2)]
    for name, change in changes.items():
        train(make_config(**change), tmp_path / f"{name} alone", store=store)
    for process in processes:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
    for name in changes:
        shared, alone = read_record(tmp_path / name), read_record(tmp_path / f"{name} alone")
        assert shared.curves.keys() == alone.curves.keys()
        for curve, values in alone.curves.items():
            assert shared.curves[curve] == pytest.approx(values, rel=ROUNDING), (name, curve)


@pytest.mark.parametrize(
    ("model", "changes", "words"),
    [
        ("dimenet", {}, "model dimenet reads pairs of consecutive edges"),
        ("schnet", {"model__global_attention": {"kind": "equivariant", "heads": 2, "cutoff": 2.0}}, "any two nodes"),
        ("schnet", {"heads": [{"kind": "scalar", "field": "charge", "loss": "relative"}]}, 'loss = "relative"'),
    ],
)
def test_a_model_whose_graphs_cannot_be_cut_is_refused_in_one_sentence(
    store: MemoryStore, make_config: Configs, model: str, changes: dict[str, Any], words: str
) -> None:
    plan_run(make_config(model, **changes), store)
    with pytest.raises(InputError, match=words):
        plan_run(make_config(model, parallel__graph=2, **changes), store)
