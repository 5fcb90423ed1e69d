"""A prediction's settings, and its model and graphs, opened once."""

import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError
from hydragnn.base.files import read_json
from hydragnn.base.machine import cores, visible_gpus
from hydragnn.base.places import is_store
from hydragnn.datasets import BatchSettings, open_store
from hydragnn.distributed.graph_groups import GraphGroup
from hydragnn.distributed.launch import this_launch
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.manifest import MemberEntry
from hydragnn.ensemble.member_cache import MemberCache, room_for
from hydragnn.ensemble.prediction.group import Group
from hydragnn.ensemble.prediction.parts import Parts
from hydragnn.ensemble.prediction.rules import Rule, rules_for
from hydragnn.ensemble.prediction.schedule import Late, finish_together, once
from hydragnn.ensemble.prediction.sources import Building, Source
from hydragnn.models import GraphModel
from hydragnn.record import read_record

SECONDS_PER_BLOCK = 10.0
"""More than a block of files takes to become graphs."""

LONGEST_NAME = 200
"""Bytes in the name of a file of predictions; file systems take 255 with what is added to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A prediction: which model, of what, to where."""

    model: Path
    source: Path
    out: Path
    more: tuple[Path, ...] = ()
    """Other sources, whose graphs follow."""
    resume: bool = False
    batch: BatchSettings | None = None
    """The budget of a batch; None chooses it by the graphs."""
    held: int | None = None
    """Members that a rank keeps in memory; None goes by the memory of the machine."""
    branch: str = ""
    """Which branch of a run predicts; empty where there are no branches."""
    keep_parts: bool = False
    """Whether an HDF5 file is a view of part files, which stay."""
    graph_ranks: int = 1
    """Ranks that share every batch."""

    def __post_init__(self) -> None:
        """Raise InputError where ``out`` can name no file."""
        if not self.out.name:
            raise InputError(f"--out {self.out}: name a file, such as predictions.h5")
        if (size := len(os.fsencode(self.out.name))) > LONGEST_NAME:
            raise InputError(
                f"--out: a name of {size} bytes is too long, since files beside it have longer ones; take at most {LONGEST_NAME}"
            )

    @property
    def sources(self) -> tuple[Path, ...]:
        """Return all sources in their order."""
        return (self.source, *self.more)

    def rules(self, ensemble: Ensemble) -> list[Rule]:
        """Return the rules by which files become graphs."""
        return rules_for(self.sources, ensemble, keep=self.out.suffix == ".xyz")

    def members_held(self, ensemble: Ensemble, groups: int) -> int:
        """Return the number of members that a rank keeps in memory."""
        return self.held or room(self.model, ensemble.manifest.members, groups * self.graph_ranks)

    @property
    def parts(self) -> Parts:
        """Return the folder of finished work."""
        return Parts(self.out.with_name(self.out.name + ".parts"))

    @property
    def plan(self) -> Path:
        """Return the path of the plan beside the output."""
        return self.out.with_name(self.out.name + ".plan.json")


class Inputs:
    """Model and graphs of a job, opened once in this process."""

    def __init__(self, job: Job, sharing: GraphGroup | None = None) -> None:
        self._job, self._sharing = job, sharing
        self._ensemble: Ensemble | None = None
        self._source: Source | None = None

    def ensemble(self, held: int) -> Ensemble:
        """Return the ensemble with at most ``held`` members in memory."""
        if self._ensemble is None:
            loaded = Ensemble.load(self._job.model, held=held, branch=self._job.branch)
            self._ensemble = loaded if self._sharing is None else loaded.shared(self._sharing)
        if isinstance(self._ensemble.members, MemberCache):
            self._ensemble.members.hold(held)
        return self._ensemble

    def model_of(self, number: int) -> GraphModel:
        """Return a member's model, loaded as a rank holds it."""
        held = self._job.members_held(self.ensemble(1), this_launch().size // self._job.graph_ranks)
        return self.ensemble(held).members[number].model.model

    def stored(self) -> Source:
        """Return the graphs of a store as they are."""
        self._source = self._source or Source(store=open_store(self._job.sources), numbers=None, failures={})
        return self._source

    def foresee(self, ranks: int) -> None:
        """Open ensemble and store while rank 0 checks them."""
        with suppress(InputError):
            ensemble = self.ensemble(1)
            held = self._job.members_held(ensemble, ranks)
            if held >= len(self.ensemble(held).members):
                list(ensemble.members)
            if is_store(self._job.source):
                self.stored().store.sizes()

    def graphs(self, group: Group, check: Callable[[], None], source: str, *, fresh: bool) -> Source:
        """Return the graphs of a store, or graphs that all ranks make.

        InputError where no graph can be built, or where it is not the ``source`` that rank 0 saw, by its digest; a ``fresh`` prediction by one process then leaves nothing behind.
        """
        job, ensemble = self._job, self._ensemble
        assert ensemble is not None  # of which graphs are made as for its training
        if is_store(job.source):
            check_same(job.source, source, self.stored().store.fingerprint)
            return self.stored()
        building = Building(job.rules(ensemble), job.parts.folder, source)
        try:
            build_together(building, group, check)
            return building.source()
        except InputError:
            if fresh and group.size == 1:
                job.parts.delete()
            raise


def check_same(path: Path, expected: str, now: str) -> None:
    """Raise InputError where rank 0 saw another digest at ``path``."""
    if now != expected:
        raise InputError(
            f"{path} was replaced while the prediction began; nothing was predicted of it here: start it again"
        )


def branch_for(model: Path, sources: Sequence[Path], branch: str = "") -> str:
    """Return the named branch, else the one trained on ``sources``.

    Empty where the model is no run with branches. InputError where only a name could decide.
    """
    path = model / "record.json"
    branches_of_run = read_record(model).branches if path.is_file() and not (model / "ensemble.json").is_file() else {}
    if branch or not branches_of_run:
        return branch
    print_of = open_store(sources).fingerprint if is_store(sources[0]) else ""
    matches = [name for name, entry in branches_of_run.items() if print_of == entry.data_hash]
    if len(matches) == 1:
        return matches[0]
    raise InputError(
        f"{model} has the branches {', '.join(branches_of_run)}, and {sources[0]} is the store of none of them alone; say which is to "
        "predict: --branch NAME (branch=)"
    )


def build_together(building: Building, group: Group, check: Callable[[], None]) -> None:
    """Build blocks of graphs with all ranks, with ``check`` before each."""
    blocks = range(len(building.blocks))
    while (number := group.take("blocks", len(blocks))) is not None:
        check()
        if not building.finished and not building.has(number):
            building.build(number)

    def missing() -> list[Late]:
        built = range(len(blocks)) if building.finished else building.there()
        undone = [number for number in blocks if number not in built]
        return [Late(number=number, claim=f"blocks-{number}", seconds=SECONDS_PER_BLOCK) for number in undone]

    finish_together(group, "block", missing, building.build, check)
    once(group, "join", lambda: building.finished, building.join, check)


def member_costs(ensemble: Ensemble, folder: Path) -> list[float]:
    """Return the cost of every member: measured seconds, else parameters."""
    if (folder / "evaluation.json").is_file():
        evaluation: Any = read_json(folder / "evaluation.json")
        with suppress(KeyError, IndexError, TypeError, ValueError):
            costs = [float(evaluation["timing"]["seconds_per_graph"][name]) for name in ensemble.names]
            if all(0 < cost < math.inf for cost in costs):
                return costs
    return [float(entry.summary["parameters"]) for entry in ensemble.manifest.members]


def room(model: Path, members: Sequence[MemberEntry], ranks: int) -> int:
    """Return the number of members that fit into a rank's memory."""
    weights = [path for entry in members if (path := model / entry.folder / "weights.safetensors").is_file()]
    places = visible_gpus() or cores()
    return room_for(weights, min(ranks, places)) if len(weights) == len(members) else len(members)
