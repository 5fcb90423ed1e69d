"""Kinds with vectors of nodes: PAINN and PNAEq."""

from hydragnn.frozen.model import FrozenModel

KINDS: dict[str, type[FrozenModel]] = {}
