"""Times of every gather and scatter with its derivatives, beside a copy.

    python -m tests.benchmarks.bench_kernels [--device cpu] [--nodes 2000] [--channels 64] [--only TEXT] [--json]

On a GPU, kernels are compiled first, in processes. Rows are printed as they are measured; with ``--json`` as one line each after a line about the machine.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from statistics import median

import torch
from torch import Tensor

from hydragnn.base.forked import workers_context
from hydragnn.graphs.topology import Topology
from hydragnn.kernels.offline import ARCHITECTURES, compile_kernels
from hydragnn.kernels.ops import OPS, Case, random_graph
from hydragnn.kernels.triton.tiles import architecture_of

FLUSHED = 2**29
"""Bytes written between repeats on an accelerator: more than its caches hold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchSettings:
    """Graph, dtype and repeats of a measurement."""

    device: str = "cpu"
    nodes: int = 2000
    degree: int = 20
    channels: int = 64
    dtype: torch.dtype = torch.float32
    repeats: int = 10
    only: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRow:
    """One variant of an op; times in milliseconds."""

    op: str
    variant: str
    forward: float
    with_gradient: float
    twice: float
    copy_share: float
    """Bytes per second of the forward pass (``bytes_moved``), as a share of a copy's; above 1 where caches hold what is gathered."""


def copy_bandwidth(settings: BenchSettings) -> float:
    """Return the bytes per second of a copy of the messages."""
    edges = settings.nodes * settings.degree
    source = torch.randn(edges, settings.channels).to(settings.device, settings.dtype)
    return 2e3 * source.nbytes / milliseconds(source.clone, settings)


def bench_rows(settings: BenchSettings, bandwidth: float) -> Iterator[BenchRow]:
    """Yield times of every op and variant as they are measured."""
    edges = random_graph(settings.nodes, settings.degree).to(settings.device)
    random = torch.Generator(settings.device).manual_seed(0)

    def normal(*shape: int) -> Tensor:  # where they are read: a copy of a million messages takes longer than their sum
        return torch.randn(*shape, dtype=settings.dtype, device=settings.device, generator=random)

    for op in OPS.values():
        if settings.only in op.name:
            for name, make in op.variants.items():
                inputs = make(edges, settings.channels, normal).to(settings.device, settings.dtype)
                yield _row(op.name, name, op.call, inputs, settings, bandwidth)


def _row(
    op: str, variant: str, call: Callable[..., object], inputs: Case, settings: BenchSettings, bandwidth: float
) -> BenchRow:
    moved = bytes_moved(inputs, outputs(call, inputs))
    forward = milliseconds(lambda: outputs(call, inputs), settings)
    return BenchRow(
        op=op,
        variant=variant,
        forward=forward,
        with_gradient=milliseconds(lambda: derivatives(call, inputs, 1), settings),
        twice=milliseconds(lambda: derivatives(call, inputs, 2), settings),
        copy_share=1e3 * moved / forward / bandwidth,
    )


def bytes_moved(case: Case, values: tuple[Tensor, ...]) -> int:
    """Return the bytes that a pass over the edges reads and writes.

    States of nodes count for every edge that gathers them.

    Of indices, one per edge and where rows begin; both ends of every edge where the result is of edges. Of reductions per
    receiver, the order of edges and where rows begin.
    """
    whole = sum(tensor.nbytes for tensor in (*case.tensors, *values))
    topology = next((item for item in case.rest if isinstance(item, Topology)), None)
    if topology is not None:
        edges, index = topology.num_edges, topology.senders.element_size()
        of_edges = {edges, topology.num_weights}
        gathered = [tensor for tensor in case.tensors if tensor.shape[0] not in of_edges]
        more = sum((edges - tensor.shape[0]) * tensor[0].nbytes for tensor in gathered)
        per_edge = values[0].shape[0] in of_edges
        return whole + more + index * (2 * edges if per_edge else edges + values[0].shape[0] + 1)
    receivers = next((item for item in case.rest if isinstance(item, Tensor)), None)
    if receivers is None:
        return whole
    rows = case.rest[1] if len(case.rest) > 1 else len(case.tensors[0])
    return whole + receivers.nbytes + receivers.element_size() * (rows + 1)


def outputs(call: Callable[..., object], case: Case) -> tuple[Tensor, ...]:
    """Return the results of an op as a tuple."""
    value = call(*case.tensors, *case.rest)
    return value if isinstance(value, tuple) else (value,)


def derivatives(call: Callable[..., object], case: Case, order: int) -> None:
    """Return the value and its gradients up to an order."""
    tensors = tuple(tensor.detach().requires_grad_() for tensor in case.tensors)
    values = outputs(call, Case(tensors=tensors, rest=case.rest))
    scalar = sum((part.square().sum() for part in values), tensors[0].new_zeros(()))
    for remaining in reversed(range(order)):
        gradients = torch.autograd.grad(scalar, tensors, create_graph=remaining > 0)
        if remaining:
            scalar = sum((gradient.square().sum() for gradient in gradients), tensors[0].new_zeros(()))


def milliseconds(work: Callable[[], object], settings: BenchSettings) -> float:
    """Median time of one call, after a first that is not counted."""
    work()
    return median(_once(work, settings.device) for _ in range(settings.repeats))


def _once(work: Callable[[], object], device: str) -> float:
    if device == "cpu":
        began = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - began)
    torch.empty(FLUSHED, dtype=torch.uint8, device=device).zero_()
    first, last = (torch.Event(device, enable_timing=True) for _ in range(2))
    first.record()
    work()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last))


def compile_in_processes(architecture: str, channels: int, dtype: torch.dtype, only: str = "") -> int:
    """Compile the kernels of all ops into Triton's cache, op by op in processes; return their number.

    Triton compiles one after the other in a process. Architectures that are not among those of ``compile_kernels`` are left to the first launch.
    """
    names = [name for name in OPS if only in name]
    if architecture not in ARCHITECTURES or not names:
        return 0
    with ProcessPoolExecutor(min(len(names), os.cpu_count() or 1), workers_context()) as pool:
        return sum(pool.map(_count_compiled, *zip(*((architecture, channels, dtype, name) for name in names))))


def _count_compiled(architecture: str, channels: int, dtype: torch.dtype, name: str) -> int:
    return len(compile_kernels(architecture, [channels], [dtype], name))


def main(arguments: list[str] | None = None) -> None:
    """Print a row for every op and variant."""
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if gpu else "cpu")
    parser.add_argument("--nodes", type=int, default=50000 if gpu else 2000)
    parser.add_argument("--degree", type=int, default=20, help="edges per node")
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16", "float64"], default="float32")
    parser.add_argument("--repeats", type=int, default=10, help="times are medians of so many")
    parser.add_argument("--only", default="", help="only ops whose name contains this")
    parser.add_argument("--json", action="store_true")
    options = vars(parser.parse_args(arguments))
    as_json = options.pop("json")
    settings = BenchSettings(**options | {"dtype": getattr(torch, options["dtype"])})
    place = torch.device(settings.device)
    if place.type == "cuda":
        count = compile_in_processes(architecture_of(place), settings.channels, settings.dtype, settings.only)
        print(f"{count} kernels are compiled", file=sys.stderr, flush=True)
    name = torch.cuda.get_device_name() if place.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    bandwidth = copy_bandwidth(settings)
    if as_json:
        print(json.dumps({"device": name, "copy_bytes_per_second": bandwidth}), flush=True)
    else:
        edges = settings.nodes * settings.degree
        print(
            f"{name}: a copy moves {bandwidth / 1e9:.1f} GB/s; {edges} edges, {settings.channels} channels; milliseconds"
        )
        print(f"{'op, variant':50} {'forward':>9} {'gradient':>9} {'twice':>9} {'of a copy':>10}")
    for row in bench_rows(settings, bandwidth):
        times = f"{row.forward:9.3f} {row.with_gradient:9.3f} {row.twice:9.3f} {row.copy_share:10.0%}"
        print(json.dumps(asdict(row)) if as_json else f"{row.op + ', ' + row.variant:50} {times}", flush=True)


if __name__ == "__main__":
    main()
