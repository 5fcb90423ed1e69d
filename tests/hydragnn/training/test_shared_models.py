"""Runs whose ranks share channels or layers have the loss curves and models of one rank."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from safetensors.torch import load_file

from hydragnn.config import RunConfig
from hydragnn.record import RunRecord, read_record
from hydragnn.runs import train

TENSOR = {"tensor": 2}
PIPELINE = {"pipeline": 2, "micro_batches": 3}
CHUNKS = {"pipeline": 2, "chunks": 2, "micro_batches": 3}
WITHOUT_FORCES = [
    {"kind": "energy", "field": "energy", "per_node": True, "references": True, "hidden_dims": [8]},
    {"kind": "scalar", "field": "charge", "hidden_dims": [8], "loss": "huber"},
]
KINDS = ("schnet", "painn", "mace", "equivariant_transformer", "field_tokens")
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"tensor: {kind}": (kind, TENSOR) for kind in KINDS},
    "pipeline: painn": ("painn", PIPELINE),
    "pipeline: mace": ("mace", PIPELINE),
    **{f"chunks: {kind}": (kind, CHUNKS) for kind in KINDS},
}
"""Trained on forces, but for pipelines."""


def configuration(name: str, make_config: Callable[..., RunConfig], **more: Any) -> RunConfig:
    kind, layout = RUNS[name]
    heads = WITHOUT_FORCES if "pipeline" in layout else None
    changes = {"batch__max_graphs": 9, "train__epochs": 2, "train__ema_decay": 0.9}
    changes |= {"model__num_layers": 4} if layout is CHUNKS else {}
    return make_config(kind, heads, **changes, **more)


@pytest.fixture(scope="module")
def pairs(
    make_config: Callable[..., RunConfig],
    launch: Callable[..., subprocess.Popen[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Every run by two ranks, one after the other in the same two processes."""
    folder = tmp_path_factory.mktemp("pairs")
    configs = {folder / name: configuration(name, make_config, parallel=RUNS[name][1]) for name in RUNS}
    step = {"SLURM_JOB_ID": "84", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    pair = [launch(configs, "--graphs", "24", **step, SLURM_PROCID=str(rank)) for rank in range(2)]
    for process in pair:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
    return folder


def assert_same(one: RunRecord, other: RunRecord, tolerance: float = 1e-10) -> None:
    assert one.curves.keys() == other.curves.keys() and one.parameters == other.parameters
    for name, curve in one.curves.items():
        assert other.curves[name] == pytest.approx(curve, rel=tolerance, abs=1e-13), name


@pytest.mark.parametrize("name", RUNS)
def test_two_ranks_that_share_a_model_have_the_curves_and_the_model_of_one(
    name: str, pairs: Path, make_config: Callable[..., RunConfig], material: ModuleType, tmp_path: Path
) -> None:
    alone = train(configuration(name, make_config), tmp_path / "alone", store=material.clusters(24))
    pair = read_record(pairs / name)
    assert pair.cost.ranks == 2 and pair.status == "finished"
    assert_same(alone, pair)
    models = [load_file(run / "model" / "weights.safetensors") for run in (tmp_path / "alone", pairs / name)]
    assert models[0].keys() == models[1].keys()
    for key, value in models[0].items():
        # AdamW divides by the size of a gradient, which is rounding where nothing depends on a weight
        assert (models[1][key] - value).abs().max() <= 1e-8, key
