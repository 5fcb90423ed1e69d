"""Runs that are cut anywhere, resumed, and lengthened end with the same bits."""

import random
import resource
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hydragnn.base.errors import InputError, Interrupted
from hydragnn.base.files import digest, read_json, write_json, write_sealed
from hydragnn.config import RunConfig
from hydragnn.record import OUTSIDE, RunRecord, read_record, write_record
from hydragnn.runs.folder import decisive
from hydragnn.runs.progress import Progress
from tests.hydragnn.training.conftest import (
    HARD,
    RunOnce,
    Trained,
    assert_same_curves,
    assert_same_end,
    files,
    finish,
    launch,
    make_config,
    signal_at,
    start_ranks,
    wait_for,
)
from tests.hydragnn.training.worker import clusters

ENERGY = {"kind": "energy", "field": "energy", "references": True, "forces": "forces", "hidden_dims": [8]}
CUTS: dict[str, dict[str, Any]] = {
    "schnet in a window": {"data__window": 10},
    "painn by sgd": {"model": "painn", "train__optimizer": "sgd"},
    "painn by lamb": {"model": "painn", "train__optimizer": "lamb", "train__base_batch": 4},
    "schnet by lars": {"train__optimizer": "lars", "train__learning_rate": 1.0},
    "pna in parts": {"model": "pna", "parallel__micro_batches": 3},
    "two stages": {"heads": [ENERGY], "train__stage_two": 0.5},
}


@pytest.mark.parametrize("case", CUTS)
def test_segments_and_signals_in_mid_epoch_change_no_bit(case: str, trained: Trained, tmp_path: Path) -> None:
    """Two stages are cut in both and at their border."""
    config = make_config(**HARD, **CUTS[case])
    trained("whole", config)
    assert trained("cut", config, until=1).status == "paused"
    for moment, number in ((1.5, signal.SIGTERM), (2.9, signal.SIGINT)):
        with pytest.raises(Interrupted, match="a checkpoint was written"):
            trained("cut", config, resume=True, progress=signal_at(moment, number))
        assert read_record(tmp_path / "cut").status == "paused"
        if moment < 2:
            assert trained("cut", config, resume=True, until=2).status == "paused"
    assert trained("cut", config, resume=True).status == "finished"
    assert_same_end(tmp_path / "whole", tmp_path / "cut")


def test_sigkill_at_random_moments_changes_no_bit(trained: Trained, tmp_path: Path) -> None:
    config = make_config(**{**HARD, "train__epochs": 12, "train__checkpoint_epochs": 2})
    trained("whole", config)
    moments, cut = random.Random(7), tmp_path / "cut"
    for kill in range(3):
        process = launch({cut: config}, *(["--resume"] if (cut / "config.json").exists() else []))
        wait_for(cut / "checkpoints" / "latest.json", process)
        start = (cut / "checkpoints" / "latest.json").stat().st_mtime_ns if kill else 0
        while process.poll() is None and (cut / "checkpoints" / "latest.json").stat().st_mtime_ns == start:
            time.sleep(0.001)
        time.sleep(moments.uniform(0.0, 0.15))
        process.kill()
        process.communicate()
    trained("cut", config, resume=True)
    assert_same_end(tmp_path / "whole", cut)


def test_a_paused_run_goes_on_with_what_may_change_and_refuses_the_rest(trained: Trained, tmp_path: Path) -> None:
    first = trained(until=2).cost

    def without_heartbeat() -> dict[str, bytes]:
        return {name: content for name, content in files(tmp_path).items() if not name.endswith("/heartbeat")}

    before, anew = without_heartbeat(), "begun with another configuration"
    for options, words in (
        ({"resume": False}, "holds a run already; add --resume"),
        ({"train__weight_decay": 0.1}, r"another configuration \(train.weight_decay: 1e-05, now 0.1\)"),
        ({"train__optimizer": "sgd"}, anew),
        ({"train__seed": 1}, anew),
        ({"batch__max_graphs": 3}, anew),
        ({"train__epochs": 1}, r"has trained 2 epochs, more than train.epochs = 1; ask for more"),
        ({"store": clusters(40, seed=1)}, "belongs to another data"),
    ):
        with pytest.raises(InputError, match=words):
            trained(**{"resume": True, **options})
    assert without_heartbeat() == before
    record = trained(resume=True, data__store="elsewhere", train__checkpoint_epochs=2)
    assert record.status == "finished"
    second = record.cost
    assert second.seconds > first.seconds > 0 and second.cpu_seconds > first.cpu_seconds > 0
    assert second.peak_memory_mb >= first.peak_memory_mb > 0 and second.graphs_per_second > 0
    assert first.ms_per_graph >= second.ms_per_graph > 0, "of the fastest validation"
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["000002-000000", "000003-000000", "latest.json"]  # the last two
    write_json(tmp_path / "run" / "attempt.json", {})
    with pytest.raises(InputError, match=r"is a trial of a campaign.*train.epochs: 3, now 9"):
        trained(train__epochs=9, resume=True)


def test_nothing_is_resumed_in_an_empty_folder_and_begun_in_a_file(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    for name, resume, words in (("nothing", True, "holds no run to resume"), ("run", False, "is a file, not a folder")):
        with pytest.raises(InputError, match=words):
            trained(name, resume=resume)
    assert not (tmp_path / "nothing").exists()


def test_a_run_moves_from_one_rank_to_two_in_parts_to_three_and_back_with_the_undisturbed_curve(
    trained: Trained, tmp_path: Path
) -> None:
    config = make_config(train__ema_decay=0.9, batch__max_graphs=9, train__epochs=4)
    trained("run", config, until=1)
    for ranks, options in ((2, ["--until", "2", "--micro-batches", "3"]), (3, ["--until", "3"])):
        finish(*start_ranks({tmp_path / "run": config}, ranks, "--resume", *options))
        assert read_record(tmp_path / "run").cost.ranks == ranks
    record = trained("run", config, resume=True)
    assert record.status == "finished"
    assert_same_curves(trained("whole", config), record)


def test_a_full_disk_ends_a_run_with_a_sentence_and_keeps_its_checkpoint(
    trained: Trained, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trained(until=1)
    before = files(tmp_path / "run" / "checkpoints")
    with largest_file(max(map(len, before.values())) // 2), pytest.raises(InputError, match="cannot write"):
        trained(until=2, resume=True, progress=Progress())
    assert files(tmp_path / "run" / "checkpoints") == before
    failed = read_record(tmp_path / "run")
    assert failed.status == "failed" and "cannot write" in failed.failure.message
    assert "failed after epoch 2, the last: cannot write" in capfd.readouterr().err
    assert trained(resume=True).status == "finished"


def test_a_disk_that_fills_after_the_last_epoch_leaves_the_finished_model(trained: Trained, tmp_path: Path) -> None:
    whole = trained("whole")
    trained(until=2)
    before = files(tmp_path / "run" / "checkpoints")
    with largest_file(max(map(len, before.values())) // 2):
        record = trained(resume=True)
    assert record.status == "finished" and "its last checkpoint is missing: cannot write" in record.notes[-1]
    assert files(tmp_path / "run" / "checkpoints") == before
    kept, expected = ((tmp_path / name / "model" / "weights.safetensors").read_bytes() for name in ("run", "whole"))
    assert kept == expected
    assert_same_curves(whole, record)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file grow beyond a size, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


CONSTANT: dict[str, Any] = {"train__schedule": "constant", "train__ema_decay": 0.9, "model__dropout": 0.2}


def test_more_epochs_follow_the_schedule_of_the_longer_run(trained: Trained, tmp_path: Path) -> None:
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


def test_more_epochs_give_the_bits_of_a_longer_run_also_after_an_update(trained: Trained, tmp_path: Path) -> None:
    trained("whole", make_config(**CONSTANT, train__epochs=4))
    for name in ("longer", "old"):
        assert trained(name, make_config(**CONSTANT, train__epochs=2)).status == "finished"
    (newest,) = (tmp_path / "old" / "checkpoints").glob("000002-*/state.json")
    state = read_json(newest)
    del state["checksum"]
    state["identity"]["configuration_hash"] = digest(decisive(read_record(tmp_path / "old").config))
    write_sealed(newest, state)
    for name in ("longer", "old"):
        record = trained(name, make_config(**CONSTANT, train__epochs=4), resume=True)
        assert record.continued == ["after epoch 2 with train.epochs: 2, now 4"]
        assert_same_end(tmp_path / "whole", tmp_path / name)


def test_a_run_without_its_checkpoint_begins_anew_but_not_over_its_model(trained: Trained, tmp_path: Path) -> None:
    run = tmp_path / "run"
    record = trained("run", make_config(train__epochs=2))
    model = (run / "model" / "weights.safetensors").read_bytes()
    (run / "checkpoints" / "latest.json").unlink()
    with pytest.raises(InputError, match=r"has trained 2 epochs, but .* is gone; copy .*checkpoints back"):
        trained("run", make_config(train__epochs=3), resume=True)
    assert (run / "model" / "weights.safetensors").read_bytes() == model
    shutil.rmtree(run / "checkpoints")
    write_record(replace(record, start={OUTSIDE: "1a"}), run)
    with pytest.raises(InputError, match=r"was trained outside .* fine-tune it .* model = "):
        trained("run", make_config(train__epochs=3), resume=True)
    write_record(replace(record, status="running"), run)
    again = trained("run", make_config(train__epochs=3), resume=True)
    assert again.continued == ["after epoch 0 with train.epochs: 2, now 3"]


def test_a_diverged_run_goes_on_with_a_lower_rate(trained: Trained) -> None:
    hot = {"train__learning_rate": 1e30, "train__clip_norm": 0.0, "train__epochs": 3}
    failed = trained("run", make_config(**hot))
    assert failed.failure is not None and failed.failure.kind == "diverged"
    record = trained("run", make_config(**{**hot, "train__learning_rate": 1e-3}), resume=True)
    assert record.status == "finished" and record.failure is None
    assert record.continued == [f"after epoch {failed.epochs} with train.learning_rate: 1e+30, now 0.001"]
    assert "continued" in record._repr_html_()


@pytest.mark.parametrize(("stated", "rate"), [({}, 1e-3), ({"learning_rate": 2e-3}, 2e-3)], ids=["absent", "stated"])
def test_a_resumed_run_keeps_its_rate_unless_one_is_stated(
    stated: dict[str, float], rate: float, trained: Trained, tmp_path: Path
) -> None:
    options = {"train__schedule": "constant", "train__epochs": 2}
    trained("run", make_config(**options, train__learning_rate=1e-3), until=1)  # the default of 0.2.0
    table = make_config(**options).to_json()
    del table["train"]["learning_rate"]
    config = RunConfig.parse({**table, "train": {**table["train"], **stated}})
    record = trained("run", config, resume=True)
    assert record.curves["learning_rate"] == [1e-3, rate] and record.config["train"]["learning_rate"] == rate
    assert len(record.continued) == len(stated)


CHARGE = {"kind": "scalar", "field": "charge", "hidden_dims": [8]}


def two_stages(factor: float = 50.0, **changes: Any) -> RunConfig:
    """Return a run of four epochs, in the last two of which the energy weighs ``factor`` times more."""
    heads = [{**ENERGY, "stage_two_factor": factor}, CHARGE]
    settings = {"train__epochs": 4, "train__stage_two": 0.5, "train__ema_decay": 0.9, **changes}
    return make_config(heads=heads, **settings)


@pytest.fixture
def whole(run_once: RunOnce) -> RunRecord:
    return read_record(run_once(two_stages()))


def test_stages_differ_in_the_energys_weight_and_validation_has_the_second(whole: RunRecord, trained: Trained) -> None:
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


def test_the_weight_of_the_second_stage_is_the_one_that_a_run_of_one_stage_would_have(trained: Trained) -> None:
    from_the_start = trained("two", two_stages(train__epochs=1))
    heads = [{**ENERGY, "weight": 50.0, "stage_two_factor": 1.0}, CHARGE]
    one_stage = trained("one", make_config(heads=heads, train__epochs=1, train__ema_decay=0.9))
    assert from_the_start.curves == one_stage.curves


def test_patience_does_not_end_a_run_before_its_second_stage(trained: Trained) -> None:
    rates = {"train__learning_rate": 1e-30, "train__schedule": "constant", "train__ema_decay": 0.0}
    settings = {"train__epochs": 8, "train__patience": 2, **rates}  # weights stand still, so no epoch is better
    for name, config, epochs in (("two", two_stages(**settings), 4 + 2), ("one", two_stages(1.0, **settings), 1 + 2)):
        stopped = trained(name, config)
        assert (stopped.status, stopped.epochs) == ("stopped", epochs)
        again = trained(name, config, resume=True)
        assert (again.status, again.epochs, again.curves) == ("stopped", epochs, stopped.curves)
