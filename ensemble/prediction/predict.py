"""The predictor: every graph through every member, once, by any number of ranks, in any number of sittings, into one file."""

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from hydragnn.datasets import BatchSettings
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.plan import Chunk, chunks_of, default_budget, units_of
from hydragnn.ensemble.prediction.crew import Crew, Worker, at_work
from hydragnn.ensemble.prediction.formats import sink_for
from hydragnn.ensemble.prediction.job import Job, begin, branch_for, member_costs, source_of
from hydragnn.ensemble.prediction.joining import workers_crew
from hydragnn.ensemble.prediction.merge import merge
from hydragnn.ensemble.prediction.order import Bundle, learned_rates
from hydragnn.ensemble.prediction.queues import LOOK
from hydragnn.ensemble.prediction.reporting import moving_bar, plan_line, summary, terminable
from hydragnn.ensemble.prediction.schedule import Schedule, scheduled
from hydragnn.ensemble.prediction.together import Late, finish_together, once
from hydragnn.ensemble.prediction.work import Desk
from hydragnn.errors import InputError, Interrupted
from hydragnn.files import write_json


def predict_to_file(
    model: Path,
    source: Path,
    out: Path,
    *,
    resume: bool = False,
    batch: BatchSettings | None = None,
    workers: int = 1,
    held: int | None = None,
    quiet: bool = True,
    branch: str = "",
) -> dict[str, Any]:
    """Predict every graph of ``source`` with the ensemble or run in ``model`` into the file ``out``; gives counts and speed.

    ``source`` is a store or any file of structures that ASE reads. The suffix of ``out`` chooses the format: .h5, .npz,
    .bp, .csv or .xyz. Finished work is kept in ``OUT.parts`` until the file is complete, so that ``resume`` continues an
    interrupted prediction and ends with the same bits. ``batch`` is the budget of one batch; a graph that exceeds it is
    reported, not predicted. A run with several branches predicts with the ``branch`` that is named, or with the one that was
    trained on the store ``source``. InputError before any work where something does not fit.

    Started as ranks by mpirun, srun or torchrun, all of them predict; else so many local ``workers``. A rank keeps at most
    ``held`` members in memory (by default as many as fit). The rank that writes the file gives the counts, the others
    nothing. The plan and what became of it lie beside the file as ``OUT.plan.json``.
    """
    own = branch_for(model, source, branch)
    job = Job(model=model, source=source, out=out, resume=resume, batch=batch, held=held, branch=own)
    with terminable(), workers_crew(workers, _local_worker, job) as crew:
        try:
            return predict_with(crew, job, quiet=quiet)
        except KeyboardInterrupt as error:
            raise Interrupted(f"finished work is kept in {job.parts.folder}; add --resume to continue") from error


def predict_with(crew: Crew, job: Job, *, quiet: bool = True) -> dict[str, Any]:
    """This rank's part of the prediction."""
    started = time.perf_counter()
    begun = crew.begin(partial(begin, job, crew.size), job.parts.folder)
    ensemble = Ensemble.load(job.model, held=begun["held"], branch=job.branch)
    graphs = source_of(job, ensemble, crew, fresh=begun["fresh"])
    sizes = graphs.store.sizes()
    chunks = chunks_of(sizes, graphs.numbers, job.batch.budget if job.batch else default_budget(sizes), graphs.failures)
    schedule = _schedule(job, ensemble, chunks, begun, crew.size)
    desk = Desk(crew, ensemble, graphs, ensemble.needed(graphs.store), chunks, job.parts)
    if crew.rank == 0:
        write_json(job.parts.folder / "plan.json", schedule.certificate())
        if not quiet:
            print(plan_line(schedule.certificate()), file=sys.stderr, flush=True)
    if begun["held"] >= len(ensemble.members):
        list(ensemble.members)  # loaded before the clock starts

    ready = time.perf_counter()
    counts: dict[str, int] = {}

    def write() -> None:
        # now, because all leave once the file is there
        lost = sum(crew.gone(rank) for rank in range(crew.size) if rank != crew.rank)
        counts.update(merge(desk, schedule.units, sink_for(job.out, ensemble)), ranks_lost=lost)

    wrote = False
    try:
        work_through(desk, schedule, job, show=crew.rank == 0 and not quiet)
        worked = time.perf_counter()
        wrote = once(crew, "merge", job.out.exists, write)
    except (InputError, FileNotFoundError):
        if not job.out.exists():
            raise  # else the others did without this rank, and the folder of parts is gone
    if not wrote:
        return {}
    crew.speaks = True
    result = summary(job, schedule, counts, crew.notes("done"))
    job.parts.delete()
    seconds = time.perf_counter() - started
    spent = {"preparing": ready - started, "predicting": worked - ready, "writing": seconds - (worked - started)}
    return {**result, "seconds": seconds, "seconds_of": spent, "graphs_per_second": counts["graphs"] / seconds}


def work_through(desk: Desk, schedule: Schedule, job: Job, *, show: bool) -> None:
    """Take work until there is none; then do what others left undone."""
    crew = desk.crew
    desk.start()
    with moving_bar(len(schedule.units), show) as bar:
        take_all(desk, LOOK, schedule.there, bar)
        late = take_stages(desk, schedule, bar)
        crew.note("done", desk.account())

    def missing() -> list[Late]:
        if job.out.exists():
            return []
        there = job.parts.names()
        return [one for one in late if job.parts.path(schedule.units[one.number]).name not in there]

    again = len(desk.done)
    if crew.size > 1:
        finish_together(crew, "unit", missing, lambda number: desk.predict([schedule.units[number]]))
    if len(desk.done) > again:
        crew.note("done", desk.account())


def take_stages(desk: Desk, schedule: Schedule, bar: Callable[[int], None]) -> list[Late]:
    """Take all work, this rank's lane first, by expected costs and then by those measured so far; gives what may be late."""
    taken: dict[int, Sequence[Bundle]] = {}
    rates: Sequence[float] = schedule.costs

    def measured() -> list[float]:
        return learned_rates(schedule.costs, desk.crew.notes("measured"), time.time())

    for lane in schedule.lanes_from(desk.crew.rank):
        stage = lane.first()
        for number in range(lane.stages):
            if number:
                stage = lane.following(number, stage, desk.chunks, rates)
            taken[lane.queue(number)] = stage.bundles
            take_all(desk, lane.queue(number), stage.bundles, bar)
            rates = desk.crew.publish(f"rates-{lane.queue(number)}", measured)
    return schedule.late(taken, desk.chunks, rates)


def take_all(desk: Desk, number: int, bundles: Sequence[Bundle], bar: Callable[[int], None]) -> None:
    """Take from a queue until it is dry."""
    queue = desk.crew.queue(number, [bundle.cost for bundle in bundles])
    before = list(accumulate((len(bundle.units) for bundle in bundles), initial=0))
    desk.work(queue, bundles, lambda position: bar(before[position]))
    bar(-before[-1])


def _schedule(job: Job, ensemble: Ensemble, chunks: Sequence[Chunk], begun: dict[str, Any], ranks: int) -> Schedule:
    costs, present = member_costs(ensemble, job.model), set(begun["present"])
    units = units_of(chunks, costs)
    there = [unit for unit in units if job.parts.path(unit).name in present]
    return scheduled(units, there, costs, held=begun["held"], ranks=ranks)


def _local_worker(rank: int, size: int, threads: int, made: dict[str, Any], folder: Path, job: Job) -> None:
    """A local worker's whole life."""
    torch.set_num_threads(threads)
    with contextlib.suppress(KeyboardInterrupt), at_work(Worker(rank, size, made)) as crew:
        predict_with(crew, job)
