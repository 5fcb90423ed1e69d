"""Laws: figures that a subject shows, their limit, and changes of graphs."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.topology import Topology

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


AWAY = (1.3, -2.1, 0.7)
"""Displacement of a whole graph."""
STEEP = 10
"""A path is continuous where the slope between neighbouring points stays below so many times the largest on a coarse grid."""


def turn_of(dim: int, determinant: int = 1) -> Float[np.ndarray, "dim dim"]:
    """Return a rotation, or with determinant -1 a rotation and a mirror."""
    turn, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(dim, dim)))
    turn[0] *= determinant * np.sign(np.linalg.det(turn))
    return turn


def turned(batch: GraphBatch, determinant: int = 1) -> Change:
    """Return turned graphs, with their vectors and tensors."""
    turn = turn_of(batch.dim, determinant)
    exact, values = torch.from_numpy(turn), {}
    for name, field in batch.fields.items():
        if field.parity != "scalar":
            one = batch[name].double()
            one = one @ exact.T if field.parity == "vector" else exact @ one @ exact.T
            values[name] = one.to(batch[name].dtype)
    return Change(mapped(batch, exact.T.to(batch.positions.dtype)).with_fields(values), turn)


def moved(batch: GraphBatch) -> Change:
    return Change(replace(batch, positions=batch.positions + torch.tensor(AWAY[: batch.dim]).to(batch.positions)))


def reordered(batch: GraphBatch) -> Change:
    """Return graphs whose nodes, and so their edges, have any other order."""
    owner, drawn = batch.owner("node"), torch.from_numpy(np.random.default_rng(1).permutation(batch.num_nodes))
    order = drawn[owner[drawn].sort(stable=True).indices]
    edges = torch.argsort(order)[batch.receivers].sort(stable=True).indices
    return Change(permuted(batch, order), order={"node": order.numpy(), "edge": edges.numpy()})


def derivative(values: Callable[[Sequence[float]], Sequence[Any]], step: float) -> Any:
    """Return the derivative at 0 by a central difference of fourth order."""
    one, two, minus_one, minus_two = values([step, 2 * step, -step, -2 * step])
    return (8 * (one - minus_one) - (two - minus_two)) / (12 * step)


def permuted(batch: GraphBatch, order: Tensor) -> GraphBatch:
    place = torch.argsort(order)
    receivers, edges = torch.sort(place[batch.receivers], stable=True)
    return replace(
        batch,
        positions=batch.positions[order],
        topology=Topology.square(place[batch.senders][edges], receivers, batch.num_nodes),
        edge_shifts=batch.edge_shifts[edges],
        nodes={name: value[order] for name, value in batch.nodes.items()},
        edges={name: value[edges] for name, value in batch.edges.items()},
    )


def mapped(batch: GraphBatch, map_: Tensor) -> GraphBatch:
    whole = torch.block_diag(map_, torch.eye(3 - batch.dim, dtype=map_.dtype))
    return replace(
        batch, positions=batch.positions @ map_, edge_shifts=batch.edge_shifts @ map_, cell=batch.cell @ whole
    )


def jump(
    values: Callable[[tuple[float, ...]], Float[Tensor, "points numbers"]], refinements: int = 4
) -> tuple[float | None, float]:
    """Return position and height of a jump; None and 0 without one.

    Between 33 points, the interval whose change differs most from that of its neighbours is divided by 8, several times. What is
    continuous then changes as slowly as elsewhere; a jump is as high as before, and after four times its slope 4096 times as large.
    """
    shares = np.linspace(0, 1, 33)
    at = values(tuple(shares.tolist()))
    if float((at - at[0]).abs().max()) < 1e-9:
        return None, 0.0
    largest = _slopes(at, shares).max()
    for _ in range(refinements):
        slopes = _slopes(at, shares)
        companion = np.pad(slopes, 1, mode="reflect")
        unlike = slopes - (companion[:-2] + companion[2:]) / 2
        unlike[[0, -1]] = unlike[[0, -1]].clip(
            min=0
        )  # beside a jump an end is as unlike its one neighbour as the jump is
        worst = int(np.abs(unlike).argmax())
        shares = np.linspace(shares[worst], shares[worst + 1], 9)
        at = values(tuple(shares.tolist()))
    slopes = _slopes(at, shares)
    steepest = int(slopes.argmax())
    if slopes[steepest] <= STEEP * largest:
        return None, 0.0
    return float(shares[steepest]), float(slopes[steepest] * (shares[1] - shares[0]))


def jumps(
    paths: Mapping[str, Callable[[tuple[float, ...]], Mapping[str, Float[Tensor, "points numbers"]]]],
    refinements: int = 4,
) -> Iterator[tuple[str, str, float | None, float]]:
    """Yield path, result, and position and height of its jump."""
    for name, path in paths.items():
        at = cache(path)
        for what in at((0.0,)):
            yield name, what, *jump(lambda shares, at=at, what=what: at(shares)[what], refinements)  # type: ignore[misc]


def _slopes(at: Float[Tensor, "points numbers"], shares: Any) -> Any:
    return (at[1:] - at[:-1]).norm(dim=1).numpy() / np.diff(shares)
