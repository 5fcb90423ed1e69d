"""Batches go to a GPU while it computes: on a stand-in that notes the order of calls where there is none, and on a GPU where there is one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from hydragnn.base.errors import Interrupted
from hydragnn.graphs import Field
from hydragnn.graphs.batch import LOCATIONS, GraphBatch
from hydragnn.graphs.validate import graph_from_arrays
from hydragnn.training import data, uploading
from hydragnn.training.data import DevicePlacement
from hydragnn.training.uploading import ahead, upload
from tests.hydragnn.training.conftest import HARD, Configs, Trained, assert_same_end, signal_at

CPU = torch.device("cpu")
FIELDS = [
    Field(name="charge", on="node"),
    Field(name="bond", on="edge"),
    Field(name="energy", on="graph", role="target"),
]


@pytest.fixture
def batch() -> GraphBatch:
    graph = graph_from_arrays(
        torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]),
        [0, 1, 1, 2],
        [1, 0, 2, 1],
        fields=FIELDS,
        nodes={"charge": torch.arange(3.0)},
        edges={"bond": torch.arange(4.0)},
        graphs={"energy": torch.ones(1)},
    )
    graph.owner("node"), graph.topology.by_sender  # what follows from the graph travels with it
    return graph


class Stream:
    """A stream of the stand-in, which notes what waits for what."""

    def __init__(self, name: str, calls: list[tuple[Any, ...]]) -> None:
        self.name, self.calls = name, calls

    def record_event(self) -> str:
        return f"event of {self.name}"

    def wait_stream(self, other: "Stream") -> None:
        self.calls.append(("wait", self.name, other.name))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """What a device without a GPU would be asked for, in order."""
    noted: list[tuple[Any, ...]] = []
    current = [Stream("computing", noted)]

    @contextmanager
    def stream(other: Stream) -> Iterator[None]:
        current.append(other)
        yield
        current.pop()

    module = SimpleNamespace(
        Stream=lambda device: Stream("copying", noted),
        current_stream=lambda device: current[-1],
        stream=stream,
        device=nullcontext,
    )
    copy = Tensor.to

    def to(tensor: Tensor, device: Any, **options: Any) -> Tensor:
        noted.append(("copy", current[-1].name, tensor.data_ptr(), options["non_blocking"]))
        return copy(tensor, device).clone()

    def pinned(tensor: Tensor) -> Tensor:
        if not tensor.is_cpu:
            raise RuntimeError(f"cannot pin {tensor.device}: only dense CPU tensors can be pinned")
        there = tensor.clone()
        noted.append(("pin", there.data_ptr()))
        kept.append(there)
        return there

    def record(tensor: Tensor, stream: Stream) -> None:
        noted.append(("in use", tensor.data_ptr(), stream.name))

    kept: list[Tensor] = []
    monkeypatch.setattr(uploading.torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(Tensor, "pin_memory", pinned)
    monkeypatch.setattr(Tensor, "to", to)
    monkeypatch.setattr(Tensor, "record_stream", record)
    uploading._copy_stream.cache_clear()
    yield noted
    uploading._copy_stream.cache_clear()


def tensors_of(batch: GraphBatch) -> list[Tensor]:
    """Every tensor of a batch that a step may read, derived ones too."""
    found: list[Tensor] = []
    batch.mapped(lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found


def test_copies_run_beside_the_steps_and_later_steps_wait_for_them(
    batch: GraphBatch, calls: list[tuple[Any, ...]]
) -> None:
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


def test_ordinary_batches_of_a_cpu_are_not_copied(
    batch: GraphBatch, calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    (part,) = DevicePlacement(device=CPU, dtype=batch.positions.dtype).parts(batch)
    assert part.positions is batch.positions and calls == []


def test_batches_of_a_gpu_are_uploaded_in_the_precision_of_the_run(
    batch: GraphBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[GraphBatch, torch.device]] = []
    monkeypatch.setattr(data, "upload", lambda part, device: sent.append((part, device)) or part)
    DevicePlacement(device=torch.device("cuda", 1), dtype=torch.float64).parts(batch)
    ((part, device),) = sent
    assert device == torch.device("cuda", 1) and part.positions.dtype == torch.float64 and part.positions.device == CPU


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


def test_runs_with_a_thread_have_the_same_bits_and_stop_when_they_are_asked(
    on_threads: None, trained: Trained, make_config: Configs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    """Both hold the same numbers, and of the same graphs."""
    for mine, theirs in zip(tensors_of(one), tensors_of(other), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    assert one.fields == other.fields and all(one.on(at).keys() == other.on(at).keys() for at in LOCATIONS)
