"""Cutoffs of model and store: limits.

A store that was built with a cutoff says so in its attributes. Stores of grains, meshes and edges of their own have none, and
unless somebody asks for an envelope no edge of theirs is silenced.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hydragnn.architectures import GlobalAttentionSettings
from hydragnn.base.errors import InputError
from hydragnn.datasets import GraphStore
from hydragnn.datasets.manifest import cutoff_of

LOOKED_AT = 16
"""Graphs, spread over the store, that say whether there are periodic ones: reading all would take long before every trial."""
ROUNDING = 1 + 1e-9
"""Two cutoffs are equal where they differ by less than this factor."""


def check_cutoff(cutoff: Any, attributes: Mapping[str, Any], key: str = "model.cutoff") -> None:
    """Raise InputError for a cutoff beyond the store's."""
    limit = cutoff_of(attributes)
    if limit is not None and isinstance(cutoff, int | float) and cutoff > limit * ROUNDING:
        raise InputError(
            f"{key} = {cutoff:.12g}, but the edges of the store end at its cutoff of {limit:.12g}, where messages would break off; "
            f"leave it out or use at most {limit:.12g}, or build the store anew with a larger cutoff"
        )


def check_pairs(attention: GlobalAttentionSettings | None, store: GraphStore) -> None:
    """Raise InputError for attention among all pairs of periodic graphs."""
    if attention is None or not attention.has_pairs or attention.cutoff is not None or not len(store):
        return
    if store.read(np.unique(np.linspace(0, len(store) - 1, LOOKED_AT).astype(np.int64)), []).periodic.any():
        raise InputError(
            "model.global_attention sees all pairs of nodes, and graphs of the store are periodic, where pairs with images have no end; give "
            "it a cutoff (model.global_attention.cutoff)"
        )


def check_edges_exist(kind: str, attention: GlobalAttentionSettings | None, store: GraphStore) -> None:
    """Raise InputError where no graph has an edge and messages need them."""
    sizes = store.sizes()
    several = int((sizes.nodes > 1).sum())
    if attention is None and several and not sizes.edges.any():
        raise InputError(
            f"none of the {several} graphs of several nodes has an edge, and model {kind} learns from edges; build the store with a cutoff "
            "in the unit of positions, or set data.edges = false for a model of nodes alone"
        )
