"""The predictor: every graph through every member, once, in any number of sittings, into one file."""

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from hydragnn.datasets import BatchSettings
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.formats import sink_for
from hydragnn.ensemble.members import outcome
from hydragnn.ensemble.parts import Parts
from hydragnn.ensemble.plan import Chunk, Unit, by_chunk, certificate, chunks_of, default_budget, units_of
from hydragnn.ensemble.predictions import Predictions
from hydragnn.ensemble.sinks import Block, Sink
from hydragnn.ensemble.sources import Source, opened
from hydragnn.errors import Interrupted
from hydragnn.files import read_json

VERSION = 1


def predict_to_file(
    model: Path, source: Path, out: Path, *, resume: bool = False, batch: BatchSettings | None = None
) -> dict[str, Any]:
    """Predict every graph of ``source`` with the ensemble or run in ``model`` into the file ``out``; gives counts and speed.

    ``source`` is a store or any file of structures that ASE reads. The suffix of ``out`` chooses the format: .h5, .npz,
    .bp, .csv or .xyz. Finished work is kept in ``OUT.parts`` until the file is complete, so that ``resume`` continues an
    interrupted prediction and ends with the same bits. ``batch`` is the budget of one batch; a graph that exceeds it is
    reported, not predicted. InputError before any work where something does not fit.
    """
    started = perf_counter()
    ensemble = Ensemble.load(model)
    sink = sink_for(out, ensemble)
    parts = Parts(out.with_name(out.name + ".parts"))
    with parts.entered(resume=resume):
        graphs = opened(source, ensemble, parts.folder)
        needed = ensemble.needed(graphs.store)
        budget = batch or default_budget(graphs.store.sizes())
        parts.claim(_identity(ensemble, graphs, budget))

    chunks = chunks_of(graphs.store.sizes(), graphs.numbers, budget, graphs.failures)
    units = units_of(chunks, member_costs(ensemble, model))
    waiting = [unit for unit in units if not parts.has(unit)]
    try:
        work_through(waiting, chunks, ensemble, graphs, needed, parts)
        counts = merge(chunks, units, ensemble, graphs, needed, parts, sink)
    except KeyboardInterrupt as error:
        raise Interrupted(f"finished work is kept in {parts.folder}; add --resume to continue") from error
    parts.delete()

    seconds = perf_counter() - started
    return {
        "out": str(out),
        **counts,
        "units": len(units),
        "units_resumed": len(units) - len(waiting),
        "balance_on_2_ranks": certificate(units, workers=2)["ratio"],
        "seconds": seconds,
        "graphs_per_second": counts["graphs"] / seconds,
    }


def work_through(
    units: Sequence[Unit],
    chunks: Sequence[Chunk],
    ensemble: Ensemble,
    graphs: Source,
    needed: Sequence[str],
    parts: Parts,
) -> None:
    """Do the units, costliest chunk first; every batch is read once and shared by all members that still need it."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("predicting", total=len(units))
        for group in by_chunk(units):
            batch = graphs.store.read(chunks[group[0].chunk].graphs, needed)
            for unit in group:
                parts.write(unit, outcome(ensemble.members[unit.member], batch))
                progress.advance(task)


def merge(
    chunks: Sequence[Chunk],
    units: Sequence[Unit],
    ensemble: Ensemble,
    graphs: Source,
    needed: Sequence[str],
    parts: Parts,
    sink: Sink,
) -> dict[str, int]:
    """Join the members' words chunk by chunk, in the order of the source, and write them; gives counts of graphs."""
    of_chunk: dict[int, list[Unit]] = {}
    for unit in sorted(units, key=lambda unit: unit.member):
        of_chunk.setdefault(unit.chunk, []).append(unit)
    total = failed = foreign = 0
    with sink:
        for number, chunk in enumerate(chunks):
            batch = graphs.store.read(chunk.graphs, needed) if len(chunk.graphs) else None
            if chunk.reason:
                predictions = ensemble.nothing(0 if batch is None else batch.num_nodes, chunk.reason)
            else:
                assert batch is not None
                predictions = ensemble.combine(batch, [parts.read(unit) for unit in of_chunk[number]])
            sink.write(Block(numbers=chunk.numbers, predictions=predictions, batch=batch))
            total, failed, foreign = (
                total + len(predictions),
                failed + _failed(predictions),
                foreign + _foreign(predictions),
            )
    return {"graphs": total, "failed": failed, "outside_training_domain": foreign}


def member_costs(ensemble: Ensemble, folder: Path) -> list[float]:
    """Expected cost of every member on the same batch: seconds per graph in the evaluation, else its number of parameters."""
    names = [member.name for member in ensemble.members]
    if (folder / "evaluation.json").is_file():
        measured = read_json(folder / "evaluation.json").get("timing", {}).get("seconds_per_graph", {})
        if set(names) <= set(measured):
            return [float(measured[name]) for name in names]
    return [float(sum(p.numel() for p in member.model.model.parameters())) for member in ensemble.members]


def _identity(ensemble: Ensemble, graphs: Source, budget: BatchSettings) -> dict[str, Any]:
    """What a prediction depends on: parts of another one must not be mixed in."""
    return {"version": VERSION, "ensemble": ensemble.digest, "source": graphs.digest, "batch": budget.to_json()}


def _failed(predictions: Predictions) -> int:
    return int(np.count_nonzero(~predictions.ok))


def _foreign(predictions: Predictions) -> int:
    return sum(bool(flag) for flag in predictions.domain)
