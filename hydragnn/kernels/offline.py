"""Triton kernels compiled into Triton's cache, for accelerators that are absent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch

from hydragnn.base.errors import InputError
from hydragnn.kernels.family import taken_for
from hydragnn.kernels.ops import OPS, Case, random_graph
from hydragnn.kernels.triton import launch as triton_launch

ARCHITECTURES = ("gfx90a", "gfx942", "gfx950", "sm_80", "sm_90")
"""MI200, MI300, MI350, A100, H100 and H200."""


def compile_kernels(
    architecture: str, channels: Sequence[int], dtypes: Sequence[torch.dtype], only: str = ""
) -> list[str]:
    """Compile kernels for these widths and dtypes; return their names.

    Forward and backward; kernels in Triton's cache are read there. InputError where the architecture is unknown or Triton is missing.
    """
    if architecture not in ARCHITECTURES:
        raise InputError(
            f"unknown architecture {architecture}; Triton kernels are compiled for {', '.join(ARCHITECTURES)}"
        )
    try:
        compiler = _Compiler(architecture)
    except ImportError as error:
        raise InputError(f"Triton is not installed ({error}): pip install 'hydragnn-ensemble[kernels]'") from None
    graphs, ops = {"long rows": random_graph(64, 10), "short rows": random_graph(32, 10)}, OPS.items()
    for width, dtype, op in product(channels, dtypes, [op for name, op in ops if only in name]):
        for _, case in op.cases(graphs, width):
            compiler.compile_launched(op.call, case.to("meta", dtype))
    return [name for name, *_ in compiler.variants]


class _Compiler(triton_launch.KernelLauncher):
    """Takes kernels instead of a device, and compiles each variant once."""

    def __init__(self, name: str) -> None:
        from triton.runtime import driver

        self.name = name
        self.variants: dict[Any, None] = {}
        driver.set_active(_Driver(name))

    def architecture(self, device: torch.device) -> str:
        return self.name

    def __call__(self, kernel: Any, grid: tuple[int, ...], inputs: Sequence[Any], options: Mapping[str, Any]) -> None:
        arguments = [value.dtype if isinstance(value, torch.Tensor) else value for value in inputs]
        key = (kernel.__name__, *(str(a) for a in arguments if isinstance(a, torch.dtype)), *map(str, options.values()))
        if key not in self.variants:
            self.variants[key] = None
            kernel.warmup(*arguments, grid=(1,), **options)

    def compile_launched(self, call: Any, case: Case) -> None:
        """Compile what a call and its two derivatives launch."""
        tensors = tuple(tensor.detach().requires_grad_() for tensor in case.tensors)
        with taken_for("meta", "cuda"), triton_launch.launched_by(self):
            call(*case.tensors, *case.rest)  # no gradient is recorded
            value = call(*tensors, *case.rest)
            parts = value if isinstance(value, tuple) else (value,)
            scalar = sum((part.square().sum() for part in parts), tensors[0].new_zeros(()))
            first = torch.autograd.grad(scalar, tensors, create_graph=True)
            torch.autograd.grad([part.square().sum() for part in first], tensors, allow_unused=True)


class _Driver:
    """Stand-in for the driver of a device that is absent."""

    def __init__(self, architecture: str) -> None:
        from triton.backends.compiler import GPUTarget

        nvidia = architecture.startswith("sm_")
        self.target = GPUTarget("cuda", int(architecture[3:]), 32) if nvidia else GPUTarget("hip", architecture, 64)
        self.device = ARCHITECTURES.index(architecture)  # each architecture has its own kernels in the process

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int | None = None) -> int:
        return 0
