"""Polynomials of states that turn like one state."""

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
    return _independent(np.concatenate(candidates), np.sqrt(1 / _repeats(max_ell, order)))


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
    rows = [[number[tuple(sorted((*one, i)))] for i in components] for one in _monomials(max_ell, order - 1)]
    return np.array(rows)


@cache
def _repeats(max_ell: int, order: int) -> NDArray[np.float64]:
    """In how many orders the factors of each monomial can be written."""
    whole = math.factorial(order)
    return np.array(
        [whole / math.prod(map(math.factorial, Counter(one).values())) for one in _monomials(max_ell, order)]
    )
