"""A recorder for CPUs, which holds functions to what a graph of a device can do, and a count of what a GPU would launch."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from hydragnn.conformance.atomics import Unordered
from hydragnn.kernels import family
from hydragnn.kernels.family import taken_for
from hydragnn.kernels.triton.launch import KernelLauncher, launched_by
from hydragnn.models import Distribution
from hydragnn.models.replay import NotRecordable, NoWaiting
from hydragnn.runs.memory import allocations

FROM_HOST = {torch.tensor, torch.as_tensor, torch.from_numpy, Tensor.new_tensor, Tensor.tolist, Tensor.cpu}


class NoHost(TorchFunctionMode):
    """Refuses tensors that are made of numbers of the host: a replay would wait to copy them."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        caller = sys._getframe(1).f_code.co_name
        if func in FROM_HOST and caller != "_check_ends":  # which looks at edges on CPUs alone
            raise NotRecordable(f"{func.__name__} takes numbers from the host in {caller}")
        return func(*args, **(kwargs or {}))


class Calls(NoWaiting):
    """Notes the operations of a run, the shapes of what they return, and the memory from outside that they read."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Any]] = []
        self.inputs: set[int] = set()
        self.made: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.name() != "aten::lift_fresh":  # which the check of edges calls, on CPUs alone
            with_axes = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor) and value.dim()]
            self.inputs |= memory_of(with_axes) - self.made  # numbers come as tensors without axes
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.made |= memory_of(result) - self.inputs
        shapes = tuple(tuple(value.shape) for value in tree_leaves(result) if isinstance(value, Tensor))
        self.calls.append((func.name(), shapes))
        return result


def memory_of(values: Any) -> set[int]:
    tensors = [value for value in tree_leaves(values) if isinstance(value, Tensor) and value.numel()]
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


@contextmanager
def forms_of_a_device() -> Iterator[None]:
    """Compute by the forms of a device without kernels of its own."""
    former = dict(family._taken_for)
    with taken_for("cpu", "xpu"):
        yield
    family._taken_for.update(former)


@contextmanager
def watched() -> Iterator[Calls]:
    """Compute by the forms of a device without kernels of its own, and note every call."""
    with forms_of_a_device(), NoHost(), Calls() as calls:
        yield calls


class StandIn:
    """Records on a CPU: a replay calls the same operations on the same memory again, and writes into the same results."""

    def __init__(self) -> None:
        self.recorded: list[Calls] = []
        self.replays = self.pool = 0
        """Replays, and bytes that a device might keep: what the largest recording had at once, and half as much again."""
        self.room = 1_000_000
        """Recordings after which there is no memory for more."""

    def __call__(self, run: Callable[[], Any]) -> tuple[Callable[[], object], Any]:
        """Return the replay and the tensors that it writes."""
        if len(self.recorded) >= self.room:
            raise torch.OutOfMemoryError("there is no memory left")
        with forms_of_a_device():
            changes = allocations(run)
        self.pool = max(self.pool, int(1.5 * changes.cumsum().max(initial=0)))
        with watched() as first:
            result = run()
        self.recorded.append(first)

        def replay() -> None:
            self.replays += 1
            with watched() as again:
                values = run()
            assert again.calls == first.calls, "a replay makes other calls than its recording"
            assert again.inputs == first.inputs, "a replay reads other memory than its recording"
            for into, value in zip(leaves(result), leaves(values), strict=True):
                into.copy_(value)

        return replay, result


def leaves(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    parts = result.values() if isinstance(result, Mapping) else result
    parts = result.tensors().values() if isinstance(result, Distribution) else parts
    return [tensor for part in parts for tensor in leaves(part)]


FREE = frozenset(
    [
        "promote_types",
        "_unsafe_view",
        "empty",
        "empty_like",
        "new_empty",
        "empty_strided",
        "new_empty_strided",
        "detach",
        "lift_fresh",
    ]
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
