"""Cartesian tensors and their parts, and what TensorNet makes of graphs without neighbours."""

import pytest
import torch

from hydragnn.architectures import architecture_of
from hydragnn.base.errors import InputError
from hydragnn.conformance.cases import make_graph
from hydragnn.graphs import ATOMIC_NUMBERS_FIELD
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field
from hydragnn.layers import States, TensorParts, product, squares
from hydragnn.models import GraphModel, build_model, parse_head

ENERGY = Field(name="energy", on="graph", role="target")
TIGHT = {"rtol": 1e-13, "atol": 1e-13}  # float64, sums of nine numbers of order 1


def random_matrices(seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(4, 3, 3, 2, dtype=torch.float64, generator=random)


def turned_around(parts: States) -> States:
    """What the parts are where all positions have changed their sign."""
    return {**parts, 1: -parts[1]}


def test_matrices_are_the_sum_of_their_parts_and_so_are_the_squares_of_their_entries() -> None:
    tensors, matrices = TensorParts(), random_matrices(0)
    parts = tensors.parts(matrices)
    torch.testing.assert_close(tensors.matrices(parts), matrices, **TIGHT)
    torch.testing.assert_close(sum(squares(parts).values()), matrices.square().sum((1, 2)), **TIGHT)
    symmetric = tensors.matrices({**parts, 1: torch.zeros_like(parts[1])})
    torch.testing.assert_close(symmetric, (matrices + matrices.transpose(1, 2)) / 2, **TIGHT)


def test_parts_of_unit_vectors_are_their_squares_without_a_trace() -> None:
    random, tensors = torch.Generator().manual_seed(1), TensorParts()
    directions = torch.nn.functional.normalize(torch.randn(5, 3, dtype=torch.float64, generator=random), dim=1)
    parts = {0: torch.zeros(5, 1).double(), 1: torch.zeros(5, 3, 1).double()}
    actual = tensors.matrices({**parts, 2: tensors.of_directions(directions).unsqueeze(2)}).squeeze(3)
    expected = torch.einsum("ea,eb->eab", directions, directions) - torch.eye(3).double() / 3
    torch.testing.assert_close(actual, expected, **TIGHT)
    assert not tensors.of_directions(torch.zeros(1, 3)).any()


def test_products_of_both_orders_keep_vectors_apart_from_what_is_even_and_products_of_one_do_not() -> None:
    tensors = TensorParts()
    first, second = random_matrices(2), random_matrices(3)
    around = [tensors.matrices(turned_around(tensors.parts(one))) for one in (first, second)]

    def both(left: torch.Tensor, right: torch.Tensor) -> States:
        return tensors.parts(product(left, right) + product(right, left))

    expected = turned_around(both(first, second))
    for degree, actual in both(*around).items():
        torch.testing.assert_close(actual, expected[degree], **TIGHT)
    one = tensors.parts(product(*around))
    assert not torch.allclose(one[1], turned_around(tensors.parts(product(first, second)))[1])


def test_products_are_those_of_matrices() -> None:
    first, second = random_matrices(4), random_matrices(5)
    torch.testing.assert_close(product(first, second), torch.einsum("nabc,nbdc->nadc", first, second), **TIGHT)


def model(dim: int = 3) -> GraphModel:
    settings = architecture_of("tensornet").Settings.parse({"kind": "tensornet", "hidden_dim": 4})
    head = parse_head({"kind": "energy", "field": "energy"})
    fields = [ATOMIC_NUMBERS_FIELD, ENERGY]
    return build_model(settings, [head], fields, inputs=[ATOMIC_NUMBERS], dim=dim, seed=0).double()


def test_a_lone_node_knows_what_it_is() -> None:
    """A node is among its own neighbours: without that, an atom far from all others had the energy of any other element."""
    lone = make_graph(0, 1, edges=0)
    energies = [
        float(
            model()(lone.with_fields({ATOMIC_NUMBERS: torch.tensor([number])}, fields=[ATOMIC_NUMBERS_FIELD]))[
                "energy"
            ].mean.detach()
        )
        for number in (1, 8)
    ]
    assert abs(energies[0] - energies[1]) > 1e-3


def test_graphs_that_do_not_lie_in_space_are_refused() -> None:
    with pytest.raises(InputError, match="tensornet needs graphs in 3 dimensions, and these have 2"):
        model(dim=2)
