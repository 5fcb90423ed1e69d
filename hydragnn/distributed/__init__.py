"""Distributed: who started this process, how its peers are found, and how all of them leave together."""

from hydragnn.distributed.launch import Launch, LaunchError, host_name, launch_from, this_launch, threads_are_chosen
from hydragnn.distributed.leaving import SECONDS_FOR_THE_FIRST, abandon, end_job, leave
from hydragnn.distributed.ranks import Ranks, join_ranks
