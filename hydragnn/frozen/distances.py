"""Kinds that see distances: SchNet, DimeNet, PNAPlus and EGNN."""

from hydragnn.frozen.model import FrozenModel

KINDS: dict[str, type[FrozenModel]] = {}
