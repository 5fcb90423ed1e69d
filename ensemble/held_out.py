"""Which graphs may speak for an ensemble: none that one of its members has learned from."""

from collections.abc import Sequence
from functools import reduce

import numpy as np

from hydragnn.datasets import GraphStore, Split, make_split
from hydragnn.ensemble.members import Member
from hydragnn.errors import InputError


def joint_split(members: Sequence[Member], store: GraphStore) -> Split:
    """The parts of a store as all members together see them.

    A graph that trained one member is a training graph of all; what chose for one, and trained none, is validation; only
    what neither trained nor chose for any calibrates, and the rest is the test part. Of members with one ``[split]`` it is
    that split. InputError where no validation graph is left.
    """
    settings = [member.config.split for member in members]
    first, *others = [make_split(store, one) for number, one in enumerate(settings) if one not in settings[:number]]
    split = reduce(_joined, others, first)
    if not len(split.valid):
        names = " and ".join([members[0].name, *(m.name for m in members if m.config.split != settings[0])][:2])
        raise InputError(
            f"members {names} hold out different graphs: each that one was validated on has trained another, so that none is "
            "left to calibrate on; choose runs with one [split]"
        )
    return split


def _joined(first: Split, second: Split) -> Split:
    train = np.union1d(first.train, second.train)
    valid = np.setdiff1d(np.union1d(first.valid, second.valid), train)
    training_and_validation = np.union1d(train, valid)
    calibration = np.setdiff1d(np.union1d(first.calibration, second.calibration), training_and_validation)
    test = np.setdiff1d(np.union1d(first.test, second.test), np.union1d(training_and_validation, calibration))
    return Split(train=train, valid=valid, calibration=calibration, test=test)
