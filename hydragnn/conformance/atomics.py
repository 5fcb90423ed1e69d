"""Operations of torch that add in another order on every GPU run."""

import traceback
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hydragnn.kernels.family import taken_for
from hydragnn.kernels.triton.launch import KernelLauncher, launched_by

UNORDERED: Mapping[str, str] = {
    "index_add": "index_add, and the gradient of index_select and repeat_interleave",
    "scatter_add": "scatter_add, and the gradient of gather and take_along_dim",
    "scatter_reduce": "scatter_reduce",
    "index_reduce": "index_reduce",
    "index_put": "index_put with accumulate, and the gradient of x[index]; sorted on a GPU, unordered among the threads of a CPU",
    "put": "put with accumulate, and the gradient of take",
    "bincount": "bincount with weights",
    "histc": "histc",
    "cumsum": "cumsum of floating-point numbers",
    "cumprod": "cumprod of floating-point numbers, a scan like cumsum",
    "median": "median with indices",
    "nanmedian": "nanmedian with indices",
    "embedding_bag*_backward": "the gradient of embedding_bag",
    "scaled_dot_product_*_backward": "the gradient of scaled_dot_product_attention, whose fused forms add queries atomically",
    "convolution*": "convolutions, for which cuDNN chooses an algorithm",
    "nll_loss*": "nll_loss and cross_entropy",
    "*ctc_loss_backward": "the gradient of ctc_loss",
    "upsample_*_backward": "the gradient of interpolate",
    "grid_sampler_*_backward": "the gradient of grid_sample",
    "*_pad?d_backward": "the gradient of padding by reflection or replication",
    "*_pool?d*_backward": "the gradient of pooling over windows",
    "max_unpool?d": "max_unpool",
}
"""Operations by name, without underscores at its ends, and what calls them.

They are those of ``torch.use_deterministic_algorithms`` (its documentation lists them as functions) whose numbers depend on an order, and the fused attention,
for which the documentation of ``scaled_dot_product_attention`` says it. Not among them: operations that write each place once here (``scatter``, ``index_copy``),
and the gradient of an embedding, which sorts.
"""

ORDERED: Mapping[str, Callable[[Sequence[Any]], bool]] = {
    "*put": lambda inputs: not any(value is True for value in inputs),
    "cum*": lambda inputs: not inputs[0].is_floating_point(),
    "bincount": lambda inputs: not any(isinstance(value, Tensor) for value in inputs[1:]),
    "*_reduce": lambda inputs: any(isinstance(value, str) and value in ("amax", "amin") for value in inputs),
}
"""Inputs with which some of these have an order all the same."""


def unordered(name: str, args: Sequence[Any], options: Mapping[str, Any]) -> str:
    """Return the caller of an unordered operation; empty for others."""
    short = name.strip("_").removeprefix("unsafe_").removesuffix("_impl")
    why = next((why for pattern, why in UNORDERED.items() if fnmatch(short, pattern)), "")
    inputs = [*args, *options.values()]
    ordered = any(fnmatch(short, pattern) and is_ordered(inputs) for pattern, is_ordered in ORDERED.items())
    return "" if ordered else why


class Unordered(TorchDispatchMode):
    """Recorder of unordered operations; fresh memory is zero within it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, str] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        why = unordered(name, args, kwargs or {})
        if why:
            frames = [frame for frame in traceback.extract_stack()[:-1] if "/torch/" not in frame.filename]
            self.calls.setdefault(f"{name} ({why})", f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}")
        value = func(*args, **(kwargs or {}))
        return value.zero_() if name in ("empty", "empty_like", "new_empty") else value


class _Nowhere(KernelLauncher):
    """Runs no kernel."""

    def architecture(self, device: torch.device) -> str:
        return "sm_90"

    def __call__(self, kernel: Any, grid: tuple[int, ...], inputs: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Leave all results as they are."""


def unordered_on_a_gpu(work: Callable[[], object]) -> dict[str, str]:
    """Return the unordered operations that ``work`` would call on a GPU.

    Each has the line that calls it. It runs on a CPU and needs Triton.
    Ops take the forms of a GPU, whose kernels are not run: results are zeros.
    """
    watch = Unordered()
    with taken_for("cpu", "cuda"), launched_by(_Nowhere()), watch:
        work()
    return watch.calls
