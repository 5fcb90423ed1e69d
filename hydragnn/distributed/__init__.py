"""Launchers, ranks, how they meet and how they end."""

from typing import TYPE_CHECKING

from hydragnn.base.imports import names_in
from hydragnn.distributed.launch import leave, this_launch

if TYPE_CHECKING:
    from hydragnn.distributed.ranks import Ranks, join_ranks


__getattr__ = names_in(__name__, __file__)  # imports torch on first use
