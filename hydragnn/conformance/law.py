"""Laws: figures that a subject shows, and the limit of them."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

Array = np.ndarray  # a class, as shapes need one: an alias of NDArray is none from numpy 2.5 on
Verdict = Literal["passed", "does not apply", "failed"]
Figures = Iterable[tuple[float, str]]
"""Figures, and where each was seen."""


class DoesNotApply(Exception):
    """Reason why a law says nothing about a subject."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Law:
    """Law: its name, measure, cases and limit."""

    name: str
    measure: Callable[..., Figures]
    """Yields figures of a subject and a case; DoesNotApply where the law is not about it."""
    limit: float = 0.0
    above: bool = False
    """Figures have to be larger than the limit."""
    cases: Mapping[str, Any] | None = None
    """Second arguments of the measure by name; None for a measure without one."""
    unit: str = ""
    meaning: str = ""
    failures: tuple[int, ...] = ()
    """Numbers in the field's table of silent failures."""

    def judgement(self, subject: Any, case: str = "") -> tuple[Verdict, float | None, str]:
        """Return verdict, worst figure and its place; errors are raised."""
        figures = list(self.measure(subject) if self.cases is None else self.measure(subject, self.cases[case]))
        if not figures:
            raise DoesNotApply("no structure or field that it is about")
        for figure, where in figures:
            if not math.isfinite(figure):
                return "failed", None, f"{where}: not finite"
        worst, where = (min if self.above else max)(figures)
        return "passed" if (worst > self.limit if self.above else worst <= self.limit) else "failed", worst, where

    def outcome(self, subject: Any, case: str = "") -> tuple[Verdict, float | None, str]:
        """Return verdict, figure and place; reason or error in its place."""
        try:
            return self.judgement(subject, case)
        except DoesNotApply as reason:
            return "does not apply", None, str(reason)
        except Exception as error:  # code of others raises anything, and other laws are checked all the same
            return "failed", None, f"{type(error).__name__}: {error}"

    @property
    def bound(self) -> str:
        """Return the limit in words."""
        return f"{'>' if self.above else '<='} {self.limit:g} {self.unit}".rstrip()


class Values(NamedTuple):
    """Numbers of one field; below ``size`` differences are not relative."""

    numbers: Array
    on: str
    parity: str
    size: float


class Change(NamedTuple):
    """A changed thing, with turn and order of its results."""

    changed: Any
    turn: Array | None = None
    order: Mapping[str, Array] | None = None
    """Rows by location."""


def gaps(
    actual: Mapping[str, Values], expected: Mapping[str, Values], where: str, change: Change | None = None
) -> Iterator[tuple[float, str]]:
    """Yield differences over the largest value; NaN is not expected of anything.

    What is expected follows the turn and the order of a change.
    """
    turn, order = (None, None) if change is None else change[1:]
    for key, (numbers, on, parity, size) in expected.items():
        numbers = numbers[order[on]] if order and on in order else numbers
        if turn is not None and parity != "scalar":
            numbers = numbers @ turn.T if parity == "vector" else turn @ numbers @ turn.T
        numeric = ~np.isnan(numbers)
        if numeric.any():
            with np.errstate(invalid="ignore"):
                error = np.abs(actual[key].numbers - numbers)[numeric].max()
                yield float(error / max(size, np.abs(numbers[numeric]).max())), f"{key} of {where}"
