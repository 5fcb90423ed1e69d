"""Time and memory of stages, from the costs of single layers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hydragnn.datasets import Sizes
from hydragnn.datasets.footprint import Footprint
from hydragnn.distributed.pipeline_schedule import stage_schedule
from hydragnn.runs.costs import LayerCosts, StepCosts, Vectors


@dataclass(frozen=True, kw_only=True, slots=True)
class StageCosts:
    """Layers of a model as stages hold them.

    Every stage makes the graph of messages anew, so single layers take more together than the whole model. What they take more is
    shared evenly.
    """

    layers: Sequence[LayerCosts]
    whole: StepCosts
    """Of the model on one device."""
    stages: int
    chunks: int

    def rows(self, stage: int, chunk: int) -> slice:
        """Return the layers of a chunk, as ``keep_stage`` divides them."""
        pieces, count = self.stages * self.chunks, len(self.layers)
        number = chunk * self.stages + stage
        return slice(count * number // pieces, count * (number + 1) // pieces)

    def layers_of(self, stage: int) -> list[LayerCosts]:
        """Return the layers of all chunks of a stage."""
        return [layer for chunk in range(self.chunks) for layer in self.layers[self.rows(stage, chunk)]]

    def joined(self, rows: slice, every: Sequence[float], whole: float) -> float:
        """Return what some layers take in one chunk, where all take ``whole``."""
        repeated = max(0.0, sum(every) - whole) / (len(every) - 1)
        return sum(every[rows]) - (len(every[rows]) - 1) * repeated

    def passes(self, stage: int, chunk: int, cost: float) -> tuple[float, float]:
        """Return seconds of the forward and backward pass of a part."""
        rows = self.rows(stage, chunk)
        of_layers = [layer.steps.part.at(cost) for layer in self.layers]
        total = self.joined(rows, of_layers, self.whole.part.at(cost))
        behind = [each * layer.steps.backward for each, layer in zip(of_layers, self.layers)]
        backward = sum(behind[rows]) / sum(of_layers[rows])
        return (1.0 - backward) * total, backward * total

    def vectors(self, stage: int) -> Vectors:
        """Return the weights and states of a stage."""
        own = [layer.steps.vectors for layer in self.layers_of(stage)]
        return Vectors(
            weights=sum(one.weights for one in own),
            states=sum(one.states for one in own),
            moments=sum(one.moments for one in own),
        )

    def update(self, stage: int) -> float:
        """Return the seconds in which a stage's weights are moved."""
        return sum(layer.steps.update for layer in self.layers_of(stage))

    def activations(self, stage: int, parts: int, sizes: Sizes, graphs: NDArray[np.int64]) -> float:
        """Return the most bytes of begun parts, without their batches."""

        def beside(footprint: Footprint) -> float:
            return footprint.bytes(sizes, graphs) - footprint.held(sizes, graphs)

        peaks = [beside(layer.steps.footprint) for layer in self.layers]
        waits = [beside(layer.waiting) for layer in self.layers]
        whole = beside(self.whole.footprint)
        chunks = [self.rows(stage, chunk) for chunk in range(self.chunks)]
        peak = [self.joined(rows, peaks, whole) for rows in chunks]
        wait = [self.joined(rows, waits, whole) for rows in chunks]
        alive = most = 0.0
        for back, chunk, _ in stage_schedule(stage, self.stages, self.chunks, parts):
            most = max(most, alive + (peak[chunk] - wait[chunk] if back else wait[chunk]))
            alive += -wait[chunk] if back else wait[chunk]
        return most

    def makespan(self, cost: float, parts: int, message: float = 0.0) -> float:
        """Return the time of all parts; each message takes so many seconds."""
        times = {
            (stage, chunk): self.passes(stage, chunk, cost)
            for stage in range(self.stages)
            for chunk in range(self.chunks)
        }
        return makespan(self.stages, self.chunks, parts, times, message)

    def busy(self, cost: float, parts: int) -> float:
        """Return the time in which the slowest stage computes."""
        chunks = range(self.chunks)
        return parts * max(
            sum(sum(self.passes(stage, chunk, cost)) for chunk in chunks) for stage in range(self.stages)
        )


def makespan(
    stages: int, chunks: int, parts: int, times: dict[tuple[int, int], tuple[float, float]], message: float
) -> float:
    """Return the time of a schedule without pauses.

    ``times`` are the seconds of both passes by stage and chunk. Bubbles are (stages - 1) / (parts + stages - 1) of 1F1B:

    >>> even = {(stage, 0): (1.0, 2.0) for stage in range(4)}
    >>> makespan(4, 1, 8, even, message=0.0)
    33.0
    """
    orders = [stage_schedule(stage, stages, chunks, parts) for stage in range(stages)]
    ends: dict[tuple[bool, int, int], float] = {}
    clocks, positions = [0.0] * stages, [0] * stages
    last = stages * chunks - 1
    while any(position < len(order) for position, order in zip(positions, orders)):
        for stage, order in enumerate(orders):
            while positions[stage] < len(order):
                back, chunk, number = order[positions[stage]]
                piece = chunk * stages + stage
                source = (back, piece + 1 if back else piece - 1, number)
                arrives = piece != last if back else piece != 0
                if arrives and source not in ends:
                    break
                ready = ends[source] + message if arrives else 0.0
                clocks[stage] = max(clocks[stage], ready) + times[stage, chunk][back]
                ends[back, piece, number] = clocks[stage]
                positions[stage] += 1
    return max(clocks)
