"""Throughput is graphs over the time of their steps, whatever lies between."""

import time
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hydragnn.distributed.ranks import Ranks
from hydragnn.record import Cost
from hydragnn.runs import callback

STEPS = st.lists(st.tuples(st.integers(1, 50), st.floats(1e-3, 10.0), st.floats(0.0, 100.0)), min_size=1, max_size=12)
"""Graphs and seconds of steps, and seconds of something else before each."""


@given(steps=STEPS, preparation=st.floats(0.0, 1e3), ranks=st.integers(1, 8))
def test_throughput_counts_every_graph_once_and_steps_after_the_first_two_alone(
    steps: list[tuple[int, float, float]], preparation: float, ranks: int
) -> None:
    now = 0.0
    clock = SimpleNamespace(perf_counter=lambda: now, process_time=time.process_time)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(callback, "time", clock)
        watch = callback.Stopwatch(Cost(), Ranks(size=ranks), torch.device("cpu"))
        now += preparation
        for graphs, seconds, pause in steps:
            now += pause
            watch.begin_steps()
            now += seconds
            watch.count_step(graphs)
        counted = steps[2:] or steps
        expected = sum(graphs for graphs, _, _ in counted) / sum(seconds for _, seconds, _ in counted)
        assert watch.cost().graphs_per_second == pytest.approx(expected, rel=1e-6)  # sums of floats around a large time
