"""Every op of the registry at work: time forward and with its derivatives, and its share of the speed of a plain copy.

python -m tests.benchmarks.bench_kernels --nodes 2000 --degree 20 --channels 64
python -m tests.benchmarks.bench_kernels --only outer --dtype float64 --json
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median

import torch
from torch import Tensor

from hydragnn.kernels import OPS, Case
from hydragnn.kernels.ops import random_graph


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One variant of an op; times in milliseconds."""

    op: str
    variant: str
    forward: float
    with_gradient: float
    twice: float
    copy_share: float
    """Bytes of tensors in and out per second of the forward pass, as a share of a copy's in the same run."""


def main() -> None:
    """Print the table, or JSON with --json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--degree", type=int, default=20)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--dtype", choices=["float32", "float64", "bfloat16"], default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--only", default="", metavar="TEXT", help="only ops whose name contains this")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = list(measured(options))
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    print(
        f"{options.nodes} nodes, {options.nodes * options.degree} edges, {options.channels} channels, {options.dtype}"
    )
    print(f"{'op, variant':50} {'forward':>10} {'gradient':>10} {'twice':>10}   of a copy")
    for row in rows:
        times = "".join(f"{value:8.2f} ms" for value in (row.forward, row.with_gradient, row.twice))
        print(f"{row.op + ', ' + row.variant:50}{times}   {row.copy_share:8.0%}")


def measured(options: argparse.Namespace) -> Iterator[Row]:
    """The times of every op and variant, beside those of a copy in the same run."""
    edges, dtype = random_graph(options.nodes, options.degree), getattr(torch, options.dtype)
    source = torch.randn(edges.num_edges, options.channels).to(options.device, dtype)
    copied = 2 * source.nbytes / milliseconds(source.clone, options)
    for op in OPS.values():
        if options.only not in op.name:
            continue
        for name, case in op.cases({"random": edges}, options.channels):
            given = case.to(options.device, dtype)
            moved = sum(t.nbytes for t in (*given.tensors, *outputs(op.call, given)))
            forward = milliseconds(lambda: outputs(op.call, given), options)  # noqa: B023
            yield Row(
                op=op.name,
                variant=name.removeprefix("random, "),
                forward=forward,
                with_gradient=milliseconds(lambda: derivatives(op.call, given, 1), options),  # noqa: B023
                twice=milliseconds(lambda: derivatives(op.call, given, 2), options),  # noqa: B023
                copy_share=moved / forward / copied,
            )


def outputs(call: Callable[..., object], case: Case) -> tuple[Tensor, ...]:
    """What an op gives, always as a tuple."""
    value = call(*case.tensors, *case.rest)
    return value if isinstance(value, tuple) else (value,)  # type: ignore[return-value]


def derivatives(call: Callable[..., object], case: Case, order: int) -> None:
    """The value and its gradients up to an order, as training on forces takes them."""
    tensors = tuple(tensor.detach().requires_grad_() for tensor in case.tensors)
    value = call(*tensors, *case.rest)
    scalar = sum((part.square().sum() for part in (value if isinstance(value, tuple) else (value,))), torch.zeros(()))
    for left in reversed(range(order)):
        gradients = torch.autograd.grad(scalar, tensors, create_graph=left > 0)
        scalar = sum((gradient.square().sum() for gradient in gradients), torch.zeros(()))


def milliseconds(work: Callable[[], object], options: argparse.Namespace) -> float:
    """Median time of one call, after a first that is not counted."""
    work()
    times = []
    for _ in range(options.repeats):
        wait(options.device)
        began = time.perf_counter()
        work()
        wait(options.device)
        times.append(time.perf_counter() - began)
    return median(times) * 1e3


def wait(device: str) -> None:
    """Until an accelerator has done what it was asked."""
    if device != "cpu":
        torch.accelerator.synchronize()


if __name__ == "__main__":
    main()
