"""MACE."""

from hydragnn.frozen.model import FrozenModel

KINDS: dict[str, type[FrozenModel]] = {}
