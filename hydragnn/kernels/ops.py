"""Registry ``OPS`` of all ops, and the graphs of their tests."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels import (
    activation,
    ends,
    function_sums,
    gathered_outer,
    outer,
    per_receiver,
    pointwise,
    reference,
    segments,
    softmax,
    trilinear,
)
from hydragnn.kernels.family import ANYWHERE, Form
from hydragnn.kernels.op import TOLERANCE, Case, Make, Op


def graph(num_columns: int, num_rows: int, pairs: list[tuple[int, int]]) -> Topology:
    """Return edges from (sender, receiver) pairs sorted by receiver."""
    ends = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).unbind(1)
    senders, receivers = (end.contiguous() for end in ends)
    return Topology(senders=senders, receivers=receivers, num_columns=num_columns, num_rows=num_rows)


def case_graphs() -> dict[str, Topology]:
    """Return small graphs with every corner case."""
    return {
        "no edges": graph(3, 3, []),
        "one node": graph(1, 1, [(0, 0)]),
        "one edge": graph(3, 3, [(2, 0)]),
        "lone node": graph(4, 4, [(0, 0), (1, 0), (2, 1), (0, 2)]),
        "self loop, repeated edge": graph(2, 2, [(0, 0), (1, 0), (1, 0), (0, 1)]),
        "more rows than columns": graph(2, 4, [(1, 1), (0, 1), (1, 3)]),
        "all to the last": graph(5, 5, [(4 - e % 5, 4) for e in range(12)]),
        "backwards, most from one": graph(
            5, 4, [(4, 0), (3, 0), (4, 1), (4, 1), (2, 1), (4, 2), (1, 2), (4, 3), (0, 3)]
        ),
        "many": graph(6, 6, [((7 * e + e * e) % 6, e // 4) for e in range(20)]),
    }


def random_graph(nodes: int, degree: int, seed: int = 0) -> Topology:
    """Return a graph with ``degree`` random senders for every node."""
    random = torch.Generator().manual_seed(seed)
    senders = torch.randint(nodes, (nodes * degree,), generator=random)
    return Topology.square(senders, torch.arange(nodes).repeat_interleave(degree), nodes)


Normal = Callable[..., Tensor]
AXES = {"channels": (), "vectors": (3,)}
HEADS, PER = 2, get_args(trilinear.Per)


def _shared(edges: Topology) -> Topology:
    """Return the edges with one weight for every two."""
    return edges.sharing(edges.edge_numbers // 2, (edges.num_edges + 1) // 2 + 1)


def _sharing(make: Make) -> Make:
    """The case with edges that share weights."""
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
        tensors = (*[g] * received, x, *[e] * on_edges)
        return Case(tensors=tensors, rest=(received, on_edges, edges))

    return {
        "both ends and edges": partial(make, True, True),
        "both ends": partial(make, True, False),
        "senders and edges": partial(make, False, True),
        "senders": partial(make, False, False),
        "both ends and shared edges": _sharing(partial(make, True, True)),
        "senders and shared edges": _sharing(partial(make, False, True)),
    }


def _with_absent(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function called with the tensors that are present."""

    def call(*inputs: Any) -> Any:
        *tensors, received, on_edges, topology = inputs
        remaining = iter(tensors)
        g, x = next(remaining) if received else None, next(remaining)
        return function(g, x, next(remaining) if on_edges else None, topology)

    return call


GATHER_ADD = Op(
    name="gather_add",
    call=_with_absent(ends.gather_add),
    reference=_with_absent(reference.gather_add),
    forms={name: _with_absent(form) for name, form in ends.GATHER_ADD_FORMS.items()},
    variants=_ends(),
    tolerance=TOLERANCE,
)


def _of(*shapes: str, rest: str = "", first: Callable[[Tensor], Tensor] = lambda x: x, smooth: bool = True) -> Make:
    """Return a maker of cases by shapes such as ``edges channels``."""

    def make(edges: Topology, channels: int, normal: Normal) -> Case:
        counts = {name: getattr(edges, f"num_{name}") for name in ("edges", "rows", "columns", "weights")}
        counts["channels"] = channels
        tensors = [normal(*(counts[word] if word in counts else int(word) for word in one.split())) for one in shapes]
        rests = {"topology": (edges,), "receivers": (edges.receivers, edges.num_rows), "senders": (edges.senders,)}
        return Case(tensors=(first(tensors[0]), *tensors[1:]), rest=rests.get(rest, ()), smooth=smooth)

    return make


GATHERED_OUTER = _of("columns channels", "weights channels", "edges 3", rest="topology")
EDGE_SUM = ("edges channels", "edges 1")
MESSAGES = {
    "channels": _of("edges channels", rest="receivers"),
    "numbers": _of("edges", rest="receivers"),
    "equal numbers": _of("edges channels", rest="receivers", first=Tensor.round, smooth=False),
}


def _rows_op(name: str, call: Callable[..., Any], plain: Callable[..., Any], variants: Mapping[str, Make]) -> Op:
    """Return a function of rows, specified by plain torch."""

    def present(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *inputs: tuple(value for value in function(*inputs) if value is not None)

    call, plain = present(call), present(plain)
    # plain torch rounds phases in half precision, of which waves make a turn; models compute lengths in more
    tolerance = {**TOLERANCE, torch.float16: 0.03, torch.bfloat16: 0.2} if name == "radial_functions" else TOLERANCE
    return Op(name=name, call=call, reference=plain, forms={ANYWHERE: plain}, variants=variants, tolerance=tolerance)


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


def _results(options: Mapping[str, Any]) -> int:
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


def _with_gates(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(gates: Tensor, *inputs: Any) -> Any:
        *others, products, vectors = inputs
        remaining = iter(others)
        return function(gates, next(remaining) if products else None, next(remaining) if vectors else None)

    return call


ROWS = (
    _rows_op(
        "lengths_and_directions",
        pointwise.lengths_and_directions,
        pointwise.plain_lengths,
        {"vectors": _of("edges 3")},
    ),
    _rows_op(
        "radial_functions",
        lambda lengths, options: pointwise.radial_functions(lengths, **options)[: _results(options)],
        lambda lengths, options: pointwise.plain_radial(lengths, **options)[: _results(options)],
        _radial(),
    ),
    _rows_op(
        "ended",
        lambda x, y: (pointwise.ended(x, y),),
        lambda x, y: (x * y,),
        {"channels": _of("edges channels", "edges 1")},
    ),
    _rows_op(
        "measured",
        lambda scalars, halves, smooth: pointwise.measured(scalars, halves, smooth=smooth),
        lambda scalars, halves, smooth: pointwise.plain_norms(scalars, halves, smooth=smooth),
        _halves(),
    ),
    _rows_op(
        "normalised",
        lambda x: pointwise.STANDARD(x, floor=0.1),
        lambda x: pointwise.STANDARD.plain(x, floor=0.1),
        {"channels": _of("rows channels")},
    ),
    _rows_op(
        "beside",
        lambda *x: (pointwise.beside(*x),),
        pointwise.BESIDE.plain,
        {"statistics": _of(*5 * ["rows channels"])},
    ),
    _rows_op(
        "rooted",
        lambda x: (pointwise.rooted(x, 0.1),),
        lambda x: ((x + 0.1).sqrt(),),
        {"squares": _of("rows channels", first=Tensor.square)},
    ),
    _rows_op("gated", _with_gates(pointwise.gated), _with_gates(pointwise.plain_gated), _gates()),
)
"""Functions of rows."""


def _op(call: Callable[..., Any], forms: Mapping[str, Form], variants: Mapping[str, Make]) -> Op:
    name = call.__name__
    specification = getattr(reference, name)
    return Op(name=name, call=call, reference=specification, forms=forms, variants=variants, tolerance=TOLERANCE)


def _segment_op(call: Callable[..., Any], forms: Mapping[str, Form] | None = None, *, heads: bool = False) -> Op:
    """Return an op of messages and receivers.

    Its ``forms`` take (receivers, nodes) as one argument; without any, ``call`` is plain torch. Messages of several dimensions
    are tried where ``heads``: other ops are made of these.
    """
    variants = MESSAGES | ({"heads": _of("edges 2 channels", rest="receivers")} if heads else {})
    by_kind = {name: lambda x, r, nodes, form=form: form(x, (r, nodes)) for name, form in (forms or {}).items()}
    return _op(call, by_kind or {ANYWHERE: call}, variants)


OPS: Mapping[str, Op] = {
    op.name: op
    for op in (
        _op(trilinear.gather_multiply_sum, trilinear.ROW_SUM_FORMS, _sums(from_rows=False)),
        _op(trilinear.scatter_multiply_sum, trilinear.COLUMN_SUM_FORMS, _sums(from_rows=True)),
        _op(trilinear.edge_product, trilinear.EDGE_PRODUCT_FORMS, _products()),
        GATHER_ADD,
        _op(
            gathered_outer.gather_outer_sum,
            gathered_outer.SUM_ALONG_FORMS,
            {"directions": GATHERED_OUTER, "directions, shared weight": _sharing(GATHERED_OUTER)},
        ),
        _op(outer.outer_sum, outer.OUTER_SUM_FORMS, {"directions": _of("edges channels", "edges 3", rest="topology")}),
        _op(
            outer.along_directions,
            outer.ALONG_DIRECTIONS_FORMS,
            {"directions": _of("edges 3", "rows 3 channels", rest="topology")},
        ),
        _op(
            outer.along_channels,
            outer.ALONG_CHANNELS_FORMS,
            {"directions": _of("edges channels", "rows 3 channels", rest="topology")},
        ),
        _segment_op(segments.segment_sum, per_receiver.SUM_FORMS, heads=True),
        _segment_op(segments.segment_mean),
        _segment_op(segments.segment_max, heads=True),
        _segment_op(segments.segment_min),
        _segment_op(segments.segment_variance),
        _segment_op(segments.segment_std),
        _segment_op(segments.segment_statistics, heads=True),
        _op(segments.spread, {ANYWHERE: segments.spread}, {"rows": _of("columns channels", rest="senders")}),
        _op(
            function_sums.activated_sum,
            function_sums.ACTIVATED.forms,
            {"messages": _of(*EDGE_SUM, rest="topology", first=lambda x: 3 * x)},
        ),
        _op(function_sums.power_sums, function_sums.POWER_SUMS.forms, {"deviations": _of(*EDGE_SUM, rest="topology")}),
        _segment_op(segments.segment_softmax, softmax.SOFTMAX_FORMS, heads=True),
        _op(activation.silu, activation.SILU_FORMS, {"numbers": _of("edges channels", first=lambda x: 3 * x)}),
        *ROWS,
    )
}
"""Every op by its name."""
