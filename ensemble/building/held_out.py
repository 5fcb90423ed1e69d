"""Graphs that no member, or only some members, have learned from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from jaxtyping import Int

from hydragnn.base.errors import InputError
from hydragnn.datasets import GraphStore, Split, make_split
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.members.member import Member
from hydragnn.ensemble.members.outputs import MemberOutputs, member_outputs
from hydragnn.training.baselines import Baselines

Graphs = Int[np.ndarray, " graphs"]

MOST = 200
"""Folds of an ensemble at most; with many random splits nearly every graph would be a fold of its own."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Fold:
    """Graphs that neither trained nor chose for these members."""

    members: tuple[int, ...]
    """Positions among the members."""
    graphs: Graphs


def calibrating_split(members: Sequence[Member], store: GraphStore) -> tuple[Split, tuple[Fold, ...]]:
    """Return the parts of a store for all members, and the folds of a cross-validation ensemble.

    A graph that trained one member is a training graph of all; what chose for one, and trained none, is validation; only
    what neither trained nor chose for any calibrates, and the rest is the test part. Of members with one ``[split]`` it is
    that split. Members cross-validate where no validation graph of all is left, and where no graph calibrates for all of them and each
    (but those of the test part of all) was held out by some. InputError where nothing is left to calibrate on.
    """
    splits = splits_of(members, store)
    split = reduce(_joined, {id(one): one for one in splits}.values())
    speaking = [position for position, member in enumerate(members) if member.weight > 0]
    folds = fold_graphs({position: splits[position] for position in speaking}, len(store))
    complete = sum(len(fold.graphs) for fold in folds) + len(split.test) == len(store)
    if 2 <= len(folds) <= MOST and (complete or not len(split.valid)):
        of_all = [Fold(members=tuple(speaking), graphs=split.calibration)] if len(split.calibration) else []
        return split, (*folds, *of_all)
    if not len(split.valid):
        settings = [member.config.split for member in members]
        names = " and ".join([members[0].name, *(m.name for m in members if m.config.split != settings[0])][:2])
        raise InputError(
            f"members {names} hold out different graphs: each that one was validated on has trained another, so that none is "
            "left to calibrate on; choose runs with one [split], or runs that together leave every graph to a test part, in few ways"
        )
    return split, ()


def fold_graphs(splits: Mapping[int, Split], graphs: int) -> tuple[Fold, ...]:
    """Return graphs that trained or chose for some members only, as folds; ``splits`` are by position."""
    used = np.zeros((len(splits), graphs), dtype=np.bool_)
    for row, split in enumerate(splits.values()):
        used[row, np.union1d(split.train, split.valid)] = True
    some, positions = np.flatnonzero(used.any(axis=0) & ~used.all(axis=0)), [*splits]
    patterns, of_graph = np.unique(used[:, some], axis=1, return_inverse=True)
    return tuple(
        Fold(
            members=tuple(positions[row] for row in np.flatnonzero(~patterns[:, number])),
            graphs=some[of_graph.reshape(-1) == number],
        )
        for number in range(patterns.shape[1])
    )


def splits_of(members: Sequence[Member], store: GraphStore) -> list[Split]:
    """Return the split of every member; equal settings share one."""
    splits: list[Split] = []
    for number, member in enumerate(members):
        same = next((k for k in range(number) if members[k].config.split == member.config.split), None)
        splits.append(make_split(store, member.config.split) if same is None else splits[same])
    return splits


def _joined(first: Split, second: Split) -> Split:
    train = np.union1d(first.train, second.train)
    valid = np.setdiff1d(np.union1d(first.valid, second.valid), train)
    training_and_validation = np.union1d(train, valid)
    calibration = np.setdiff1d(np.union1d(first.calibration, second.calibration), training_and_validation)
    test = np.setdiff1d(np.union1d(first.test, second.test), np.union1d(training_and_validation, calibration))
    return Split(train=train, valid=valid, calibration=calibration, test=test)


Parts = dict[str, MemberOutputs]
"""Outputs of all members for graphs of the store, by the name of the part."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Setup:
    """Members, data and options of an ensemble that is built."""

    ensemble: Ensemble
    store: GraphStore
    """The training store."""
    split: Split
    baselines: Baselines
    """Simple predictors, fitted on the training part."""
    nominal: float = 0.9
    """Share of labels that intervals and sets hold."""
    false_alarms: float
    """Share of usual graphs that may be flagged."""

    def outputs(self, graphs: Int[np.ndarray, " graphs"]) -> MemberOutputs:
        """Predict graphs of the store with every member."""
        store, ensemble = self.store, self.ensemble
        return member_outputs(ensemble.members, store, graphs, ensemble.needed(store), ensemble.manifest.simple)
