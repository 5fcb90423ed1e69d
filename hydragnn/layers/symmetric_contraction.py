"""Products of a node's states with themselves that turn like states."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from hydragnn.kernels import Topology, edge_product, joined, spread
from hydragnn.layers.by_class import ClassTable
from hydragnn.layers.harmonics import coupling

Monomial = tuple[int, ...]
"""Ascending numbers of the components that are multiplied."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Polynomials:
    """Linearly independent polynomials of one order that turn as one degree."""

    monomials: tuple[Monomial, ...]
    coefficients: NDArray[np.float64]
    """``[polynomials, components of the degree, monomials]``."""


@cache
def symmetric_polynomials(max_ell: int, degree: int, order: int) -> Polynomials:
    """Return a basis of the polynomials that turn as ``degree``.

    They are of one order in the components of states of degree 0 ... ``max_ell``.

    Degrees have their natural parity, (-1)^degree. The basis is orthogonal in the coefficients of symmetric tensors: of
    independent components with unit variance, different ones in every factor, each polynomial has variance 1.
    Polynomials of order n are those of order n - 1, of any degree and parity, coupled with one more state; those that depend on earlier
    ones are left out. Weights of saved models belong to this basis, so that it must not change; it does not depend on the machine.

    >>> [len(symmetric_polynomials(3, 0, order).coefficients) for order in (1, 2, 3)]
    [1, 4, 8]
    """
    coefficients, monomials = _basis(max_ell, order, degree, (-1) ** degree), _monomials(max_ell, order)
    used = np.flatnonzero(np.abs(coefficients).max((0, 1), initial=0.0) > 1e-12)
    return Polynomials(monomials=tuple(monomials[number] for number in used), coefficients=coefficients[:, :, used])


@cache
def _basis(max_ell: int, order: int, degree: int, parity: int) -> NDArray[np.float64]:
    """Return polynomials ``[polynomials, components, monomials]`` of a degree and parity."""
    count = len(_monomials(max_ell, order))
    none = np.zeros((0, 2 * degree + 1, count))
    if degree > order * max_ell:
        return none
    if order == 1:
        return np.eye(count)[None, degree**2 : (degree + 1) ** 2] if parity == (-1) ** degree else none
    places, candidates = _places(max_ell, order), [none]
    for rhs in range(max_ell + 1):
        for lhs in range(abs(degree - rhs), degree + rhs + 1):
            polynomials = _basis(max_ell, order - 1, lhs, parity * (-1) ** rhs)
            table, coupled = coupling(lhs, rhs, degree), np.zeros((len(polynomials), 2 * degree + 1, count))
            for a, b in zip(*np.nonzero(np.abs(table).max(2))):
                # a component multiplies different monomials into different ones, so that no place is named twice
                coupled[:, :, places[:, rhs * rhs + b]] += polynomials[:, a, None, :] * table[a, b, None, :, None]
            candidates.append(coupled)
    # in how many orders the factors of each monomial can be written
    whole, powers = math.factorial(order), [Counter(one).values() for one in _monomials(max_ell, order)]
    repeats = np.array([whole / math.prod(map(math.factorial, of)) for of in powers])
    return _independent(np.concatenate(candidates), np.sqrt(1 / repeats))


def _independent(candidates: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return candidates orthogonal to earlier ones, without zeros.

    ``scale`` makes coordinates orthonormal.

    All components of a polynomial have the same products with those of another, so that the first one decides.
    """
    retained = np.zeros_like(candidates)
    count = 0
    for candidate in candidates:
        size = np.linalg.norm(candidate[0] * scale)
        if size < 1e-9:
            continue
        rows, shares = retained[:count, 0] * scale, np.zeros(count)
        rest = candidate[0] * scale / size
        for _ in range(2):  # the second time for the last digits
            new = rows @ rest
            shares, rest = shares + new, rest - new @ rows
        remainder = np.linalg.norm(rest)
        if remainder > 1e-6:  # what depends on others leaves 1e-15
            retained[count] = (candidate / size - np.tensordot(shares, retained[:count], 1)) / remainder
            count += 1
    return retained[:count].copy()


@cache
def _monomials(max_ell: int, order: int) -> tuple[Monomial, ...]:
    return tuple(combinations_with_replacement(range((max_ell + 1) ** 2), order))


@cache
def _places(max_ell: int, order: int) -> NDArray[np.int64]:
    """Return the monomial of each shorter one times each component."""
    number = {monomial: place for place, monomial in enumerate(_monomials(max_ell, order))}
    components = range((max_ell + 1) ** 2)
    smaller = _monomials(max_ell, order - 1)
    return np.array([[number[tuple(sorted((*one, i)))] for i in components] for one in smaller])


def row_products(
    states: Float[Tensor, "components rows"], prefixes: Float[Tensor, "prefixes rows"], tables: nn.Module, order: int
) -> Float[Tensor, "monomials rows"]:
    """Return prefixes times their last factors, by the tables of this order."""
    last, first = tables.get_buffer(f"last{order}"), tables.get_buffer(f"first{order}")
    edges: Topology | None = tables.__dict__.get(f"edges{order}")
    if edges is None or edges.receivers is not first:
        edges = Topology(senders=last, receivers=first, num_columns=len(states), num_rows=len(prefixes))
        tables.__dict__[f"edges{order}"] = edges
    return edge_product(states, prefixes, edges, "channel")


def add_factors(tables: nn.Module, order: int, monomials: Sequence[Monomial], prefixes: list[list[Monomial]]) -> None:
    """Give a module the last factor of monomials, and the prefix of each that has one."""
    if order > 1:
        number = {prefix: place for place, prefix in enumerate(prefixes[order - 2])}
        first = torch.tensor([number[one[:-1]] for one in monomials], dtype=torch.int64)
        tables.register_buffer(f"first{order}", first, persistent=False)
    last = torch.tensor([one[-1] for one in monomials], dtype=torch.int64)
    tables.register_buffer(f"last{order}", last, persistent=False)


class ComponentPolynomials(nn.Module):
    """Polynomials for one component of one degree."""

    coefficients: Tensor

    def __init__(
        self, max_ell: int, degree: int, component: int, correlation: int, prefixes: list[list[Monomial]]
    ) -> None:
        super().__init__()
        blocks = []
        for order in range(1, correlation + 1):
            polynomials = symmetric_polynomials(max_ell, degree, order)
            rows = polynomials.coefficients[:, component]
            # most products of components occur in no polynomial that turns as this one, so they are never computed
            used = np.flatnonzero(np.abs(rows).max(0, initial=0.0) > 1e-12)
            blocks.append(rows[:, used])
            add_factors(self, order, [polynomials.monomials[number] for number in used], prefixes)
        self.orders = [order for order, block in enumerate(blocks, 1) if block.size]
        self.register_buffer("coefficients", torch.block_diag(*map(torch.from_numpy, blocks)), persistent=False)

    def forward(
        self, states: Float[Tensor, "components rows"], products: Sequence[Tensor]
    ) -> Float[Tensor, "paths rows"]:
        """Return the polynomials of every row."""
        monomials = []
        for order in self.orders:
            if order > 1:
                monomials.append(row_products(states, products[order - 2], self, order))
            else:
                monomials.append(spread(states, self.get_buffer("last1")))
        values = joined(monomials, 0)  # [monomials, rows]
        return self.coefficients.to(values.dtype) @ values


class SymmetricContraction(nn.Module):
    """Polynomials of the states with weights per kind of node.

    B_LM = sum over p of W_Lp,z P_LMp(A): polynomials of the states, channel by channel, with weights per kind of node.

    P run over a basis of all polynomials of orders 1 ... ``correlation`` in the components of A that turn as degree L (Batatia et al. 2022,
    arXiv:2206.07697, equations 10 and 11, where products of A are contracted with generalised Clebsch-Gordan coefficients). Deviates from
    the paper's code: couplings that are linearly dependent once the factors are equal are there once.
    """

    def __init__(self, channels: int, kinds: int, max_ell: int, degrees: Sequence[int], correlation: int) -> None:
        super().__init__()
        self.channels = channels
        prefixes = _prefixes(max_ell, degrees, correlation)
        self.lengths = len(prefixes) - 1
        for order in range(2, len(prefixes) + 1):
            add_factors(self, order, prefixes[order - 1], prefixes)
        self.components = nn.ModuleDict(
            {
                str(degree): nn.ModuleList(
                    ComponentPolynomials(max_ell, degree, component, correlation, prefixes)
                    for component in range(2 * degree + 1)
                )
                for degree in degrees
            }
        )
        tables = {str(degree): _weights(kinds, channels, max_ell, degree, correlation) for degree in degrees}
        self.paths = {degree: table.embedding_dim // channels for degree, table in tables.items()}
        self.weights = nn.ModuleDict(tables)

    def forward(
        self, states: Float[Tensor, "components nodes channels"], kinds: Int[Tensor, " nodes"]
    ) -> dict[int, Float[Tensor, "nodes axes channels"]]:
        """Return contracted states by degree, with an axis for degree 0."""
        rows = states.flatten(1)  # [components, nodes channels]
        # a product of n components is one of n - 1 times one more: each is multiplied once for all polynomials
        products = [rows]
        for order in range(2, self.lengths + 2):
            products.append(row_products(rows, products[-1], self, order))
        result = {}
        for degree, components in self.components.items():
            # [paths, nodes, channels]
            weights = self.weights[degree](kinds).unflatten(1, (-1, self.channels)).transpose(0, 1)
            assert isinstance(components, nn.ModuleList)
            values = [component(rows, products).view(weights.shape) for component in components]
            result[int(degree)] = joined([(value * weights).sum(0).unsqueeze(1) for value in values], 1)
        return result


def _weights(kinds: int, channels: int, max_ell: int, degree: int, correlation: int) -> ClassTable:
    counts = [len(symmetric_polynomials(max_ell, degree, order).coefficients) for order in range(1, correlation + 1)]
    table = ClassTable(kinds, sum(counts) * channels)
    shares = torch.cat([torch.full((count * channels,), 1 / max(count, 1)) for count in counts])
    with torch.no_grad():
        table.weight.mul_(shares)
    return table


def _prefixes(max_ell: int, degrees: Sequence[int], correlation: int) -> list[list[Monomial]]:
    result: list[list[Monomial]] = []
    longer: set[Monomial] = set()
    for order in range(correlation, 1, -1):  # from the longest, which decide what shorter ones are needed
        used = {one for degree in degrees for one in symmetric_polynomials(max_ell, degree, order).monomials}
        longer = {one[:-1] for one in used | longer}
        result.insert(0, sorted(longer))
    components: list[Monomial] = [(number,) for number in range((max_ell + 1) ** 2)]
    return [components, *result[1:]]
