"""Steps recorded once and replayed: the same numbers, and nothing that a graph of a device cannot do."""

import random
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from hydragnn.base.errors import Interrupted
from hydragnn.config import BranchedConfig, RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.distributed import Ranks
from hydragnn.kernels.family import taken_for
from hydragnn.models import TrainedModel, replay
from hydragnn.models.trained_stack import TrainedStack
from hydragnn.runs import memory, recording
from hydragnn.runs.assembly import Assembly, assemble
from hydragnn.runs.memory import allocations
from hydragnn.runs.plan import plan_run
from hydragnn.runs.recording import with_replays
from hydragnn.training.data import DevicePlacement, Share
from hydragnn.training.executor import Recorded
from hydragnn.training.loop import take_step
from tests.hydragnn.training.conftest import (
    CHARGE,
    ENERGY,
    HARD,
    MODELS,
    Configs,
    Launch,
    Trained,
    assembled,
    assert_same_curves,
    assert_same_end,
    signal_at,
)
from tests.hydragnn.training.recorder import StandIn, watched

CPU = torch.device("cpu")
WITHOUT_FORCES = {"kind": "energy", "field": "energy", "references": True, "hidden_dims": [8]}


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """What records on this CPU."""
    stand_in = StandIn()
    monkeypatch.setattr(recording, "recorder_on", lambda device: stand_in)
    monkeypatch.setattr(replay, "USES", 0)
    return stand_in


def run_of(config: RunConfig, store: MemoryStore, parts: int = 1) -> Assembly:
    return with_replays(assembled(config, store, parts=parts), Ranks(), lambda: None)


def assert_same_vectors(ours: Assembly, theirs: Assembly) -> None:
    """Gradient, weights, average and moments differ by 1e-12 of their norm.

    Not number by number: a gradient that is zero but for rounding has no digits in common, and AdamW divides it by 1e-8.
    """
    moved, plain = ({**run.state.tensors(), "gradient": run.state.parameters.gradient} for run in (ours, theirs))
    for name, tensor in plain.items():
        error = (moved[name].double() - tensor.double()).norm()
        assert error <= 1e-12 * tensor.double().norm(), f"{name} differs by {error}"


ATTENDING = {kind: {"kind": kind, "heads": 2} for kind in ("linear", "multihead", "equivariant")}
KINDS = {"data__inputs": ["atomic_numbers", "relation"]}
POOLING = {"model__pooling": {"levels": 1}, "model__num_layers": 3}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, {}) for kind in MODELS},
    "relational": ("relational", KINDS),
    "linear attention": ("schnet", {"model__global_attention": ATTENDING["linear"]}),
    "multihead attention": ("egnn", {"model__global_attention": ATTENDING["multihead"]}),
    "equivariant attention": ("painn", {"model__global_attention": {**ATTENDING["equivariant"], "cutoff": 4.0}}),
    "all pairs": ("schnet", {"model__global_attention": ATTENDING["equivariant"]}),
    "pooling": ("painn", POOLING),
    "pooling of kinds": ("relational", POOLING | KINDS),
    "checkpointing": ("painn", {"model__checkpoint_activations": True}),
    "angles at receivers": ("dimenet", {"model__angle": "at_receiver"}),
    "bf16": ("painn", {"train__precision": "bf16"}),
}


@pytest.mark.parametrize("case", CASES)
def test_replayed_steps_are_the_steps(case: str, material: ModuleType, make_config: Configs, recorder: StandIn) -> None:
    """Labels are missing here and there, gradients clipped, weights averaged, and batches computed in two parts."""
    model, changes = CASES[case]
    forces = model not in ("gin", "sage", "mfc", "relational") and "model__pooling" not in changes
    heads = [ENERGY if forces else WITHOUT_FORCES, CHARGE]
    options: dict[str, Any] = {"train__ema_decay": 0.9, "train__optimizer": "sgd", "train__clip_norm": 0.1}
    if len(case) % 2:  # either of both
        options["train__optimizer"] = "adamw"
    store = material.clusters(40, related="relational" in (case, model) or "pooling" in case)
    plain, replayed = (
        run_of(make_config(model, heads, train__graphs=way, **options, **changes), store, 2) for way in ("off", "on")
    )
    assert replayed.record.graphs and not plain.record.graphs, replayed.record.notes
    for ours, theirs in [*zip(replayed.data.epoch(0), plain.data.epoch(0))][:1]:
        new, old = (take_step(r.state, share, r.context, 1e-3) for r, share in ((replayed, ours), (plain, theirs)))
        torch.testing.assert_close((new.loss, new.norm), (old.loss, old.norm), rtol=1e-12, atol=0)
        assert float(old.norm) > 0.1, "no gradient was clipped"
    assert_same_vectors(replayed, plain)
    assert recorder.replays >= len(recorder.recorded) > 0


def test_runs_that_replay_have_the_curves_of_others_and_resume_to_the_same_bits(
    trained: Trained, make_config: Configs, recorder: StandIn, tmp_path: Path
) -> None:
    config = make_config(**{**HARD, "train__epochs": 3}, train__graphs="on")
    record = trained("whole", config)
    assert record.graphs and record.status == "finished"
    assert trained("cut", config, until=1).status == "paused"
    with pytest.raises(Interrupted, match="a checkpoint was written"):
        trained("cut", config, resume=True, progress=signal_at(1.5, signal.SIGTERM))
    assert trained("cut", config, resume=True).status == "finished"
    assert_same_end(tmp_path / "whole", tmp_path / "cut")


def test_a_kill_and_a_resume_of_replayed_runs_change_no_bit(
    trained: Trained, make_config: Configs, launch: Launch, tmp_path: Path, recorder: StandIn
) -> None:
    """Killed at a random moment after a checkpoint, in a process of its own; resumed here, where sizes are recorded sooner."""
    config = make_config("egnn", **{**HARD, "train__epochs": 3}, train__graphs="on")
    with taken_for("cpu", "xpu"):  # where the stand-in computes
        trained("whole", config)
    cut = tmp_path / "cut"
    process = launch({cut: config}, "--replayed")
    while process.poll() is None and not [*(cut / "checkpoints").glob("0*")]:
        time.sleep(0.01)
    time.sleep(random.random() * 0.3)
    process.kill()
    process.communicate()
    with taken_for("cpu", "xpu"):
        assert trained("cut", config, resume=True).graphs
    assert_same_end(tmp_path / "whole", cut)


def test_branches_have_recordings_of_their_own(
    material: ModuleType, make_config: Configs, recorder: StandIn, trained: Trained
) -> None:
    stores = {"metals": material.clusters(20), "oxides": material.clusters(12, seed=7)}
    records = []
    for way in ("off", "on"):
        one = make_config("painn", train__graphs=way, train__optimizer="sgd", train__epochs=2).to_json()
        own = {key: one.pop(key) for key in ("data", "split", "heads")}
        heads = [{**WITHOUT_FORCES, "forces": "forces"}]
        branches = [{"name": "metals", **own}, {"name": "oxides", **own, "heads": heads}]
        records.append(trained(way, BranchedConfig.parse({**one, "branches": branches}), store=stores))
    assert records[1].graphs and len(recorder.recorded) > 2
    assert_same_curves(*records, rel=1e-12)


def test_few_recordings_are_kept_where_there_is_no_room_for_more(
    trained: Trained, make_config: Configs, recorder: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was not used for longest goes, and what finds no memory is computed as it is, with the same bits."""
    config = make_config(**{**HARD, "train__epochs": 2}, train__graphs="on")
    with taken_for("cpu", "xpu"):
        trained("all", config)
        every = len(recorder.recorded)
        monkeypatch.setattr(replay, "MOST", 2)
        trained("two", config)
        assert len(recorder.recorded) - every > every
        recorder.room = len(recorder.recorded) + 4
        trained("none", config)
    assert_same_end(tmp_path / "all", tmp_path / "two")
    assert_same_end(tmp_path / "all", tmp_path / "none")


def test_recordings_count_where_memory_is_limited(
    store: MemoryStore, make_config: Configs, recorder: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, the largest plain step, the pool of all recordings and their batches fit together; parts are smaller for it."""
    changes = {"batch__memory": "3 MB", "batch__max_graphs": 28}
    parts = []
    for way in ("off", "on"):
        config = make_config("painn", train__graphs=way, **changes)
        limited = memory.within_memory(assembled(config, store), plan_run(config, store), Ranks(), lambda: None)
        run = with_replays(limited, Ranks(), lambda: None)
        parts.append([part for share in run.data.epoch(0) for part in share.parts])
    assert run.record.graphs and len(parts[1]) > len(parts[0])
    recorder.pool = 0
    steps = [partial(take_step, run.state, Share(branch=0, parts=(part,)), run.context, 0.0) for part in parts[1]]
    monkeypatch.setattr(replay, "USES", 1)
    run.context.executors[0].replays.recordings.clear()
    plain = max(int(allocations(step).cumsum().max()) for step in steps)
    for step in steps:
        step()
    held = sum(one.nbytes for each in run.context.executors[0].replays.recordings.values() for one in each.inputs)
    assert recorder.recorded and memory.size_of_state(run) + plain + recorder.pool + held <= 3_000_000


def test_bits_do_not_depend_on_when_a_size_is_recorded(
    trained: Trained, make_config: Configs, recorder: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(**{**HARD, "train__epochs": 2}, train__graphs="on")
    with taken_for("cpu", "xpu"):  # where the stand-in computes
        trained("at once", config)
        at_once = len(recorder.recorded)
        monkeypatch.setattr(replay, "USES", 2)
        trained("later", config)
    assert 0 < len(recorder.recorded) - at_once < at_once
    assert_same_end(tmp_path / "at once", tmp_path / "later")


def test_validation_by_replays_gives_the_same_metrics(trained: Trained, recorder: StandIn) -> None:
    changes = {"train__optimizer": "sgd", "train__epochs": 2}
    assert_same_curves(*(trained(way, train__graphs=way, **changes) for way in ("off", "on")), rel=1e-12)


@pytest.mark.parametrize(
    "model, changes, reason",
    [
        ("gin", {**POOLING, "model__global_attention": ATTENDING["multihead"]}, "makes the host wait"),
        ("schnet", {"model__checkpoint_activations": True, "model__dropout": 0.1}, "dropout is drawn twice"),
    ],
)
def test_what_cannot_be_recorded_runs_as_it_is_and_says_why(
    model: str, changes: dict[str, Any], reason: str, material: ModuleType, make_config: Configs, recorder: StandIn
) -> None:
    heads = [WITHOUT_FORCES, CHARGE]
    run = run_of(make_config(model, heads, train__graphs="on", **changes), material.clusters(40, related=True))
    assert not run.record.graphs and reason in run.record.notes[-1]
    assert not any(isinstance(one, Recorded) for one in run.context.executors)


def test_a_network_for_each_node_is_replayed(make_config: Configs, recorder: StandIn, material: ModuleType) -> None:
    graphs = material.clusters(40)
    size = int(np.bincount(graphs.sizes().nodes).argmax())
    store = MemoryStore(graphs.read(np.flatnonzero(graphs.sizes().nodes == size)))
    heads = [{**CHARGE, "hidden_dims": [], "per_index": size}]
    plain, replayed = (run_of(make_config("schnet", heads, train__graphs=way), store) for way in ("off", "on"))
    assert replayed.record.graphs, replayed.record.notes
    new, old = (take_step(run.state, next(run.data.epoch(0)), run.context, 1e-3) for run in (replayed, plain))
    torch.testing.assert_close((new.loss, new.norm), (old.loss, old.norm), rtol=1e-12, atol=0)


def test_a_cpu_has_no_graphs_and_says_so_where_they_are_asked_for(store: MemoryStore, make_config: Configs) -> None:
    assert run_of(make_config(train__graphs="on"), store).record.notes[-1].endswith("there are none on cpu")
    silent = run_of(make_config(), store).record
    assert not silent.graphs and not any("graphs of the device" in note for note in silent.notes)


@pytest.mark.parametrize(
    ("epochs", "ranks", "limited", "reason"),
    [
        (3, 1, False, "too few"),
        (1000, 1, False, ""),
        (1000, 2, False, "several ranks"),
        (1000, 1, True, "fill a memory"),
    ],
)
def test_a_run_records_by_itself_where_it_is_long_enough_alone_and_without_limit(
    epochs: int, ranks: int, limited: bool, reason: str, store: MemoryStore, make_config: Configs
) -> None:
    run = run_of(make_config(train__epochs=epochs), store)
    found = recording.reason_against(run, ranks, limited=limited)
    assert reason in found and bool(reason) == bool(found)


def model_of(run: Assembly) -> TrainedModel:
    normalisation = run.data.branches[0].normalisation
    return TrainedModel(model=run.state.model, normalisation=normalisation, dtype=torch.float64)


def assert_same_predictions(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-12, atol=1e-12)
    for name, prediction in theirs[0].items():
        torch.testing.assert_close(ours[0][name].tensors(), prediction.tensors(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("attention", [{}, {"model__global_attention": {"kind": "multihead", "heads": 2}}])
def test_predictions_of_one_model_and_of_members_as_one_are_replayed_or_made_as_before(
    attention: dict[str, Any],
    store: MemoryStore,
    make_config: Configs,
    recorder: StandIn,
    capsys: pytest.CaptureFixture[str],
) -> None:
    models = [model_of(run_of(make_config("painn", train__seed=seed, **attention), store)) for seed in range(3)]
    assert models[0].replayed() is models[0], "a CPU has no graphs"
    replayed = [replace(one, function=replay.ReplayedPrediction(one.model, recorder)) for one in models]
    stack = None if attention else TrainedStack(replayed)
    for graphs in ([0, 1, 2], [3], [5, 4]):
        batch = store.read(graphs)
        expected = [model.predict_with_states(batch) for model in models]
        assert_same_predictions(replayed[0].predict_with_states(batch), expected[0])
        for ours, theirs in zip(stack.predict_with_states(batch) if stack else [], expected):
            assert_same_predictions(ours, theirs)
    output = capsys.readouterr().err
    assert recorder.recorded and "not replayed" not in output and (attention or not output)


def test_the_stand_in_refuses_what_a_graph_of_a_device_cannot_hold() -> None:
    values = torch.tensor([1.0, 2.0])
    for refused in (
        lambda: values.sum().item(),
        lambda: values[values > 1],
        lambda: values.new_tensor([1.0]),
        lambda: torch.repeat_interleave(values, torch.arange(2)),
    ):
        with pytest.raises(recording.NotRecordable), watched():
            refused()
    grown = [values]
    with pytest.raises(AssertionError, match="other calls"):
        again, _ = StandIn()(lambda: (grown.append(values), torch.stack(grown))[1:])
        again()
    weights = {"now": values}
    again, _ = StandIn()(lambda: [weights["now"] + 1])
    weights["now"] = values.clone()
    with pytest.raises(AssertionError, match="other memory"):
        again()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of NVIDIA or AMD")
def test_a_gpu_replays_the_steps(store: MemoryStore, make_config: Configs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "USES", 0)
    placement = DevicePlacement(device=torch.device("cuda", 0), dtype=torch.float64)
    plans = [plan_run(make_config("painn", train__graphs=way), store) for way in ("off", "on")]
    runs = [assemble(plan, placement, Ranks(), lambda: None) for plan in plans]
    plain, replayed = (with_replays(run, Ranks(), lambda: None) for run in runs)
    assert replayed.record.graphs, replayed.record.notes
    for share in plain.data.epoch(0):
        ours, theirs = (take_step(run.state, share, run.context, 1e-3) for run in (replayed, plain))
        torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-10, atol=0)
