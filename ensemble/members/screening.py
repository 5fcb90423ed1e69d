"""Separation of invalid graphs from those that are predicted."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Int

from hydragnn.datasets import GraphStore, changed_sentence, read_checked
from hydragnn.ensemble.members.member import Member, MemberOutcome, blank_outcome, outcome
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.problems import graph_problems
from hydragnn.models import Distribution, Point, Target
from hydragnn.training.baselines import Baselines


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Screened:
    """Graphs that were read, the valid ones, and reasons of the others."""

    whole: GraphBatch
    valid: GraphBatch | None
    """The valid graphs alone, in their order; None where there is none."""
    reasons: tuple[str, ...]
    """One for every graph that was read; empty where it is valid."""

    @property
    def fine(self) -> Bool[np.ndarray, " graphs"]:
        """Return which graphs are valid."""
        return np.array([not reason for reason in self.reasons], dtype=np.bool_)


def read_screened(
    store: GraphStore,
    graphs: Int[np.ndarray, " graphs"],
    fields: Collection[str],
    inputs: Collection[str],
    numbers: Int[np.ndarray, " graphs"] | None = None,
    optional: Collection[str] = (),
) -> Screened:
    """Read these graphs with these fields; changed graphs are not valid.

    Reasons name graphs by ``numbers``, by default those in the store. The result depends on the store alone, so that all
    ranks and a resumed prediction agree.
    """
    names = graphs if numbers is None else numbers
    batch, changed = read_checked(store, graphs, fields)
    objections = {place: changed_sentence(int(names[place])) for place in np.flatnonzero(changed).tolist()}
    return screen(batch, inputs, names, objections, optional)


def screen(
    batch: GraphBatch,
    inputs: Collection[str],
    numbers: Sequence[int] | Int[np.ndarray, " graphs"] | None = None,
    objections: Mapping[int, str] | None = None,
    optional: Collection[str] = (),
) -> Screened:
    """Return the batch with the graphs whose ``inputs`` are all possible.

    Graphs may lack ``optional`` ones.
    ``objections``, by position in the batch, count where values have no problem.
    """
    needed = replace(batch, fields={name: field for name, field in batch.fields.items() if name in inputs})
    problems = {
        **(objections or {}),
        **graph_problems(needed, numbers, needed=[name for name in inputs if name not in optional]),
    }
    if not problems:
        return without_screening(batch)
    reasons = tuple(problems.get(position, "") for position in range(len(batch)))
    valid = torch.tensor([not reason for reason in reasons])
    return Screened(whole=batch, valid=batch.select(valid) if bool(valid.any()) else None, reasons=reasons)


def without_screening(batch: GraphBatch) -> Screened:
    """Return the batch with all graphs as valid ones.

    An object of its own: members keep with it what they compute together, and tensors of the caller's may change.
    """
    own = replace(batch)
    return Screened(whole=own, valid=own, reasons=("",) * len(batch))


def outcome_of(member: Member, read: Screened) -> MemberOutcome:
    """Return the member's predictions; NaN and a reason for invalid graphs."""
    if read.valid is read.whole:
        return outcome(member, read.whole)
    every = blank_outcome(member, read.whole, read.reasons)
    if read.valid is None:
        return every
    own, reasons = outcome(member, read.valid), np.array(read.reasons, dtype=object)
    reasons[read.fine], every.distances[read.fine] = own.reasons, own.distances
    every.node_distances[read.fine[read.whole.owner("node").numpy()]] = own.node_distances
    predictions = {one.name: _of_all(read, one, own.predictions[one.name]) for one in member.targets}
    return replace(every, predictions=predictions, reasons=tuple(reasons.tolist()))


def simple_predictions(simple: Baselines, targets: Sequence[Target], read: Screened) -> dict[str, Distribution]:
    """Return predictions of simple members; NaN for invalid graphs."""
    own = [(target, name) for target in targets for name in simple.fitted.get(target.name, ())]
    if read.valid is None:
        return {one.name: Point.blank(one.field, read.whole.num_items(one.field.on)) for one, _ in own}
    valid = read.valid.to("cpu") if own else read.valid
    return {one.name: _of_all(read, one, simple.prediction(name, one, valid)) for one, name in own}


def _of_all(read: Screened, target: Target, result: Distribution) -> Distribution:
    """Return predictions of valid graphs as those of all."""
    valid = torch.from_numpy(read.fine)[read.whole.owner(target.field.on).cpu()]
    rows = (valid.cumsum(0) - 1).clamp_min(0)  # of an item among those of valid graphs
    return result.rows(rows).blank_items(~valid)
