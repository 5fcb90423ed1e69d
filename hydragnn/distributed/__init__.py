"""Distributed: who started this process, how its peers are found, and how all of them leave together."""

from hydragnn.distributed.ranks import Launch, LaunchError, Ranks, joined_ranks, launch_from, leave, this_launch
