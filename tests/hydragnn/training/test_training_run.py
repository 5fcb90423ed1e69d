"""One run from configuration to record."""

import io
import math
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hydragnn.base.errors import InputError
from hydragnn.base.terminal import PlainConsole
from hydragnn.config import TrainSettings
from hydragnn.datasets import Budget, MemoryStore, make_split
from hydragnn.distributed.ranks import Ranks
from hydragnn.models import TrainedModel, load_model
from hydragnn.record import Cost, Usage, read_record
from hydragnn.runs import Progress, callback
from hydragnn.runs.energy import Meter
from hydragnn.training import errors_on
from tests.hydragnn.training.conftest import STORE, RunOnce, Trained, make_config


def model_in(run: Path) -> TrainedModel:
    return load_model(run / "model", dtype=torch.float64)


def metrics_of(run: Path) -> Any:
    model, valid = model_in(run), make_split(STORE, make_config().split).valid
    return errors_on(model.predict, STORE, valid, model.targets, Budget(max_graphs=32))


def test_a_run_leaves_its_record_and_the_model_of_its_best_epoch(trained: Trained, tmp_path: Path) -> None:
    record = trained(train__epochs=8, train__schedule="constant", train__learning_rate=0.2)
    assert record.status == "finished" and record.epochs == 8
    assert read_record(tmp_path / "run") == record
    assert record.parts == {"train": 28, "valid": 8, "calibration": 0, "test": 4}
    assert all(len(curve) == 8 for curve in record.curves.values())
    for name in ("train/loss", "valid/loss", "learning_rate", "valid/energy/mae", "valid/energy/mae_per_node"):
        assert all(math.isfinite(value) for value in record.curves[name])
    losses = record.curves["valid/loss"]
    assert record.best["valid/loss"] == min(losses)
    assert record.best["epoch"] == losses.index(min(losses)) + 1 < 8, "choose a rate at which later epochs are worse"
    for field, metrics in metrics_of(tmp_path / "run").items():
        for name in ("mae", "rmse", "r2"):
            assert metrics[name] == pytest.approx(record.best[f"valid/{field}/{name}"], rel=1e-9)


def test_validation_and_the_model_use_the_averaged_weights(trained: Trained, tmp_path: Path) -> None:
    record, plain = trained(train__ema_decay=0.99, train__epochs=2), trained("plain", train__epochs=2)
    assert record.curves["train/loss"] == plain.curves["train/loss"]  # training itself does not see the average
    assert record.curves["valid/loss"] != plain.curves["valid/loss"]
    assert metrics_of(tmp_path / "run")["forces"]["mae"] == pytest.approx(record.best["valid/forces/mae"])


def test_the_validation_loss_is_the_weighted_sum_of_normalised_losses(trained: Trained, tmp_path: Path) -> None:
    energy = {"kind": "energy", "field": "energy", "per_node": False, "references": True}
    heads = [{**energy, "weight": 0.5, "loss": "mse"}, {"kind": "scalar", "field": "charge", "weight": 2.0}]
    record = trained(heads=heads, train__epochs=1)
    scales = model_in(tmp_path / "run").normalisation.scales
    ratios = {name: record.best[f"valid/{name}/rmse"] / scales[name].std[0] for name in ("energy", "charge")}
    expected = 0.5 * ratios["energy"] ** 2 + 2.0 * ratios["charge"] ** 2
    assert record.best["valid/loss"] == pytest.approx(expected)


def test_training_beats_the_trivial_predictor(trained: Trained) -> None:
    record = trained(model="painn", train__epochs=15, train__learning_rate=0.02)
    for name in ("valid/energy/rmse", "valid/forces/rmse", "valid/charge/rmse"):
        assert record.best[name] < 0.8 * record.trivial[name], name


def test_lower_precision_follows_double_precision(trained: Trained, run_once: RunOnce) -> None:
    exact = read_record(run_once(make_config())).curves["valid/loss"]
    for precision, tolerance in (("fp32", 1e-3), ("bf16", 0.3)):
        rough = trained(precision, train__precision=precision).curves["valid/loss"]
        assert rough == pytest.approx(exact, rel=tolerance) and rough != exact


def test_equal_seeds_give_equal_bits_and_other_seeds_do_not(trained: Trained, run_once: RunOnce) -> None:
    first = read_record(run_once(make_config())).curves
    assert trained("two").curves == first != trained("other", train__seed=6).curves


def test_without_edges_the_neighbours_are_not_seen(trained: Trained, tmp_path: Path) -> None:
    heads = [{"kind": "scalar", "field": "charge", "hidden_dims": [8]}]
    options = {"heads": heads, "train__epochs": 15, "train__learning_rate": 0.02}
    seeing = trained("seeing", **options)
    blind = trained("blind", **options, data__edges=False, data__inputs=["atomic_numbers", "length"])
    assert seeing.best["valid/charge/rmse"] < 0.7 * blind.best["valid/charge/rmse"]
    assert seeing.data_hash != blind.data_hash
    # the model leaves the edges out itself
    assert metrics_of(tmp_path / "blind")["charge"]["rmse"] == pytest.approx(blind.best["valid/charge/rmse"])


SUM = {"kind": "scalar", "extensive": True, "per_node": False, "field": "energy", "pool": "sum"}
LAMB, LARS = {"train__optimizer": "lamb"}, {"train__optimizer": "lars"}
BAD = {
    "shards of norms": ({**LAMB, "parallel__shard": 2}, r"norms of whole weights, .* with parallel\.shard = 2; leave"),
    "channels of norms": ({**LARS, "parallel__tensor": 2}, r"train\.optimizer = lars takes .* parallel\.tensor = 2"),
    "shared moments of norms": ({**LAMB, "parallel__states": "shared"}, r'parallel\.states = "shared"; .* adamw'),
    "a target that the store lacks": ({"heads__0__field": "enrgy"}, "no field enrgy; did you mean energy"),
    "an input that the store lacks": ({"data__inputs": ["atomic_number"]}, "did you mean atomic_numbers"),
    "an input that is predicted": ({"data__inputs": ["charge"]}, "charge is also predicted"),
    "a graph beyond the budget": ({"batch__max_nodes": 2}, "raise batch.max_nodes"),
    "an input that some graphs lack": (
        {"heads": [SUM], "data__inputs": ["charge"], "split__seed": 3},
        "graph 4 has no charge, which the model reads",
    ),
    "a segment without epochs": ({"until": 0}, "until epoch 0 has nothing to train"),
    "a batch in no parts": ({"micro_batches": 0}, "use micro_batches of 1 or more"),
    "an empty test part": ({"split__train": 0.98, "split__valid": 0.01}, "empty"),
    "a group field that is missing": ({"split__kind": "group", "split__field": "cell_name"}, "cell_name"),
}


@pytest.mark.parametrize("changes, sentence", BAD.values(), ids=BAD.keys())
def test_what_cannot_work_is_refused_and_leaves_nothing(
    changes: dict[str, Any], sentence: str, trained: Trained, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=sentence):
        trained(**changes)
    assert not (tmp_path / "run").exists()


def test_lars_has_no_default_rate_and_a_package_that_is_missing_is_named(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"no default rate, since it multiplies by 0\.001; set learning_rate"):
        TrainSettings.parse({"optimizer": "lars"})
    monkeypatch.setattr("hydragnn.runs.plan.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"lamb needs the package pytorch_optimizer; .*\[optimizers\]"):
        trained(**LAMB)


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({}, 1.0),
        ({"train__base_batch": 2}, math.sqrt(2.8)),  # five steps of 28 graphs
        ({"train__base_batch": 2, **LAMB}, math.sqrt(2.8)),
        ({"train__base_batch": 2, "train__optimizer": "sgd"}, 2.8),
        ({"train__base_batch": 24, "train__optimizer": "sgd"}, 5.6 / 24),
        ({"train__base_batch": 2, "batch__max_graphs": 10**6}, math.sqrt(14.0)),  # the whole training part
        ({"train__base_batch": 2, "batch__max_graphs": 1, "train__warmup_epochs": 0.5}, math.sqrt(0.5)),
    ],
)
def test_the_rate_is_that_of_the_batch(trained: Trained, changes: dict[str, Any], factor: float) -> None:
    record = trained(**{"train__epochs": 1, "train__schedule": "constant", **changes})
    assert record.curves["learning_rate"] == [pytest.approx(0.005 * factor)]
    (rate,) = re.findall(r"at a learning rate of up to (\S+), by base_batch", " ".join(record.notes)) or ["0.005"]
    assert float(rate) == pytest.approx(0.005 * factor, rel=5e-3)


def test_labels_that_are_infinite_are_refused_with_their_graph(trained: Trained) -> None:
    batch = STORE.read(range(len(STORE)))
    batch["charge"][batch.node_offsets[7]] = math.inf
    with pytest.raises(InputError, match="graph 7, field charge: inf in row 0"):
        trained(store=MemoryStore(batch))


def test_tensorboard_curves_are_written_or_its_extra_is_named(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch.utils.tensorboard", None)
        with pytest.raises(InputError, match=r"hydragnn-ensemble\[tensorboard\]"):
            trained("missing", train__callbacks=[{"kind": "tensorboard"}])
    pytest.importorskip("tensorboard")
    trained(train__callbacks=[{"kind": "tensorboard"}])
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))


def test_lines_and_bars_say_epoch_losses_speed_and_time_left(trained: Trained) -> None:
    lines = PlainConsole(file=io.StringIO())
    terminal = PlainConsole(file=io.StringIO(), force_terminal=True, width=120)
    trained("lines", progress=Progress(lines))
    trained("bar", progress=Progress(terminal), until=99)  # which the budget ends before
    first, *_, last = lines.file.getvalue().splitlines()
    assert first.startswith("epoch 1/3  train ") and "graphs/s" in first and "s left" in first
    assert last.startswith("finished after 3 epochs")
    assert "epoch 3/3" in terminal.file.getvalue() and "finished after 3 epochs" in terminal.file.getvalue()


STEPS = st.lists(st.tuples(st.integers(1, 50), st.floats(1e-3, 10.0), st.floats(0.0, 100.0)), min_size=1, max_size=12)
"""Graphs and seconds of steps, and seconds of something else before each."""


@given(steps=STEPS, preparation=st.floats(0.0, 1e3), ranks=st.integers(1, 8))
def test_throughput_counts_graphs_of_steps_after_the_first_two(
    steps: list[tuple[int, float, float]], preparation: float, ranks: int
) -> None:
    now = 0.0
    clock = SimpleNamespace(perf_counter=lambda: now, process_time=time.process_time)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(callback, "time", clock)
        watch = callback.Stopwatch(Cost(), Usage(), Ranks(size=ranks), Meter(torch.device("cpu")))
        now += preparation
        for graphs, seconds, pause in steps:
            now += pause
            watch.begin_steps()
            now += seconds
            watch.count_step(graphs)
        counted = steps[2:] or steps
        expected = sum(graphs for graphs, _, _ in counted) / sum(seconds for _, seconds, _ in counted)
        assert watch.cost().graphs_per_second == pytest.approx(expected, rel=1e-6)  # sums of floats around a large time
