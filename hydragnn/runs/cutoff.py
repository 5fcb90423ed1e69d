"""The cutoff of the model beside that of the store: its default, what it may be, and the edges that an envelope silences.

A store that was built with a cutoff says so in its attributes. Stores of grains, meshes and edges of their own have none, and
unless somebody asks for an envelope no edge of theirs is silenced.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn.architectures import ArchitectureSettings, GeometricSettings
from hydragnn.datasets import GraphStore
from hydragnn.datasets.survey import Rows
from hydragnn.errors import InputError
from hydragnn.graphs.batch import edge_vectors

BLOCK = 1024
"""Graphs whose edges are measured at once."""
ROUNDING = 1 + 1e-9
"""Two cutoffs are equal where they differ by less than this factor."""


def cutoff_of(attributes: Mapping[str, Any]) -> float | None:
    """The cutoff that made a store's edges, from its attributes; None where they do not come from one."""
    value = attributes.get("cutoff")
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(value) if known and value is not None else None


def with_cutoff_of(settings: ArchitectureSettings, attributes: Sequence[Mapping[str, Any]]) -> ArchitectureSettings:
    """The settings with cutoff and envelope where they were left out.

    They are the cutoff of the stores with these attributes, of several the smallest, and its envelope; where the edges of one
    of them do not come from a cutoff, no envelope.
    """
    if not isinstance(settings, GeometricSettings):
        return settings
    every = [cutoff_of(each) for each in attributes]
    known = [cutoff for cutoff in every if cutoff is not None]
    before = settings.before
    cutoff = min(known) if known else before["cutoff"]
    envelope = before["envelope"] if len(known) == len(every) else "none"
    chosen = {
        "cutoff": cutoff if settings.cutoff is None else settings.cutoff,
        "envelope": settings.envelope or envelope,
    }
    return settings.model_copy(update=chosen)


def check_cutoff(cutoff: Any, attributes: Mapping[str, Any], key: str = "model.cutoff") -> None:
    """InputError for a cutoff beyond that of the store, whose edges would break off before the envelope ends them."""
    known = cutoff_of(attributes)
    if known is not None and isinstance(cutoff, int | float) and cutoff > known * ROUNDING:
        raise InputError(
            f"{key} = {cutoff:g}, but the edges of the store end at its cutoff of {known:g}, where messages would break off; "
            f"leave it out or use at most {known:g}, or build the store anew with a larger cutoff"
        )


def notes_on_cutoff(
    settings: ArchitectureSettings,
    store: GraphStore,
    graphs: NDArray[np.int64],
    rows: Rows,
    heartbeat: Callable[[], None],
    *,
    derived: bool,
) -> list[str]:
    """Sentences on edges of the ``graphs`` that an envelope silences, and on ``derived`` forces that jump without one."""
    if not isinstance(settings, GeometricSettings) or settings.cutoff is None:
        return []
    known = cutoff_of(store.attributes)
    if settings.envelope == "none":
        ends = f"where neighbours cross the store's cutoff of {known:g}" if known else "wherever edges come and go"
        hint = 'envelope = "polynomial" ends messages smoothly at model.cutoff'
        return (
            [f"energies jump and forces are not smooth {ends}, since there is no envelope; {hint}"] if derived else []
        )
    if known is not None and settings.cutoff * ROUNDING >= known:
        return []
    silenced, edges = silenced_edges(store, graphs, settings.cutoff, rows, heartbeat)
    if not silenced:
        return []
    return [
        f"the envelope silences {silenced} of the {edges} edges of the training part ({silenced / edges:.1%}): they are as long as "
        f'model.cutoff = {settings.cutoff:g} or longer; raise it, or say envelope = "none" where edges do not come from a cutoff'
    ]


def silenced_edges(
    store: GraphStore, graphs: NDArray[np.int64], cutoff: float, rows: Rows, heartbeat: Callable[[], None]
) -> tuple[int, int]:
    """How many edges of the graphs are as long as the cutoff or longer, and how many there are; the ranks share the blocks."""

    def counts(block: int) -> NDArray[np.float64]:
        heartbeat()
        lengths = edge_vectors(store.read(graphs[block * BLOCK : (block + 1) * BLOCK], [])).norm(dim=1)
        return np.array([float((lengths >= cutoff).sum()), float(len(lengths))])

    table = rows(-(-len(graphs) // BLOCK), 2, counts).sum(axis=0)
    return int(table[0]), int(table[1])
