"""Cost of a run: seconds, memory, graphs per second."""

import resource
import sys
import time

import torch

from hydragnn.distributed.ranks import Ranks
from hydragnn.record import Cost

WARM_UP = 2
"""First steps of a segment, which load and allocate.

Their time counts only where there are no others.
"""


class Stopwatch:
    """Cost of this segment on top of what earlier segments cost."""

    def __init__(self, earlier: Cost, ranks: Ranks, device: torch.device) -> None:
        """Begin now."""
        self.earlier, self.ranks, self.device = earlier, ranks, device
        self.start, self.cpu_start = time.perf_counter(), time.process_time()
        self.steps = self.graphs = 0
        self.training_seconds, self.step_start = 0.0, time.perf_counter()

    def begin_steps(self) -> None:
        """Steps begin now, after validation and checkpoints."""
        self.step_start = time.perf_counter()

    def count_step(self, graphs: int) -> None:
        """A step ended whose batch had so many graphs, over all ranks."""
        now = time.perf_counter()
        self.steps += 1
        if self.steps == WARM_UP + 1:
            self.graphs, self.training_seconds = 0, 0.0
        self.graphs += graphs
        self.training_seconds += now - self.step_start
        self.step_start = now

    @property
    def graphs_per_second(self) -> float:
        """Training speed of this segment; 0 before the first step.

        Reductions make every rank wait for the slowest, whose time this is. Validation, checkpoints and preparation are not counted, nor are the first steps.
        """
        return self.graphs / self.training_seconds if self.training_seconds else 0.0

    def cost(self) -> Cost:
        """Return the cost of all segments, as if ranks were alike."""
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device) / 2**20
        else:
            unit = 2**20 if sys.platform == "darwin" else 2**10
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
        return Cost(
            seconds=self.earlier.seconds + time.perf_counter() - self.start,
            cpu_seconds=self.earlier.cpu_seconds + (time.process_time() - self.cpu_start) * self.ranks.size,
            peak_memory_mb=max(self.earlier.peak_memory_mb, peak),
            graphs_per_second=self.graphs_per_second or self.earlier.graphs_per_second,
            ranks=self.ranks.size,
            nodes=self.ranks.nodes,
        )
