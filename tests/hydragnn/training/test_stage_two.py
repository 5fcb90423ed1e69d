"""In the second stage of training the energy weighs more, in every run, rank, part and segment alike."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.models import load_model
from hydragnn.record import RunRecord, read_record
from hydragnn.runs import train

Trained = Callable[..., RunRecord]

Config = Callable[..., RunConfig]
ENERGY = {"kind": "energy", "field": "energy", "references": True, "forces": "forces", "hidden_dims": [8]}
CHARGE = {"kind": "scalar", "field": "charge", "hidden_dims": [8]}


@pytest.fixture
def two_stages(make_config: Config) -> Config:
    """Makes a run of four epochs, in the last two of which the energy weighs ``factor`` times more."""

    def make(factor: float = 50.0, **changes: Any) -> RunConfig:
        heads = [{**ENERGY, "stage_two_factor": factor}, CHARGE]
        settings = {"train__epochs": 4, "train__stage_two": 0.5, "train__ema_decay": 0.9, **changes}
        return make_config(heads=heads, **settings)

    return make


@pytest.fixture
def whole(two_stages: Config, trained: Trained) -> RunRecord:
    """The run of two stages, undisturbed."""
    return trained("whole", two_stages())


def test_stages_differ_in_the_energys_weight_alone_and_the_validation_loss_has_that_of_the_second(
    two_stages: Config, whole: RunRecord, trained: Trained
) -> None:
    one, other = (trained(str(factor), two_stages(factor)) for factor in (1.0, 25.5))
    for name, curve in whole.curves.items():
        if name != "valid/loss":
            assert one.curves[name][:2] == curve[:2] == other.curves[name][:2], name
    assert one.curves["train/loss"][2] != whole.curves["train/loss"][2] != other.curves["train/loss"][2]
    # as a function of the factor the loss of an epoch in the first stage is a straight line, whose slope is the energy's loss
    for epoch in range(2):
        first, middle, last = (run.curves["valid/loss"][epoch] for run in (one, other, whole))
        assert first is not None and middle is not None and last is not None
        assert middle - first == pytest.approx((last - first) / 2, rel=1e-9) and last > first


def test_the_weight_of_the_second_stage_is_the_one_that_a_run_of_one_stage_would_have(
    two_stages: Config, make_config: Config, trained: Trained
) -> None:
    from_the_start = trained("two", two_stages(train__epochs=1))
    heads = [{**ENERGY, "weight": 50.0, "stage_two_factor": 1.0}, CHARGE]
    one_stage = trained("one", make_config(heads=heads, train__epochs=1, train__ema_decay=0.9))
    assert from_the_start.curves == one_stage.curves


def test_a_run_that_is_paused_in_its_first_stage_leaves_a_model(
    two_stages: Config, trained: Trained, store: MemoryStore, tmp_path: Path
) -> None:
    record = trained("run", two_stages(), until=1)
    assert (record.status, record.best["epoch"]) == ("paused", 1)
    output = load_model(tmp_path / "run" / "model").predict(store.read([0]))
    assert {"energy", "forces", "charge"} == set(output)


def test_two_ranks_and_parts_of_batches_cross_the_border_as_one_rank_does(
    two_stages: Config,
    whole: RunRecord,
    store: MemoryStore,
    launch: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
) -> None:
    config, run = two_stages(), tmp_path / "run"
    train(config, run, store=store, until=1)
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    process = launch({run: config}, "--resume", "--until", "3", "--micro-batches", "3", launcher=ranks)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert read_record(run).cost.ranks == 2
    record = train(config, run, store=store, resume=True)
    for name, curve in whole.curves.items():
        assert record.curves[name] == pytest.approx(curve, rel=1e-6, abs=1e-12), name


def test_patience_does_not_end_a_run_before_its_second_stage(two_stages: Config, trained: Trained) -> None:
    rates = {"train__learning_rate": 1e-30, "train__schedule": "constant", "train__ema_decay": 0.0}
    settings = {"train__epochs": 8, "train__patience": 2, **rates}  # weights stand still, so no epoch is better
    assert trained("two", two_stages(**settings)).epochs == 4 + 2
    assert trained("one", two_stages(1.0, **settings)).epochs == 1 + 2
