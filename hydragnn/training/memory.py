"""Measured memory of computations."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Int64
from numpy import ndarray

DEVICE_SHARE = 0.9
"""Share of an accelerator's memory for tensors, without libraries and gaps."""


def peak_of(compute: Callable[[], object], device: torch.device) -> int:
    """Return the most bytes that a computation has beside those of before."""
    if device.type != "cuda":
        return int(allocations(compute, device).cumsum().max(initial=0))
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    compute()
    peak = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.reset_peak_memory_stats(device)  # the cost of a run is that of its own steps
    return peak


def allocations(compute: Callable[[], object], device: torch.device) -> Int64[ndarray, " changes"]:
    """Return the bytes of allocations in order; releases are negative."""
    from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy
    from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

    # not torch.profiler: it prints on stderr where others look for errors, and does not know the order of simultaneous events
    config = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
    _enable_profiler_legacy(config)
    try:
        compute()
    finally:
        threads = _disable_profiler_legacy()
    events = [event for thread in threads for event in thread]
    begin = events[0]
    if sum(any(str(event.kind()) == "memory_alloc" for event in thread) for thread in threads) > 1:
        events.sort(key=begin.cpu_elapsed_us)  # a thread of its own computes gradients on accelerators
    of_device = (lambda event: event.cuda_memory_usage()) if device.type == "cuda" else (lambda e: e.cpu_memory_usage())
    changes = [of_device(event) for event in events if str(event.kind()) == "memory_alloc"]
    return np.array([change for change in changes if change], dtype=np.int64)
