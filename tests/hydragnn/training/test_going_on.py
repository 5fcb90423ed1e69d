"""Runs that are resumed with more epochs or another learning rate."""

import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hydragnn.base.errors import InputError, Interrupted
from hydragnn.base.files import digest, read_json, write_json, write_sealed
from hydragnn.record import read_record, write_record
from hydragnn.runs.folder import decisive
from tests.hydragnn.training.conftest import Configs, Trained, assert_same_end, signal_at

CONSTANT: dict[str, Any] = {"train__schedule": "constant", "train__ema_decay": 0.9, "model__dropout": 0.2}


def test_more_epochs_at_a_constant_rate_give_the_bits_of_a_run_that_had_them_from_the_start(
    trained: Trained, make_config: Configs, tmp_path: Path
) -> None:
    trained("whole", make_config(**CONSTANT, train__epochs=4))
    assert trained("longer", make_config(**CONSTANT, train__epochs=2)).status == "finished"
    record = trained("longer", make_config(**CONSTANT, train__epochs=4), resume=True)
    assert record.continued == ["after epoch 2 with train.epochs: 2, now 4"]
    assert_same_end(tmp_path / "whole", tmp_path / "longer")


def test_more_epochs_follow_the_schedule_of_the_longer_run_and_an_interruption_changes_no_bit(
    trained: Trained, make_config: Configs, tmp_path: Path
) -> None:
    short, long = make_config(train__epochs=2), make_config(train__epochs=5)
    for name in ("through", "cut"):
        trained(name, short)
    trained("through", long, resume=True)
    with pytest.raises(Interrupted):
        trained("cut", long, resume=True, progress=signal_at(3.5, signal.SIGTERM))
    record = trained("cut", long, resume=True)
    assert record.continued == ["after epoch 2 with train.epochs: 2, now 5"]
    assert_same_end(tmp_path / "through", tmp_path / "cut")
    rates, whole = record.curves["learning_rate"], trained("whole", long).curves["learning_rate"]
    assert rates[1] == 0.0 and rates[2:] == whole[2:]  # cosine: it had ended, and rises again


def test_a_checkpoint_of_an_earlier_version_is_continued_too(
    trained: Trained, make_config: Configs, tmp_path: Path
) -> None:
    trained("new", make_config(**CONSTANT, train__epochs=2))
    trained("old", make_config(**CONSTANT, train__epochs=2))
    (newest,) = (tmp_path / "old" / "checkpoints").glob("000002-*/state.json")
    state = read_json(newest)
    del state["checksum"]
    state["identity"]["configuration_hash"] = digest(decisive(read_record(tmp_path / "old").config))
    write_sealed(newest, state)
    for name in ("new", "old"):
        trained(name, make_config(**CONSTANT, train__epochs=3), resume=True)
    assert_same_end(tmp_path / "new", tmp_path / "old")


def test_a_run_whose_checkpoint_is_gone_begins_anew_where_it_was_killed_and_not_over_its_model(
    trained: Trained, make_config: Configs, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    record = trained("run", make_config(train__epochs=2))
    model = (run / "model" / "weights.safetensors").read_bytes()
    (run / "checkpoints" / "latest.json").unlink()
    with pytest.raises(InputError, match=r"has trained 2 epochs, but .* is gone; copy .*checkpoints back"):
        trained("run", make_config(train__epochs=3), resume=True)
    assert (run / "model" / "weights.safetensors").read_bytes() == model
    shutil.rmtree(run / "checkpoints")
    write_record(replace(record, status="running"), run)
    again = trained("run", make_config(train__epochs=3), resume=True)
    assert again.continued == ["after epoch 0 with train.epochs: 2, now 3"]


def test_a_diverged_run_goes_on_with_a_lower_rate(trained: Trained, make_config: Configs) -> None:
    hot = {"train__learning_rate": 1e30, "train__clip_norm": 0.0, "train__epochs": 3}
    failed = trained("run", make_config(**hot))
    assert failed.failure is not None and failed.failure.kind == "diverged"
    record = trained("run", make_config(**{**hot, "train__learning_rate": 1e-3}), resume=True)
    assert record.status == "finished" and record.failure is None
    assert record.continued == [f"after epoch {failed.epochs} with train.learning_rate: 1e+30, now 0.001"]
    assert "continued" in record._repr_html_()


def test_what_the_state_depends_on_is_not_changed(trained: Trained, make_config: Configs, tmp_path: Path) -> None:
    trained("run", make_config())
    anew = "begun with another configuration"
    for change, words in (
        ({"train__optimizer": "sgd"}, anew),
        ({"train__weight_decay": 0.1}, anew),
        ({"train__seed": 1}, anew),
        ({"batch__max_graphs": 3}, anew),
        ({"train__epochs": 2}, r"has trained 3 epochs, more than train.epochs = 2; ask for more"),
    ):
        with pytest.raises(InputError, match=words):
            trained("run", make_config(**change), resume=True)
    write_json(tmp_path / "run" / "attempt.json", {})
    with pytest.raises(InputError, match=r"is a trial of a campaign.*train.epochs: 3, now 9"):
        trained("run", make_config(train__epochs=9), resume=True)
