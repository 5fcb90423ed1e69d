"""Small networks, the register of what they promise, and ranks as threads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Barrier, BrokenBarrierError, Thread
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.conformance.cases import energies_of, loss_of, make_model, shared_model, values_of
from hydragnn.conformance.law import DoesNotApply, Figures, Law, Values, derivative, mapped
from hydragnn.graphs.batch import GraphBatch, volumes
from hydragnn.graphs.cutting import part_of_rank
from hydragnn.models import Distribution, GraphModel


class Network:
    """Architecture under test.

    ``architecture`` is its kind or ``package.module:Name``; ``settings`` are keys of [model].
    """

    architecture: str
    settings: ClassVar[dict[str, Any]] = {}

    def model(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> GraphModel:
        return make_model(self.architecture, seed, dtype, **self.settings)

    def shared(self, dtype: torch.dtype = torch.float64) -> GraphModel:
        """Return the model that laws share, or that of a subclass."""
        own = type(self).model is not Network.model
        return self.model(dtype=dtype) if own else shared_model(self.architecture, dtype, **self.settings)

    def changed(self, **changes: Any) -> GraphModel:
        """Return the model with other settings; DoesNotApply if they are refused."""
        if not changes:
            return self.shared()
        try:
            return shared_model(self.architecture, **{**self.settings, **changes})
        except InputError as refusal:
            raise DoesNotApply(f"refused: {refusal}") from refusal


PROMISES: dict[str, Law] = {}
"""Laws of architectures by name."""


def promise(
    cases: Mapping[str, Any] | None = None, limit: float = 0.0
) -> Callable[[Callable[..., Figures]], Callable[..., Figures]]:
    """Register a law that is named for its function, in these cases."""

    def register(measure: Callable[..., Figures]) -> Callable[..., Figures]:
        name = measure.__name__.replace("_", " ")
        PROMISES[name] = Law(name=name, measure=measure, cases=cases, limit=limit)
        return measure

    return register


def predicted(model: GraphModel, batch: GraphBatch) -> dict[str, Values]:
    """Return all numbers that a model predicts, infinite for NaN."""
    return values_in(model, model(batch))


def values_in(model: GraphModel, predictions: Mapping[str, Distribution]) -> dict[str, Values]:
    """Return the numbers of predictions with location and parity."""
    values = {}
    for name, prediction in predictions.items():
        field = model.description.fields[name]
        for key, tensor in prediction.detach().tensors().items():
            parity = "scalar" if key == "variance" else field.parity
            values[f"{key} of {name}"] = Values(np.nan_to_num(tensor.numpy(), nan=np.inf), field.on, parity, 1.0)
    return values


def need_forces(model: GraphModel) -> None:
    if "forces" not in model.description.fields:
        raise DoesNotApply(f"{model.description.model.kind} gives no forces with these settings")


SLOPE = 1e-8
"""Error of a derivative, over the largest component of the gradient."""


Way = TypeVar("Way")
"""A direction, of whatever kind a function moves along."""


def slope_gaps(
    values: Callable[[Sequence[tuple[Way, float]]], Sequence[float]],
    slopes: Sequence[tuple[Way, float]],
    gradient: Tensor,
) -> Figures:
    """Return errors of derivatives at 0, over the largest component.

    ``values`` takes ways and steps, all together, since one call with many graphs takes little more time than one with one graph.
    Truncation has the order (step / 3e-3)^4, where 3e-3 is the smallest standard deviation of PNA, and rounding 1e-16 / step.
    The second step decides where the first one crosses a kink, as of a maximum.
    """
    expected, scale = np.array([slope for _, slope in slopes]), max(1.0, float(gradient.abs().max()))
    errors = np.full(len(slopes), np.inf)

    def at(steps: Sequence[float]) -> Any:
        return np.reshape(values([(way, step) for step in steps for way, _ in slopes]), (len(steps), -1))

    for step in (2e-5, 5e-6):
        errors = np.fmin(errors, np.abs(derivative(at, step) - expected) / scale)
        if (errors <= SLOPE).all():
            break
    return [(float(error), f"the derivative {slope:.6g}") for error, slope in zip(errors, expected)]


def directions_like(values: Tensor) -> list[Tensor]:
    random = torch.Generator().manual_seed(11)
    drawn = [torch.randn(values.shape, dtype=values.dtype, generator=random) for _ in range(3)]
    return [direction / direction.norm() for direction in drawn]


def force_gaps(model: GraphModel, batch: GraphBatch, count: int = 3) -> Figures:
    """Return errors of forces as minus the gradient of the energy."""
    need_forces(model)
    forces = values_of(model(batch)["forces"]).detach()

    def energies(steps: Sequence[tuple[Tensor, float]]) -> Sequence[float]:
        return energies_of(model, [replace(batch, positions=batch.positions + step * along) for along, step in steps])

    ways = directions_like(forces)[:count]
    return slope_gaps(energies, [(along, -float((forces * along).sum())) for along in ways], forces)


def stress_gaps(model: GraphModel, batch: GraphBatch) -> Figures:
    """Return errors of the stress as derivative by strain over the volume."""
    need_forces(model)
    stress, volume = values_of(model(batch)["stress"])[0].detach(), float(volumes(batch))

    def energies(steps: Sequence[tuple[Tensor, float]]) -> Sequence[float]:
        unit = torch.eye(batch.dim, dtype=torch.float64)
        return [energy / volume for energy in energies_of(model, [mapped(batch, unit + s * way) for way, s in steps])]

    strains = [(along + along.T) / 2 for along in directions_like(stress)]
    return slope_gaps(energies, [(strain, float((stress * strain).sum())) for strain in strains], stress)


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class ThreadPeers:
    """Peers that are threads, for tests of exchanges."""

    rank: int
    size: int
    barrier: Barrier
    table: dict[int, tuple[str, Tensor, tuple[int, ...]]]
    """Rows that every rank sends, and how many to each other one."""
    numbers: list[int] = field(default_factory=lambda: [0, 0])
    """Exchanges of this rank, and rows that it sent to others."""

    def _all(self, what: str, values: Tensor, counts: tuple[int, ...]) -> list[tuple[str, Tensor, tuple[int, ...]]]:
        """Return what all ranks send, which must be of one kind."""
        self.table[self.rank] = (what, values.detach(), counts)
        self.barrier.wait(30)
        entries = [self.table[rank] for rank in range(self.size)]
        self.barrier.wait(30)
        self.numbers[0] += 1
        assert {name for name, _, _ in entries} == {what}, "ranks exchange in different orders"
        return entries

    def swap(self, rows: Tensor, sent: tuple[int, ...], received: tuple[int, ...]) -> Tensor:
        self.numbers[1] += len(rows)
        parts = [values.split(list(counts))[self.rank] for _, values, counts in self._all("swap", rows, sent)]
        assert tuple(map(len, parts)) == received
        return torch.cat(parts)

    def total(self, values: Tensor) -> Tensor:
        return torch.stack([one for _, one, _ in self._all("total", values, ())]).sum(0)


def on_parts(
    batch: GraphBatch, rank_of_node: Int[Tensor, " nodes"], size: int, work: Callable[[GraphBatch], T]
) -> list[T]:
    """Return the result of ``work`` on the part of every rank."""
    barrier, table, results, errors = Barrier(size), {}, {}, []  # type: ignore[var-annotated]

    def run(rank: int) -> None:
        try:
            peers = ThreadPeers(rank=rank, size=size, barrier=barrier, table=table)
            results[rank] = work(part_of_rank(batch, rank_of_node, peers))
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((error for error in errors if not isinstance(error, BrokenBarrierError)), errors[0])
    return [results[rank] for rank in range(size)]


def counted(predictions: dict[str, Distribution], part: GraphBatch, model: GraphModel) -> dict[str, Distribution]:
    """Return the predictions whose labels count on the part's rank."""
    assert part.halo is not None
    locations = {target.name: target.field.on for target in model.description.targets}
    return {
        name: value.rows(part.halo.counted(locations[name], part.num_items(locations[name])))
        for name, value in predictions.items()
    }


def loss_and_gradients(
    model: GraphModel, batch: GraphBatch
) -> tuple[dict[str, Distribution], Tensor, tuple[Tensor, ...]]:
    """Return predictions, loss and gradients of a whole batch or a part."""
    predictions = model(batch)
    if batch.halo is not None:
        predictions = counted(predictions, batch, model)
    loss = loss_of(predictions)
    gradients = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
    return {name: value.detach() for name, value in predictions.items()}, loss.detach(), gradients
