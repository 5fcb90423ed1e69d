"""A source whose graphs are small, and slow to make, and one of them ends its process: ``kind = "tests.scripts.dying:Dying"``."""

import os
import signal
import time
from collections.abc import Iterator
from functools import partial

from hydragnn.datasets import OwnBuild
from hydragnn.datasets.sources.base import Make
from hydragnn.distributed import this_launch
from hydragnn.graphs import GraphBatch, graph_from_arrays

GRAPHS = 600
FIRST = 100
"""The first graph that ends a process."""


class Dying(OwnBuild):
    """Graphs of which nobody knows the number before the end."""

    dies: int = -1
    """Which rank is ended, by the first graph that it makes from ``FIRST`` on."""

    defect: bool = False
    """True where it raises what is no InputError instead."""

    def graphs(self) -> Iterator[Make]:
        for number in range(GRAPHS):
            yield partial(self.graph, number)

    def graph(self, number: int) -> GraphBatch:
        time.sleep(0.002)
        if number >= FIRST and this_launch().rank == self.dies:
            if self.defect:
                raise ZeroDivisionError("of the test")
            os.kill(os.getpid(), signal.SIGKILL)
        return graph_from_arrays([[float(number), 0.0]], [], [])
