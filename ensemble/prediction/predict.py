"""Prediction into a file, by any number of ranks."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from hydragnn.base.environment import environment
from hydragnn.base.errors import InputError, Interrupted, SaidByFirst, print_note
from hydragnn.base.files import write_json
from hydragnn.base.places import is_store, model_folder, source_paths
from hydragnn.datasets import BatchSettings
from hydragnn.datasets.build import one_thread
from hydragnn.distributed import this_launch
from hydragnn.distributed.finishing import Late, finish_together, once
from hydragnn.distributed.graph_ranks import DONE, FAILED, GraphGroup, join_graph_group
from hydragnn.distributed.group import Group, join_leaders, worker_group
from hydragnn.ensemble.members.plan import chunks_of, default_budget, device_limits
from hydragnn.ensemble.prediction import reporting
from hydragnn.ensemble.prediction.job import Inputs, PredictionJob, branch_for, check_same
from hydragnn.ensemble.prediction.reporting import PredictionResult
from hydragnn.ensemble.prediction.rules import digest_of, rules_for
from hydragnn.ensemble.prediction.schedule import Schedule, make_schedule
from hydragnn.ensemble.prediction.work import Joiner, PredictionWorker
from hydragnn.runs.signals import raise_signals

VERSION = 15
"""Version of the folder of parts: another one is refused."""


def predict_to_file(
    model: Path | str,
    source: Path | str | Sequence[Path | str],
    out: Path | str,
    *,
    resume: bool = False,
    batch: BatchSettings | None = None,
    workers: int = 1,
    keep_parts: bool = False,
    quiet: bool = True,
    branch: str = "",
    graph_ranks: int = 1,
) -> PredictionResult | None:
    """Predict every graph of ``source`` with ``model`` into the file ``out``.

    ``source`` is a store, a file that becomes graphs as those of training did, any file of structures that ASE reads, a
    BUILD.toml, or several of them in the order of their graphs. The suffix of ``out`` chooses the format: .h5, .csv, .parquet or .xyz. Finished work is kept in ``OUT.parts`` until the file is complete, so that ``resume`` continues an
    interrupted prediction and ends with the same bits. ``batch`` is the budget of one batch; a graph that exceeds it is
    reported, not predicted. A run with several branches predicts with the ``branch`` that is named, or with the one that was
    trained on the store ``source``. InputError before any work where something does not fit.

    Started as ranks by mpirun, srun or torchrun, all of them predict; else so many local ``workers``. Each computes with
    one thread unless OMP_NUM_THREADS says otherwise, which local workers share. With ``graph_ranks`` so many ranks of the launcher share every batch, for graphs
    that exceed one device. The rank that writes the file gives the result, the others
    None. The plan and what became of it lie beside the file as ``OUT.plan.json``.
    """
    model, out = Path(model), Path(out)
    with contextlib.suppress(InputError):  # of which rank 0 tells
        model = model_folder(model)
    sources = source_paths(source)
    own = branch_for(model, sources, branch)
    job = PredictionJob(
        model=model,
        sources=tuple(sources),
        out=out,
        resume=resume,
        batch=batch,
        branch=own,
        keep_parts=keep_parts,
        graph_ranks=check_graph_ranks(graph_ranks, workers),
    )
    threads = contextlib.nullcontext() if environment().get("OMP_NUM_THREADS") else one_thread()
    with threads, interruptible(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as check:
        try:
            if graph_ranks > 1:
                return predict_in_groups(job, check, quiet=quiet)
            with worker_group(workers, _predict_as_child, job) as group:
                return predict_with(group, job, check, quiet=quiet)
        except KeyboardInterrupt as error:
            raise Interrupted(f"finished work is kept in {job.parts.folder}; add --resume to continue") from error


def predict_in_groups(job: PredictionJob, check: Callable[[], None], *, quiet: bool) -> PredictionResult | None:
    """Predict as one of the ranks that share every batch."""
    with join_graph_group(job.graph_ranks, this_launch(), job.out.parent) as sharing:
        if not sharing.is_first:
            inputs = Inputs(job, sharing)
            sharing.follow(lambda number: inputs.ensemble.members[number].model.executor.model)
            return None
        ending = FAILED
        try:
            with join_leaders(sharing.store, this_launch(), job.graph_ranks) as group:
                result = predict_with(group, job, check, sharing, quiet=quiet)
            ending = DONE
        finally:
            sharing.end(ending)
        return result


def check_graph_ranks(graph_ranks: int, workers: int) -> int:
    """Return the ranks of a graph; InputError where they do not fit."""
    launch = this_launch()
    if graph_ranks < 1:
        raise InputError(f"--graph-ranks {graph_ranks}: take a whole number from 1")
    if graph_ranks > 1 and workers > 1:
        raise InputError(
            "--graph-ranks takes the ranks of mpirun, srun or torchrun, not --workers; leave one of them out"
        )
    if launch.size % graph_ranks:
        problem = f"--graph-ranks {graph_ranks} does not divide the {launch.size} ranks of this command"
        raise InputError(f"{problem}; start a multiple of {graph_ranks} by mpirun, srun or torchrun")
    return graph_ranks


def interruptible(*kinds: signal.Signals) -> contextlib.AbstractContextManager[Callable[[], None]]:
    """Let signals end the block as Ctrl-C does."""
    return raise_signals(kinds, lambda _: KeyboardInterrupt())


def predict_with(
    group: Group,
    job: PredictionJob,
    check: Callable[[], None],
    sharing: GraphGroup | None = None,
    *,
    quiet: bool = True,
) -> PredictionResult | None:
    """Predict as one rank; return the result if it wrote the file.

    ``check`` is called before every unit of work and raises where it is to end.
    """
    started = time.perf_counter()
    inputs = Inputs(job, sharing, 1 if group.rank else group.size * job.graph_ranks)
    with contextlib.ExitStack() as lock:
        opening = group.begin(lambda: begin(inputs, lock), job.parts.folder)
        return _predict_opened(group, inputs, check, opening, started, quiet=quiet)


def begin(inputs: Inputs, lock: ExitStack) -> dict[str, Any]:
    """Check everything on rank 0; return its decisions for all ranks.

    The folder of parts is this prediction's alone until ``lock`` is closed.
    """
    job, ensemble = inputs.job, inputs.ensemble
    for final in job.sink(ensemble).temporaries.values():
        if os.path.lexists(final):  # a broken link is somebody's, too
            raise InputError(f"{final} exists already; choose another --out or delete it")
    parts = job.parts
    reporting.check_plan(job.plan)
    with parts.entered(lock, resume=job.resume) as fresh:
        if is_store(job.sources[0]):
            store = inputs.store
            ensemble.needed(store)
            store.sizes()  # opens every part, so that a store that cannot be read is refused before any work
            source = store.fingerprint
        else:
            source = digest_of(rules_for(job.sources, ensemble))
        budget = job.batch.to_json() if job.batch else None
        identity = {"format of parts": VERSION, "ensemble": ensemble.digest, "source": source, "batch budget": budget}
        identity["number of graph ranks"] = job.graph_ranks
        # a resumed prediction has the batches that it began with, on whatever device
        limits = parts.identity.get("device limits") or [job.graph_ranks * limit for limit in device_limits()]
        parts.claim({**identity, "device limits": limits})
    digests = {"ensemble": ensemble.digest, "source": source}
    return {"fresh": fresh, "finished": parts.clean(), "limits": limits, **digests}


def _predict_opened(
    group: Group, inputs: Inputs, check: Callable[[], None], opening: dict[str, Any], started: float, *, quiet: bool
) -> PredictionResult | None:
    """Predict with all ranks, once rank 0 has opened the prediction."""
    job, counts = inputs.job, dict[str, int]()

    def write() -> None:
        # now, because all leave once the file is there
        lost = sum(group.gone(rank) for rank in range(group.size) if rank != group.rank)
        counts.update(joiner.finish(), ranks_lost=lost)

    wrote = False
    try:
        ensemble = inputs.ensemble
        check_same(job.model, opening["ensemble"], ensemble.digest)
        graphs = inputs.graphs(group, check, opening["source"], fresh=opening["fresh"])
        sizes = graphs.store.sizes()
        limits = job.batch.limits if job.batch else default_budget(sizes, opening["limits"])
        reasons = {number: unbuilt.reason for number, unbuilt in graphs.failures.items()}
        chunks = chunks_of(sizes, graphs.numbers, limits, reasons)
        parts = job.parts
        sink = job.sink(ensemble)
        parts.look(opening["finished"])  # the same on all ranks
        every = np.ones(len(chunks), dtype=np.bool_)
        every[list(chunks.reasons)] = False
        schedule = make_schedule(chunks.loads, every, parts.finished(len(chunks)), ranks=group.size)
        worker = PredictionWorker(group, ensemble, graphs, chunks, parts, sink, check)
        if group.rank == 0:
            write_json(parts.folder / "plan.json", schedule.plan)
            if not quiet:
                print(reporting.plan_line(schedule.plan), file=sys.stderr, flush=True)
                is_known = is_store(job.sources[0]) or job.sources[0].suffix == ".toml"
                for note in filter(None, (ensemble.caveat, "" if is_known else ensemble.doubt_about_structures)):
                    print_note(note)
        ready = time.perf_counter()
        joiner = Joiner(worker)
        try:
            work_through(worker, schedule, job, None if group.rank else joiner, show=group.rank == 0 and not quiet)
            worked = time.perf_counter()
            wrote = once(group, "merge", job.out.exists, write, check)
        finally:
            joiner.close()
    except (InputError, FileNotFoundError, dist.DistError) as error:
        if not job.out.exists():
            if isinstance(error, dist.DistError):
                raise InputError("rank 0 is gone; what it finished is kept: add --resume to continue") from error
            raise  # else the others did without this rank, and the folder of parts is gone
    if not wrote:
        return None
    group.wrote = True
    spent = {"preparing": ready - started, "predicting": worked - ready, "writing": time.perf_counter() - worked}
    result = reporting.prediction_result(job, schedule, counts, group.notes("done"), spent)
    parts.delete(joiner.names if job.keep_parts else ())
    return result if ensemble.knows_domain else replace(result, outside_training_domain=None)


def work_through(
    worker: PredictionWorker, schedule: Schedule, job: PredictionJob, joiner: Joiner | None, *, show: bool
) -> None:
    """Take work until there is none, then do what others left undone."""
    group, parts, tasks = worker.group, worker.parts, schedule.tasks

    def check() -> None:
        worker.check()
        if joiner is not None:
            joiner.advance()

    def missing() -> Iterator[Late]:
        if job.out.exists():
            return
        parts.look()
        finished = parts.finished(len(schedule.every))
        for number, task in enumerate(tasks):
            if not finished[task.first : task.stop].all():
                yield Late(number=number, claim=f"tasks-{number}", seconds=worker.seconds_of(task.cost))

    worker.start()
    stops = np.cumsum([task.stop - task.first for task in tasks])
    with reporting.moving_bar(schedule.units, show) as move:
        while (number := group.take("tasks", len(tasks))) is not None:
            move(int(stops[number]))
            worker.do(tasks[number])
            if joiner is not None:
                joiner.advance()
    group.note("done", worker.account())
    done = worker.done
    if tasks and group.size > 1:
        finish_together(group, "task", missing, lambda number: worker.do(tasks[number]), check)
    if worker.done > done:
        group.note("done", worker.account())


def _predict_as_child(group: Group, job: PredictionJob) -> None:
    """Predict as a local worker."""
    try:
        with contextlib.suppress(SaidByFirst), interruptible(signal.SIGINT, signal.SIGHUP) as check, group:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked by the process that started this one
            predict_with(group, job, check)
    except InputError as error:  # the others do its work, or meet the same
        print(f"worker {group.rank} ended: {error}", file=sys.stderr, flush=True)
