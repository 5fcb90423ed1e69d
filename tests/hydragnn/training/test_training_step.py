"""One step, whole or in parts: the host never waits for the device, which gets batches while it computes, and divergence ends the run."""

import math
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from importlib.util import find_spec
from itertools import combinations, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hydragnn.architectures import architecture_of
from hydragnn.base.errors import Interrupted
from hydragnn.graphs import concatenate
from hydragnn.graphs.batch import LOCATIONS, GraphBatch
from hydragnn.graphs.validate import validate
from hydragnn.models.replay import NoWaiting
from hydragnn.training import data, uploading
from hydragnn.training.context import Diverged
from hydragnn.training.data import DevicePlacement, Share, even_cuts, micro_batches
from hydragnn.training.executor import EagerSteps
from hydragnn.training.loop import numbers_of, read_step, take_step
from hydragnn.training.uploading import ahead, upload
from tests.graphs.geometry import assert_same_geometry
from tests.hydragnn.training.conftest import (
    ENERGY,
    HARD,
    STORE,
    Trained,
    assembled,
    assert_same_curves,
    assert_same_end,
    make_config,
    signal_at,
)
from tests.hydragnn.training.recorder import launches_of
from tests.hydragnn.training.worker import clusters

LAUNCHES = {("painn", 3): 490, ("schnet", 3): 300, ("egnn", 3): 335, ("pna", 3): 500, ("mace", 2): 970}
"""Kernels of a step on a GPU at most, by architecture and layers: every one of them is time of the host, and a pause of a replay."""


@pytest.mark.parametrize("model", ["schnet", "painn", "egnn", "pna"])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_the_host_never_waits_for_the_device_inside_a_step(model: str, micro_batches: int) -> None:
    # charges are missing here and there
    config = make_config(model, train__ema_decay=0.9, train__clip_norm=0.01)
    run = assembled(config, STORE, parts=micro_batches)
    parts = next(run.data.epoch(0)).parts
    assert len(parts) == micro_batches
    with NoWaiting():
        take_step(run.state, Share(branch=0, parts=parts), run.context, 1e-3)


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed, whose kernels a GPU would run")
@pytest.mark.parametrize("model, layers", LAUNCHES)
def test_a_step_launches_so_many_kernels_on_a_gpu_and_none_adds_in_any_order(model: str, layers: int) -> None:
    head = {key: value for key, value in ENERGY.items() if key not in ("references", "per_node")}
    run = assembled(make_config(model, [head], model__num_layers=layers, train__precision="fp32"), STORE)
    first, share, *_ = run.data.epoch(0)
    for part in (*first.parts, *share.parts):
        part.prepare()  # as on the way to a GPU
    launches_of(lambda: take_step(run.state, first, run.context, 1e-3))  # what all steps share is made in the first
    kernels, unordered = launches_of(lambda: take_step(run.state, share, run.context, 1e-3))
    assert not unordered
    assert kernels.total() <= LAUNCHES[model, layers], kernels.most_common(20)


@pytest.mark.parametrize("model", ["pna", "painn"])
def test_ranks_share_by_what_a_node_costs_the_architecture(model: str) -> None:
    loader = assembled(make_config(model), STORE).data.branches[0].train.loader
    assert loader.node_cost == architecture_of(model).node_cost


def test_a_share_without_graphs_takes_the_step_of_its_peers() -> None:
    run = assembled(make_config(train__weight_decay=0.0), STORE)
    before = run.state.tensors()["weights"].clone()
    result = take_step(run.state, Share(branch=0, parts=()), run.context, 1e-3)
    assert result.loss == 0 and result.norm == 0 and result.step == 1 and not run.state.totals.any()
    assert torch.equal(run.state.tensors()["weights"], before)


def test_what_diverged_is_told_when_the_step_is_read() -> None:
    run = assembled(make_config(), STORE)
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
    with pytest.raises(ZeroDivisionError), EagerSteps.arithmetic(executor):
        assert torch.get_float32_matmul_precision() == expected
        raise ZeroDivisionError
    assert torch.get_float32_matmul_precision() == before == "highest"


def test_on_a_cpu_tf32_trains_as_fp32_and_the_record_states_it(trained: Trained) -> None:
    records = [trained(name, train__epochs=1, train__precision=name) for name in ("fp32", "tf32")]
    assert records[0].curves == records[1].curves
    assert [any("fp32 on a CPU" in note for note in record.notes) for record in records] == [False, True]


COSTS = st.lists(st.integers(1, 50), max_size=7)


@given(costs=COSTS, number=st.integers(1, 9))
def test_cuts_lose_no_graph_and_the_largest_part_is_the_smallest_possible(costs: list[int], number: int) -> None:
    cuts = even_cuts(costs, number)
    assert cuts == sorted(set(cuts)) and cuts[0] == 0 and cuts[-1] == len(costs) and len(cuts) - 1 <= number

    def largest(places: Sequence[int]) -> int:
        return max((sum(costs[a:b]) for a, b in pairwise([0, *places, len(costs)])), default=0)

    inner = range(1, max(1, len(costs)))
    counts = range(min(number, max(1, len(costs))))
    best = min(largest(places) for count in counts for places in combinations(inner, count))
    assert largest(cuts[1:-1]) == best


@settings(max_examples=25, deadline=None)
@given(numbers=st.lists(st.integers(0, 39), max_size=9), number=st.integers(1, 6))
def test_parts_are_valid_batches_that_make_up_the_whole(numbers: list[int], number: int) -> None:
    batch = STORE.read(numbers)
    parts = list(micro_batches(batch, number))
    assert len(parts) <= number and all(part.num_graphs for part in parts)
    assert sum(part.num_graphs for part in parts) == len(numbers)
    if not parts:
        return
    assert parts[0].positions.data_ptr() == batch.positions.data_ptr()  # views
    whole = concatenate([validate(part) for part in parts])
    assert_same_geometry(whole, batch)
    for name in batch.fields:
        assert torch.equal(whole[name], batch[name]) and torch.equal(whole.present(name), batch.present(name)), name


@pytest.mark.parametrize("model", ["painn", "pna"])
def test_parts_take_the_steps_of_the_whole_batch(model: str, trained: Trained) -> None:
    # batches of nine leave one graph to the last step of an epoch, fewer than parts; charges are missing here and there
    config = make_config(model, batch__max_graphs=9, train__ema_decay=0.9)
    whole = trained("1", config)
    for count in (2, 4):  # in fp64, where only sums are in another order
        assert_same_curves(whole, trained(str(count), config, micro_batches=count), rel=1e-10)


CPU = torch.device("cpu")


@pytest.fixture
def batch() -> GraphBatch:
    graph = clusters(2).read([0, 1])
    graph.owner("node"), graph.topology.by_sender  # what follows from the graph travels with it
    return graph


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """What a device without a GPU would be asked for, in order."""
    noted: list[tuple[Any, ...]] = []

    def stream_of(name: str) -> Any:
        stream = Mock(**{"record_event.return_value": f"event of {name}"})
        stream.name, stream.wait_stream = name, lambda other: noted.append(("wait", name, other.name))
        return stream

    @contextmanager
    def stream(other: Any) -> Iterator[None]:
        current.append(other)
        yield
        current.pop()

    current, kept, module = [stream_of("computing")], list[Tensor](), Mock(stream=stream, device=nullcontext)
    module.Stream.side_effect = lambda device: stream_of("copying")
    module.current_stream.side_effect = lambda device: current[-1]
    copy = Tensor.to

    def to(tensor: Tensor, device: Any, **options: Any) -> Tensor:
        noted.append(("copy", current[-1].name, tensor.data_ptr(), options["non_blocking"]))
        return copy(tensor, device).clone()

    def pinned(tensor: Tensor) -> Tensor:
        if not tensor.is_cpu:
            raise RuntimeError(f"cannot pin {tensor.device}: only dense CPU tensors can be pinned")
        kept.append(tensor.clone())
        noted.append(("pin", kept[-1].data_ptr()))
        return kept[-1]

    monkeypatch.setattr(uploading.torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(Tensor, "pin_memory", pinned)
    monkeypatch.setattr(Tensor, "to", to)
    monkeypatch.setattr(Tensor, "record_stream", lambda one, to: noted.append(("in use", one.data_ptr(), to.name)))
    uploading._copy_stream.cache_clear()
    yield noted
    uploading._copy_stream.cache_clear()


def tensors_of(batch: GraphBatch) -> list[Tensor]:
    """Every tensor of a batch that a step may read, derived ones too."""
    found: list[Tensor] = []
    batch.mapped(lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found


def test_copies_run_beside_the_steps_which_wait_for_them(batch: GraphBatch, calls: list[tuple[Any, ...]]) -> None:
    there = upload(batch, CPU)
    same(there, batch)
    kinds = [call[0] for call in calls]
    last_copy, wait = max(i for i, kind in enumerate(kinds) if kind == "copy"), kinds.index("wait")
    assert last_copy < wait and kinds.count("wait") == 1
    assert calls[wait] == ("wait", "computing", "copying")
    pinned = {call[1] for call in calls if call[0] == "pin"}
    copies = [call for call in calls if call[0] == "copy"]
    assert {call[2] for call in copies} == pinned, "a copy from memory that is not page-locked makes the host wait"
    assert all(call[1] == "copying" and call[3] for call in copies)
    in_use = {(call[1], call[2]) for call in calls if call[0] == "in use"}
    assert in_use == {(tensor.data_ptr(), "computing") for tensor in tensors_of(there)}
    assert len(copies) == len(tensors_of(batch)) == len(in_use)


def test_what_is_on_the_gpu_already_is_not_pinned(batch: GraphBatch, calls: list[tuple[Any, ...]]) -> None:
    """Batches of validation are, before they are cut to fit memory; an array that was derived from one later may not be."""
    there = torch.device("meta")
    resident = batch.mapped(lambda tensor: torch.empty_like(tensor, device=there))
    late = resident.topology.index_arrays["degrees"] = torch.ones(3, dtype=torch.int64)
    again = upload(resident, there)
    assert {tensor.device for tensor in tensors_of(again)} == {there}
    assert [call[0] for call in calls].count("pin") == 1
    assert again.topology.index_arrays["degrees"].shape == late.shape


def test_batches_of_a_gpu_are_uploaded_and_those_of_a_cpu_are_not_copied(
    batch: GraphBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Mock(side_effect=lambda part, device: part)
    monkeypatch.setattr(data, "upload", sent)
    (part,) = DevicePlacement(device=CPU, dtype=torch.float64).parts(batch)
    assert part.positions is batch.positions and not sent.called
    DevicePlacement(device=torch.device("cuda", 1), dtype=torch.float32).parts(batch)
    part, device = sent.call_args.args
    assert device == torch.device("cuda", 1) and part.positions.dtype == torch.float32 and part.positions.device == CPU


@pytest.fixture
def on_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Batches of CPUs are made by threads, too, and none is left behind."""
    monkeypatch.setattr(uploading, "AHEAD", frozenset({"cpu"}))
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def test_a_thread_is_one_item_ahead_and_leaves_errors_to_who_asks(on_threads: None) -> None:
    makers: list[str] = []

    def items() -> Iterator[int]:
        for number in range(4):
            makers.append(threading.current_thread().name)
            yield number
        raise OSError("no fifth")

    read = []
    with pytest.raises(OSError, match="no fifth"):
        for number in ahead(items(), CPU, lambda number: ()):
            read.append(number)
            assert len(makers) <= number + 2
    assert read == [0, 1, 2, 3] and all(name.startswith("batches") for name in makers)
    with closing(ahead(items(), CPU, lambda number: ())) as some:
        assert next(some) == 0
    assert list(ahead((number for number in range(3)), CPU, lambda number: ())) == [0, 1, 2]


def test_runs_with_a_thread_have_the_same_bits_and_stop(
    on_threads: None, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(**{**HARD, "train__epochs": 2}, data__window=10)
    trained("thread", config, until=1)
    with pytest.raises(Interrupted, match="a checkpoint was written"):
        trained("thread", config, resume=True, progress=signal_at(1.4, signal.SIGINT))
    trained("thread", config, resume=True)
    monkeypatch.setattr(uploading, "AHEAD", frozenset())
    trained("no thread", config)
    assert_same_end(tmp_path / "no thread", tmp_path / "thread")


def test_a_gpu_gets_what_a_thread_made_by_an_event(batch: GraphBatch, calls: list[tuple[Any, ...]]) -> None:
    there, event = uploading._made_on_gpu(iter([upload(batch, CPU)]), CPU) or ((), None)
    assert event == "event of copying" and tensors_of(there)
    assert uploading._made_on_gpu(iter(()), CPU) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of NVIDIA or AMD")
def test_a_gpu_has_the_batch_when_it_is_read(batch: GraphBatch) -> None:
    device = torch.device("cuda", 0)
    for _ in range(20):
        torch.randn(2048, 2048, device=device) @ torch.randn(2048, 2048, device=device)
        same(upload(batch, device).to("cpu"), batch)


def same(one: GraphBatch, other: GraphBatch) -> None:
    for mine, theirs in zip(tensors_of(one), tensors_of(other), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    assert one.fields == other.fields and all(one.on(at).keys() == other.on(at).keys() for at in LOCATIONS)
