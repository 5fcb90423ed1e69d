"""One run in its folder: begin or resume, train to the end of a segment, leave a record that says how it ended."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from hydragnn.architectures import architecture_of
from hydragnn.config import AnyConfig, RunConfig, stored_config
from hydragnn.datasets import open_store
from hydragnn.distributed.parallelize import parallelize
from hydragnn.distributed.ranks import Ranks, joined_ranks
from hydragnn.distributed.sharing import shared_rows
from hydragnn.errors import InputError, Interrupted
from hydragnn.files import kind_of_folder, read_json
from hydragnn.models import BranchedModel, GraphModel, build_branched, build_described, described
from hydragnn.record import Cost, RunRecord, read_record
from hydragnn.runs.attempt import Attempt, Fenced, Heartbeat
from hydragnn.runs.callback import RunCallback, decisive, identity
from hydragnn.runs.checkpoint import latest_checkpoint, load_checkpoint
from hydragnn.runs.failures import agreed_failure, failure_of, forget_failures, propagate_failure
from hydragnn.runs.preparation import Stores, prepare_data, training_degrees
from hydragnn.runs.progress import Progress
from hydragnn.runs.provenance import first_record
from hydragnn.runs.signals import interrupt_at_once, trap_signals
from hydragnn.runs.stopwatch import Stopwatch
from hydragnn.training.context import TrainingContext, training_context
from hydragnn.training.data import DevicePlacement, RunData
from hydragnn.training.loop import Ended, train_epochs
from hydragnn.training.state import TrainState, first_state

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.float32}

FIRST_FILES = ("config.json", "attempt.json", "heartbeat")
"""What may be in the folder of a run before it begins."""


def train(
    config: AnyConfig,
    out: Path,
    *,
    until: int | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    store: Stores | None = None,
    device: torch.device | str | None = None,
    micro_batches: int = 1,
    attempt: int | None = None,
) -> RunRecord:
    """Train the model that ``config`` describes into the folder ``out``, up to epoch ``until`` (all epochs if absent).

    The record ends as ``finished``, ``stopped`` (early), ``paused`` (end of a segment) or ``failed`` with a typed reason.
    Started by torchrun, mpirun or srun, all ranks train together and each gets the record. ``store`` saves opening it (a mapping by name, where there are branches).
    ``micro_batches`` computes every batch in so many parts, which needs less memory and takes the same steps. ``attempt`` is
    this attempt's number in ``out/attempt.json``: once another one stands there, nothing more is written.

    Raises InputError for bad input and for an ``out`` that holds a run already (unless ``resume``), Interrupted after
    SIGINT, SIGTERM or SIGUSR1, with a checkpoint written, Fenced where a later attempt owns the run, and whatever a defect
    of ours raises, after recording it.
    """
    if micro_batches < 1:
        raise InputError(f"batches in {micro_batches} parts have nothing to train; use micro_batches of 1 or more")
    asked, dtype = chosen_device(device), DTYPES[config.train.precision]
    this = Attempt(folder=out, number=attempt)
    this.check()
    with joined_ranks(out, asked) as ranks:
        placement = DevicePlacement(device=own_device(asked, ranks), dtype=dtype, micro_batches=micro_batches)
        check_folder(config, out, resume)
        end = end_of_segment(config.train.epochs, until)
        if ranks.first:
            forget_failures(out)
        ranks.wait()
        heart, stopwatch = Heartbeat(this, first=ranks.first), Stopwatch(earlier_cost(out), ranks, placement.device)
        with propagate_failure(this, ranks), interrupt_at_once():
            run = assemble(config, store or open_stores(config), placement, ranks, heart.beat)
            checkpoint = latest_checkpoint(out / "checkpoints")
            if checkpoint:
                load_checkpoint(checkpoint, run.state, ranks, identity(run.record))
        with trap_signals() as signals:
            normalisations = [branch.normalisation for branch in run.data.branches]
            callback = RunCallback(
                run.record, normalisations, run.context.settings, ranks, stopwatch, signals, heart, progress
            )
            callback.begin(run.state, run.data.steps(run.state.epoch))
            return _to_the_end(
                run.state, callback, lambda: train_epochs(run.state, run.data, run.context, callback, end)
            )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Assembly:
    """A run that is ready for its next step."""

    state: TrainState
    data: RunData
    context: TrainingContext
    record: RunRecord
    """What is known before the first step."""


def open_stores(config: AnyConfig) -> Stores:
    """The store of a run, or those of its branches by name."""
    if isinstance(config, RunConfig):
        return open_store(config.data.store)
    return {branch.name: open_store(branch.data.store) for branch in config.branches}


def assemble(
    config: AnyConfig, store: Stores, placement: DevicePlacement, ranks: Ranks, heartbeat: Callable[[], None]
) -> Assembly:
    """Read the data, build the model and spread it over the ranks: where a configuration is taken apart, once.

    All ranks call it together.
    """
    data = prepare_data(config, store, placement, ranks, heartbeat)
    needs = architecture_of(config.model.kind).needs
    degrees = training_degrees(data, shared_rows(ranks, placement.device), heartbeat) if "degrees" in needs else None
    descriptions = [
        described(
            config.model,
            settings.heads,
            branch.fields,
            inputs=branch.inputs,
            dim=branch.store.dim,
            statistics=degrees,
            edges=settings.data.edges,
            branch=branch.name,
        )
        for settings, branch in zip(config.branches, data.branches)
    ]
    model: GraphModel | BranchedModel
    if isinstance(config, RunConfig):
        model = build_described(descriptions[0], config.train.seed)
    else:
        model = build_branched(descriptions, config.train.seed)
    parameters = parallelize(model, ranks, placement, config.train)
    by_branch = [branch.targets for branch in data.branches]
    return Assembly(
        state=first_state(model, parameters, fields=len(data.targets)),
        data=data,
        context=training_context(config.train, by_branch, placement.device, ranks.rank, ranks.sum_in_place),
        record=first_record(config, data, parameters.count, placement.device),
    )


def _to_the_end(state: TrainState, callback: RunCallback, run: Callable[[], Ended]) -> RunRecord:
    """Run the loop and leave a record that says how it ended, whatever happens."""
    try:
        status = run()
        callback.save(state)
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
        failure = agreed_failure(failure_of(error), callback.folder, callback.ranks)
        with suppress(InputError):  # a full disk must not hide what happened
            callback.write(state, status="failed", failure=failure)
        callback.close(f"failed in epoch {state.epoch + 1}: {failure.message}")
        if failure.kind == "diverged" or (failure.kind == "out_of_memory" and callback.ranks.size == 1):
            return callback.record
        raise
    record = callback.write(state, status=status)
    callback.close(sentence_of(record))
    return record


def sentence_of(record: RunRecord) -> str:
    """How a run stands, in one line."""
    best = (
        f"; best valid loss {record.best['valid/loss']:.4g} in epoch {record.best['epoch']:.0f}" if record.best else ""
    )
    return f"{record.status} after {record.epochs} epochs in {record.cost.seconds:,.0f} s{best}"


def chosen_device(device: torch.device | str | None) -> torch.device:
    """The device asked for, else a GPU where there is one."""
    if device is not None:
        return torch.device(device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def own_device(device: torch.device, ranks: Ranks) -> torch.device:
    """The GPU of this rank where there are several ranks; otherwise the device itself."""
    if device.type != "cuda" or ranks.size == 1:
        return device
    own = torch.device("cuda", ranks.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(own)
    return own


def end_of_segment(epochs: int, until: int | None) -> int:
    """The epoch at which training pauses: ``until``, at most the whole budget. InputError below 1."""
    if until is not None and until < 1:
        raise InputError(f"a segment until epoch {until} has nothing to train; use 1 to {epochs}")
    return epochs if until is None else min(until, epochs)


def check_folder(config: AnyConfig, out: Path, resume: bool) -> None:
    """Raise InputError where ``out`` is no place for this run.

    That is where it holds something else, a run and nobody said resume, another run, or nothing to resume. An empty folder
    will do, and so will one that whoever starts the run has prepared with ``config.json``.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file, not a folder; choose another --out")
    check_nothing_else(out, resume)
    holds_run = (out / "record.json").exists() or (out / "checkpoints").exists()
    if not resume:
        if holds_run:
            raise InputError(f"{out} holds a run already; add --resume to continue it, or choose another folder")
        return
    if not (out / "config.json").exists():
        raise InputError(f"{out} holds no run to resume; leave out --resume to begin one")
    begun = stored_config(read_json(out / "config.json"), str(out / "config.json"))
    changed = differences(decisive(begun.to_json()), decisive(config.to_json()))
    if changed:
        raise InputError(
            f"{out} was begun with another configuration ({', '.join(changed[:3])}); resume it with the same one, or begin a "
            "new run in another folder"
        )


def check_nothing_else(out: Path, resume: bool) -> None:
    """Raise InputError where the folder is something else than a run's, or a new run would be mixed with other files."""
    kind = kind_of_folder(out)
    if kind and kind != "a run":
        raise InputError(f"{out} is {kind}, and a run would be mixed into it; choose another --out")
    if resume or kind or not out.exists():
        return
    config = out / "config.json"
    if config.is_file():
        try:
            stored_config(read_json(config), str(config))
        except InputError as error:
            raise InputError(f"{config} is not the configuration of a run ({error}); choose another --out") from error
    own = {*FIRST_FILES, "checkpoints", "model"} if config.is_file() else {*FIRST_FILES, "checkpoints"}
    foreign = sorted(entry.name for entry in out.iterdir() if entry.name not in own and not is_left_behind(entry.name))
    if foreign:
        raise InputError(f"{out} holds {foreign[0]}, which belongs to no run; choose another --out")


def is_left_behind(name: str) -> bool:
    """Return True for files that ranks and interrupted writes leave in the folder of a run."""
    return name.startswith((".ranks-", ".failure-")) or (name.startswith(".") and name.endswith(".tmp"))


def differences(before: object, now: object, path: str = "") -> list[str]:
    """Paths at which two JSON values differ.

    >>> differences({"train": {"epochs": 5, "seed": 0}}, {"train": {"epochs": 9, "seed": 0}})
    ['train.epochs: 5, now 9']
    """
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [*dict.fromkeys([*before, *now])]
        return [
            entry
            for key in keys
            for entry in differences(before.get(key), now.get(key), f"{path}.{key}" if path else str(key))
        ]
    return [] if before == now else [f"{path}: {before}, now {now}"]


def earlier_cost(out: Path) -> Cost:
    """What earlier segments of the run cost, as far as they could say."""
    if not (out / "record.json").exists():
        return Cost()
    return read_record(out).cost
