"""Plan of a run: the one reader of its configuration.

``train`` hands the configuration to ``plan_run``; everybody after that takes values of the plan.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn.architectures import architecture_of
from hydragnn.architectures.base import ActsOn
from hydragnn.base.errors import InputError, MissingPackageError, about, nearest
from hydragnn.base.settings import ActsWith, is_complete, is_given
from hydragnn.callbacks import check_callbacks
from hydragnn.config import AnyConfig, BranchSettings, RunConfig, TrainSettings
from hydragnn.datasets import Budget, GraphStore, Split, WithoutEdges, make_split, open_store
from hydragnn.datasets.manifest import cutoff_of
from hydragnn.datasets.packing import check_budget
from hydragnn.graphs.field import Field
from hydragnn.graphs.levels import is_levels
from hydragnn.graphs.units import label_factors
from hydragnn.models import HeadSettings, ModelDescription, check_shared, make_description
from hydragnn.models.checks import check
from hydragnn.parallel import WHOLE_WEIGHTS, ParallelSettings, check_divisible
from hydragnn.runs.cutoff import check_cutoff, check_edges_exist, check_pairs
from hydragnn.runs.fine_tuning import OpenStart, open_start, with_absent
from hydragnn.training.loss import JUDGED_BY_DISTRIBUTION, point_loss

Stores = GraphStore | Mapping[str, GraphStore]
"""The store of a run, or those of its branches by their names."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DescribedBranch:
    """Data set of a run and its model, before graphs are read."""

    settings: BranchSettings
    store: GraphStore
    """Without its edges where the run does without them."""
    model: ModelDescription
    """Encoder, heads, inputs and targets of the branch, without statistics of the training part."""
    unseen_inputs: tuple[str, ...]
    """Fields with role input that are left out because the architecture does not see them."""

    @property
    def subject(self) -> str:
        """Return the prefix of error messages, for several branches."""
        return _subject(self.settings.name)


@dataclass(frozen=True, kw_only=True, eq=False)
class BranchPlan(DescribedBranch):
    """A data set of a run with its split."""

    split: Split
    weight: Fraction
    """Times that an epoch shows each training graph."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RunPlan:
    """A run as values, with its configuration as JSON."""

    table: dict[str, Any]
    branches: tuple[BranchPlan, ...]
    budget: Budget
    """Limits of a batch, over all ranks."""
    training: TrainSettings
    start: OpenStart | None = None
    replay: BranchPlan | None = None
    """The start's data, of which epochs show a share."""
    parallel: ParallelSettings
    begun: Path | None = None
    """Model of a run that goes on."""


def described_branches(
    config: AnyConfig,
    stores: Stores | None = None,
    heartbeat: Callable[[], None] = lambda: None,
    *,
    begun: bool = False,
) -> list[DescribedBranch]:
    """Return the data sets of a run with their models.

    InputError where a store or a field is missing, where the branches cannot share a trunk, or where the model's cutoff is larger
    than a store's, unless the run has ``begun`` with it.
    """
    branches = config.branches
    open_stores = [
        open_store(one.data.store) if stores is None else stores[one.name] if isinstance(stores, Mapping) else stores
        for one in branches
    ]
    encoder = config.model.on_stores([cutoff_of(store.attributes) for store in open_stores])
    reads = partial(architecture_of(encoder.kind).reads, encoder)
    inputs, unseen = [], []
    for branch, store in zip(branches, open_stores):
        heartbeat()
        with about(_subject(branch.name)):
            fields = {field.name: field for field in store.fields()}
            unread = tuple(one.name for one in fields.values() if one.role == "input" and not reads(one))
            unseen.append(unread if branch.data.inputs is None else ())
            inputs.append(input_fields(branch.data.inputs, branch.targets, fields, unseen[-1]))
    if len(branches) > 1:
        check_shared({branch.name: (store.dim, of) for branch, store, of in zip(branches, open_stores, inputs)})
    names = [field.name for field in inputs[0]]  # one order for all
    if encoder.pooling is not None:
        names += [name for name, field in fields.items() if is_levels(field) and name not in names]
    described = []
    for branch, store, left_out in zip(branches, open_stores, unseen):
        heartbeat()
        with about(_subject(branch.name)):
            visible = store if branch.data.edges else WithoutEdges(store)
            if branch.data.edges and not begun:
                check_cutoff(getattr(encoder, "cutoff", None), store.attributes)
                check_edges_exist(encoder.kind, encoder.global_attention, store)
            model = make_description(
                encoder,
                branch.heads,
                visible.fields(),
                inputs=names,
                dim=visible.dim,
                edges=branch.data.edges,
                branch=branch.name,
            )
            check(model, measured=False)
            if config.parallel:
                check_divisible(config.parallel, model, config.train.optimizer)
            check_pairs(encoder.global_attention, store)
            for head in model.heads:
                head_factors(head, model, store)
            described.append(DescribedBranch(settings=branch, store=visible, model=model, unseen_inputs=left_out))
    return described


def head_factors(head: HeadSettings, model: ModelDescription, store: GraphStore) -> dict[str, float]:
    """Return unit factors of an energy's derivatives; InputError where units misfit."""
    if head.kind != "energy":
        return {}
    derived = {what: model.fields[name] for what, name in head.derivatives.items()}
    return label_factors(model.fields[head.field], derived, store.attributes, store.dim)


ACTS_ON: dict[ActsOn, ActsWith] = {
    "close atoms": ActsWith(
        words="on atoms in 3 dimensions with atomic_numbers as input, and this model of forces has none",
        remedy="give atomic_numbers as input",
        holds=lambda model: bool(model.has_close_atoms or not model.has_derivatives),
    ),
    "lengths": ActsWith(
        words="on lengths of edges, and these graphs have no positions",
        remedy="build the store with positions",
        holds=lambda model: bool(model.dim),
    ),
    "inputs": ActsWith(
        words="on lengths or features of edges, and these graphs have none",
        remedy="build the store with positions or edge features",
        holds=lambda model: bool(model.dim or any(field.on == "edge" for field in model.input_fields)),
    ),
}
"""Objects on which settings of architectures act, by the description of a model. ``data.edges = false`` is an ablation that leaves all else as it is."""


def idle_on_data(config: AnyConfig, described: Sequence[DescribedBranch]) -> dict[str, str]:
    """Return the refusals of model settings without effect on these data."""
    idle = {}
    # settings of a start acted on the data of the start
    is_chosen = not is_complete(config) and getattr(config, "start", None) is None
    for key, what in {} if not is_chosen else config.model.acts_on.items():
        condition, path = ACTS_ON[what], f"model.{key}"
        if is_given(config, path) and not any(condition.holds(one.model) for one in described):
            idle[path] = condition.sentence(path)
    return idle


def check_own_code(config: AnyConfig) -> None:
    """Raise InputError for optimizers, callbacks and losses that are not here or unfit."""
    if (optimizer := config.train.optimizer) in WHOLE_WEIGHTS and find_spec("pytorch_optimizer") is None:
        raise MissingPackageError("pytorch_optimizer", "optimizers", f"train.optimizer = {optimizer}")
    check_callbacks(config.train.callbacks)
    for branch in config.branches:
        for head in branch.heads:
            loss = getattr(head, "loss", "mse")
            if loss not in JUDGED_BY_DISTRIBUTION:
                point_loss(loss)


def plan_run(
    config: AnyConfig,
    stores: Stores | None = None,
    heartbeat: Callable[[], None] = lambda: None,
    *,
    begun: bool = False,
) -> RunPlan:
    """Return the plan of a run, on its stores or ``stores``.

    InputError for what ``described_branches`` refuses, where a part is missing, and for a setting that cannot act, unless the run has ``begun``.
    """
    check_own_code(config)
    plans = []
    branches = described_branches(config, stores, heartbeat, begun=begun)
    for sentence in () if begun else idle_on_data(config, branches).values():
        raise InputError(sentence)
    for branch in branches:
        heartbeat()
        with about(branch.subject):
            split = make_split(branch.store, branch.settings.split)
            check_budget(branch.store.sizes(), np.concatenate([split.train, split.valid]), config.batch.limits)
            plans.append(BranchPlan(**vars(branch), split=split, weight=Fraction(str(branch.settings.weight))))
    start, replay = None, None
    if isinstance(config, RunConfig) and (settings := config.start):
        start = open_start(settings, plans[0].model, plans[0].store, plans[0].split)
        if settings.replay and start.earlier is not None:
            weight, (store, split) = Fraction(str(settings.replay)), start.earlier
            replay = replace(plans[0], weight=weight, store=with_absent(store, plans[0].model), split=split)
    return RunPlan(
        table=config.to_json(),
        branches=tuple(plans),
        start=start,
        replay=replay,
        budget=config.batch.limits,
        training=config.train,
        parallel=config.parallel or ParallelSettings(),
    )


def _subject(name: str) -> str:
    return f"branch {name}" if name else ""


def input_fields(
    asked: Sequence[str] | None, targets: Collection[str], fields: Mapping[str, Field], unseen: Collection[str]
) -> list[Field]:
    """Return the inputs asked for, or all readable ones; InputError otherwise."""
    for name in targets:
        if name not in fields:
            raise InputError(f"heads: the store has no field {name}; {nearest(name, sorted(fields))}")
    readable = [name for name, field in fields.items() if field.role == "input" and name not in unseen]
    names = readable if asked is None else asked
    for name in names:
        if name not in fields:
            raise InputError(f"data.inputs: the store has no field {name}; {nearest(name, sorted(fields))}")
        if name in targets:
            raise InputError(f"data.inputs: {name} is also predicted by a head; take it out of one of them")
    return [fields[name] for name in names]
