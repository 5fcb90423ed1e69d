"""The members' words become one file."""

from collections.abc import Sequence

import numpy as np

from hydragnn.ensemble.plan import Chunk, Unit
from hydragnn.ensemble.prediction.sinks import Block, Sink
from hydragnn.ensemble.prediction.work import Worker
from hydragnn.ensemble.predictions import Predictions


def merge(worker: Worker, units: Sequence[Unit], sink: Sink) -> dict[str, int]:
    """Join the members' words chunk by chunk, in the order of the source, and write them; gives counts of graphs."""
    of_chunk: dict[int, list[Unit]] = {}
    for unit in sorted(units, key=lambda unit: unit.member):
        of_chunk.setdefault(unit.chunk, []).append(unit)
    total = failed = foreign = 0
    with sink:
        for number, chunk in enumerate(worker.chunks):
            worker.check()
            block = _block(worker, chunk, of_chunk.get(number, []))
            sink.write(block)
            total += len(block.predictions)
            failed += int(np.count_nonzero(~block.predictions.ok))
            foreign += sum(bool(flag) for flag in block.predictions.domain)
    return {"graphs": total, "failed": failed, "outside_training_domain": foreign}


def _block(worker: Worker, chunk: Chunk, units: Sequence[Unit]) -> Block:
    outcomes = [worker.outcome(unit) for unit in units]
    # graphs that are not valid have their reason in every outcome, so that without reasons there are none
    sure = bool(outcomes) and not any(any(outcome.reasons) for outcome in outcomes)
    read = worker.read(chunk, sure=sure) if len(chunk.graphs) else None
    predictions: Predictions
    if chunk.reason:
        nodes, edges = (0, 0) if read is None else (read.whole.num_nodes, read.whole.num_edges)
        predictions = worker.ensemble.nothing(nodes, edges, chunk.reason)
    else:
        assert read is not None
        predictions = worker.ensemble.combine(read, outcomes)
    return Block(numbers=chunk.numbers, predictions=predictions, graphs=read)
