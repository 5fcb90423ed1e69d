"""Several data sets on one trunk, each with heads of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from hydragnn.architectures import ArchitectureSettings, GraphStatistics
from hydragnn.base.errors import InputError, about
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.layers import CloseRange, States
from hydragnn.models.checks import check
from hydragnn.models.description import ModelDescription, make_description
from hydragnn.models.distributions import Distribution
from hydragnn.models.graph_model import GraphModel, build_heads
from hydragnn.models.heads import HeadSettings


def build_model(
    model: ArchitectureSettings,
    heads: Sequence[HeadSettings],
    fields: Mapping[str, Field] | Sequence[Field],
    *,
    inputs: Sequence[str],
    dim: int,
    seed: int,
    statistics: GraphStatistics | None = None,
    edges: bool = True,
) -> GraphModel:
    """Return a checked model in float32; equal seeds give equal weights.

    ``statistics`` are needed by architectures that say so; without ``edges`` the trained model takes them away at prediction. Raises InputError for combinations that cannot work.
    """
    description = make_description(model, heads, fields, inputs=inputs, dim=dim, statistics=statistics, edges=edges)
    return build_from_description(description, seed)


def build_from_description(description: ModelDescription, seed: int) -> GraphModel:
    """Return the model of a description; InputError where it cannot work."""
    check(description)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GraphModel(description)


class BranchedModel(nn.Module):
    """One trunk with the heads of every branch.

    ``views`` are the branches as models.

    A batch goes through the view of its data set: the trunk and the heads of that branch, and nothing else.
    """

    def __init__(self, descriptions: Sequence[ModelDescription]) -> None:
        """Build the trunk and heads of descriptions that ``build_branched`` checked."""
        super().__init__()
        degrees = frozenset[int]().union(*(description.degrees for description in descriptions))
        self.trunk = GraphModel(replace(descriptions[0], heads=(), shared_degrees=degrees, close_range=None))
        of_branches = [build_heads(description, self.trunk) for description in descriptions]
        self.heads = nn.ModuleList(of_branches)
        limits = [None if one.close_range is None else CloseRange(one.close_range) for one in descriptions]
        self.close_ranges = nn.ModuleList(one for one in limits if one is not None)
        self.views = tuple(map(partial(BranchView, self.trunk), of_branches, limits, descriptions))  # registered above


class BranchView(GraphModel):
    """One branch as a model that shares the whole's weights.

    Its limits of close range are its own, since units and cutoffs of stores may differ.
    """

    def __init__(
        self, trunk: GraphModel, heads: nn.ModuleList, close_range: CloseRange | None, description: ModelDescription
    ) -> None:
        nn.Module.__init__(self)
        for name, part in {**vars(trunk), **trunk._modules}.items():
            if not name.startswith("_"):
                setattr(self, name, part)
        self.description, self.heads, self.close_range = description, heads, close_range

    def with_states(self, batch: GraphBatch) -> tuple[dict[str, Distribution], States]:
        """Predictions by the targets' names, ``energy@metals``, and final states."""
        predictions, states = super().with_states(batch)
        return {target.name: predictions[target.field.name] for target in self.description.targets}, states


def build_branched(descriptions: Sequence[ModelDescription], seed: int) -> GraphModel | BranchedModel:
    """Return a model in float32; equal seeds give equal weights.

    InputError where the branches cannot share a trunk.
    """
    if len(descriptions) == 1:
        return build_from_description(descriptions[0], seed)
    check_shared({one.branch: (one.dim, one.input_fields) for one in descriptions})
    for description in descriptions:
        with about(f"branch {description.branch}"):
            check(description)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BranchedModel(descriptions)


def check_shared(branches: Mapping[str, tuple[int, Sequence[Field]]]) -> None:
    """Raise InputError unless all branches have the same inputs."""
    (first, (dim, inputs)), *others = branches.items()
    ours = {field.name: field for field in inputs}
    for name, (other_dim, other_inputs) in others:
        if other_dim != dim:
            problem = f"branch {first} has graphs of dimension {dim} and branch {name} of {other_dim}"
            raise InputError(f"{problem}; one trunk reads one dimension")
        theirs = {field.name: field for field in other_inputs}
        for missing in sorted(ours.keys() ^ theirs.keys()):
            has, lacks = (first, name) if missing in ours else (name, first)
            raise InputError(
                f"branch {has} reads the input {missing}, and branch {lacks} does not; one trunk reads the same of every data "
                f"set: add {missing} to the store of {lacks}, or name what both have in data.inputs"
            )
        for field in theirs.values():
            own = ours[field.name]
            for what in ("on", "shape", "unit", "parity", "classes"):
                if getattr(own, what) != getattr(field, what):
                    raise InputError(
                        f"the input {own.name} has {what} = {getattr(own, what)!r} in branch {first} and {getattr(field, what)!r} in "
                        f"branch {name}; one trunk reads one meaning: rename it in one store, or convert it"
                    )
