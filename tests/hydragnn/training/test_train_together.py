"""Several runs in one process are what they would be alone."""

import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hydragnn.base.errors import InputError
from hydragnn.config import RunConfig
from hydragnn.conformance.atomics import unordered_on_a_gpu
from hydragnn.datasets import MemoryStore
from hydragnn.graphs import edge_vectors
from hydragnn.record import RunRecord, read_record
from hydragnn.runs import train, train_together
from hydragnn.runs.callback import RunCallback
from hydragnn.training import together
from hydragnn.training.context import StepResult, TrainingContext
from hydragnn.training.data import Share
from hydragnn.training.stack import side_by_side
from hydragnn.training.state import TrainState
from hydragnn.training.together import Group, Way

Trained = Callable[..., RunRecord]

Configs = Callable[..., RunConfig]
ENERGY_ALONE = [
    {"kind": "scalar", "extensive": True, "per_node": False, "field": "energy", "pool": "sum", "hidden_dims": [8]}
]
ROUNDING = 1e-9
"""Of float64, after some ten steps; a wrong gradient, batch, rate or average shows in the first digits."""


@pytest.fixture
def stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step that can be stacked is, whatever the clock says."""

    def settle(group: Group, way: Way, seconds: float) -> None:
        assert way == "stacked"
        group.settle("stacked", "the test asks for it")

    monkeypatch.setattr(Group, "note", settle)


def assert_same_curves(one: RunRecord, other: RunRecord) -> None:
    assert (one.status, one.epochs, one.curves.keys()) == (other.status, other.epochs, other.curves.keys())
    for name, curve in one.curves.items():
        assert curve == pytest.approx(other.curves[name], rel=ROUNDING), name


def assert_stacked(record: RunRecord, others: int) -> None:
    assert f"steps were taken as one with {others} other runs': the test asks for it" in record.notes


VARIED = (
    {"train__learning_rate": 0.01, "train__clip_norm": 0.5, "train__epochs": 2},
    {"train__weight_decay": 0.1, "train__ema_decay": 0.9, "train__schedule": "cosine", "train__epochs": 2},
    {"train__optimizer": "sgd", "train__learning_rate": 0.001, "train__epochs": 1, "batch__max_graphs": 5},
)


@pytest.mark.parametrize(
    "model, more",
    [
        *((kind, {}) for kind in ("schnet", "painn", "pna", "mace", "dimenet", "tensornet")),
        ("egnn", {"model__moving_coordinates": True}),
        ("pnaeq", {"model__statistics": "smooth"}),
    ],
)
@pytest.mark.usefixtures("stacked")
def test_runs_trained_together_are_those_trained_alone(
    model: str, more: dict[str, object], make_config: Configs, trained: Trained, store: MemoryStore, tmp_path: Path
) -> None:
    heads = ENERGY_ALONE if model not in ("schnet", "painn", "egnn", "dimenet") else None
    configs = [make_config(model, heads, train__seed=seed, **more, **changes) for seed, changes in enumerate(VARIED)]
    records = train_together(configs, [tmp_path / f"{number}" for number in range(3)], store=store)
    for number, (config, record) in enumerate(zip(configs, records)):
        assert_stacked(record, others=2)
        assert record == read_record(tmp_path / f"{number}")
        assert_same_curves(record, trained(f"alone-{number}", config))


@pytest.mark.parametrize(("model", "runs"), [("mace", 1), ("schnet", 2)])
@pytest.mark.usefixtures("stacked")
def test_no_sum_of_a_whole_run_depends_on_the_order_of_threads_on_a_gpu(
    model: str, runs: int, make_config: Configs, store: MemoryStore, tmp_path: Path
) -> None:
    """Alone and stacked: labels, losses, gradients, their norm, the optimizer, the average of weights and validation."""
    changes = {"train__epochs": 1, "train__clip_norm": 0.5, "train__ema_decay": 0.9}
    configs = [make_config(model, train__seed=seed, **changes) for seed in range(runs)]
    assert (
        unordered_on_a_gpu(lambda: train_together(configs, [tmp_path / f"{n}" for n in range(runs)], store=store)) == {}
    )
    assert all(read_record(tmp_path / f"{n}").status == "finished" for n in range(runs))


def test_what_fills_a_small_batch_up_is_beyond_every_cutoff(store: MemoryStore) -> None:
    """Hundreds of near neighbours of one node overflow in fp32 where layers multiply their sums (MACE), and 0 times infinity is no gradient."""
    small, large = store.read([0]), store.read(range(1, 20))
    lengths = edge_vectors(side_by_side([small, large])).norm(dim=1)
    longest = edge_vectors(large).norm(dim=1).max()
    assert lengths[: small.num_edges].max() <= longest
    assert lengths[small.num_edges : large.num_edges].min() > 5 * longest


@pytest.mark.usefixtures("stacked")
def test_a_run_that_diverges_leaves_the_others_alone(
    make_config: Configs, trained: Trained, store: MemoryStore, tmp_path: Path
) -> None:
    configs = [make_config("painn", ENERGY_ALONE, train__seed=seed, train__epochs=2) for seed in range(3)]
    wild = make_config(
        "painn", ENERGY_ALONE, train__epochs=2, train__optimizer="sgd", train__learning_rate=1e200, train__clip_norm=0
    )
    records = train_together([*configs[:1], wild, *configs[1:]], [tmp_path / f"{n}" for n in range(4)], store=store)
    assert records[1].failure is not None and records[1].failure.kind == "diverged"
    for number, config in zip((0, 2, 3), configs):
        assert_stacked(records[number], others=3)
        assert_stacked(records[number], others=2)
        assert_same_curves(records[number], trained(f"alone-{number}", config))


@pytest.mark.usefixtures("stacked")
def test_a_run_without_memory_leaves_the_others_alone(
    make_config: Configs, trained: Trained, store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = [make_config("egnn", ENERGY_ALONE, train__seed=seed, train__epochs=1) for seed in range(3)]
    stacked_gradients, take_step, calls = together.stacked_gradients, together.take_step, itertools.count(1)

    def overflow(*arguments: Any) -> Any:
        if next(calls) == 3:
            raise torch.OutOfMemoryError("out of memory")
        return stacked_gradients(*arguments)

    def overflow_alone(state: TrainState, share: Share, context: TrainingContext, rate: float) -> StepResult:
        if context.settings.seed == 1:
            raise torch.OutOfMemoryError("out of memory")
        return take_step(state, share, context, rate)

    monkeypatch.setattr(together, "stacked_gradients", overflow)
    monkeypatch.setattr(together, "take_step", overflow_alone)
    records = train_together(configs, [tmp_path / f"{number}" for number in range(3)], store=store)
    monkeypatch.undo()
    assert records[1].failure is not None and records[1].failure.kind == "out_of_memory"
    for number in (0, 2):
        assert_same_curves(records[number], trained(f"alone-{number}", configs[number]))


def _train_until_killed(configs: list[RunConfig], outs: list[Path], store: MemoryStore) -> None:
    """Die without a word once the second run has ended its first epoch."""
    ended = RunCallback.on_epoch_end

    def die(callback: RunCallback, state: TrainState) -> None:
        ended(callback, state)
        if callback.folder == outs[1]:
            os.kill(os.getpid(), signal.SIGKILL)

    RunCallback.on_epoch_end = die  # type: ignore[method-assign]
    torch.set_num_threads(1)
    train_together(configs, outs, store=store)


@pytest.mark.usefixtures("stacked")
def test_runs_killed_together_go_on_together_or_alone(
    make_config: Configs, trained: Trained, store: MemoryStore, tmp_path: Path
) -> None:
    configs = [make_config("schnet", ENERGY_ALONE, train__seed=seed, train__epochs=3) for seed in range(3)]
    outs = [tmp_path / f"{number}" for number in range(3)]
    process = multiprocessing.get_context("fork").Process(target=_train_until_killed, args=(configs, outs, store))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    assert [read_record(out).status for out in outs] == ["running"] * 3
    records = train_together(configs[:2], outs[:2], store=store, resume=True)
    records.append(train(configs[2], outs[2], store=store, resume=True))
    for number, (config, record) in enumerate(zip(configs, records)):
        assert_same_curves(record, trained(f"alone-{number}", config))


def test_the_faster_way_is_taken_and_recorded(
    make_config: Configs, store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = {"stacked": 3.0, "loop": 1.0}
    note = Group.note
    monkeypatch.setattr(Group, "note", lambda group, way, seconds: note(group, way, ticks[way]))
    configs = [make_config("schnet", ENERGY_ALONE, train__seed=seed, train__epochs=2) for seed in range(2)]
    for record in train_together(configs, [tmp_path / f"{number}" for number in range(2)], store=store):
        (sentence,) = record.notes
        assert sentence.startswith("steps were taken one after the other: a step of all took 3e+03 ms as one")


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"model__dropout": 0.2}, "random numbers of dropout"),
        ({"train__precision": "bf16"}, "bf16"),
    ],
    ids=["dropout", "bf16"],
)
def test_what_cannot_be_stacked_is_trained_one_after_the_other(
    changes: dict[str, object], reason: str, make_config: Configs, store: MemoryStore, tmp_path: Path
) -> None:
    configs = [make_config("schnet", ENERGY_ALONE, train__seed=s, train__epochs=1, **changes) for s in range(2)]
    for record in train_together(configs, [tmp_path / f"{number}" for number in range(2)], store=store):
        assert record.status == "finished" and reason in record.notes[-1]


def test_every_run_needs_a_folder_of_its_own(make_config: Configs, store: MemoryStore, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give each its own"):
        train_together([make_config(), make_config()], [tmp_path / "same", tmp_path / "same"], store=store)
