"""Times of every op on this machine, beside a copy."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels.family import plain_forms
from hydragnn.kernels.op import Case
from hydragnn.kernels.ops import OPS, random_graph

FLUSHED = 2**29
"""Bytes written between repeats on an accelerator: more than its caches hold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchSettings:
    """Graph, dtype and repeats of a measurement.

    ``baselines`` adds torch's own scatters, eager and compiled.
    """

    device: str = "cpu"
    nodes: int = 2000
    degree: int = 20
    channels: int = 64
    dtype: torch.dtype = torch.float32
    repeats: int = 10
    only: str = ""
    baselines: bool = False


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
    baselines: Mapping[str, float]
    """Forward and gradient by torch's gathers and scatters: as they are, and compiled."""


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
        baselines=_baselines(call, inputs, settings) if settings.baselines else {},
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


def _baselines(call: Callable[..., object], inputs: Case, settings: BenchSettings) -> dict[str, float]:
    with plain_forms():
        torch._dynamo.reset()  # every case is compiled for itself
        calls = {"torch": call, "torch.compile": torch.compile(call)}
        return {name: milliseconds(lambda: derivatives(one, inputs, 1), settings) for name, one in calls.items()}  # noqa: B023


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
