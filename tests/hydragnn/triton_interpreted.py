"""Runs the Triton forms of ops in Triton's interpreter and prints what differs from the references, as JSON.

TRITON_INTERPRET=1 PYTHONPATH=. python tests/hydragnn/triton_interpreted.py derivatives|corners|widths|long|strided
A process of its own, since Triton decides when it is imported whether it interprets.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels import Case
from hydragnn.kernels.family import taken_for
from hydragnn.kernels.ops import numbers
from hydragnn.kernels.triton import launch as triton_launch
from tests.hydragnn.op_checks import CALL, OPS, case_graphs, graph

GRAPHS = case_graphs()
FEW = graph(3, 3, [((7 * e + e * e) % 3, e // 4) for e in range(8)])
"""Repeated edges and a row without, in few programs: the interpreter takes milliseconds for every instruction of each."""
WIDTHS = [(20, torch.float16), (48, torch.bfloat16), (130, torch.float32)]
CORNERS = {
    "no edges": GRAPHS["no edges"],
    "empty rows, all to the last": graph(3, 5, [(2, 1), *((2 - e % 3, 4) for e in range(12))]),
}
ROOTS = ("segment_statistics",)
"""Their curvatures take a root of nearly nothing where messages are nearly equal: lower precision rounds most of it away."""


class Interpreter(triton_launch.KernelLauncher):
    """Tensors on a CPU, tiles of a GPU."""

    def architecture(self, device: torch.device) -> str:
        return "gfx90a"


def in_int32(edges: Topology) -> Topology:
    return replace(edges, senders=edges.senders.int(), receivers=edges.receivers.int())


def derivatives() -> Iterator[tuple[str, float, float]]:
    """Values, gradients and gradients of gradients on adversarial edges in int32, by turns in double, single and half precision."""
    adverse = {"adverse": in_int32(GRAPHS["backwards, most from one"])}
    dtypes = (torch.float64, torch.float32, torch.float64, torch.float16, torch.float64, torch.bfloat16)
    for name, op in OPS.items():
        for number, (case, given) in enumerate(op.cases(adverse, 4)):
            dtype = torch.float64 if name in ROOTS else dtypes[number % len(dtypes)]
            yield f"{name} {case} {dtype}", max(op.compare(given, dtype=dtype)), op.tolerance[dtype]


def any_order() -> Iterator[tuple[str, float, float]]:
    """Reductions per receiver, where receivers are in no order, and their derivatives."""
    receivers = torch.tensor([2, 0, 2, 1, 0, 2, 2, 0, 2, 2])
    for name, op in OPS.items():
        if name.startswith("segment"):
            case = Case(tensors=(numbers(3)(10, 3),), rest=(receivers, 4))
            yield f"{name} any order", max(op.compare(case)), op.tolerance[torch.float64]


def corners() -> Iterator[tuple[str, float, float]]:
    """Values where there are no edges, empty rows, or one row with all."""
    for name, op in OPS.items():
        for case, given in op.cases(CORNERS):
            yield f"{name} {case}", op.compare(given, form=CALL).forward, op.tolerance[torch.float64]


def widths() -> Iterator[tuple[str, float, float]]:
    """Values with channels that no vector divides, or take two tiles, in all dtypes; of edges in int64 and int32."""
    indices = (FEW, in_int32(FEW))
    for number, (channels, dtype) in enumerate(WIDTHS):
        for name, op in OPS.items():
            for case, given in op.cases({"few": indices[number % 2]}, channels):
                value = op.compare(given, dtype=dtype, form=CALL).forward
                yield f"{name} {case} {channels} {dtype}", value, op.tolerance[dtype]


def long() -> Iterator[tuple[str, float, float]]:
    """Rows that are split, at beginnings, middles and ends of windows, of reductions with their derivatives; and the same bits again."""
    with rows_longer_than(3):
        for name, op in OPS.items():
            for case, given in op.cases({"many": GRAPHS["many"]}):
                whole = name.startswith("segment") and case == "many, channels"
                worst = max(op.compare(given, form=None if whole else CALL))
                yield f"{name} {case}", worst, op.tolerance[torch.float64]
        yield from any_order()
    for split in (triton_launch.LONG, 100):
        star = graph(7, 3, [((7 * e + e * e) % 7, 1) for e in range(600)])
        with rows_longer_than(split):
            op = OPS["gather_multiply_sum"]
            given = dict(op.cases({"star": star}, 5))["star, channels, weight per channel"].to(dtype=torch.float32)
            first, second = (op.call(*given.tensors, *given.rest) for _ in range(2))
            compared = op.compare(given, dtype=torch.float32, form=CALL)
            yield f"star split at {split}", compared.forward, op.tolerance[torch.float32]
            yield f"star again at {split}", 0.0 if torch.equal(first, second) else 1.0, 0.0
    yield from axes()


def axes() -> Iterator[tuple[str, float, float]]:
    """Tensors of nine components, which take several programs per row."""
    normal, op, edges = numbers(1), OPS["gather_multiply_sum"], GRAPHS["many"]
    for axes in ((3, 3), (5,), (4,)):
        case = Case(tensors=(normal(edges.num_columns, *axes, 4), normal(edges.num_edges, 4)), rest=(edges,))
        given = (case.tensors[0].flatten(1, -2), case.tensors[1], edges)
        difference = op.call(*case.tensors, edges).flatten(1, -2) - op.reference(*given)
        yield f"{axes} axes", float(difference.abs().max()), op.tolerance[torch.float64]


STRIDED = {
    "gather_multiply_sum": (
        "channels, weight per channel",
        "vectors, weight per head",
        "vectors, shared weight per channel",
    ),
    "scatter_multiply_sum": ("vectors, weight per channel",),
    "edge_product": ("vectors, per channel", "vectors, per head"),
    "gather_add": ("both ends and edges",),
    "gather_outer_sum": ("directions", "directions, shared weight"),
    "outer_sum": ("directions",),
    "along_directions": ("directions",),
    "along_channels": ("directions",),
    "segment_sum": ("channels",),
    "segment_statistics": ("channels", "heads"),
    "activated_sum": ("messages",),
    "power_sums": ("deviations",),
}
"""Variants of ops whose kernels read parts of wider tensors where they lie."""


def strided() -> Iterator[tuple[str, float, float]]:
    """Derivatives of parts of wider tensors, of edges that a CPU has seen: nothing is sorted, and no row is long."""

    def part(value: Any) -> Any:
        wide = isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 1
        return torch.cat([value, value], -1)[..., : value.shape[-1]] if wide else value

    for name, variants in STRIDED.items():
        edges = graph(5, 5, [((7 * e + e * e) % 5, e // 4) for e in range(16)])
        edges.prepare()
        call = OPS[name].call
        op = replace(OPS[name], call=lambda *inputs, call=call: call(*map(part, inputs)))
        cases = dict(op.cases({"parts": edges}, 4))
        for variant in variants:
            yield f"{name} {variant}", max(op.compare(cases[f"parts, {variant}"])), op.tolerance[torch.float64]


@contextmanager
def rows_longer_than(edges: int) -> Iterator[None]:
    before = triton_launch.LONG
    triton_launch.LONG = edges
    try:
        yield
    finally:
        triton_launch.LONG = before


SUITES = {"derivatives": derivatives, "corners": corners, "widths": widths, "long": long, "strided": strided}


def main() -> None:
    torch.set_num_threads(1)
    with taken_for("cpu", "cuda"), triton_launch.launched_by(Interpreter()):
        checks = list(SUITES[sys.argv[1]]())
    failures = [check for check in checks if not check[1] <= check[2]]
    print(json.dumps({"checks": len(checks), "failures": failures}))


if __name__ == "__main__":
    main()
