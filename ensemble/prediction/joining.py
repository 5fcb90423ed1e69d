"""How a process finds its group: by its launcher, or as one of several local workers."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from hydragnn.distributed.launch import Launch, this_launch
from hydragnn.ensemble.prediction.counting import join_mpi
from hydragnn.ensemble.prediction.group import Alone, FolderGroup, Group, ParentGroup, at_work


@contextmanager
def join_group(launch: Launch | None = None) -> Iterator[Group]:
    """Join the ranks that the launcher started; InputError where its count and MPI's disagree."""
    launch = launch or this_launch()
    if torch.cuda.is_available():
        torch.cuda.set_device(launch.local_rank % torch.cuda.device_count())
    if launch.size == 1:
        yield Alone()
    elif launch.by == "mpi":
        with join_mpi(launch) as group:
            yield group
    else:
        with at_work(FolderGroup(launch.rank, launch.size)) as group:
            yield group


def worker_group(workers: int, work: Callable[..., None], *arguments: Any) -> AbstractContextManager[Group]:
    """Join the ranks that a launcher started, or else start so many local workers."""
    if workers > 1 and this_launch().size == 1:
        return at_work(ParentGroup(workers, work, *arguments))
    return join_group()
