"""Batches on their way to a GPU while it computes."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from hydragnn.graphs.batch import GraphBatch


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
