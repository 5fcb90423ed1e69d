"""Ops as operators that torch knows by name: opcheck, derivatives, and graphs that are traced and compiled with them."""

from collections.abc import Iterator
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.debugging import aot_eager
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from hydragnn.graphs.topology import Topology
from hydragnn.kernels import (
    OPS,
    edge_product,
    gather_multiply_sum,
    outer_sum,
    segment_max,
    segment_softmax,
    segment_statistics,
    segment_variance,
)
from hydragnn.kernels.family import operators, plain_forms
from hydragnn.kernels.library import OPERATORS
from hydragnn.kernels.ops import case_graphs, random_graph

GRAPHS = {name: graph for name, graph in case_graphs().items() if name in ("no edges", "one node", "lone node", "many")}


@pytest.fixture(scope="module", autouse=True)
def as_users_run() -> Iterator[None]:
    """Without the types that only these tests check: numbers of nodes are symbols while a graph is traced."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


class Recorder(TorchDispatchMode):
    """Keeps what every operator of ours was called with, once per kind of shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, dict[tuple[Any, ...], tuple[Any, ...]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "hydragnn":
            shapes = tuple(tuple(a.shape) if isinstance(a, Tensor) else a for a in args)
            self.calls.setdefault(func._opname, {})[shapes] = args
        return func(*args, **(kwargs or {}))


def given_messages() -> tuple[Tensor, Tensor]:
    messages = torch.randn(44, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return messages.requires_grad_(), random_graph(11, 4).receivers


def statistics_and_shares(messages: Tensor, receivers: Tensor) -> Tensor:
    """One number of all reductions per receiver."""
    mean, low, high, std = segment_statistics(messages, receivers, 11)
    shares = segment_softmax(messages, receivers, 11)
    largest, variance = segment_max(messages, receivers, 11), segment_variance(messages, receivers, 11)
    parts = (mean.pow(3) * std, low.pow(3), high.pow(3) + largest.pow(4) * variance)
    return sum((part.sum() for part in parts), shares.pow(3).sum())


def third_derivative(messages: Tensor, receivers: Tensor) -> tuple[Tensor, ...]:
    """The value, its gradient, and gradients of the squares of each."""
    values = [statistics_and_shares(messages, receivers)]
    for _ in range(3):
        values += torch.autograd.grad(values[-1].square().sum(), messages, create_graph=True)
    return tuple(values)


@pytest.fixture(scope="module")
def calls() -> dict[str, list[tuple[Any, ...]]]:
    """What all ops and their derivatives of two orders call, on graphs with every corner."""
    recorder = Recorder()
    with operators(), recorder:
        for op in OPS.values():
            for case, given in op.cases(GRAPHS, 4):
                assert op.within(op.compare(given)), (op.name, case)
        third_derivative(*given_messages())
    return {name: list(found.values()) for name, found in recorder.calls.items()}


def test_every_member_of_a_family_is_an_operator_that_ops_and_their_derivatives_call(calls: dict[str, Any]) -> None:
    assert set(calls) - {"largest_ends"} == set(OPERATORS)


def copies(args: tuple[Any, ...]) -> tuple[Any, ...]:
    def copy(arg: Any) -> Any:
        if not isinstance(arg, Tensor):
            return arg
        copied = arg.detach().clone()
        return copied.requires_grad_() if arg.is_floating_point() else copied

    return tuple(map(copy, args))


@pytest.mark.parametrize("name", [*OPERATORS, "largest_ends"])
def test_opcheck_finds_nothing(name: str, calls: dict[str, list[tuple[Any, ...]]]) -> None:
    operator = getattr(torch.ops.hydragnn, name).default
    largest = max(calls[name], key=lambda args: sum(a.numel() for a in args if isinstance(a, Tensor)))
    for args in calls[name]:
        torch.library.opcheck(operator, copies(args), test_utils=("test_schema", "test_faketensor"))
    torch.library.opcheck(operator, copies(largest))


def forces_and_their_gradient(x: Tensor, weight: Tensor, senders: Tensor, receivers: Tensor) -> tuple[Tensor, ...]:
    """What a step of training does: a sum, its gradient, and the gradient of that."""
    edges = Topology.square(senders, receivers, x.shape[0])
    value = gather_multiply_sum(x, weight, edges).pow(2) + gather_multiply_sum(x, weight[:, 0], edges).sin()
    directions = edge_product(x, value, edges, per="channel")[:, :3]
    energy = outer_sum(weight, directions, edges).pow(2).sum()
    (force,) = torch.autograd.grad(energy, x, create_graph=True)
    return energy, force, *torch.autograd.grad(force.square().sum(), (x, weight))


def given(nodes: int, degree: int) -> tuple[Tensor, ...]:
    random, edges = torch.Generator().manual_seed(nodes), random_graph(nodes, degree)
    x, weight = (
        torch.randn(count, 5, generator=random, dtype=torch.float64).requires_grad_()
        for count in (nodes, edges.num_edges)
    )
    return x, weight, edges.senders, edges.receivers


def test_what_is_computed_at_once_does_not_go_through_operators() -> None:
    recorder = Recorder()
    with recorder:
        forces_and_their_gradient(*given(11, 4))
    assert not recorder.calls


def test_reductions_by_operators_have_the_derivatives_of_eager_ones() -> None:
    with operators():
        actual = third_derivative(*given_messages())
    with plain_forms():
        plain = third_derivative(*given_messages())
    for value, expected in zip((*actual, *plain), 2 * third_derivative(*given_messages())):
        torch.testing.assert_close(value, expected, rtol=1e-11, atol=1e-11)


def test_a_traced_graph_of_reductions_has_their_operators_and_second_derivatives() -> None:
    def step(messages: Tensor, receivers: Tensor) -> tuple[Tensor, ...]:
        return third_derivative(messages, receivers)[:3]

    with operators():
        module = make_fx(step, tracing_mode="symbolic")(*given_messages())
    called = {str(node.target) for node in module.graph.nodes}
    name = "statistics_mean_variance_low_high"
    expected = {name, f"statistics_gradient_of_{name.removeprefix('statistics_')}", "softmax", "softmax_gradient"}
    assert {f"hydragnn.{one}.default" for one in (*expected, "softmax_curvature", "holders")} <= called
    assert not {one for one in called if "scatter" in one}
    for value, exact in zip(module(*given_messages()), step(*given_messages())):
        torch.testing.assert_close(value, exact, rtol=1e-11, atol=1e-11)


def test_torch_compile_of_ops_sees_the_operators_and_trains_through_them() -> None:
    """By Dynamo, as users compile modules, in one graph for all sizes."""
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return aot_eager(graph, inputs)

    def energy(x: Tensor, weight: Tensor, senders: Tensor, receivers: Tensor) -> Tensor:
        edges = Topology.square(senders, receivers, x.shape[0])
        messages = gather_multiply_sum(x, weight, edges).index_select(0, senders)
        shares = segment_softmax(messages, receivers, x.shape[0])
        return sum(part.pow(3).sum() for part in segment_statistics(shares * weight, receivers, x.shape[0]))

    compiled = torch.compile(energy, backend=backend, fullgraph=True, dynamic=True)
    for nodes in (11, 29):
        x, weight, *edges = given(nodes, 4)
        actual, expected = (
            (value, *torch.autograd.grad(value, (x, weight)))
            for value in (f(x, weight, *edges) for f in (compiled, energy))
        )
        for one, other in zip(actual, expected):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    assert sum("hydragnn.softmax" in name for name in seen) == 1, "compiled once, for both sizes"


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_traced_graph_has_the_operators_and_what_follows_from_edges_once(mode: str) -> None:
    """Loops that wrote where tracers cannot see would leave a graph of what memory happened to hold."""
    with operators():
        module = make_fx(forces_and_their_gradient, tracing_mode=mode)(*given(11, 4))
    called = [str(node.target) for node in module.graph.nodes]
    assert {"hydragnn.per_channel_row_sum.default", "hydragnn.vectors_outer_sum.default"} <= set(called)
    assert called.count("hydragnn.largest_ends.default") == 1
    for nodes, degree in ((11, 4), (29, 3)) if mode == "symbolic" else ((11, 4),):
        for actual, expected in zip(module(*given(nodes, degree)), forces_and_their_gradient(*given(nodes, degree))):
            torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_a_compiled_graph_differentiates_through_the_operators() -> None:
    def energy_and_force(x: Tensor, weight: Tensor, senders: Tensor, receivers: Tensor) -> tuple[Tensor, Tensor]:
        edges = Topology.square(senders, receivers, x.shape[0])
        energy = gather_multiply_sum(x, weight, edges).pow(3).sum()
        return energy, torch.autograd.grad(energy, x, create_graph=True)[0]

    with operators():
        module = make_fx(energy_and_force, tracing_mode="symbolic")(*given(11, 4))
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        node.replace_all_uses_with(node.args[0])
        module.graph.erase_node(node)
    module.recompile()
    compiled = torch.compile(module, backend="aot_eager", dynamic=True, fullgraph=True)
    gradients = []
    for function in (compiled, energy_and_force):
        x, weight, *rest = given(29, 3)
        energy, force = function(x, weight, *rest)
        gradients.append(torch.autograd.grad(energy + force.square().sum(), (x, weight)))
    for actual, expected in zip(*gradients):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_an_operator_refuses_edges_that_are_not_there() -> None:
    x, weight, senders, receivers = given(7, 3)
    with operators(), pytest.raises(IndexError, match=r"sender 7 of .* numbered from 0 to 6"):
        gather_multiply_sum(x, weight, Topology.square(senders.clone().fill_(7), receivers, 7))
    with operators(), pytest.raises(ValueError, match="needs one item for each"):
        gather_multiply_sum(x, weight[1:], Topology.square(senders, receivers, 7))
