"""Polynomials of states that turn like one state: all symmetric couplings of several copies of the same states, once each."""

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

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
    """All polynomials of an order in the components of states of degree 0 ... ``max_ell`` that turn as ``degree``; a basis of them.

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
    """Polynomials of an order that turn as a degree with this parity: ``[polynomials, components, monomials]``."""
    count = len(_monomials(max_ell, order))
    none = np.zeros((0, 2 * degree + 1, count))
    if degree > order * max_ell:
        return none
    if order == 1:
        return np.eye(count)[None, degree**2 : (degree + 1) ** 2] if parity == (-1) ** degree else none
    places, candidates = _places(max_ell, order), [none]
    for right in range(max_ell + 1):
        for left in range(abs(degree - right), degree + right + 1):
            polynomials = _basis(max_ell, order - 1, left, parity * (-1) ** right)
            table, coupled = coupling(left, right, degree), np.zeros((len(polynomials), 2 * degree + 1, count))
            for a, b in zip(*np.nonzero(np.abs(table).max(2))):
                # a component multiplies different monomials into different ones, so that no place is named twice
                coupled[:, :, places[:, right * right + b]] += polynomials[:, a, None, :] * table[a, b, None, :, None]
            candidates.append(coupled)
    return _independent(np.concatenate(candidates), np.sqrt(1 / _repeats(max_ell, order)))


def _independent(candidates: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """Candidates made orthogonal to the ones before, without those of which nothing is left; ``scale`` makes coordinates orthonormal.

    All components of a polynomial have the same products with those of another, so that the first one decides.
    """
    kept = np.zeros_like(candidates)
    count = 0
    for candidate in candidates:
        size = np.linalg.norm(candidate[0] * scale)
        if size < 1e-9:
            continue
        rows, shares = kept[:count, 0] * scale, np.zeros(count)
        rest = candidate[0] * scale / size
        for _ in range(2):  # the second time for the last digits
            new = rows @ rest
            shares, rest = shares + new, rest - new @ rows
        left = np.linalg.norm(rest)
        if left > 1e-6:  # what depends on others leaves 1e-15
            kept[count] = (candidate / size - np.tensordot(shares, kept[:count], 1)) / left
            count += 1
    return kept[:count].copy()


@cache
def _monomials(max_ell: int, order: int) -> tuple[Monomial, ...]:
    return tuple(combinations_with_replacement(range((max_ell + 1) ** 2), order))


@cache
def _places(max_ell: int, order: int) -> NDArray[np.int64]:
    """Number of the monomial of an order that one of the order before becomes, times each component."""
    number = {monomial: place for place, monomial in enumerate(_monomials(max_ell, order))}
    components = range((max_ell + 1) ** 2)
    rows = [[number[tuple(sorted((*one, i)))] for i in components] for one in _monomials(max_ell, order - 1)]
    return np.array(rows)


@cache
def _repeats(max_ell: int, order: int) -> NDArray[np.float64]:
    """In how many orders the factors of each monomial can be written."""
    whole = math.factorial(order)
    return np.array(
        [whole / math.prod(map(math.factorial, Counter(one).values())) for one in _monomials(max_ell, order)]
    )
