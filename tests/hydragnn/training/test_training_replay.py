"""Steps recorded once and replayed: the same numbers, and nothing that a graph of a device cannot do."""

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hydragnn.base.errors import Interrupted
from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.distributed import Ranks
from hydragnn.kernels.family import taken_for
from hydragnn.models import TrainedModel, replay
from hydragnn.models.trained_stack import TrainedStack
from hydragnn.runs import recording, train
from hydragnn.runs.assembly import Assembly, assemble
from hydragnn.runs.plan import plan_run
from hydragnn.runs.recording import with_replays
from hydragnn.training.data import DevicePlacement
from hydragnn.training.loop import take_step
from tests.hydragnn.training.conftest import CHARGE, ENERGY, MODELS
from tests.hydragnn.training.recorder import StandIn, watched
from tests.hydragnn.training.test_checkpoint_resume import HARD, SignalAt, assert_same_end

Configs = Callable[..., RunConfig]
CPU = torch.device("cpu")
WITHOUT_FORCES = {"kind": "energy", "field": "energy", "references": True, "hidden_dims": [8]}


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """What records on this CPU."""
    stand_in = StandIn()
    monkeypatch.setattr(recording, "recorder_on", lambda device: stand_in)
    monkeypatch.setattr(replay, "USES", 0)
    return stand_in


def run_of(config: RunConfig, store: MemoryStore, micro_batches: int = 1) -> Assembly:
    placement = DevicePlacement(device=CPU, dtype=torch.float64, micro_batches=micro_batches)
    return with_replays(assemble(plan_run(config, store), placement, Ranks(), lambda: None), Ranks(), lambda: None)


@pytest.mark.parametrize("model", sorted(set(MODELS) - {"relational"}))
def test_replayed_steps_are_the_steps(model: str, store: MemoryStore, make_config: Configs, recorder: StandIn) -> None:
    """Labels are missing here and there, and batches are computed in two parts; one of the models attends to all nodes."""
    heads = [WITHOUT_FORCES, CHARGE] if model in ("gin", "sage", "mfc") else [ENERGY, CHARGE]
    options: dict[str, Any] = {"train__ema_decay": 0.9, "train__optimizer": "sgd"}
    if model == "schnet":
        options["model__global_attention"] = {"kind": "linear", "heads": 2}
    plain, replayed = (
        run_of(make_config(model, heads, train__graphs=way, **options), store, 2) for way in ("off", "on")
    )
    assert replayed.record.graphs and not plain.record.graphs, replayed.record.notes
    for share in list(plain.data.epoch(0))[:1]:
        ours, theirs = (take_step(run.state, share, run.context, 1e-3) for run in (replayed, plain))
        torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-12, atol=0)
        torch.testing.assert_close(ours.norm, theirs.norm, rtol=1e-12, atol=0)
    for name, tensor in plain.state.tensors().items():
        torch.testing.assert_close(replayed.state.tensors()[name], tensor, rtol=1e-11, atol=1e-12)
    assert recorder.replays >= len(recorder.recorded) > 0


def test_runs_that_replay_have_the_curves_of_others_and_resume_to_the_same_bits(
    store: MemoryStore, make_config: Configs, recorder: StandIn, tmp_path: Path
) -> None:
    config = make_config(**{**HARD, "train__epochs": 3}, train__graphs="on")
    record = train(config, tmp_path / "whole", store=store)
    assert record.graphs and record.status == "finished"
    cut = tmp_path / "cut"
    assert train(config, cut, store=store, until=1).status == "paused"
    with pytest.raises(Interrupted, match="a checkpoint was written"):
        train(config, cut, store=store, resume=True, progress=SignalAt(1.5, signal.SIGTERM))
    assert train(config, cut, store=store, resume=True).status == "finished"
    assert_same_end(tmp_path / "whole", cut)


def test_bits_do_not_depend_on_when_a_size_is_recorded(
    store: MemoryStore, make_config: Configs, recorder: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(**{**HARD, "train__epochs": 2}, train__graphs="on")
    with taken_for("cpu", "xpu"):  # where the stand-in computes
        train(config, tmp_path / "at once", store=store)
        at_once = len(recorder.recorded)
        monkeypatch.setattr(replay, "USES", 2)
        train(config, tmp_path / "later", store=store)
    assert 0 < len(recorder.recorded) - at_once < at_once
    assert_same_end(tmp_path / "at once", tmp_path / "later")


def test_validation_by_replays_gives_the_same_metrics(
    store: MemoryStore, make_config: Configs, recorder: StandIn, tmp_path: Path
) -> None:
    curves = [
        train(
            make_config(train__graphs=way, train__optimizer="sgd", train__epochs=2), tmp_path / way, store=store
        ).curves
        for way in ("off", "on")
    ]
    for name, values in curves[0].items():
        assert curves[1][name] == pytest.approx(values, rel=1e-10), name


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"model__global_attention": {"kind": "multihead", "heads": 2}}, "makes the host wait"),
        (
            {"model__global_attention": {"kind": "equivariant", "heads": 2, "cutoff": 4.0}},
            "as many pairs as positions say",
        ),
        ({"heads": [{**CHARGE, "hidden_dims": [], "per_index": 5}]}, "needs graphs of equal size"),
        ({"model__checkpoint_activations": True}, "layers are computed twice"),
    ],
)
def test_what_cannot_be_recorded_runs_as_it_is_and_says_why(
    changes: dict[str, Any], reason: str, store: MemoryStore, make_config: Configs, recorder: StandIn
) -> None:
    run = run_of(make_config(train__graphs="on", **changes), store)
    assert not run.record.graphs and reason in run.record.notes[-1]
    assert not run.context.replays


def test_a_cpu_has_no_graphs_and_says_so_where_they_are_asked_for(store: MemoryStore, make_config: Configs) -> None:
    assert run_of(make_config(train__graphs="on"), store).record.notes[-1].endswith("there are none on cpu")
    silent = run_of(make_config(), store).record
    assert not silent.graphs and not any("graphs of the device" in note for note in silent.notes)


def test_a_run_records_by_itself_where_it_is_long_enough_and_alone(store: MemoryStore, make_config: Configs) -> None:
    assert "too few" in recording.reason_against(run_of(make_config(), store), ranks=1)
    long = run_of(make_config(train__epochs=1000), store)
    assert recording.reason_against(long, ranks=1) == ""
    assert "several ranks" in recording.reason_against(long, ranks=2)


@pytest.mark.parametrize("attention", [None, {"kind": "multihead", "heads": 2}])
def test_predictions_are_replayed_or_made_as_before(
    attention: dict[str, Any] | None,
    store: MemoryStore,
    make_config: Configs,
    recorder: StandIn,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = run_of(make_config("painn", **({"model__global_attention": attention} if attention else {})), store)
    normalisation = run.data.branches[0].normalisation
    plain = TrainedModel(model=run.state.model, normalisation=normalisation, dtype=torch.float64)
    assert plain.replayed() is plain, "a CPU has no graphs"
    replayed = replace(plain, function=replay.ReplayedPrediction(run.state.model, recorder))
    for graphs in ([0, 1, 2], [3], [5, 4]):
        batch = store.read(graphs)
        ours, theirs = replayed.predict_with_states(batch), plain.predict_with_states(batch)
        torch.testing.assert_close(ours[1], theirs[1], rtol=1e-12, atol=1e-12)
        for name, prediction in theirs[0].items():
            torch.testing.assert_close(ours[0][name].tensors(), prediction.tensors(), rtol=1e-12, atol=1e-12)
    assert bool(recorder.recorded) == (attention is None)
    assert capsys.readouterr().err.count("predictions are not replayed") == (attention is not None)


def test_members_as_one_are_replayed_as_one(
    store: MemoryStore, make_config: Configs, recorder: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    models = []
    for seed in range(3):
        run = run_of(make_config("painn", train__seed=seed), store)
        plain = TrainedModel(
            model=run.state.model, normalisation=run.data.branches[0].normalisation, dtype=torch.float64
        )
        models.append(replace(plain, function=replay.ReplayedPrediction(run.state.model, recorder)))
    stack = TrainedStack(models)
    for graphs in ([0, 1, 2], [3], [5, 4]):
        batch = store.read(graphs)
        for (ours, states), model in zip(stack.predict_with_states(batch), models):
            theirs, exact = replace(model, function=None).predict_with_states(batch)
            torch.testing.assert_close(states, exact, rtol=1e-12, atol=1e-12)
            for name, prediction in theirs.items():
                torch.testing.assert_close(ours[name].tensors(), prediction.tensors(), rtol=1e-12, atol=1e-12)
    assert recorder.recorded and capsys.readouterr().err == ""


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
    plain, replayed = (
        with_replays(
            assemble(plan_run(make_config("painn", train__graphs=way), store), placement, Ranks(), lambda: None),
            Ranks(),
            lambda: None,
        )
        for way in ("off", "on")
    )
    assert replayed.record.graphs, replayed.record.notes
    for share in plain.data.epoch(0):
        ours, theirs = (take_step(run.state, share, run.context, 1e-3) for run in (replayed, plain))
        torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-10, atol=0)
