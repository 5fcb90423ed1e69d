"""Endings of a campaign in words."""

from hydragnn.hpo.scheduling.events import Ending

ENDINGS: dict[Ending, str] = {
    "finished": "all trials done",
    "hours": "max_hours spent",
    "node_hours": "max_node_hours spent",
    "walltime": "the allocation ended",
    "stopped": "interrupted",
    "hopeless": "every trial failed",
}
_CONTINUED: dict[Ending, str] = {
    "hours": "; raise it and continue with --resume",
    "node_hours": "; raise it and continue with --resume",
    "walltime": "; continue with --resume",
    "stopped": "; continue with --resume",
}


def ending_text(ending: Ending) -> str:
    """Return an ending in words, and how the campaign can go on."""
    return ENDINGS[ending] + _CONTINUED.get(ending, "")
