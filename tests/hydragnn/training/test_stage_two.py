"""In the second stage of training the energy weighs more, in every run, rank, part and segment alike."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.models import load_model
from hydragnn.record import RunRecord, read_record
from tests.hydragnn.training.conftest import Configs, RunOnce, Trained, assert_same_curves

ENERGY = {"kind": "energy", "field": "energy", "references": True, "forces": "forces", "hidden_dims": [8]}
CHARGE = {"kind": "scalar", "field": "charge", "hidden_dims": [8]}


@pytest.fixture
def two_stages(make_config: Configs) -> Configs:
    """Makes a run of four epochs, in the last two of which the energy weighs ``factor`` times more."""

    def make(factor: float = 50.0, **changes: Any) -> RunConfig:
        heads = [{**ENERGY, "stage_two_factor": factor}, CHARGE]
        settings = {"train__epochs": 4, "train__stage_two": 0.5, "train__ema_decay": 0.9, **changes}
        return make_config(heads=heads, **settings)

    return make


@pytest.fixture
def whole(two_stages: Configs, run_once: RunOnce) -> RunRecord:
    """The run of two stages, undisturbed."""
    return read_record(run_once(two_stages()))


def test_stages_differ_in_the_energys_weight_alone_and_the_validation_loss_has_that_of_the_second(
    two_stages: Configs, whole: RunRecord, trained: Trained
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
    two_stages: Configs, make_config: Configs, trained: Trained
) -> None:
    from_the_start = trained("two", two_stages(train__epochs=1))
    heads = [{**ENERGY, "weight": 50.0, "stage_two_factor": 1.0}, CHARGE]
    one_stage = trained("one", make_config(heads=heads, train__epochs=1, train__ema_decay=0.9))
    assert from_the_start.curves == one_stage.curves


def test_a_run_that_is_paused_in_its_first_stage_leaves_a_model(
    two_stages: Configs, trained: Trained, store: MemoryStore, tmp_path: Path
) -> None:
    record = trained("run", two_stages(), until=1)
    assert (record.status, record.best["epoch"]) == ("paused", 1)
    output = load_model(tmp_path / "run" / "model").predict(store.read([0]))
    assert {"energy", "forces", "charge"} == set(output)


def test_two_ranks_and_parts_of_batches_cross_the_border_as_one_rank_does(
    two_stages: Configs, whole: RunRecord, trained: Trained, train_on_ranks: Callable[..., str], tmp_path: Path
) -> None:
    trained("run", two_stages(), until=1)
    train_on_ranks({tmp_path / "run": two_stages()}, 2, "--resume", "--until", "3", "--micro-batches", "3")
    assert read_record(tmp_path / "run").cost.ranks == 2
    assert_same_curves(whole, trained("run", two_stages(), resume=True))


def test_patience_does_not_end_a_run_before_its_second_stage(two_stages: Configs, trained: Trained) -> None:
    rates = {"train__learning_rate": 1e-30, "train__schedule": "constant", "train__ema_decay": 0.0}
    settings = {"train__epochs": 8, "train__patience": 2, **rates}  # weights stand still, so no epoch is better
    assert trained("two", two_stages(**settings)).epochs == 4 + 2
    assert trained("one", two_stages(1.0, **settings)).epochs == 1 + 2
