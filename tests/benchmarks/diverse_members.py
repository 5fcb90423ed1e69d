"""Ways to make members differ, for ``bench_diversity``: prototypes that train ordinary runs and predict with them.

Four runs of a way make an ensemble. ``seeds`` differ in their weights and the order of graphs; ``bootstrap`` trains each on a resample
of the training part with replacement (Breiman 1996); ``architectures`` takes other kinds and sizes, as the best runs of a campaign
may be. ``heads`` is one run whose heads have several last layers, trained with the CRPS of the normal distribution of their mean and spread
(a shallow ensemble, after Kellner and Ceriotti 2024, arXiv:2402.16621, who take its likelihood; the loss of forces sees their mean alone); ``absolute`` is one
run with absolute errors as losses, which that CRPS is without a spread. ``last layer`` is the variance f^T (F^T F + ridge)^-1 f of Bigi, Chong, Ceriotti and Grasselli 2024 (arXiv:2403.02251), with f what the last linear layer of a head reads,
of one run as it is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hydragnn.datasets import GraphStore, Split, SplitSettings, make_split
from hydragnn.ensemble.member_outputs import MemberOutputs, member_outputs
from hydragnn.ensemble.members import Member
from hydragnn.models import Point, Target
from hydragnn.models.heads import head_kinds

HEADS = 8
"""Heads of a shallow ensemble."""

RIDGES = (1e-8, 1e-6, 1e-4, 1e-2, 1.0)
"""What is added to the diagonal of F^T F, in units of its mean."""

Table = dict[str, Any]

KINDS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "alloys": ({"kind": "schnet", "hidden_dim": 32}, {"kind": "egnn"}, {"hidden_dim": 16, "num_layers": 3}),
    "polycrystals": ({"kind": "pna"}, {"kind": "egnn"}, {"hidden_dim": 24, "num_layers": 5}),
    "plates": ({"kind": "pna"}, {"kind": "egnn"}, {"hidden_dim": 32, "num_layers": 4}),
    "QM9": ({"kind": "painn", "hidden_dim": 24}, {"kind": "egnn"}, {"hidden_dim": 40, "num_layers": 2}),
    "mlearn": ({"kind": "painn", "hidden_dim": 16}, {"kind": "egnn"}, {"hidden_dim": 16, "num_layers": 3}),
    "Darcy": ({"kind": "pna"}, {"kind": "egnn"}, {"hidden_dim": 32, "num_layers": 4}),
}
"""Settings of the encoder that replace those of a set's own member, which is the first of the four."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HeadsPoint(Point):
    """What several heads say; its error is the CRPS of the normal distribution of their mean and spread."""

    every: Tensor
    """Of every head: [items, *shape, heads]."""

    def error(self, target: Tensor) -> Tensor:
        """The CRPS of every number, which is at least 0 (Gneiting and Raftery 2007, eq. 21)."""
        std = (self.every.var(dim=-1) + 1e-6).sqrt()
        normal = torch.distributions.Normal(0.0, 1.0)
        z = (target - self.mean) / std
        density = torch.exp(normal.log_prob(z))
        return std * (z * (2 * normal.cdf(z) - 1) + 2 * density - np.pi**-0.5)


class SeveralOutputs(nn.Module):
    """Raw outputs of a last layer that has so many outputs for every number of the field."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, raw: Tensor) -> Point:
        """One value per number and output: [items, *shape, heads]."""
        return Point(mean=raw.reshape(-1, *self.shape, HEADS))


class ManyHeads(nn.Module):
    """A head with several last layers, each with weights of its own; ``only`` one of them speaks where it is a number."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        last = head.network[-1]
        head.network[-1] = nn.Linear(last.in_features, HEADS * last.out_features)
        head.output = SeveralOutputs(head.output.shape)
        self.head = head
        self.only: int | None = None

    def forward(self, *arguments: Any) -> Point:
        """The mean of all, or what one says."""
        every = self.head(*arguments).mean
        if self.only is not None:
            return Point(mean=every[..., self.only])
        return HeadsPoint(mean=every.mean(dim=-1), every=every)


@contextmanager
def many_heads(seed: int) -> Iterator[None]:
    """Every head that is built in here is a shallow ensemble."""

    def several(build: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        return lambda *arguments: ManyHeads(build(*arguments))

    with ExitStack() as stack:
        for kind in head_kinds().values():
            stack.enter_context(patch.object(kind, "build", several(kind.build)))
        yield


@contextmanager
def resample_training(seed: int) -> Iterator[None]:
    """Runs that are planned in here train on as many graphs as before, drawn with replacement."""

    def resample(store: GraphStore, settings: SplitSettings) -> Split:
        split = make_split(store, settings)
        random = np.random.default_rng(seed)
        return replace(split, train=np.sort(random.choice(split.train, len(split.train))))

    with patch("hydragnn.runs.plan.make_split", resample):
        yield


@contextmanager
def plain_training(seed: int) -> Iterator[None]:
    """Nothing is changed."""
    yield


def own_kind(name: str, number: int, table: Table) -> Table:
    """The encoder of another member; geometry stays, and what only one kind knows goes."""
    if not number:
        return table
    change = KINDS[name][number - 1]
    model = {**table["model"], **change}
    return {**table, "model": model}


def absolute_errors(name: str, number: int, table: Table) -> Table:
    """Heads whose error, the CRPS, counts as it is."""
    return {**table, "heads": [{**head, "loss": "mae"} for head in table["heads"]]}


def unchanged(name: str, number: int, table: Table) -> Table:
    """The set's own configuration."""
    return table


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """How runs of one ensemble differ beside their seeds."""

    runs: int
    first: int = 0
    """Members before this one are those of ``seeds``."""
    settings: Callable[[str, int, Table], Table] = unchanged
    inside: Callable[[int], Any] = plain_training
    """What holds while a run is trained and read, by its seed."""


WAYS: Mapping[str, Way] = {
    "seeds": Way(runs=4),
    "bootstrap": Way(runs=4, inside=resample_training),
    "architectures": Way(runs=4, first=1, settings=own_kind),
    "heads": Way(runs=1, settings=absolute_errors, inside=many_heads),
    "absolute": Way(runs=1, settings=absolute_errors),
}


def outputs_of(
    member: Member, store: GraphStore, graphs: NDArray[np.int64], read: Sequence[str]
) -> list[MemberOutputs]:
    """What a run says, or each of its heads."""
    several = [head for head in member.model.model.heads if isinstance(head, ManyHeads)]
    outputs = []
    for number in range(HEADS if several else 1):
        for head in several:
            head.only = number
        outputs.append(member_outputs([member], store, graphs, read))
    return outputs


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Features:
    """What the last layers of a member's heads read, of some graphs."""

    outputs: MemberOutputs
    by_head: Mapping[str, NDArray[np.float64]]
    """By the name of the head's field: [nodes or graphs, channels + 1], the last a one for the bias."""

    def rows(self, target: Target, per_node: bool = False) -> NDArray[np.float64]:
        """The features of every item of a target; of a sum their sum, of forces those of their own atom."""
        own = self.by_head[target.source or target.field.name]
        counts = self.outputs.nodes_per_graph
        if target.field.on == "graph" and len(own) != len(counts):
            own = np.add.reduceat(own, np.concatenate([[0], np.cumsum(counts)[:-1]]))
        return own / counts[:, None] if per_node else own


def last_features(member: Member, store: GraphStore, graphs: NDArray[np.int64], read: Sequence[str]) -> Features:
    """The features of all heads of a run with one network each."""
    inputs: dict[str, list[NDArray[np.float64]]] = {}
    hooks = []
    for settings, head in zip(member.model.heads, member.model.model.heads):
        kept = inputs.setdefault(settings.field, [])
        hooks.append(
            head.network[-1].register_forward_pre_hook(
                lambda _, arguments, kept=kept: kept.append(arguments[0].detach().double().numpy())
            )
        )
    outputs = member_outputs([member], store, graphs, read)
    for hook in hooks:
        hook.remove()
    whole = {name: np.concatenate(parts) for name, parts in inputs.items()}
    return Features(
        outputs=outputs, by_head={name: np.hstack([own, np.ones((len(own), 1))]) for name, own in whole.items()}
    )


def last_layer_variances(target: Target, energy: Target, training: Features, asked: Features) -> NDArray[np.float64]:
    """The variance of every item up to a factor, for every ridge: [ridges, items].

    That of forces is the energy's of their own atom, f_i^T (F^T F + ridge)^-1 f_i, and not that of its derivative, which costs a backward
    pass per channel. Where the loss is per node, F is.
    """
    known = training.rows(energy, per_node=energy.per_node)
    matrix = known.T @ known
    own = asked.rows(target)
    ridges = [ridge * np.trace(matrix) / len(matrix) * np.eye(len(matrix)) for ridge in RIDGES]
    return np.stack([np.einsum("if,if->i", own, np.linalg.solve(matrix + ridge, own.T).T) for ridge in ridges])
