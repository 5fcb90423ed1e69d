"""Ops as operators that torch knows by name: opcheck, derivatives, and graphs that are traced and compiled with them."""

from collections.abc import Iterator
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from hydragnn.graphs.topology import Topology
from hydragnn.kernels import (
    OPS,
    edge_product,
    gather_multiply_sum,
    outer_sum,
)
from hydragnn.kernels.family import operators
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


@pytest.fixture(scope="module")
def calls() -> dict[str, list[tuple[Any, ...]]]:
    """What all ops and their derivatives of two orders call, on graphs with every corner."""
    recorder = Recorder()
    with operators(), recorder:
        for op in OPS.values():
            for case, given in op.cases(GRAPHS, 4):
                assert op.within(op.compare(given)), (op.name, case)
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
    directions = edge_product(x, value, edges, per_channel=True)[:, :3]
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


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_traced_graph_has_the_operators_and_what_follows_from_edges_once(mode: str) -> None:
    """Loops that wrote where tracers cannot see would leave a graph of what memory happened to hold."""
    with operators():
        module = make_fx(forces_and_their_gradient, tracing_mode=mode)(*given(11, 4))
    called = [str(node.target) for node in module.graph.nodes]
    assert {"hydragnn.per_channel_A.default", "hydragnn.outer_S.default"} <= set(called)
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
