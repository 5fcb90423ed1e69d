"""Registry ``OPS`` of all ops, with cases that call each."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels import activation, ends, function_sums, gathered_outer, outer, pointwise, segments, trilinear

Normal = Callable[..., Tensor]
"""Source of random numbers of a given shape."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Case:
    """Arguments of one call: differentiable tensors, then ``rest``."""

    tensors: tuple[Tensor, ...]
    rest: tuple[Any, ...]

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Case":
        """Return the case on a device, its tensors in ``dtype``."""
        tensors = tuple(tensor.detach().to(device=device, dtype=dtype) for tensor in self.tensors)
        rest = tuple(one.to(device) if isinstance(one, Tensor | Topology) else one for one in self.rest)
        return replace(self, tensors=tensors, rest=rest)


Make = Callable[[Topology, int, Normal], Case]
"""Makes a case from edges, a number of channels and random numbers."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Op:
    """Kernel that layers call, differentiable as often as one likes."""

    name: str
    call: Callable[..., Any]
    variants: Mapping[str, Make]

    def cases(self, graphs: Mapping[str, Topology], channels: int = 3) -> Iterator[tuple[str, Case]]:
        """Yield every variant of the op on every graph, with a name."""
        for graph, topology in graphs.items():
            for variant, make in self.variants.items():
                yield f"{graph}, {variant}", make(topology, channels, numbers(len(graph)))


def numbers(seed: int) -> Normal:
    """Return a source of normal random numbers in fp64, called with shapes."""
    random = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=random)


def random_graph(nodes: int, degree: int, seed: int = 0) -> Topology:
    """Return a graph with ``degree`` random senders for every node."""
    random = torch.Generator().manual_seed(seed)
    senders = torch.randint(nodes, (nodes * degree,), generator=random)
    return Topology.square(senders, torch.arange(nodes).repeat_interleave(degree), nodes)


AXES = {"channels": (), "vectors": (3,)}
HEADS, PER = 2, get_args(trilinear.Per)


def _shared(edges: Topology) -> Topology:
    return edges.sharing(edges.edge_numbers // 2, (edges.num_edges + 1) // 2 + 1)


def _sharing(make: Make) -> Make:
    return lambda edges, channels, normal: make(_shared(edges), channels, normal)


def _sums(from_rows: bool) -> dict[str, Make]:
    """Return cases with and without axes, with every kind of weight."""

    def plain(axes: tuple[int, ...], edges: Topology, channels: int, normal: Normal) -> Case:
        items = edges.num_rows if from_rows else edges.num_columns
        return Case(tensors=(normal(items, *axes, channels),), rest=(None, edges))

    def weighted(axes: tuple[int, ...], wide: bool, edges: Topology, channels: int, normal: Normal) -> Case:
        weight = normal(edges.num_weights, *[channels] * wide)
        return Case(tensors=(*plain(axes, edges, channels, normal).tensors, weight), rest=(edges,))

    def per_head(axes: tuple[int, ...], edges: Topology, channels: int, normal: Normal) -> Case:
        weight = normal(edges.num_weights, HEADS, 1)
        return Case(tensors=(*plain((*axes, HEADS), edges, channels, normal).tensors, weight), rest=(edges,))

    makes: dict[str, Make] = {}
    for name, axes in AXES.items():
        makes[f"{name}, no weight"] = partial(plain, axes)
        makes[f"{name}, weight per edge"] = partial(weighted, axes, False)
        makes[f"{name}, weight per head"] = partial(per_head, axes)
        makes[f"{name}, weight per channel"] = partial(weighted, axes, True)
        makes[f"{name}, shared weight per channel"] = _sharing(partial(weighted, axes, True))
    makes["channels, shared weight"] = _sharing(partial(weighted, (), False))
    makes["channels, shared weight per head"] = _sharing(partial(per_head, ()))
    return makes


def _products() -> dict[str, Make]:
    def make(axes: tuple[int, ...], per: str, edges: Topology, channels: int, normal: Normal) -> Case:
        axes = (*axes, HEADS) if per == "head" else axes
        x, g = normal(edges.num_columns, *axes, channels), normal(edges.num_rows, *axes, channels)
        return Case(tensors=(x, g), rest=(edges, per))

    ways = {f"{name}, per {per}": partial(make, axes, per) for name, axes in AXES.items() for per in PER}
    shared = ("channels, per edge", "channels, per head", "channels, per channel", "vectors, per channel")
    return ways | {f"{name}, shared": _sharing(ways[name]) for name in shared}


def _ends() -> dict[str, Make]:
    """Return cases with some of three tensors; the others are None."""

    def make(received: bool, on_edges: bool, edges: Topology, channels: int, normal: Normal) -> Case:
        g, x, e = (normal(count, channels) for count in (edges.num_rows, edges.num_columns, edges.num_weights))
        return Case(tensors=(*[g] * received, x, *[e] * on_edges), rest=(received, on_edges, edges))

    return {
        "both ends and edges": partial(make, True, True),
        "both ends": partial(make, True, False),
        "senders and edges": partial(make, False, True),
        "senders": partial(make, False, False),
        "both ends and shared edges": _sharing(partial(make, True, True)),
        "senders and shared edges": _sharing(partial(make, False, True)),
    }


def with_absent(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function called with the tensors that are present."""

    def call(*inputs: Any) -> Any:
        *tensors, received, on_edges, topology = inputs
        remaining = iter(tensors)
        g, x = next(remaining) if received else None, next(remaining)
        return function(g, x, next(remaining) if on_edges else None, topology)

    return call


def _of(*shapes: str, rest: str = "", first: Callable[[Tensor], Tensor] = lambda x: x) -> Make:
    """Return a maker of cases by shapes such as ``edges channels``."""

    def make(edges: Topology, channels: int, normal: Normal) -> Case:
        counts = {name: getattr(edges, f"num_{name}") for name in ("edges", "rows", "columns", "weights")}
        counts["channels"] = channels
        tensors = [normal(*(counts[word] if word in counts else int(word) for word in one.split())) for one in shapes]
        rests = {"topology": (edges,), "receivers": (edges.receivers, edges.num_rows), "senders": (edges.senders,)}
        return Case(tensors=(first(tensors[0]), *tensors[1:]), rest=rests.get(rest, ()))

    return make


GATHERED_OUTER = {"directions": _of("columns channels", "weights channels", "edges 3", rest="topology")}
GATHERED_OUTER |= {"directions, shared weight": _sharing(GATHERED_OUTER["directions"])}
ACTIVATED = {"messages": _of("edges channels", "edges 1", rest="topology", first=lambda x: 3 * x)}


def _radial() -> dict[str, Make]:
    def make(gaussian: bool, envelope: int, ended: bool, edges: Topology, channels: int, normal: Normal) -> Case:
        options = {"gaussian": gaussian, "count": channels, "step": 0.4, "amplitude": 0.7}
        rest = {**options, "envelope": envelope, "cutoff": 1.9, "ended": ended}
        return Case(tensors=(normal(edges.num_edges).abs() + 0.5,), rest=(rest,))

    return {
        "waves times a polynomial": partial(make, False, 6, True),
        "waves beside a cosine": partial(make, False, 0, False),
        "Gaussians beside a polynomial": partial(make, True, 2, False),
        "Gaussians without an end": partial(make, True, -1, True),
    }


def results_of(options: Mapping[str, Any]) -> int:
    """Return the number of results: without an end there is no envelope."""
    return 1 if options["envelope"] < 0 else 2


def _halves() -> dict[str, Make]:
    def make(smooth: bool, edges: Topology, channels: int, normal: Normal) -> Case:
        tensors = normal(edges.num_rows, channels), normal(edges.num_rows, 3, 2 * channels)
        return Case(tensors=tensors, rest=(smooth,))

    return {"smooth": partial(make, True), "paper": partial(make, False)}


def _gates() -> dict[str, Make]:
    def make(products: bool, halves: int, edges: Topology, channels: int, normal: Normal) -> Case:
        nodes = edges.num_rows
        gates = normal(nodes, (3 if halves else 2) * channels)
        others = [normal(nodes, channels)] * products + [normal(nodes, 3, halves * channels)] * bool(halves)
        return Case(tensors=(gates, *others), rest=(products, bool(halves)))

    return {
        "products and vectors": partial(make, True, 2),
        "products": partial(make, True, 0),
        "vectors": partial(make, False, 1),
        "neither": partial(make, False, 0),
    }


def with_gates(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of gates called with the tensors that are present; its results that are."""

    def call(gates: Tensor, *inputs: Any) -> Any:
        *others, products, vectors = inputs
        remaining = iter(others)
        values = function(gates, next(remaining) if products else None, next(remaining) if vectors else None)
        return tuple(value for value in values if value is not None)

    return call


MESSAGES = {
    "channels": _of("edges channels", rest="receivers"),
    "numbers": _of("edges", rest="receivers"),
    "equal numbers": _of("edges channels", rest="receivers", first=Tensor.round),
}
WITH_HEADS = MESSAGES | {"heads": _of("edges 2 channels", rest="receivers")}
"""Messages of several dimensions, for the ops that others are made of."""


CASES: Mapping[str, tuple[Callable[..., Any], Mapping[str, Make]]] = {
    "gather_multiply_sum": (trilinear.gather_multiply_sum, _sums(from_rows=False)),
    "scatter_multiply_sum": (trilinear.scatter_multiply_sum, _sums(from_rows=True)),
    "edge_product": (trilinear.edge_product, _products()),
    "gather_add": (with_absent(ends.gather_add), _ends()),
    "gather_outer_sum": (gathered_outer.gather_outer_sum, GATHERED_OUTER),
    "outer_sum": (outer.outer_sum, {"directions": _of("edges channels", "edges 3", rest="topology")}),
    "along_directions": (outer.along_directions, {"directions": _of("edges 3", "rows 3 channels", rest="topology")}),
    "along_channels": (outer.along_channels, {"directions": _of("edges channels", "rows 3 channels", rest="topology")}),
    "segment_sum": (segments.segment_sum, WITH_HEADS),
    "segment_mean": (segments.segment_mean, MESSAGES),
    "segment_max": (segments.segment_max, WITH_HEADS),
    "segment_statistics": (segments.segment_statistics, WITH_HEADS),
    "spread": (segments.spread, {"rows": _of("columns channels", rest="senders")}),
    "activated_sum": (function_sums.activated_sum, ACTIVATED),
    "power_sums": (function_sums.power_sums, {"deviations": _of("edges channels", "edges 1", rest="topology")}),
    "segment_softmax": (segments.segment_softmax, WITH_HEADS),
    "silu": (activation.silu, {"numbers": _of("edges channels", first=lambda x: 3 * x)}),
    "lengths_and_directions": (pointwise.lengths_and_directions, {"vectors": _of("edges 3")}),
    "radial_functions": (
        lambda lengths, options: pointwise.radial_functions(lengths, **options)[: results_of(options)],
        _radial(),
    ),
    "ended": (pointwise.ended, {"channels": _of("edges channels", "edges 1")}),
    "measured": (lambda scalars, halves, smooth: pointwise.measured(scalars, halves, smooth=smooth), _halves()),
    "normalised": (lambda x: pointwise.STANDARD(x, floor=0.1), {"channels": _of("rows channels")}),
    "gated": (with_gates(pointwise.gated), _gates()),
}
OPS: Mapping[str, Op] = {name: Op(name=name, call=call, variants=variants) for name, (call, variants) in CASES.items()}
"""Every op by its name."""
