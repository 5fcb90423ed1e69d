"""The predictor: every graph through every member, once, by any number of ranks, in any number of sittings, into one file."""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hydragnn.base.allocator import keep_memory
from hydragnn.base.errors import InputError, Interrupted
from hydragnn.base.files import write_json
from hydragnn.base.imports import allow_code, allowed_code
from hydragnn.datasets import BatchSettings
from hydragnn.datasets.build import one_thread
from hydragnn.distributed import threads_are_chosen
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.plan import Chunks, Unit, chunks_of, default_budget
from hydragnn.ensemble.prediction.filling import Filler
from hydragnn.ensemble.prediction.formats import check_absent, sink_for
from hydragnn.ensemble.prediction.group import Group, at_work
from hydragnn.ensemble.prediction.hdf5 import Hdf5Sink
from hydragnn.ensemble.prediction.job import Inputs, Job, branch_for, check_same, member_costs, room
from hydragnn.ensemble.prediction.joining import ChildGroup, worker_group
from hydragnn.ensemble.prediction.looking import look_together
from hydragnn.ensemble.prediction.queues import FOUND, LOOK, Bundles, learned_rates
from hydragnn.ensemble.prediction.records import Parts
from hydragnn.ensemble.prediction.reporting import (
    PredictionResult,
    check_plan,
    moving_bar,
    plan_line,
    prediction_result,
)
from hydragnn.ensemble.prediction.rules import rule_for
from hydragnn.ensemble.prediction.schedule import Late, Schedule, finish_together, make_schedule, once
from hydragnn.ensemble.prediction.sinks import AppendingSink, Sink
from hydragnn.ensemble.prediction.sources import is_store
from hydragnn.ensemble.prediction.work import Merger, Worker
from hydragnn.runs.signals import raise_signals

VERSION = 9
"""Of the folder of parts: another one is refused."""

STAGES_OF_TIME = ("preparing", "predicting", "combining", "writing")


def predict_to_file(
    model: Path | str,
    source: Path | str,
    out: Path | str,
    *,
    resume: bool = False,
    batch: BatchSettings | None = None,
    workers: int = 1,
    held: int | None = None,
    quiet: bool = True,
    branch: str = "",
) -> PredictionResult | None:
    """Predict every graph of ``source`` with the ensemble or run in ``model`` into the file ``out``.

    ``source`` is a store, a file that becomes graphs as those of training did, any file of structures that ASE reads, or a
    BUILD.toml. The suffix of ``out`` chooses the format: .h5, .npz, .bp, .csv or .xyz. Finished work is kept in ``OUT.parts`` until the file is complete, so that ``resume`` continues an
    interrupted prediction and ends with the same bits. ``batch`` is the budget of one batch; a graph that exceeds it is
    reported, not predicted. A run with several branches predicts with the ``branch`` that is named, or with the one that was
    trained on the store ``source``. InputError before any work where something does not fit.

    Started as ranks by mpirun, srun or torchrun, all of them predict; else so many local ``workers``. Each computes with
    one thread unless OMP_NUM_THREADS says otherwise, which local workers share. A rank keeps at most
    ``held`` members in memory (by default as many as fit). The rank that writes the file gives the result, the others
    None. The plan and what became of it lie beside the file as ``OUT.plan.json``.
    """
    model = Path(model)
    source = Path(source)
    out = Path(out)
    own = branch_for(model, source, branch)
    job = Job(model=model, source=source, out=out, resume=resume, batch=batch, held=held, branch=own)
    with (
        contextlib.nullcontext() if threads_are_chosen() else one_thread(),
        interruptible(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as check,
        worker_group(workers, _predict_as_child, job, allowed_code()) as group,
    ):
        try:
            return predict_with(group, job, check, quiet=quiet)
        except KeyboardInterrupt as error:
            raise Interrupted(f"finished work is kept in {job.parts.folder}; add --resume to continue") from error


def interruptible(*kinds: signal.Signals) -> contextlib.AbstractContextManager[Callable[[], None]]:
    """The signals end the block as Ctrl-C does; gives the check of ``raise_signals``."""
    return raise_signals(kinds, lambda _: KeyboardInterrupt())


def predict_with(group: Group, job: Job, check: Callable[[], None], *, quiet: bool = True) -> PredictionResult | None:
    """This rank's part of the prediction; its result where this rank wrote the file.

    ``check`` is called before every unit of work and raises where it is to end.
    """
    started, inputs = time.perf_counter(), Inputs(job)
    if group.rank:
        inputs.foresee(group.size)
    with contextlib.ExitStack() as lock:
        opening = group.begin(partial(begin, job, inputs, group.size, lock), job.parts.folder)
        return _predict_opened(group, job, inputs, check, opening, started, quiet=quiet)


def begin(job: Job, inputs: Inputs, ranks: int, lock: ExitStack) -> dict[str, Any]:
    """What rank 0 checks and decides for all: how far finished work reaches, and how many members a rank holds; InputError before any work.

    The folder of parts is this prediction's alone until ``lock`` is closed.
    """
    ensemble = inputs.ensemble(1)
    check_absent(sink_for(job.out, ensemble))
    held = job.held or room(job.model, ensemble.manifest.members, ranks)
    inputs.ensemble(held)
    parts = job.parts
    check_plan(job.plan)
    with parts.entered(lock, resume=job.resume) as fresh:
        if is_store(job.source):
            store = inputs.stored().store
            ensemble.needed(store)
            store.sizes()  # opens every part, so that a store that cannot be read is refused before any work
            source = store.fingerprint
        else:
            source = rule_for(job.source, ensemble).digest
        budget = job.batch.to_json() if job.batch else None
        parts.claim({"format of parts": VERSION, "ensemble": ensemble.digest, "source": source, "batch budget": budget})
    parts.forget_ranks()
    parts.records.look(all_files=True)
    digests = {"ensemble": ensemble.digest, "source": source}
    return {"fresh": fresh, "finished": parts.records.counts(), "held": held, **digests}


def _predict_opened(
    group: Group,
    job: Job,
    inputs: Inputs,
    check: Callable[[], None],
    opening: dict[str, Any],
    started: float,
    *,
    quiet: bool,
) -> PredictionResult | None:
    """What follows once rank 0 has opened the prediction."""
    counts: dict[str, int] = {}

    def write() -> None:
        # now, because all leave once the file is there
        lost = sum(group.gone(rank) for rank in range(group.size) if rank != group.rank)
        counts.update(finish(), ranks_lost=lost)

    wrote = False
    try:
        ensemble = inputs.ensemble(opening["held"])
        check_same(job.model, opening["ensemble"], ensemble.digest)
        graphs = inputs.graphs(group, check, opening["source"], fresh=opening["fresh"])
        sizes = graphs.store.sizes()
        limits = job.batch.limits if job.batch else default_budget(sizes)
        reasons = {number: unbuilt.reason for number, unbuilt in graphs.failures.items()}
        chunks = chunks_of(sizes, graphs.numbers, limits, reasons)
        sink, parts = sink_for(job.out, ensemble), job.parts
        if opening["finished"]:
            look_together(group, parts.records, FOUND)()
        schedule = _schedule(job, ensemble, parts, chunks, opening, group.size)
        worker = Worker(group, ensemble, graphs, ensemble.needed(graphs.store), chunks, parts, sink, check)
        if group.rank == 0:
            write_json(parts.folder / "plan.json", schedule.certificate)
            if not quiet:
                print(plan_line(schedule.certificate), file=sys.stderr, flush=True)
                doubt = "" if is_store(job.source) or job.source.suffix == ".toml" else ensemble.doubt_about_structures
                for note in filter(None, (ensemble.caveat, doubt)):
                    print(f"note: {note}", file=sys.stderr, flush=True)
        if opening["held"] >= len(ensemble.members):
            list(ensemble.members)  # loaded before the clock starts
        ready = time.perf_counter()
        work_through(worker, schedule, job, show=group.rank == 0 and not quiet)
        worked = time.perf_counter()
        merger = Merger(worker)
        if group.size > 1 or isinstance(sink, Hdf5Sink):
            merger.prepare()
        prepared = time.perf_counter()
        finish = _filled(worker, merger, sink)
        wrote = once(group, "merge", job.out.exists, write, check)
    except (InputError, FileNotFoundError):
        if not job.out.exists():
            raise  # else the others did without this rank, and the folder of parts is gone
    if not wrote:
        return None
    group.speaks = True
    moments = (started, ready, worked, prepared, time.perf_counter())
    spent = {name: after - before for name, before, after in zip(STAGES_OF_TIME, moments, moments[1:])}
    entries = parts.records.entries(besides=opening["finished"])
    result = prediction_result(job, schedule, counts, group.notes("done"), entries, spent)
    parts.delete()
    return result


def _filled(worker: Worker, merger: Merger, sink: Sink) -> Callable[[], dict[str, int]]:
    """What one rank does at last, once all ranks have filled the file where its format allows that."""
    if isinstance(sink, Hdf5Sink):
        filler = Filler(worker, merger, sink)
        filler.fill()
        return filler.finish
    assert isinstance(sink, AppendingSink)
    return partial(merger.write, sink)


def work_through(worker: Worker, schedule: Schedule, job: Job, *, show: bool) -> None:
    """Take work until there is none; then do what others left undone."""
    group, records, members = worker.group, worker.parts.records, len(schedule.costs)
    worker.start()
    with moving_bar(schedule.units, show) as bar:
        take_all(worker, LOOK, schedule.there, bar)
        taken, rates = take_stages(worker, schedule, bar)
        records.end()
        group.note("done", worker.account())

    def missing() -> Iterable[Late]:
        if job.out.exists():
            return []
        records.look()
        return schedule.late(taken, rates, records.marks(len(worker.chunks), members))

    def again(number: int) -> None:
        worker.predict([Unit(chunk=number // members, member=number % members)])

    before = worker.done
    if group.size > 1:
        finish_together(group, "unit", missing, again, worker.check)
    if worker.done > before:
        group.note("done", worker.account())


def take_stages(
    worker: Worker, schedule: Schedule, bar: Callable[[int], None]
) -> tuple[dict[int, Bundles], Sequence[float]]:
    """Take all work, this rank's lane first, by expected costs and then by those measured so far; gives all queues and what was measured."""
    taken: dict[int, Bundles] = {}
    rates: Sequence[float] = schedule.costs

    def measured() -> list[float]:
        return learned_rates(schedule.costs, worker.group.notes("measured"), time.time())

    for lane in schedule.lanes_from(worker.group.rank):
        stage = lane.first(schedule.loads, rates)
        for number in range(lane.stages):
            if number:
                stage = lane.following(number, stage, schedule.loads, rates)
            taken[lane.queue(number)] = stage.bundles
            take_all(worker, lane.queue(number), stage.bundles, bar)
            rates = worker.group.publish(f"rates-{lane.queue(number)}", measured)
    return taken, rates


def take_all(worker: Worker, number: int, bundles: Bundles, bar: Callable[[int], None]) -> None:
    """Take from a queue until it is dry."""
    queue = worker.group.queue(number, bundles.costs)
    worker.work(queue, bundles, lambda position: bar(int(bundles.stops[position - 1]) if position else 0))
    bar(-len(bundles.units))


def _schedule(
    job: Job, ensemble: Ensemble, parts: Parts, chunks: Chunks, opening: dict[str, Any], ranks: int
) -> Schedule:
    costs = member_costs(ensemble, job.model)
    every = np.ones((len(chunks), len(costs)), dtype=np.bool_)
    every[list(chunks.reasons)] = False
    there = parts.records.marks(*every.shape, only=opening["finished"])
    return make_schedule(chunks.loads, every, there, costs, held=opening["held"], ranks=ranks)


def _predict_as_child(
    rank: int, size: int, threads: int, receiver: Connection, folder: Path, job: Job, allowed: Sequence[str]
) -> None:
    """A local worker's whole life."""
    allow_code(allowed)
    keep_memory()
    torch.set_num_threads(threads)
    ended = contextlib.suppress(KeyboardInterrupt, EOFError)  # of a parent that ends before it has opened anything
    try:
        with (
            ended,
            interruptible(signal.SIGINT, signal.SIGHUP) as check,
            at_work(ChildGroup(rank, size, receiver)) as group,
        ):
            predict_with(group, job, check)
    except InputError as error:  # the others do its work, or meet the same
        print(f"worker {rank} ended: {error}", file=sys.stderr, flush=True)
