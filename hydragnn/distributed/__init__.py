"""Launchers, ranks, how they meet and how they end."""

from typing import TYPE_CHECKING, Any

from hydragnn.distributed.launch import (
    Launch,
    LaunchError,
    environment_alone,
    host_name,
    launch_from,
    leave_launch,
    this_launch,
    threads_are_chosen,
)
from hydragnn.distributed.leaving import SECONDS_FOR_THE_FIRST, abandon, end_job, leave

if TYPE_CHECKING:
    from hydragnn.distributed.ranks import Ranks, join_ranks


def __getattr__(name: str) -> Any:
    """Import ranks, and torch with them, on first use."""
    if name in ("Ranks", "join_ranks"):
        from hydragnn.distributed import ranks

        return getattr(ranks, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
