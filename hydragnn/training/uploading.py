"""Batches on their way to a GPU while it computes."""

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from hydragnn.graphs.batch import GraphBatch

AHEAD = frozenset({"cuda"})
"""Devices beside which a thread makes the next batch; on a CPU it would take the cores from the step."""

T = TypeVar("T")


def ahead(
    items: Iterator[T], device: torch.device, tensors: Callable[[T], Iterable[Tensor]]
) -> Generator[T, None, None]:
    """Return items in order, each made while the last is used.

    What the thread copies to a GPU waits for no step. Errors are raised where the item would have come. The thread is gone when
    the generator is closed.
    """
    if device.type not in AHEAD:
        yield from items
        return
    make = _made_on_gpu if device.type == "cuda" else lambda items, _: next(((item, None) for item in items), None)
    with ThreadPoolExecutor(1, "batches") as thread:
        upcoming = thread.submit(make, items, device)
        while (result := upcoming.result()) is not None:
            (item, event), upcoming = result, thread.submit(make, items, device)
            if event is not None:
                computing = torch.get_device_module(device).current_stream(device)
                computing.wait_event(event)
                for tensor in tensors(item):
                    tensor.record_stream(computing)
            yield item


def tensors_of_parts(parts: Iterable[GraphBatch]) -> list[Tensor]:
    """Return all tensors of some batches."""
    return [tensor for part in parts for tensor in part.tensors()]


def _made_on_gpu(items: Iterator[T], device: torch.device) -> tuple[T, Any] | None:
    """Return the next item with the event of its copy, or None."""
    module: Any = torch.get_device_module(device)
    with module.device(device), module.stream(_copy_stream(device)):
        for item in items:
            return item, module.current_stream(device).record_event()
    return None


def download(values: Tensor) -> Callable[[], list[float]]:
    """Return a function that waits for these values alone."""
    if values.device.type != "cuda":
        return values.tolist
    copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    copy.copy_(values, non_blocking=True)
    event: Any = torch.cuda.current_stream(values.device).record_event()

    def read() -> list[float]:
        event.synchronize()
        return copy.tolist()

    return read


def upload(batch: GraphBatch, device: torch.device) -> GraphBatch:
    """Return the batch on a GPU, copied while the GPU computes.

    The copy runs on a stream of its own, so that it waits for no step, and from page-locked memory: before a copy from any other memory
    CUDA waits until the stream is idle (CUDA Runtime API, "API synchronization behavior").
    """
    module: Any = torch.get_device_module(device)
    batch.prepare()
    copying, computing = _copy_stream(device), module.current_stream(device)
    pinned = batch.mapped(lambda tensor: tensor.pin_memory() if tensor.is_cpu else tensor)  # what is there stays there
    with module.stream(copying):
        uploaded = pinned.mapped(lambda tensor: tensor.to(device, non_blocking=True))
    computing.wait_stream(copying)

    def in_use(tensor: Tensor) -> Tensor:
        tensor.record_stream(computing)  # whoever frees it, its memory goes to no later copy before steps have read it
        return tensor

    uploaded.mapped(in_use)
    return uploaded


@cache
def _copy_stream(device: torch.device) -> Any:
    """The stream of copies to a device; one for each process."""
    return torch.get_device_module(device).Stream(device)
