"""One step: the host never waits for the device, and what diverged is told."""

import math
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hydragnn.architectures import architecture_of
from hydragnn.datasets import MemoryStore
from hydragnn.models.replay import NotRecordable, NoWaiting
from hydragnn.training.context import Diverged
from hydragnn.training.data import Share
from hydragnn.training.executor import Eager
from hydragnn.training.loop import numbers_of, read_step, take_step
from tests.hydragnn.training.conftest import ENERGY, Configs, Trained, assembled
from tests.hydragnn.training.launches import launches_of

LAUNCHES = {("painn", 3): 490, ("schnet", 3): 300, ("egnn", 3): 335, ("pna", 3): 445, ("mace", 2): 970}
"""Kernels of a step on a GPU at most, by architecture and layers: every one of them is time of the host, and a pause of a replay."""


def test_the_witness_of_waiting_sees_it() -> None:
    values = torch.tensor([1.0, 2.0])
    for waiting in (
        lambda: values.sum().item(),
        lambda: values[values > 1],
        lambda: bool(values[0] > 0),
        lambda: torch.repeat_interleave(values, torch.tensor([1, 2])),
    ):
        with pytest.raises(NotRecordable, match="makes the host wait"), NoWaiting():
            waiting()


@pytest.mark.parametrize("model", ["schnet", "painn", "egnn", "pna"])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_the_host_never_waits_for_the_device_inside_a_step(
    model: str, micro_batches: int, store: MemoryStore, make_config: Configs
) -> None:
    # charges are missing here and there
    config = make_config(model, train__ema_decay=0.9, train__clip_norm=0.01)
    run = assembled(config, store, parts=micro_batches)
    parts = next(run.data.epoch(0)).parts
    assert len(parts) == micro_batches
    with NoWaiting():
        take_step(run.state, Share(branch=0, parts=parts), run.context, 1e-3)


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed, whose kernels a GPU would run")
@pytest.mark.parametrize("model, layers", LAUNCHES)
def test_a_step_launches_so_many_kernels_on_a_gpu_and_none_adds_in_any_order(
    model: str, layers: int, store: MemoryStore, make_config: Configs
) -> None:
    head = {key: value for key, value in ENERGY.items() if key not in ("references", "per_node")}
    run = assembled(make_config(model, [head], model__num_layers=layers, train__precision="fp32"), store)
    first, share, *_ = run.data.epoch(0)
    for part in (*first.parts, *share.parts):
        part.prepare()  # as on the way to a GPU
    launches_of(lambda: take_step(run.state, first, run.context, 1e-3))  # what all steps share is made in the first
    kernels, unordered = launches_of(lambda: take_step(run.state, share, run.context, 1e-3))
    assert not unordered
    assert kernels.total() <= LAUNCHES[model, layers], kernels.most_common(20)


@pytest.mark.parametrize("model", ["pna", "painn"])
def test_ranks_share_by_what_a_node_costs_the_architecture(
    model: str, store: MemoryStore, make_config: Configs
) -> None:
    loader = assembled(make_config(model), store).data.branches[0].train.loader
    assert loader.node_cost == architecture_of(model).node_cost


def test_a_share_without_graphs_takes_the_step_of_its_peers(store: MemoryStore, make_config: Configs) -> None:
    run = assembled(make_config(train__weight_decay=0.0), store)
    before = run.state.tensors()["weights"].clone()
    result = take_step(run.state, Share(branch=0, parts=()), run.context, 1e-3)
    assert result.loss == 0 and result.norm == 0 and result.step == 1 and not run.state.totals.any()
    assert torch.equal(run.state.tensors()["weights"], before)


def test_what_diverged_is_told_when_the_step_is_read(store: MemoryStore, make_config: Configs) -> None:
    run = assembled(make_config(), store)
    with torch.no_grad():
        next(run.state.model.parameters()).fill_(math.inf)
    result = take_step(run.state, next(run.data.epoch(0)), run.context, 1e-3)
    with pytest.raises(Diverged, match="in step 1 of epoch 1"):
        read_step(numbers_of(result, torch.zeros(())), epoch=0)


def test_weights_that_diverged_in_the_last_step_before_an_end_are_not_saved(trained: Trained, tmp_path: Path) -> None:
    record = trained(train__epochs=2, train__learning_rate=1e300, batch__max_graphs=14)
    assert record.status == "failed" and record.failure is not None and record.failure.kind == "diverged"
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("precision", "device", "expected"),
    [("tf32", "cuda", "high"), ("tf32", "cpu", "highest"), ("fp32", "cuda", "highest"), ("bf16", "cuda", "highest")],
)
def test_products_are_in_tf32_inside_steps_of_a_gpu_that_ask_for_it(precision: str, device: str, expected: str) -> None:
    executor: Any = SimpleNamespace(precision=precision, device=torch.device(device))
    before = torch.get_float32_matmul_precision()
    with pytest.raises(ZeroDivisionError), Eager.arithmetic(executor):
        assert torch.get_float32_matmul_precision() == expected
        raise ZeroDivisionError
    assert torch.get_float32_matmul_precision() == before == "highest"


def test_on_a_cpu_tf32_trains_as_fp32_and_the_record_states_it(trained: Trained) -> None:
    records = [trained(name, train__epochs=1, train__precision=name) for name in ("fp32", "tf32")]
    assert records[0].curves == records[1].curves
    assert [any("fp32 on a CPU" in note for note in record.notes) for record in records] == [False, True]
