"""Processor time, so that other programs on the machine disturb figures less, and ratios of work done in turns."""

import time
from collections.abc import Callable
from statistics import median


def seconds(do: Callable[[], object], repeats: int = 1) -> float:
    """Processor seconds of a call, the median of some."""
    taken = []
    for _ in range(repeats):
        begin = time.process_time()
        do()
        taken.append(time.process_time() - begin)
    return median(taken)


def ratio_in_turns(one: Callable[[], object], other: Callable[[], object], turns: int) -> float:
    """How many times the processor time of ``other`` the work ``one`` takes: the median over turns, after one that warms up."""
    pairs = [(seconds(one), seconds(other)) for _ in range(turns + 1)]
    return median(slow / max(quick, 1e-9) for slow, quick in pairs[1:])
