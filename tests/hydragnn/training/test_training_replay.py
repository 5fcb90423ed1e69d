"""Steps recorded once and replayed, and several models as one: the same numbers by other calls."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hydragnn.architectures import ArchitectureSettings
from hydragnn.base.errors import Interrupted
from hydragnn.config import RunConfig
from hydragnn.conformance.cases import FORCES, INPUTS, SCALARS, STRESS, make_graph, make_model, small_settings
from hydragnn.datasets import MemoryStore
from hydragnn.datasets.normalisation import Normalisation
from hydragnn.distributed import Ranks
from hydragnn.graphs import GraphBatch, concatenate
from hydragnn.kernels.family import taken_for
from hydragnn.layers.stacked import NotStackable
from hydragnn.models import TrainedModel, build_model, degree_statistics, parse_head, replay
from hydragnn.models.branched import build_branched
from hydragnn.models.executor import Eager, Recorded
from hydragnn.models.trained_stack import TrainedStack, check_alike
from hydragnn.runs import memory, recording
from hydragnn.runs.assembly import Assembly, assemble
from hydragnn.runs.memory import allocations
from hydragnn.runs.plan import plan_run
from hydragnn.runs.recording import with_replays
from hydragnn.training.data import DevicePlacement, Share
from hydragnn.training.loop import take_step
from tests.hydragnn.training.conftest import (
    CHARGE,
    ENERGY,
    HARD,
    MODELS,
    STORE,
    Trained,
    assembled,
    assert_same_curves,
    assert_same_end,
    branched,
    make_config,
    signal_at,
)
from tests.hydragnn.training.recorder import StandIn, launches_of, watched
from tests.hydragnn.training.worker import clusters

CPU = torch.device("cpu")
WITHOUT_FORCES = {"kind": "energy", "field": "energy", "references": True, "hidden_dims": [8]}


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setattr(recording, "recorder_on", lambda device: stand_in)
    monkeypatch.setattr(replay, "USES", 0)
    return stand_in


def run_of(config: RunConfig, store: MemoryStore = STORE, parts: int = 1) -> Assembly:
    return with_replays(assembled(config, store, parts=parts), Ranks(), lambda: None)


def assert_same_vectors(ours: Assembly, theirs: Assembly) -> None:
    # a gradient that is zero but for rounding has no digits in common, and AdamW divides it by 1e-8
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
    "checkpointing": ("painn", {"model__checkpoint_activations": True}),
    "bf16": ("painn", {"train__precision": "bf16"}),
    "totals": ("painn", {"heads": [ENERGY, {**CHARGE, "total": 0}]}),
}


@pytest.mark.parametrize("case", CASES)
def test_replayed_steps_are_the_steps(case: str, recorder: StandIn) -> None:
    """Labels are missing here and there, gradients clipped, weights averaged, and batches computed in two parts."""
    model, changes = CASES[case]
    forces = model not in ("gin", "sage", "mfc", "relational")
    heads = [ENERGY if forces else WITHOUT_FORCES, CHARGE]
    optimizer = ("sgd", "adamw")[len(case) % 2]  # either of both
    options = {"heads": heads, "train__ema_decay": 0.9, "train__optimizer": optimizer, "train__clip_norm": 0.1}
    store = clusters(16, related="relational" in (case, model))
    options |= changes
    plain, replayed = (run_of(make_config(model, train__graphs=way, **options), store, 2) for way in ("off", "on"))
    assert replayed.record.graphs and not plain.record.graphs, replayed.record.notes
    for ours, theirs in [*zip(replayed.data.epoch(0), plain.data.epoch(0))][:1]:
        new, old = (take_step(r.state, share, r.context, 1e-3) for r, share in ((replayed, ours), (plain, theirs)))
        torch.testing.assert_close((new.loss, new.norm), (old.loss, old.norm), rtol=1e-12, atol=0)
        assert float(old.norm) > 0.1, "no gradient was clipped"
    assert_same_vectors(replayed, plain)
    assert recorder.replays >= len(recorder.recorded) > 0


def test_runs_that_replay_resume_to_the_same_bits(trained: Trained, recorder: StandIn, tmp_path: Path) -> None:
    config, store = make_config(**{**HARD, "train__epochs": 3}, train__graphs="on"), clusters(20)
    record = trained("whole", config, store=store)
    assert record.graphs and record.status == "finished"
    assert trained("cut", config, until=1, store=store).status == "paused"
    with pytest.raises(Interrupted, match="a checkpoint was written"):
        trained("cut", config, resume=True, progress=signal_at(1.5, signal.SIGTERM), store=store)
    assert trained("cut", config, resume=True, store=store).status == "finished"
    assert_same_end(tmp_path / "whole", tmp_path / "cut")


def test_branches_have_recordings_of_their_own(recorder: StandIn, trained: Trained) -> None:
    stores = {"metals": clusters(12), "oxides": clusters(8, seed=7)}
    records = []
    for way in ("off", "on"):
        one = make_config("painn", train__graphs=way, train__optimizer="sgd", train__epochs=2)
        heads = {"metals": [ENERGY, CHARGE], "oxides": [{**WITHOUT_FORCES, "forces": "forces"}]}
        records.append(trained(way, branched(one, heads), store=stores))
    assert records[1].graphs and len(recorder.recorded) > 2
    assert_same_curves(*records, rel=1e-12)
    assert records[1].usage.flops >= records[0].usage.flops > 0  # padding is computed, too


def test_bits_depend_neither_on_time_nor_on_room_of_recordings(
    trained: Trained, recorder: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room the one that was not used for longest goes, and what finds no memory is computed as it is."""
    config, recorded = make_config(**{**HARD, "train__epochs": 2}, train__graphs="on"), [0]
    with taken_for("cpu", "xpu"):  # where the stand-in computes
        for name, uses, most in (("all", 0, replay.MOST), ("later", 2, replay.MOST), ("two", 0, 2), ("none", 0, 2)):
            monkeypatch.setattr(replay, "USES", uses)
            monkeypatch.setattr(replay, "MOST", most)
            recorder.room = len(recorder.recorded) + 4 if name == "none" else recorder.room
            trained(name, config)
            recorded.append(len(recorder.recorded))
            assert_same_end(tmp_path / "all", tmp_path / name)
    every, later, two, none = np.diff(recorded)
    assert 0 < later < every < two and none == 4


def test_recordings_count_where_memory_is_limited(recorder: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, the largest plain step, the pool of all recordings and their batches fit together; parts are smaller for it."""
    changes = {"batch__memory": "3 MB", "batch__max_graphs": 28}
    parts = []
    for way in ("off", "on"):
        config = make_config("painn", train__graphs=way, **changes)
        limited = memory.within_memory(assembled(config, STORE), plan_run(config, STORE), Ranks(), lambda: None)
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


PLAIN: list[tuple[str, dict[str, Any], str]] = [
    ("gin", POOLING, "the data decide how many clusters"),
    ("schnet", {"heads": [{**CHARGE, "hidden_dims": [], "per_index": 7}]}, "no network for nodes that pad"),
    ("schnet", {"model__checkpoint_activations": True, "model__dropout": 0.1}, "dropout is drawn twice"),
]


@pytest.mark.parametrize("model, changes, reason", PLAIN)
def test_what_cannot_be_recorded_is_noted(model: str, changes: dict[str, Any], reason: str, recorder: StandIn) -> None:
    store = clusters(40, related=True)
    store = MemoryStore(store.read(np.flatnonzero(store.sizes().nodes == 7)))
    options = {"heads": [WITHOUT_FORCES, CHARGE], "train__graphs": "on"} | changes
    run = run_of(make_config(model, **options), store)
    assert not run.record.graphs and reason in run.record.notes[-1]
    assert not any(isinstance(one, Recorded) for one in run.context.executors)


def test_a_cpu_has_no_graphs_and_says_so_where_they_are_asked_for() -> None:
    assert run_of(make_config(train__graphs="on"), STORE).record.notes[-1].endswith("there are none on cpu")
    silent = run_of(make_config(), STORE).record
    assert not silent.graphs and not any("graphs of the device" in note for note in silent.notes)


@pytest.mark.parametrize(
    ("epochs", "ranks", "limited", "reason"),
    [(3, 1, False, "too few"), (999, 1, False, ""), (999, 2, False, "several ranks"), (999, 1, True, "fill a memory")],
)
def test_a_long_run_alone_and_without_limit_records_by_itself(
    epochs: int, ranks: int, limited: bool, reason: str
) -> None:
    run = run_of(make_config(train__epochs=epochs), STORE)
    found = recording.reason_against(run, ranks, limited=limited)
    assert reason in found and bool(reason) == bool(found)


def of_model(model: Any) -> TrainedModel:
    return TrainedModel(model=model.eval(), normalisation=Normalisation(), executor=Eager(model=model))


def replayed_by(one: TrainedModel, record: Any) -> TrainedModel:
    return replace(one, executor=Recorded(model=one.model, replays=replay.replays_of(one.model, record)))


def models_of(model: str, members: int = 3, **changes: Any) -> list[TrainedModel]:
    heads = [WITHOUT_FORCES, CHARGE] if model in ("gin", "sage", "mfc") else [ENERGY, CHARGE]
    runs = [assembled(make_config(model, heads, train__seed=seed, **changes), STORE) for seed in range(members)]
    return [of_model(run.state.model) for run in runs]


def assert_same_predictions(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-12, atol=1e-12)
    for name, prediction in theirs[0].items():
        torch.testing.assert_close(ours[0][name].tensors(), prediction.tensors(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("attention", [{}, {"model__global_attention": {"kind": "multihead", "heads": 2}}])
def test_predictions_of_models_and_stacks_are_replayed(
    attention: dict[str, Any], recorder: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    models = models_of("painn", **attention)
    assert models[0].replayed() is models[0], "a CPU has no graphs"
    replayed = [replayed_by(one, recorder) for one in models]
    stack = None if attention else TrainedStack(replayed)
    for graphs in ([0, 1, 2], [3], [5, 4]):
        batch = STORE.read(graphs)
        expected = [model.predict_with_states(batch) for model in models]
        assert_same_predictions(replayed[0].predict_with_states(batch), expected[0])
        for ours, theirs in zip(stack.predict_with_states(batch) if stack else [], expected):
            assert_same_predictions(ours, theirs)
    output = capsys.readouterr().err
    assert recorder.recorded and "not replayed" not in output and (attention or not output)


def test_a_model_that_cannot_be_recorded_is_tried_once(capsys: pytest.CaptureFixture[str]) -> None:
    (model,), tries = models_of("painn", 1), []

    def record(run: Callable[[], Any]) -> Any:
        tries.append(run)
        raise replay.NotRecordable("no")

    replayed = replayed_by(model, record)
    for graphs in [[0, 1, 2], [3]] * (replay.USES + 2):
        batch = STORE.read(graphs)
        assert_same_predictions(replayed.predict_with_states(batch), model.predict_with_states(batch))
    assert len(tries) == 1 and capsys.readouterr().err == "note: batches are not replayed: no\n"


def test_the_stand_in_refuses_what_a_graph_of_a_device_cannot_hold() -> None:
    values = torch.tensor([1.0, 2.0])
    for refused in (
        lambda: values.sum().item(),
        lambda: values[values > 1],
        lambda: bool(values[0] > 0),
        lambda: values.new_tensor([1.0]),
        lambda: torch.repeat_interleave(values, torch.arange(2)),
    ):
        with pytest.raises(recording.NotRecordable), watched():
            refused()
    grown, weights = [values], {"now": values}
    other_calls, _ = StandIn()(lambda: (grown.append(values), torch.stack(grown))[1:])
    other_memory, _ = StandIn()(lambda: [weights["now"] + 1])
    weights["now"] = values.clone()
    for again, words in ((other_calls, "other calls"), (other_memory, "other memory")):
        with pytest.raises(AssertionError, match=words):
            again()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of NVIDIA or AMD")
def test_a_gpu_replays_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "USES", 0)
    placement = DevicePlacement(device=torch.device("cuda", 0), dtype=torch.float64)
    plans = [plan_run(make_config("painn", train__graphs=way), STORE) for way in ("off", "on")]
    runs = [assemble(plan, placement, Ranks(), lambda: None) for plan in plans]
    plain, replayed = (with_replays(run, Ranks(), lambda: None) for run in runs)
    assert replayed.record.graphs, replayed.record.notes
    for share in plain.data.epoch(0):
        ours, theirs = (take_step(run.state, share, run.context, 1e-3) for run in (replayed, plain))
        torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-10, atol=0)


def assert_stacked(models: Sequence[TrainedModel], batch: GraphBatch) -> None:
    for (values, states), trained in zip(TrainedStack(models).predict_with_states(batch), models, strict=True):
        expected, exact = trained.predict_with_states(batch)
        pairs = [(states, exact)]
        for name, prediction in expected.items():
            pairs += zip(values[name].tensors().values(), prediction.tensors().values(), strict=True)
        assert all(float((one - other).abs().max()) <= 1e-12 * float(other.abs().max()) for one, other in pairs)


@pytest.mark.parametrize("model", sorted(set(MODELS) - {"relational", "field_tokens"}))
def test_several_models_as_one_predict_what_each_does_alone(model: str) -> None:
    models = models_of(model, 8 if model == "painn" else 3)
    batch = STORE.read(range(5))
    if model == "painn":
        check_launches(models, batch)
    assert_stacked(models, batch)


@pytest.mark.parametrize("kind", ["painn", "mace", "pna"])
def test_branches_of_several_models_predict_as_one_what_each_does_alone(kind: str) -> None:
    """Values, forces and stress; branches of other trunks are no models of this shape."""
    batch = concatenate([make_graph(seed, 3 + seed) for seed in range(3)])
    models = [branch_of(seed, small_settings(kind)) for seed in range(3)]
    assert {"energy@metals", "forces@metals", "stress@metals"} <= models[0].predict(batch).keys()
    assert_stacked(models, batch)
    wider = branch_of(0, small_settings(kind, hidden_dim=16))
    with pytest.raises(NotStackable, match="different shapes"):
        check_alike([models[0].model, wider.model])


def branch_of(seed: int, settings: ArchitectureSettings) -> TrainedModel:
    tables: dict[str, list[dict[str, Any]]] = {
        "metals": [{"kind": "energy", "field": "energy", "forces": "forces", "stress": "stress"}],
        "oxides": [{"kind": "scalar", "field": "charge"}],
    }
    fields, statistics = [*INPUTS, *SCALARS, FORCES, STRESS], degree_statistics([make_graph(1, 5)])
    shared: dict[str, Any] = {"inputs": ["species"], "dim": 3, "seed": 0, "statistics": statistics}
    models = [build_model(settings, [*map(parse_head, heads)], fields, **shared) for heads in tables.values()]
    descriptions = [replace(model.description, branch=name) for name, model in zip(tables, models)]
    view = build_branched(descriptions, seed).double().views[0]
    return of_model(view)


def check_launches(models: Sequence[TrainedModel], batch: GraphBatch) -> None:
    """Eight members as one launch at most 1.6 times what one does, and nothing whose order is open."""
    stack = TrainedStack(models)
    inputs = stack.inputs_of(models[0], batch)
    fresh = [inputs.mapped(Tensor.clone) for _ in range(2)]
    of_all, unordered = launches_of(lambda: stack.executor.predict(fresh[0]))
    of_one, _ = launches_of(lambda: models[0].executor.predict(fresh[1]))
    assert sum(of_all.values()) <= 1.6 * sum(of_one.values()) and not unordered


@pytest.mark.parametrize("kind", ["schnet", "pna", "dimenet"])
def test_every_head_of_several_models_predicts_as_one_what_it_does_alone(kind: str) -> None:
    batch = concatenate([make_graph(1, 5), make_graph(2, 7), make_graph(3, 1, edges=0)])
    for changes in ({}, {"conditioning": "film"}, {"conditioning": "pooled"}):
        assert_stacked([of_model(make_model(kind, seed, **changes)) for seed in range(3)], batch)


class OwnActivation(torch.nn.Module):
    """A layer that may do anything to rows of several models."""


def test_layers_without_a_stacked_form_are_computed_one_after_the_other() -> None:
    own = [make_model("schnet", seed) for seed in range(2)]
    for model in own:
        model.heads[0].network.append(OwnActivation())
    for models, words in (
        (models_of("field_tokens"), "weights of FieldTokens have no stacked form"),
        ([of_model(make_model("painn", seed)) for seed in range(2)], "products of vectors"),
        (list(map(of_model, own)), "OwnActivation is of another package"),
    ):
        with pytest.raises(NotStackable, match=words):
            TrainedStack(models)
