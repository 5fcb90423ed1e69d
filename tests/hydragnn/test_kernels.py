"""Every op of the registry equals its reference, forward, backward and twice backward, on every case."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import hydragnn.kernels
from hydragnn.graphs.topology import relation_topology
from hydragnn.kernels import Case, gather_multiply_sum, segment_max, segment_statistics
from hydragnn.kernels.family import ANYWHERE, INCOMING, Family, FamilyMember, plain_forms
from tests.hydragnn.op_checks import OPS, case_graphs, parts_of

GRAPHS = case_graphs()
every_op = pytest.mark.parametrize("name", OPS)


def normal(*shape: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=random).requires_grad_()


def check_derivatives(function: Callable[..., Tensor | tuple[Tensor, ...]], *inputs: Tensor) -> None:
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_every_op_of_the_room_is_in_the_registry() -> None:
    words = ("sum", "product", "along", "segment", "gather", "silu", "spread")
    of_rows = ("ended", "gated", "measured", "lengths", "radial", "normalised")
    words = (*words, *of_rows)
    functions = [name for name, value in vars(hydragnn.kernels).items() if callable(value)]
    assert {name for name in functions if any(word in name for word in words)} == set(OPS)


@every_op
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, None], ids=str)
def test_an_op_and_its_derivatives_equal_the_reference(name: str, dtype: torch.dtype | None) -> None:
    """Without a dtype: in double precision, in the forms that a compiler sees."""
    op = OPS[name]
    for case, given in op.cases(GRAPHS):
        with plain_forms() if dtype is None else nullcontext():
            errors = op.compare(given, dtype=dtype or torch.float64)
        assert op.within(errors, dtype or torch.float64), (case, errors)


@every_op
def test_a_wrong_value_or_derivative_is_found(name: str) -> None:
    op = OPS[name]
    case = dict(op.cases(GRAPHS))[f"many, {next(iter(op.variants))}"]
    twice = replace(op, call=lambda *given: _scaled(op.call(*given), 2.0))
    assert op.within(op.compare(case)) and not op.within(twice.compare(case))
    crooked = replace(op, call=lambda *given: op.call(*(_with_doubled_gradient(t) for t in given)))
    errors = crooked.compare(case)
    assert errors.forward <= op.tolerance[torch.float64] < errors.backward


def _scaled(value: Tensor | tuple[Tensor, ...], factor: float) -> Tensor | tuple[Tensor, ...]:
    return tuple(part * factor for part in parts_of(value))


def _with_doubled_gradient(value: object) -> object:
    return 2 * value - value.detach() if isinstance(value, Tensor) and value.is_floating_point() else value


def values_and_gradients(name: str, case: Case) -> list[Tensor]:
    tensors = [tensor.detach().requires_grad_() for tensor in case.tensors]
    values = parts_of(OPS[name].call(*tensors, *case.rest))
    return [*values, *torch.autograd.grad([part.square().sum() for part in values], tensors)]


@every_op
def test_an_op_and_its_gradients_have_the_same_bits_again_and_are_on_the_device_of_its_tensors(name: str) -> None:
    """On the device ``meta``, where tensors have no values, as on a GPU."""
    for case, given in OPS[name].cases(GRAPHS):
        first, second = (values_and_gradients(name, given) for _ in range(2))
        assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True)), case
        assert all(one.device.type == "meta" for one in values_and_gradients(name, given.to("meta")))


def test_a_device_with_a_form_of_its_own_gets_it_but_within_plain_forms() -> None:
    forms = {ANYWHERE: lambda x, _: 2 * x, "cpu": lambda x, _: x.new_empty(7)}
    family = Family({"double": FamilyMember(forms=forms, derivatives=(("double", (INCOMING,)),))})
    x = torch.ones(2, requires_grad=True)
    with plain_forms():
        value = family("double", (x,), None)
        (gradient,) = torch.autograd.grad(value.sum(), x)
    assert value.tolist() == gradient.tolist() == [2.0, 2.0]
    assert family("double", (x,), None).shape == (7,)
    assert family("double", (torch.ones(2, device="meta"),), None).shape == (2,)


def test_the_variance_of_large_close_values_keeps_its_digits_in_single_precision() -> None:
    random = torch.Generator().manual_seed(0)
    values = 1e3 + 1e-2 * torch.randn(400, 1, generator=random)
    actual = segment_statistics(values, torch.zeros(400, dtype=torch.int64), 1, floor=0.0)[3].square()
    # float32 near 1e3 has steps of 6e-5: 1e-2 is resolved to half a percent per value
    torch.testing.assert_close(actual.double(), values.double().var(0, unbiased=False).unsqueeze(0), rtol=5e-3, atol=0)


@pytest.mark.parametrize(
    "extreme", [lambda *inputs: segment_max(*inputs), lambda *inputs: segment_statistics(*inputs)[1]]
)
def test_the_gradient_of_an_extreme_goes_to_the_first_among_equals(extreme: Callable[..., Tensor]) -> None:
    messages = torch.tensor([[1.0], [1.0], [1.0]], requires_grad=True)
    extreme(messages, torch.tensor([0, 0, 1]), 2).sum().backward()
    assert messages.grad is not None
    assert messages.grad.squeeze(1).tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("graph", GRAPHS)
def test_sums_per_relation_equal_a_loop_over_edges(graph: str) -> None:
    edges = GRAPHS[graph]
    relation = torch.arange(edges.num_edges) * 5 % 3
    keyed = relation_topology(edges, relation, relations=3)
    x = normal(edges.num_columns, 2)
    actual = gather_multiply_sum(x, None, keyed).view(edges.num_rows, 3, 2)
    expected = torch.zeros_like(actual)
    for s, r, k in zip(edges.senders.tolist(), edges.receivers.tolist(), relation.tolist()):
        expected[r, k] += x[s].detach()
    torch.testing.assert_close(actual.detach(), expected)
    check_derivatives(lambda x: gather_multiply_sum(x, None, keyed), x)


def test_the_third_derivative_of_a_sum_exists_too() -> None:
    edges = GRAPHS["many"]
    x, weight = normal(6, 3), normal(20, 3, seed=1)

    def second(x: Tensor, weight: Tensor) -> Tensor:
        value = gather_multiply_sum(x, weight, edges).pow(3).sum()
        (first,) = torch.autograd.grad(value, x, create_graph=True)
        return first.square().sum()

    check_derivatives(second, x, weight)
