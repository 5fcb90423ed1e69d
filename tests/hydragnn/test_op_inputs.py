"""Tensors and edges that do not belong together: an error, never memory behind the end of an array."""

from collections.abc import Iterator
from dataclasses import replace

import jaxtyping
import pytest
import torch

from hydragnn.graphs.topology import Topology
from hydragnn.kernels import OPS, Op, gather_add, gather_multiply_sum, gather_outer_sum, outer_sum
from hydragnn.kernels.family import taken_for
from hydragnn.kernels.ops import random_graph
from hydragnn.kernels.pointwise import ended, measured
from hydragnn.kernels.triton.launch import launched_by
from tests.hydragnn.training.recorder import Counting

GRAPHS = {"random": random_graph(7, 3)}
WITH_TOPOLOGY = [
    name
    for name, op in OPS.items()
    if any(isinstance(value, Topology) for _, case in op.cases(GRAPHS, 5) for value in case.rest)
]


@pytest.fixture(autouse=True)
def as_users_run() -> Iterator[None]:
    """Without the types that only these tests check."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("name", WITH_TOPOLOGY)
def test_a_tensor_of_other_items_or_channels_is_refused(name: str) -> None:
    op: Op = OPS[name]
    for case, given in op.cases(GRAPHS, 5):
        wide = [place for place, tensor in enumerate(given.tensors) if tensor.shape[-1] == 5 and tensor.dim() > 1]
        for place, tensor in enumerate(given.tensors):
            before, after = given.tensors[:place], given.tensors[place + 1 :]
            for other in (tensor[:-1], torch.cat([tensor, tensor[:1]])):
                with pytest.raises(ValueError, match=r"needs one item for each") as refusal:
                    op.call(*before, other, *after, *given.rest)
                assert str(list(other.shape)) in str(refusal.value), case
            if place in wide and len(wide) > 1:  # else there is nothing to compare with
                with pytest.raises((RuntimeError, ValueError)):
                    print(case, op.call(*before, tensor[..., :-1], *after, *given.rest))


@pytest.mark.parametrize("end, number", [("senders", 7), ("senders", -1), ("receivers", 7), ("receivers", -1)])
def test_an_edge_that_joins_what_is_not_there_is_refused(end: str, number: int) -> None:
    whole = GRAPHS["random"]
    numbers = getattr(whole, end).clone()
    numbers[-1 if number > 0 else 0] = number
    broken, x, weight = replace(whole, **{end: numbers}), torch.ones(7, 4), torch.ones(21, 4)
    for call in (
        lambda: gather_multiply_sum(x, weight, broken),
        lambda: gather_outer_sum(x.requires_grad_(), weight, torch.ones(21, 3), broken),
    ):
        with pytest.raises(IndexError, match=rf"{end[:-1]} {number} of .* numbered from 0 to 6"):
            call()


def test_receivers_that_do_not_ascend_and_narrow_indices_are_refused() -> None:
    back, forth = torch.tensor([0, 1]), torch.tensor([1, 0])
    with pytest.raises(ValueError, match="sort the edges by receiver"):
        outer_sum(torch.ones(2, 4), torch.ones(2, 3), Topology.square(back, forth, 2))
    with pytest.raises(ValueError, match=r"make them torch\.int64"):
        gather_add(None, torch.ones(2, 3), None, Topology.square(forth.int(), back.int(), 2))


SEGMENTS = [name for name in OPS if name.startswith("segment")]


@pytest.mark.parametrize("name", SEGMENTS)
def test_receivers_may_be_in_int32_and_may_not_be_fewer_than_messages(name: str) -> None:
    op: Op = OPS[name]
    for case, given in op.cases(GRAPHS, 5):
        receivers, nodes = given.rest
        value, narrow = (op.call(*given.tensors, kind, nodes) for kind in (receivers, receivers.int()))
        torch.testing.assert_close(narrow, value, msg=case)
        with pytest.raises((RuntimeError, IndexError)):
            print(case, op.call(*given.tensors, receivers[:-1], nodes))


def test_rows_that_do_not_belong_together_launch_no_kernel() -> None:
    rows, fewer = torch.ones(6, 4), torch.ones(5, 4)
    with taken_for("cpu", "cuda"), launched_by(Counting()):
        measured(rows, torch.ones(6, 3, 8), smooth=True)
        for other in (torch.ones(5, 3, 8), torch.ones(6, 3, 6)):
            with pytest.raises((RuntimeError, ValueError)):
                measured(rows, other, smooth=True)
        with pytest.raises(ValueError, match=r"needs one item for each row, and has tensors \[6, 4\], \[5, 4\]"):
            ended(rows, fewer)


@pytest.mark.parametrize("shape", [(0,), (0, 2, 3)])
@pytest.mark.parametrize("name", ["segment_max", "segment_statistics"])
def test_segments_without_messages_are_empty(name: str, shape: tuple[int, ...]) -> None:
    results = OPS[name].call(torch.zeros(shape), torch.zeros(0, dtype=torch.int64), 0)
    assert all(value.shape[0] == 0 for value in (results if isinstance(results, tuple) else (results,)))
