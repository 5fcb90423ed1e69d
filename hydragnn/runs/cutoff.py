"""Cutoffs of model and store: defaults, limits, and silenced edges.

A store that was built with a cutoff says so in its attributes. Stores of grains, meshes and edges of their own have none, and
unless somebody asks for an envelope no edge of theirs is silenced.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn.architectures import GlobalAttentionSettings
from hydragnn.base.errors import InputError
from hydragnn.datasets import GraphStore
from hydragnn.datasets.manifest import cutoff_of
from hydragnn.datasets.survey import Rows
from hydragnn.graphs.batch import edge_vectors

BLOCK = 1024
"""Graphs whose edges are measured at once."""
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


def can_be_silenced(attributes: Mapping[str, Any], cutoff: float) -> bool:
    """Return True where edges may be longer than the model's cutoff."""
    limit = cutoff_of(attributes)
    return limit is None or cutoff * ROUNDING < limit


def sentence_on(silenced: int, edges: int, cutoff: float) -> str:
    """Return the note on edges that an envelope silences."""
    return (
        f"the envelope silences {silenced} of the {edges} edges of the training part ({silenced / edges:.1%}): they are as long as "
        f'model.cutoff = {cutoff:g} or longer; raise it, or say envelope = "none" where edges do not come from a cutoff'
    )


def without_envelope(attributes: Mapping[str, Any]) -> str:
    """Return the note on forces of a model without envelope."""
    limit = cutoff_of(attributes)
    where = "wherever edges come and go" if limit is None else f"where neighbours cross the store's cutoff of {limit:g}"
    return (
        f'energies jump and forces are not smooth {where}, since there is no envelope; envelope = "polynomial" ends messages '
        "smoothly at model.cutoff"
    )


def without_the_farther(attributes: Mapping[str, Any]) -> str | None:
    """Return the note on forces with nearest neighbours only, or None."""
    most = attributes.get("max_neighbours")
    if not isinstance(most, int) or isinstance(most, bool):
        return None
    return (
        f"energies jump and forces are not smooth where another neighbour becomes one of the {most} nearest, which are all that the store "
        f"keeps (max_neighbours = {most}); a store built without max_neighbours keeps every neighbour within its cutoff"
    )


def silenced_edges(
    store: GraphStore, graphs: NDArray[np.int64], cutoff: float, rows: Rows, heartbeat: Callable[[], None]
) -> tuple[int, int]:
    """Count the edges at or beyond the cutoff, and all edges; collective."""

    def counts(block: int) -> NDArray[np.float64]:
        heartbeat()
        lengths = edge_vectors(store.read(graphs[block * BLOCK : (block + 1) * BLOCK], [])).norm(dim=1)
        return np.array([float((lengths >= cutoff).sum()), float(len(lengths))])

    table = rows(-(-len(graphs) // BLOCK), 2, counts).sum(axis=0)
    return int(table[0]), int(table[1])
