"""What a step would launch on a GPU, counted on a CPU."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hydragnn.conformance.atomics import Unordered
from hydragnn.kernels.family import taken_for
from hydragnn.kernels.triton.launch import KernelLauncher, launched_by
from hydragnn.models.replay import NoWaiting

FREE = frozenset(
    {
        "promote_types",
        "_unsafe_view",
        "empty",
        "empty_like",
        "new_empty",
        "empty_strided",
        "new_empty_strided",
        "detach",
        "lift_fresh",
    }
)
"""Operations that launch nothing, beside views."""
EACH = {"sort": 4, "argsort": 4, "searchsorted": 1, "cumsum": 2, "repeat_interleave": 3, "cat": 1}
"""Launches of operations that are several kernels."""


class Counting(KernelLauncher):
    """Counts kernels of Triton, and runs none."""

    def __init__(self) -> None:
        self.kernels: Counter[str] = Counter()

    def architecture(self, device: torch.device) -> str:
        """Any that tiles are known of."""
        return "sm_90"

    def __call__(self, kernel: Any, grid: tuple[int, ...], inputs: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Leave all results as they are."""
        self.kernels[kernel.fn.__name__] += 1


class Launches(Unordered):
    """Counts operations that launch kernels, and notes those that add in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        name = func.overloadpacket.__name__
        if name not in FREE and not func.is_view and not (isinstance(result, Tensor) and not result.numel()):
            self.kernels[name] += EACH.get(name, 1)
        return result


def launches_of(work: Callable[[], object]) -> tuple[Counter[str], dict[str, str]]:
    """Return the kernels that ``work`` would launch by name, and its unordered sums; results are zeros."""
    watch, kernels = Launches(), Counting()
    with taken_for("cpu", "cuda"), launched_by(kernels), NoWaiting(), watch:
        work()
    return watch.kernels + kernels.kernels, watch.calls
