"""Launchers, ranks, how they meet and how they end."""

from typing import TYPE_CHECKING

from hydragnn.base.imports import names_in
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


__getattr__ = names_in(__name__, {"ranks": ("Ranks", "join_ranks")})  # imports torch on first use
