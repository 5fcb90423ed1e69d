"""One run in its folder: begin or resume, train, record."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import torch

from hydragnn.base.errors import InputError, Interrupted, as_note
from hydragnn.base.machine import bytes_of
from hydragnn.base.peaks import peaks_of
from hydragnn.callbacks import TrainingCallback
from hydragnn.config import AnyConfig, RunConfig, with_begun_rate
from hydragnn.distributed.ranks import Ranks, bind_near, cores_given_back, join_ranks, own_gpu
from hydragnn.distributed.sharing import first_ranks_value
from hydragnn.models import GraphModel, load_graph_model
from hydragnn.record import Cost, RunRecord, Usage
from hydragnn.runs import failures, folder
from hydragnn.runs.assembly import Assembly, assemble
from hydragnn.runs.attempt import Fenced, Heartbeat, RunAttempt, keep_beating
from hydragnn.runs.callback import RunCallback, Stopwatch
from hydragnn.runs.checkpoint import latest_checkpoint, load_checkpoint
from hydragnn.runs.energy import Meter
from hydragnn.runs.fine_tuning import OpenStart, forgetting
from hydragnn.runs.memory import DEVICE_SHARE, within_memory
from hydragnn.runs.plan import Stores, described_branches, plan_run
from hydragnn.runs.progress import Progress
from hydragnn.runs.recording import with_note, with_replays
from hydragnn.runs.signals import interrupt_at_once, trap_signals
from hydragnn.start import with_digest
from hydragnn.training.data import DevicePlacement
from hydragnn.training.loop import train_epochs

UNHURRIED = 20.0
"""Seconds of a segment after which a tenth of a second for the speed of a CPU does not count."""

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "tf32": torch.float32, "bf16": torch.float32}


def train(
    config: AnyConfig,
    out: Path | str,
    *,
    until: int | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    store: Stores | None = None,
    device: torch.device | str | None = None,
    micro_batches: int = 1,
    memory: str | None = None,
    sharing: int = 1,
    attempt: int | None = None,
    beats: Path | None = None,
    callbacks: Sequence[TrainingCallback] = (),
) -> RunRecord:
    """Train a configuration into ``out`` up to epoch ``until``.

    The record ends as ``finished``, ``stopped`` (early), ``paused`` (end of a segment) or ``failed`` with a typed reason. Started
    by torchrun, mpirun or srun, all ranks train together and each gets the record. ``store`` saves opening it (a mapping by name,
    where there are branches). ``micro_batches`` computes every batch in so many parts, which needs less memory and takes the same
    steps; ``memory`` (``"4 GB"``) in as many as a rank needs for it, and goes before ``batch.memory`` of the configuration.
    ``sharing`` processes use this device, and each gets its part of the memory. ``attempt`` is this attempt's number in
    ``out/attempt.json``: once another one stands there, nothing more is written. ``beats`` is a file on this node that shows that
    the run lives, beside ``out/heartbeat``. ``callbacks`` are called beside those of the configuration. Raises InputError for bad input and for an ``out`` that holds a run already (unless
    ``resume``), Busy where another process trains there, Interrupted after SIGINT, SIGTERM, SIGHUP or SIGUSR1, with a checkpoint
    written, Fenced where a later attempt owns the run, and whatever a defect of ours raises, after recording it.
    """
    out = Path(out)
    if isinstance(config, RunConfig) and config.start is not None:
        config = config.model_copy(update={"start": with_digest(config.start)})
    config = with_begun_rate(config, out / "config.json") if resume else config
    if until is not None and until < 1:
        raise InputError(f"a segment until epoch {until} has nothing to train; use 1 or more")
    if micro_batches < 1:
        raise InputError(f"batches in {micro_batches} parts have nothing to train; use micro_batches of 1 or more")
    requested, this = select_device(device), RunAttempt(folder=out, number=attempt, beats=beats)
    this.check()
    note = partial(failures.note_stopped_rank, this)
    with cores_given_back(), failures.nothing_left(out), join_ranks(out, requested, note) as ranks:
        own = own_device(requested, ranks)
        if sharing > 1 and own.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(DEVICE_SHARE / sharing, own)
        try:
            folder.check_folder(config.to_json(), out, resume)  # before anything is put there
        except InputError:
            described_branches(config, store, begun=resume)  # whose error comes first
            raise
        with folder.alone_in(this, ranks):
            run, heart, stopwatch = ready_run(
                config,
                this,
                ranks,
                own,
                resume=resume,
                store=store,
                parts=micro_batches,
                memory=memory,
                sharing=sharing,
            )
            with trap_signals() as signals, keep_beating(stopwatch.meter.sample, longest=inf):
                callback = RunCallback(run, ranks, stopwatch, signals, heart, progress, callbacks)
                return train_to_end(run, callback, until)


def ready_run(
    config: AnyConfig,
    this: RunAttempt,
    ranks: Ranks,
    device: torch.device,
    *,
    resume: bool,
    store: Stores | None = None,
    parts: int = 1,
    memory: str | None = None,
    sharing: int = 1,
) -> tuple[Assembly, Heartbeat, Stopwatch]:
    """Return the run before its next step, with heartbeat and clock."""
    out = this.folder
    folder.check_folder(config.to_json(), out, resume)
    if ranks.first:
        failures.forget_failures(out)
    ranks.wait()
    earlier = folder.earlier_record(out)
    heart = Heartbeat(this, first=ranks.first)
    cost, used = (earlier.cost, earlier.usage) if earlier else (Cost(), Usage())
    stopwatch = Stopwatch(cost, used, ranks, Meter(device, sharing))
    with failures.propagate_failure(this, ranks), interrupt_at_once() as check:

        def heartbeat() -> None:
            check()
            heart.beat()

        plan = plan_run(config, store, heartbeat, begun=resume)
        plan = replace(plan, table=folder.table_as_begun(config, out), begun=out / "model") if resume else plan
        if memory is not None:
            plan = replace(plan, budget=replace(plan.budget, max_bytes=bytes_of(memory)))
        placement = DevicePlacement(device=device, dtype=DTYPES[plan.training.precision], micro_batches=parts)
        # trials and ranks have neighbours on their node that read the same graphs
        run = assemble(plan, placement, ranks, heartbeat, shared=ranks.size > 1 or this.number is not None)
        run = within_memory(run, plan, ranks, heartbeat)
        run = with_replays(run, ranks, heartbeat, limited=plan.budget.max_bytes > 0)
        if plan.training.precision == "tf32" and device.type != "cuda":
            run = with_note(run, "precision = tf32 is fp32 on a CPU, which has no products in TF32")
        checkpoint = latest_checkpoint(out / "checkpoints")
        if checkpoint:
            load_checkpoint(checkpoint, run.state, run.mesh, folder.identities(run.record, out))
        if resume:
            folder.check_checkpoint(checkpoint, out)
            notes = [one for one in (earlier.notes if earlier else ()) if one.startswith("callback ")]
            history = folder.continued(run.record.config, out, run.state.epoch)
            run = replace(run, record=replace(run.record, continued=history, notes=[*run.record.notes, *notes]))
        if run.state.epoch > plan.training.epochs:
            problem = f"{out} has trained {run.state.epoch} epochs, more than train.epochs = {plan.training.epochs}"
            raise InputError(f"{problem}; ask for more epochs, or begin a new run in another folder")
    return run, heart, stopwatch


def train_to_end(run: Assembly, callback: RunCallback, until: int | None) -> RunRecord:
    """Train to the end of epoch ``until``, and record the end."""
    state, settings = run.state, run.context.settings
    callback.begin(state, run.data.steps(state.epoch))
    until = settings.epochs if until is None else min(until, settings.epochs)
    try:
        callback.call("begin", state, {})
        with failures.reserve_memory():
            context = replace(run.context, counting=callback.stopwatch.work.counting)
            status = train_epochs(state, run.data, context, callback, until)
            callback.save(state, over=status != "paused")
            try:
                callback.call("rung" if status == "paused" else "end", state, {})
            except InputError as note:  # what comes after a training cannot end it
                callback.add_note(str(note))
            callback.ranks.wait()  # success means that all ranks came to the end
    except Interrupted as note:
        callback.write(state, status="paused")
        callback.close(f"{note}; resume the run in {callback.folder} to go on")
        raise
    except Fenced as note:
        callback.close(str(note))
        raise
    except Exception as error:
        callback.heart.attempt.check()
        failure = failures.first_failure(failures.failure_of(error), callback.folder, callback.ranks)
        with suppress(InputError):  # a full disk must not hide what happened
            callback.write(state, status="failed", failure=failure)
        place = f"in epoch {state.epoch + 1}" if state.epoch < until else f"after epoch {state.epoch}, the last"
        callback.close(f"failed {place}: {failure.message}")
        if failure.kind == "diverged" or (failure.kind == "out_of_memory" and callback.ranks.size == 1):
            return callback.record
        raise
    callback.heartbeat()
    if run.context.device.type == "cuda" or callback.stopwatch.seconds > UNHURRIED:
        peaks, used = peaks_of(run.context.device, settings.precision), callback.stopwatch.used
        # measured beside other work
        flops, moved = max(used.peak_flops, peaks.flops), max(used.peak_bytes, peaks.bytes)
        callback.stopwatch.used = replace(used, peak_flops=flops, peak_bytes=moved)
    record = callback.write(state, status=status)  # whatever comes later
    if run.start is not None and status != "paused":
        measure_forgetting(run, run.start, callback)
        callback.heart.attempt.check()
        with as_note("the record"):
            record = callback.write(state)
    own = record.best
    best = f"; best valid loss {own['valid/loss']:.4g} in epoch {own['epoch']:.0f}" if own else ""
    callback.close(f"{record.status} after {record.epochs} epochs in {record.cost.seconds:,.0f} s{best}")
    return record


def measure_forgetting(run: Assembly, start: OpenStart, callback: RunCallback) -> None:
    """Record errors on the start's data, or a note; collective."""
    model, normalisation = run.state.model, run.data.branches[0].normalisation
    weights, mesh, device = run.state.parameters, run.mesh, run.context.device

    def table() -> dict[str, Any]:
        notes, errors = list[str](), dict[str, Any]()
        with as_note("forgetting is not measured", notes.append):
            whole = load_graph_model(callback.folder / "model")[0].to(device) if mesh.size("pipeline") > 1 else model
            assert isinstance(whole, GraphModel)
            errors = forgetting(start, whole, normalisation)
        return {"note": notes[0]} if notes else errors

    with as_note("forgetting is not measured", callback.add_note):
        with weights.best(), weights.in_use("data of the start"), keep_beating(callback.heartbeat):
            together = mesh.shares_model and mesh.size("pipeline") == 1  # a stage of a pipeline has some layers only
            errors = table() if together else first_ranks_value(table, callback.ranks)
        if note := errors.pop("note", ""):
            callback.add_note(note)
        callback.record = replace(callback.record, start={**callback.record.start, "forgetting": errors})


def select_device(device: torch.device | str | None) -> torch.device:
    """The device asked for, else a GPU where there is one."""
    if device is not None:
        return torch.device(device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def own_device(device: torch.device, ranks: Ranks) -> torch.device:
    """Return this rank's GPU among several, bound to the cores beside."""
    if device.type != "cuda" or ranks.size == 1:
        return device
    own = own_gpu(ranks.local_rank)
    torch.cuda.set_device(own)
    bind_near(own)
    return own
