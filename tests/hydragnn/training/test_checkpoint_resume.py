"""Runs that are cut anywhere and resumed end with the same bits."""

import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from safetensors.torch import load_file

from hydragnn.base.errors import InputError, Interrupted
from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.record import RunRecord, read_record
from hydragnn.runs import train

Trained = Callable[..., RunRecord]

HARD = {
    "model__dropout": 0.2,
    "train__ema_decay": 0.9,
    "train__warmup_epochs": 1.5,
    "train__epochs": 4,
    "train__precision": "fp32",
}


class SignalAt:
    """A progress display that sends this process a signal when a run has come to a moment."""

    def __init__(self, moment: float, number: signal.Signals) -> None:
        self.moment, self.number = moment, number

    def begin(self, epochs: float, total: int) -> None: ...

    def step(self, epochs: float, loss: float | None, graphs_per_second: float) -> None:
        if self.moment <= epochs:
            self.moment = 1e9
            signal.raise_signal(self.number)

    def epoch(self, number: int, values: dict[str, float | None]) -> None: ...

    def end(self, sentence: str) -> None: ...


def bits(run: Path) -> dict[str, bytes]:
    """The last weights, the best weights and everything else of the newest checkpoint, and the model."""
    newest = max(path for path in (run / "checkpoints").iterdir() if path.is_dir())
    actual = {"model": (run / "model" / "weights.safetensors").read_bytes()}
    tensors = load_file(newest / "tensors.safetensors")
    return actual | {name: value.numpy().tobytes() for name, value in tensors.items()}


def assert_same_end(one: Path, other: Path) -> None:
    before, after = read_record(one), read_record(other)
    assert after.status == before.status and after.curves == before.curves and after.best == before.best
    assert bits(other) == bits(one)


@pytest.mark.parametrize(
    "model, optimizer, window", [("schnet", "adamw", 10), ("painn", "sgd", 0), ("pna", "adamw", 0)]
)
def test_segments_and_signals_in_mid_epoch_change_no_bit(
    model: str,
    optimizer: str,
    window: int,
    trained: Trained,
    store: MemoryStore,
    make_config: Callable[..., RunConfig],
    tmp_path: Path,
) -> None:
    config = make_config(model, **HARD, train__optimizer=optimizer, data__window=window)
    trained("whole", config)
    cut = tmp_path / "cut"
    assert train(config, cut, store=store, until=1).status == "paused"
    for moment, number in ((1.5, signal.SIGTERM), (2.9, signal.SIGINT)):
        with pytest.raises(Interrupted, match="a checkpoint was written"):
            train(config, cut, store=store, resume=True, progress=SignalAt(moment, number))
        assert read_record(cut).status == "paused"
    assert train(config, cut, store=store, resume=True).status == "finished"
    assert_same_end(tmp_path / "whole", cut)


def test_cuts_in_both_stages_and_at_their_border_change_no_bit(
    trained: Trained, store: MemoryStore, make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    energy = {"kind": "energy", "field": "energy", "references": True, "forces": "forces", "hidden_dims": [8]}
    config = make_config(heads=[energy], train__stage_two=0.5, **HARD)
    trained("whole", config)
    cut = tmp_path / "cut"
    for moment in (1.5, 2.5):
        with pytest.raises(Interrupted, match="a checkpoint was written"):
            progress = SignalAt(moment, signal.SIGTERM)
            train(config, cut, store=store, until=2 if moment < 2 else None, resume=moment > 2, progress=progress)
        if moment < 2:
            assert train(config, cut, store=store, until=2, resume=True).status == "paused"
    assert train(config, cut, store=store, resume=True).status == "finished"
    assert_same_end(tmp_path / "whole", cut)


def test_sigkill_at_random_moments_changes_no_bit(
    trained: Trained,
    store: MemoryStore,
    make_config: Callable[..., RunConfig],
    launch: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
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
    train(config, cut, store=store, resume=True)
    assert_same_end(tmp_path / "whole", cut)


def test_cost_accumulates_over_segments(trained: Trained, make_config: Callable[..., RunConfig]) -> None:
    config = make_config()
    first = trained("run", config, until=1).cost
    second = trained("run", config, until=3, resume=True).cost
    assert second.seconds > first.seconds > 0 and second.cpu_seconds > first.cpu_seconds > 0
    assert second.peak_memory_mb >= first.peak_memory_mb > 0 and second.graphs_per_second > 0


def test_a_finished_run_resumes_to_what_it_was(trained: Trained, make_config: Callable[..., RunConfig]) -> None:
    config = make_config(train__patience=1, train__epochs=40, train__learning_rate=0.3)
    stopped = trained("run", config)
    assert stopped.status == "stopped" and stopped.epochs < 40
    again = trained("run", config, resume=True)
    assert (again.status, again.epochs, again.curves) == ("stopped", stopped.epochs, stopped.curves)


def test_only_the_last_two_checkpoints_stay(trained: Trained, tmp_path: Path) -> None:
    trained(train__epochs=4)
    files_before = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert files_before == ["000003-000000", "000004-000000", "latest.json"]


def test_an_existing_run_is_refused_and_left_alone(trained: Trained, tmp_path: Path) -> None:
    trained()
    before = bits_of_files(tmp_path / "run")
    with pytest.raises(InputError, match="holds a run already; add --resume"):
        trained()
    with pytest.raises(InputError, match=r"begun with another configuration \(train.weight_decay: 1e-05, now 0.1\)"):
        trained(train__weight_decay=0.1, resume=True)
    assert bits_of_files(tmp_path / "run") == before


def bits_of_files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_other_data_are_refused_on_resume(
    trained: Trained, material: ModuleType, make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    trained(until=1)
    with pytest.raises(InputError, match="belongs to another data"):
        train(make_config(), tmp_path / "run", store=material.clusters(40, seed=1), resume=True)


def test_a_run_resumes_with_its_store_in_another_place_and_other_times_of_saving(
    trained: Trained, make_config: Callable[..., RunConfig]
) -> None:
    trained(until=1)
    moved = make_config(data__store="elsewhere", train__checkpoint_epochs=2)
    assert trained("run", moved, resume=True).status == "finished"


def test_there_is_nothing_to_resume_in_an_empty_folder(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run to resume"):
        trained("nothing", resume=True)
    assert not (tmp_path / "nothing").exists()


def test_a_file_in_the_place_of_the_run_is_refused(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(InputError, match="is a file, not a folder"):
        trained()


@pytest.fixture(scope="module")
def run_of_two_ranks(
    make_config: Callable[..., RunConfig],
    train_on_ranks: Callable[..., None],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[RunConfig, Path]:
    """One epoch by two ranks, and its configuration."""
    config, run = make_config(train__ema_decay=0.9), tmp_path_factory.mktemp("two") / "run"
    train_on_ranks(config, run, 2, "--until", "1")
    return config, run


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_checkpoint_of_two_ranks_continues_on_one_and_three(
    ranks: int,
    run_of_two_ranks: tuple[RunConfig, Path],
    trained: Trained,
    store: MemoryStore,
    train_on_ranks: Callable[..., None],
    tmp_path: Path,
) -> None:
    config, saved_run = run_of_two_ranks
    run = tmp_path / "run"
    shutil.copytree(saved_run, run)
    if ranks == 1:
        train(config, run, store=store, resume=True)
    else:
        train_on_ranks(config, run, ranks, "--resume")
    record, whole = read_record(run), trained("whole", config)
    assert record.status == "finished" and record.cost.ranks == ranks
    assert record.curves["valid/loss"] == pytest.approx(whole.curves["valid/loss"], rel=1e-6)


def test_a_run_moves_from_one_rank_to_two_in_parts_and_back_with_the_undisturbed_curve(
    trained: Trained,
    store: MemoryStore,
    make_config: Callable[..., RunConfig],
    train_on_ranks: Callable[..., None],
    tmp_path: Path,
) -> None:
    config, run = make_config(train__ema_decay=0.9, batch__max_graphs=9), tmp_path / "run"
    train(config, run, store=store, until=1)
    train_on_ranks(config, run, 2, "--resume", "--until", "2", "--micro-batches", "3")
    assert read_record(run).cost.ranks == 2
    record, whole = train(config, run, store=store, resume=True), trained("whole", config)
    for name, curve in whole.curves.items():
        assert record.curves[name] == pytest.approx(curve, rel=1e-6, abs=1e-12), name


def test_a_full_disk_ends_the_run_with_one_sentence_and_keeps_the_last_checkpoint(
    store: MemoryStore,
    make_config: Callable[..., RunConfig],
    launch: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
) -> None:
    config, run = make_config(), tmp_path / "run"
    train(config, run, store=store, until=1)
    files_before = bits_of_files(run / "checkpoints")
    size = max(len(content) for content in files_before.values())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, hard))  # the largest file that the child can write
    try:
        process = launch({run: config}, "--resume", launcher=[sys.executable])
        output, _ = process.communicate(timeout=600)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert process.returncode == 2 and "cannot write" in output, output
    assert bits_of_files(run / "checkpoints") == files_before
    assert train(config, run, store=store, resume=True).status == "finished"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes; skips where this user cannot mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("cannot mount a small disk here; run as root to see what a full one does")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


class FullAt(SignalAt):
    """A progress display that leaves room for a record but not for a checkpoint on a disk at a moment."""

    def __init__(self, moment: float, disk: Path) -> None:
        self.moment, self.disk = moment, disk

    def step(self, epochs: float, loss: float | None, graphs_per_second: float) -> None:
        if self.moment <= epochs:
            self.moment = 1e9
            (self.disk / "filler").write_bytes(bytes(shutil.disk_usage(self.disk).free - 16384))


def test_a_disk_that_fills_up_while_a_run_trains_leaves_the_last_checkpoint(
    store: MemoryStore, make_config: Callable[..., RunConfig], small_disk: Path
) -> None:
    config, run = make_config(), small_disk / "run"
    train(config, run, store=store, until=1)
    files_before = bits_of_files(run / "checkpoints")
    with pytest.raises(InputError, match=r"cannot write .*: No space left on device; free space"):
        train(config, run, store=store, resume=True, progress=FullAt(1.5, small_disk))
    assert bits_of_files(run / "checkpoints") == files_before
    failed = read_record(run)
    assert failed.status == "failed" and "No space left" in failed.failure.message
    (small_disk / "filler").unlink()
    assert train(config, run, store=store, resume=True).status == "finished"
