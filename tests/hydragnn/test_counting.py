"""Operations and bytes are those of the arithmetic, whatever computes it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor

from hydragnn.kernels import ops
from hydragnn.kernels.counting import Counter
from hydragnn.kernels.family import plain_forms, taken_for
from hydragnn.kernels.triton.launch import KernelLauncher, launched_by
from tests.hydragnn.op_checks import parts_of

GRAPHS = {"random": ops.random_graph(40, 12)}
CASES = [(name, label, case) for name, op in ops.OPS.items() for label, case in op.cases(GRAPHS, 16)]


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape)


@pytest.mark.parametrize(
    ("call", "flops", "moved"),
    [
        (lambda: torch.mm(numbers(2, 3), numbers(3, 5)), 2 * 2 * 3 * 5, 4 * (6 + 15 + 10)),
        (lambda: torch.addmm(numbers(5), numbers(2, 3), numbers(3, 5)), 60, 4 * (5 + 6 + 15 + 10)),
        (lambda: torch.bmm(numbers(7, 2, 3), numbers(7, 3, 5)), 7 * 60, 4 * 7 * 31),
        (lambda: torch.mv(numbers(2, 3), numbers(3)), 12, 4 * (6 + 3 + 2)),
        (lambda: numbers(6).exp(), 6, 48),
        (lambda: numbers(6, 1) * numbers(4), 24, 4 * (6 + 4 + 24)),
        (lambda: numbers(6).add_(1.0), 6, 48),
        (lambda: numbers(6, 4).sum(), 24, 4 * 25),
        (lambda: numbers(6, 4).amax(0), 24, 4 * 28),
        (lambda: torch.zeros(3, 4).index_add_(0, torch.tensor([0, 2]), numbers(2, 4)), 12, 4 * (12 + 8 + 12) + 16),
        (lambda: numbers(6, 4).index_select(0, torch.tensor([1, 1])), 0, 4 * (24 + 8) + 16),
        (lambda: numbers(6, 4)[2:].t().unsqueeze(0).expand(5, 4, 4), 0, 0),
        (lambda: numbers(6, 4)[:1].expand(5, 4).clone(), 0, 4 * (4 + 20)),
        (lambda: torch.cat([numbers(2, 3), numbers(4, 3)]), 0, 4 * (18 + 18)),
        (lambda: torch._foreach_add([numbers(3), numbers(5)], 1.0), 8, 4 * 16),
        (
            lambda: torch.nn.functional.scaled_dot_product_attention(*[numbers(1, 2, 7, 4) for _ in range(3)]),
            2 * 2 * 2 * 7 * 7 * 4,
            None,
        ),
    ],
)
def test_a_call_of_torch_counts_what_it_computes_and_moves(
    call: Callable[[], Any], flops: int, moved: int | None
) -> None:
    with Counter() as counter:
        call()
    for name in ("randn", "zeros"):
        counter.by_op.pop(name, None)
    assert counter.totals == (flops, moved or counter.totals[1])


class NoDevice(KernelLauncher):
    """Launches nothing."""

    def architecture(self, device: torch.device) -> str:
        return "sm_90"

    def __call__(self, *launch: Any) -> None:
        return


def counted(name: str, case: ops.Case, *blocks: AbstractContextManager[object]) -> tuple[float, float]:
    """Return the counts of an op, its gradient and the gradient of that."""
    tensors = tuple(tensor.detach().requires_grad_() for tensor in case.tensors)
    with ExitStack() as stack:
        for block in blocks:
            stack.enter_context(block)
        counter = stack.enter_context(Counter())
        values = parts_of(ops.OPS[name].call(*tensors, *case.rest))
        first = torch.autograd.grad(values, tensors, [torch.ones_like(x) for x in values], create_graph=True)
        again = [x for x in first if x.requires_grad]
        if again:
            torch.autograd.grad(again, tensors, [torch.ones_like(x) for x in again], allow_unused=True)
    return counter.totals


LOOSE = {
    "segment_max": 2.0,
    "segment_statistics": 0.5,
    "segment_mean": 0.5,
    "power_sums": 0.4,
    "activated_sum": 0.4,
    "radial_functions": 0.4,
    "lengths_and_directions": 0.4,
    "measured": 0.3,
    "normalised": 0.4,
    "ended": 0.4,
    "gated": 3.0,
}
"""Tolerances of ops whose kernels do not do all that plain torch does; few operations beside those of products."""


@pytest.mark.parametrize(("name", "label", "case"), CASES, ids=[f"{name}, {label}" for name, label, _ in CASES])
def test_loops_and_kernels_count_what_plain_torch_computes(name: str, label: str, case: ops.Case) -> None:
    case = case.to(dtype=torch.float32)
    on_device = case.to("meta")

    def of_kernels() -> tuple[float, float]:
        return counted(name, on_device, taken_for("meta", "cuda"), launched_by(NoDevice()))

    counted(name, case), of_kernels()  # orders of edges are kept
    plain_flops, plain_bytes = counted(name, case, plain_forms())
    for flops, moved in (counted(name, case), of_kernels()):
        tolerance = LOOSE.get(name, 0.1) * plain_flops + (10_000 if name in ("gated", "segment_max") else 0)
        assert abs(flops - plain_flops) <= tolerance
        assert name == "gated" or moved <= 1.2 * plain_bytes
