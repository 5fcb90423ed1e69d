"""torch's compiler: quiet, in this process, with two faults mended."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

MENDED = b"hydragnn 2"
"""Another one whenever another fault is mended here: what was compiled with it before must not be taken from a cache."""


@contextmanager
def mended_compiler() -> Iterator[None]:
    """Compile without warnings, in this process, for the length of the block."""
    import torch._inductor.config as inductor
    from torch._inductor.codegen.cpp import CppKernel
    from torch._inductor.scheduler import SchedulerNode

    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(inductor.patch(compile_threads=1, post_grad_custom_pre_pass=_mark()))
        stack.enter_context(_replaced(CppKernel, "need_use_acc_helper", lambda former: _adds_in_cascades))
        stack.enter_context(_replaced(SchedulerNode, "recompute_size_and_body", _remembers_what_is_written_to))
        yield


@contextmanager
def _replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace a method for the length of the block, if it exists."""
    former = getattr(owner, name, None)
    if former is None:
        yield
        return
    setattr(owner, name, make(former))
    try:
        yield
    finally:
        setattr(owner, name, former)


def _adds_in_cascades(kernel: Any, reduction: str, dtype: torch.dtype, use_scalar: bool) -> bool:
    """Keep the digits of sums below 4,096 rows in compiled functions.

    torch would compile one function for less than 4,096 rows and one for more.
    """
    size = math.prod(kernel.call_ranges[kernel.reduction_depth :])
    symbolic = bool(getattr(size, "free_symbols", False))
    return reduction == "welford_reduce" or (
        reduction == "sum" and dtype == torch.float and (symbolic or bool(size > 4096))
    )


def _remembers_what_is_written_to(recompute: Any) -> Any:
    """Keep loops after those that write what they read.

    Up to torch 2.13 this is forgotten when a loop's shape is changed to fuse it with a third, and what was to be added is not there yet when it is read: gradients were wrong by 6 %
    (pytorch/pytorch#185509).
    """
    from torch._inductor.dependencies import StarDep, WeakDep

    def recompute_and_remember(node: Any, *arguments: Any, **named: Any) -> None:
        order = [dependency for dependency in node.read_writes.reads if isinstance(dependency, WeakDep | StarDep)]
        recompute(node, *arguments, **named)
        accesses = node.read_writes
        for dependency in order:
            accesses = accesses.with_read(dependency)
        node.set_read_writes(accesses.rename(node.mutation_renames))

    return recompute_and_remember


def _mark() -> Any:
    """Mark compiled functions in torch's caches as those of a mended compiler."""
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Mark(CustomGraphPass):
        def __call__(self, graph: torch.fx.Graph) -> None:
            """Nothing."""

        def uuid(self) -> bytes:
            return MENDED

    return Mark()
