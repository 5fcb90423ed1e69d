"""Predictions of all members for a part of a store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from hydragnn.base.errors import InputError
from hydragnn.datasets import GraphStore, pack
from hydragnn.ensemble.estimates.estimate import Labelled
from hydragnn.ensemble.estimates.moments import Array
from hydragnn.ensemble.members.committee import in_committee
from hydragnn.ensemble.members.member import Member, MemberOutcome, join_outcomes, optional_inputs, shared_inputs
from hydragnn.ensemble.members.plan import default_budget
from hydragnn.ensemble.members.screening import outcome_of, read_screened, simple_predictions
from hydragnn.graphs.batch import GraphBatch
from hydragnn.models import Distribution, Target, concatenate_distributions
from hydragnn.models.trained import check_meaning
from hydragnn.training.baselines import VOLUME, Baselines

PERSISTENCE = "persistence"
"""Simple predictor of a target: the input that its head corrects, as the state before."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MemberOutputs:
    """One outcome per member on the same graphs, with their labels."""

    graphs: Int[np.ndarray, " graphs"]
    """Numbers in the store."""
    nodes_per_graph: Int[np.ndarray, " graphs"]
    edges_per_graph: Int[np.ndarray, " graphs"]
    outcomes: tuple[MemberOutcome, ...]
    labels: dict[str, Array]
    """Targets in their units, one row per item; NaN where a label is missing."""
    seconds: tuple[float, ...]
    """Time of every member."""
    simple: Mapping[str, Distribution] = field(default_factory=dict)
    """Predictions of simple members by target."""
    weights: Mapping[str, Array] = field(default_factory=dict)
    """Node field ``volume`` where the store has it, and the predictions of ``PERSISTENCE`` by target."""
    fold: tuple[int, ...] = ()
    """Positions in the ensemble of the members, where these alone have not seen the graphs; empty of all members."""
    distances: Float[Array, "graphs three"] | None = None
    """Distances of the graphs from training, once they are known."""

    def positions(self, target: Target) -> Int[np.ndarray, " items"]:
        """Return the position in ``graphs`` of the graph of every item."""
        places = np.arange(len(self.graphs))
        counts = {"node": self.nodes_per_graph, "edge": self.edges_per_graph}.get(target.field.on)
        return places if counts is None else np.repeat(places, counts)

    def nodes(self, target: Target) -> Int[np.ndarray, " items"]:
        """Return the nodes of the graph of every item."""
        return self.nodes_per_graph[self.positions(target)]

    def usable(self, target: Target) -> Bool[np.ndarray, " items"]:
        """Return the items with a label and a prediction of every member.

        Of numbers some components may be missing, of classes none.
        """
        finite = np.isfinite(self.labels[target.name]).reshape(len(self.labels[target.name]), -1)
        labelled = finite.all(axis=1) if target.field.classes else finite.any(axis=1)
        return np.all([labelled, *(one.finite().numpy() for one in self.of(target))], axis=0)

    def of(self, target: Target, use: Bool[np.ndarray, " items"] | None = None) -> list[Distribution]:
        """Return the predictions of every member, last of a simple one."""
        every = [outcome.predictions[target.name] for outcome in self.outcomes]
        every += [self.simple[target.name]] if target.name in self.simple else []
        return every if use is None else [one.rows(torch.from_numpy(use)) for one in every]

    def labelled(self, target: Target) -> Labelled:
        """Return the usable items of a target."""
        use = self.usable(target)
        places = self.positions(target)[use]
        return Labelled(
            labels=self.labels[target.name][use],
            members=self.of(target, use),
            graph=self.graphs[places],
            nodes=self.nodes_per_graph[places],
            distances=None if self.distances is None else self.distances[places],
            fold=self.fold,
        )

    @property
    def failures(self) -> dict[int, str]:
        """Return the reasons of failed graphs, by number in the store."""
        reasons = zip(*(outcome.reasons for outcome in self.outcomes))
        return {int(g): next(filter(None, some)) for g, some in zip(self.graphs, reasons) if any(some)}


def member_outputs(
    members: Sequence[Member],
    store: GraphStore,
    graphs: Int[np.ndarray, " graphs"],
    inputs: Sequence[str],
    simple: Baselines | None = None,
) -> MemberOutputs:
    """Predict these graphs with every member; batches are built once."""
    if not len(graphs):
        raise InputError("there are no graphs to predict in this part of the data; give the split a larger fraction")
    members, committee = in_committee(members)
    corrected = {f"{PERSISTENCE} {head.field}": head.corrected_input for head in members[0].model.description.heads}
    targets, optional = members[0].targets, optional_inputs(members, shared_inputs(members).values())
    parts_of_member: list[list[MemberOutcome]] = [[] for _ in members]
    labels: dict[str, list[Array]] = {target.name: [] for target in targets}
    of_simple: dict[str, list[Distribution]] = {}
    seconds = [0.0] * len(members)
    sizes, shapes = store.sizes(), {one.name: one.shape for one in store.fields() if one.on == "node"}
    extra = {name: key for name, key in {VOLUME: VOLUME, **corrected}.items() if key in shapes}
    weights: dict[str, list[Array]] = {name: [] for name in extra}
    for numbers in pack(sizes, graphs, default_budget(sizes)):
        names = [*dict.fromkeys([*inputs, *(target.field.name for target in targets), *extra.values()])]
        read = read_screened(store, numbers, names, inputs, optional=optional)
        batch = read.whole
        for target in targets:
            labels[target.name].append(labels_of(batch, target))
        for name, key in extra.items():
            full = key in batch.fields and bool(batch.present(key).all())
            absent = np.full((batch.num_nodes, *shapes[key]), np.nan)
            weights[name].append(batch[key].double().numpy() if full else absent)
        for name, prediction in simple_predictions(simple or Baselines(), targets, read).items():
            of_simple.setdefault(name, []).append(prediction)
        for position, member in enumerate(members):
            started = perf_counter()
            parts_of_member[position].append(outcome_of(member, read))
            seconds[position] += perf_counter() - started
    return MemberOutputs(
        graphs=graphs,
        nodes_per_graph=sizes.nodes[graphs],
        edges_per_graph=sizes.edges[graphs],
        outcomes=tuple(join_outcomes(parts) for parts in parts_of_member),
        labels={name: np.concatenate(values) for name, values in labels.items()},
        seconds=committee.shared(seconds),
        simple={name: concatenate_distributions(parts) for name, parts in of_simple.items()},
        weights={name: np.concatenate(values) for name, values in weights.items()},
    )


def labels_of(batch: GraphBatch, target: Target) -> Array:
    """Return the labels of a target in its unit, NaN where missing; InputError for another."""
    check_meaning(batch, target.field)
    values = batch[target.field.name].double().numpy().copy()
    values[~batch.labelled(target.field.name).numpy()] = np.nan
    return values
