"""How a process finds its crew: by its launcher, or as one of several local workers."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from hydragnn.distributed.launch import Launch, this_launch
from hydragnn.ensemble.prediction.counting import joined_mpi
from hydragnn.ensemble.prediction.crew import Alone, Crew, FolderCrew, Workshop, at_work


@contextmanager
def joined_crew(launch: Launch | None = None) -> Iterator[Crew]:
    """The crew that the launcher started; InputError where its count and MPI's disagree."""
    launch = launch or this_launch()
    if torch.cuda.is_available():
        torch.cuda.set_device(launch.local_rank % torch.cuda.device_count())
    if launch.size == 1:
        yield Alone()
    elif launch.by == "mpi":
        with joined_mpi(launch) as crew:
            yield crew
    else:
        with at_work(FolderCrew(launch.rank, launch.size)) as crew:
            yield crew


def workers_crew(workers: int, work: Callable[..., None], *arguments: Any) -> AbstractContextManager[Crew]:
    """The ranks that a launcher started, or else so many local workers."""
    if workers > 1 and this_launch().size == 1:
        return at_work(Workshop(workers, work, *arguments))
    return joined_crew()
