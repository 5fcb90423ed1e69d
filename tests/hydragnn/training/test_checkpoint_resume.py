"""Runs that are cut anywhere and resumed end with the same bits."""

import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hydragnn.base.errors import InputError, Interrupted
from hydragnn.record import read_record
from tests.hydragnn.training.conftest import (
    HARD,
    Configs,
    Launch,
    Trained,
    assert_same_curves,
    assert_same_end,
    files,
    signal_at,
)

ENERGY = {"kind": "energy", "field": "energy", "references": True, "forces": "forces", "hidden_dims": [8]}
CUTS: dict[str, dict[str, Any]] = {
    "schnet in a window": {"data__window": 10},
    "painn by sgd": {"model": "painn", "train__optimizer": "sgd"},
    "pna": {"model": "pna"},
    "two stages": {"heads": [ENERGY], "train__stage_two": 0.5},
}


@pytest.mark.parametrize("case", CUTS)
def test_segments_and_signals_in_mid_epoch_change_no_bit(
    case: str, trained: Trained, make_config: Configs, tmp_path: Path
) -> None:
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


def test_sigkill_at_random_moments_changes_no_bit(
    trained: Trained, make_config: Configs, launch: Launch, tmp_path: Path
) -> None:
    config = make_config(**{**HARD, "train__epochs": 12, "train__checkpoint_epochs": 2})
    trained("whole", config)
    moments, cut = random.Random(7), tmp_path / "cut"
    for kill in range(3):
        process = launch({cut: config}, *(["--resume"] if (cut / "config.json").exists() else []))
        while process.poll() is None and not (cut / "checkpoints" / "latest.json").exists():
            time.sleep(0.01)
        start = (cut / "checkpoints" / "latest.json").stat().st_mtime_ns if kill else 0
        while process.poll() is None and (cut / "checkpoints" / "latest.json").stat().st_mtime_ns == start:
            time.sleep(0.001)
        time.sleep(moments.uniform(0.0, 0.15))
        process.kill()
        process.communicate()
    trained("cut", config, resume=True)
    assert_same_end(tmp_path / "whole", cut)


def without_heartbeat(folder: Path) -> dict[str, bytes]:
    """All files of a run but the one that says when somebody last looked after it."""
    return {name: content for name, content in files(folder).items() if not name.endswith("/heartbeat")}


def test_a_paused_run_refuses_what_is_not_its_own_and_goes_on_with_what_may_change(
    trained: Trained, material: ModuleType, tmp_path: Path
) -> None:
    first = trained(until=2).cost
    before = without_heartbeat(tmp_path / "run")
    for options, words in (
        ({}, "holds a run already; add --resume"),
        ({"resume": True, "train__weight_decay": 0.1}, r"another configuration \(train.weight_decay: 1e-05, now 0.1\)"),
        ({"resume": True, "store": material.clusters(40, seed=1)}, "belongs to another data"),
    ):
        with pytest.raises(InputError, match=words):
            trained(**options)
    assert without_heartbeat(tmp_path / "run") == before
    record = trained(resume=True, data__store="elsewhere", train__checkpoint_epochs=2)
    assert record.status == "finished"
    second = record.cost
    assert second.seconds > first.seconds > 0 and second.cpu_seconds > first.cpu_seconds > 0
    assert second.peak_memory_mb >= first.peak_memory_mb > 0 and second.graphs_per_second > 0
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["000002-000000", "000003-000000", "latest.json"]  # the last two


def test_a_finished_run_resumes_to_what_it_was(trained: Trained, make_config: Configs) -> None:
    config = make_config(train__patience=1, train__epochs=40, train__learning_rate=0.3)
    stopped = trained("run", config)
    assert stopped.status == "stopped" and stopped.epochs < 40
    again = trained("run", config, resume=True)
    assert (again.status, again.epochs, again.curves) == ("stopped", stopped.epochs, stopped.curves)


def test_there_is_nothing_to_resume_in_an_empty_folder_and_no_folder_in_the_place_of_a_file(
    trained: Trained, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="holds no run to resume"):
        trained("nothing", resume=True)
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "run").write_text("mine")
    with pytest.raises(InputError, match="is a file, not a folder"):
        trained()


def test_a_run_moves_from_one_rank_to_two_in_parts_to_three_and_back_with_the_undisturbed_curve(
    trained: Trained, make_config: Configs, train_on_ranks: Callable[..., str], tmp_path: Path
) -> None:
    config = make_config(train__ema_decay=0.9, batch__max_graphs=9, train__epochs=4)
    trained("run", config, until=1)
    for ranks, options in ((2, ["--until", "2", "--micro-batches", "3"]), (3, ["--until", "3"])):
        train_on_ranks({tmp_path / "run": config}, ranks, "--resume", *options)
        assert read_record(tmp_path / "run").cost.ranks == ranks
    record = trained("run", config, resume=True)
    assert record.status == "finished"
    assert_same_curves(trained("whole", config), record)


def test_a_full_disk_ends_the_run_with_one_sentence_and_keeps_the_last_checkpoint(
    trained: Trained, make_config: Configs, launch: Launch, tmp_path: Path
) -> None:
    trained(until=1)
    before = files(tmp_path / "run" / "checkpoints")
    size = max(len(content) for content in before.values())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, hard))  # the largest file that the child can write
    try:
        process = launch({tmp_path / "run": make_config()}, "--resume", launcher=[sys.executable])
        output, _ = process.communicate(timeout=600)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert process.returncode == 2 and "cannot write" in output, output
    assert files(tmp_path / "run" / "checkpoints") == before
    failed = read_record(tmp_path / "run")
    assert failed.status == "failed" and "cannot write" in failed.failure.message
    assert trained(resume=True).status == "finished"
