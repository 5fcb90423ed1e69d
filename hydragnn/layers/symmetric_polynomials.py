"""Polynomials of states that turn like one state: all symmetric couplings of several copies of the same states, once each."""

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from hydragnn.layers.harmonics import coupling

Kind = tuple[int, int]
"""Degree and parity, 1 or -1."""

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
    ones are left out, in an order that does not depend on the machine.

    >>> [len(symmetric_polynomials(3, 0, order).coefficients) for order in (1, 2, 3)]
    [1, 4, 8]
    """
    all_of = _of_order(max_ell, order, degree)
    monomials = _monomials(max_ell, order)
    kind = (degree, (-1) ** degree)
    coefficients = all_of.get(kind, np.zeros((0, 2 * degree + 1, len(monomials))))
    used = np.flatnonzero(np.abs(coefficients).max((0, 1), initial=0.0) > 1e-12)
    return Polynomials(monomials=tuple(monomials[number] for number in used), coefficients=coefficients[:, :, used])


@cache
def _of_order(max_ell: int, order: int, largest: int) -> dict[Kind, NDArray[np.float64]]:
    """Polynomials of an order by degree, up to ``largest``, and parity: ``[polynomials, components, monomials]``."""
    if order == 1:
        identity = np.eye((max_ell + 1) ** 2)
        return {(ell, (-1) ** ell): identity[None, ell * ell : (ell + 1) ** 2] for ell in range(max_ell + 1)}
    candidates: dict[Kind, list[NDArray[np.float64]]] = {}
    places, count = _places(max_ell, order), len(_monomials(max_ell, order))
    for (left, parity), polynomials in _of_order(max_ell, order - 1, largest + max_ell).items():
        for right in range(max_ell + 1):
            for degree in range(abs(left - right), min(left + right, largest) + 1):
                table, coupled = coupling(left, right, degree), np.zeros((len(polynomials), 2 * degree + 1, count))
                for a, b in zip(*np.nonzero(np.abs(table).max(2))):
                    # a component multiplies different monomials into different ones, so that no place is named twice
                    product = polynomials[:, a, None, :] * table[a, b, None, :, None]
                    coupled[:, :, places[:, right * right + b]] += product
                candidates.setdefault((degree, parity * (-1) ** right), []).append(coupled)
    repeats = _repeats(max_ell, order)
    return {kind: _independent(np.concatenate(parts), repeats) for kind, parts in sorted(candidates.items())}


def _independent(candidates: NDArray[np.float64], repeats: NDArray[np.float64]) -> NDArray[np.float64]:
    """Candidates made orthogonal to the ones before, without those of which nothing is left.

    All components of a polynomial have the same products with those of another, so that the first one decides.
    """
    kept: list[NDArray[np.float64]] = []
    rows = np.zeros((0, candidates.shape[2]))  # first components of what is kept, in orthonormal coordinates
    scale = np.sqrt(1 / repeats)
    for candidate in candidates:
        size = np.linalg.norm(candidate[0] * scale)
        if size < 1e-9:
            continue
        candidate = candidate / size
        for _ in range(2):  # the second time for the last digits
            shares = rows @ (candidate[0] * scale)
            if kept:
                candidate = candidate - np.tensordot(shares, np.stack(kept), 1)
        size = np.linalg.norm(candidate[0] * scale)
        if size > 1e-6:  # what depends on others leaves 1e-15
            kept.append(candidate / size)
            rows = np.concatenate([rows, (kept[-1][0] * scale)[None]])
    return np.stack(kept) if kept else np.zeros((0, *candidates.shape[1:]))


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
