"""One run in its folder: begin or resume, train to the end of a segment, leave a record that says how it ended."""

import platform
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from hydragnn.architectures import GraphStatistics, architecture_of
from hydragnn.config import RunConfig
from hydragnn.datasets import GraphStore
from hydragnn.distributed.launch import host_name
from hydragnn.distributed.ranks import Ranks, joined_ranks
from hydragnn.errors import InputError, Interrupted
from hydragnn.files import kind_of_folder, read_json, write_json
from hydragnn.graphs.batch import GraphBatch
from hydragnn.models import GraphModel, build_model, degree_statistics
from hydragnn.record import Cost, RunRecord, read_record
from hydragnn.runs.attempt import Attempt, Fenced, Heartbeat
from hydragnn.runs.callback import RunCallback, Signals, Stopwatch, decisive, identity, interrupted_at_once
from hydragnn.runs.checkpoint import latest_checkpoint, load_checkpoint
from hydragnn.runs.failures import agreed_failure, failure_of, forget_failures, told_to_peers
from hydragnn.runs.progress import Progress
from hydragnn.training.context import training_context
from hydragnn.training.data import Place, RunData, prepare_data
from hydragnn.training.evaluate import flattened, trivial_metrics
from hydragnn.training.loop import Ended, train_epochs
from hydragnn.training.state import TrainState, first_state

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.float32}
DEGREE_BLOCK = 4096

FIRST_FILES = ("config.json", "attempt.json", "heartbeat")
"""What may be in the folder of a run before it begins."""


def train(
    config: RunConfig,
    out: Path,
    *,
    until: int | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    store: GraphStore | None = None,
    device: torch.device | str | None = None,
    split: int = 1,
    attempt: int | None = None,
) -> RunRecord:
    """Train the model that ``config`` describes into the folder ``out``, up to epoch ``until`` (all epochs if absent).

    The record ends as ``finished``, ``stopped`` (early), ``paused`` (end of a segment) or ``failed`` with a typed reason.
    Started by torchrun, mpirun or srun, all ranks train together and each gets the record. ``store`` saves opening it.
    ``split`` computes every batch in so many parts, which needs less memory and takes the same steps. ``attempt`` is this
    attempt's number in ``out/attempt.json``: once another one stands there, nothing more is written.

    Raises InputError for bad input and for an ``out`` that holds a run already (unless ``resume``), Interrupted after
    SIGINT, SIGTERM or SIGUSR1, with a checkpoint written, Fenced where a later attempt owns the run, and whatever a defect
    of ours raises, after recording it.
    """
    if split < 1:
        raise InputError(f"batches in {split} parts have nothing to train; use a split of 1 or more")
    place = Place(device=chosen_device(device), dtype=DTYPES[config.train.precision], split=split)
    this = Attempt(folder=out, number=attempt)
    this.check()
    with joined_ranks(out, place.device) as ranks:
        place = replace(place, device=own_device(place.device, ranks))
        check_folder(config, out, resume)
        end = end_of_segment(config, until)
        if ranks.first:
            forget_failures(out)
        ranks.wait()
        return _train(config, store, place, ranks, Heartbeat(this, first=ranks.first), progress, end)


def _train(
    config: RunConfig,
    store: GraphStore | None,
    place: Place,
    ranks: Ranks,
    heart: Heartbeat,
    progress: Progress | None,
    until: int,
) -> RunRecord:
    signals, out = Signals(), heart.attempt.folder
    stopwatch = Stopwatch(earlier_cost(out), ranks, place.device)
    with told_to_peers(heart.attempt, ranks), interrupted_at_once():
        data = prepare_data(config, store or opened(config), place, ranks, heart.beat)
        model = make_model(config, data, heart.beat).to(device=place.device, dtype=place.dtype)
        state = first_state(model, config.train, fields=len(data.targets))
        record = first_record(config, data, state, place)
        checkpoint = latest_checkpoint(out / "checkpoints")
        if checkpoint:
            load_checkpoint(checkpoint, state, ranks, identity(record))
    callback = RunCallback(
        out,
        replace(record, epochs=state.epoch, attempt=heart.attempt.name),
        data.normalisation,
        ranks,
        stopwatch,
        signals,
        heart,
        settings=config.train,
        progress=progress,
    )
    if ranks.first:
        write_json(out / "config.json", config.to_json(), heart.attempt.check)
        callback.export(state)
    callback.write(state)
    if progress and ranks.first:
        progress.begin(state.epoch + state.step / max(1, data.train.steps(state.epoch)), config.train.epochs)
    context = training_context(config.train, data.targets, ranks, place.device, place.split)
    with signals.heard():
        return _to_the_end(state, callback, lambda: train_epochs(state, data, context, callback, until))


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


def opened(config: RunConfig) -> GraphStore:
    """The store of the configuration."""
    from hydragnn.datasets import open_store

    return open_store(config.data.store)


def end_of_segment(config: RunConfig, until: int | None) -> int:
    """The epoch at which training pauses: ``until``, at most the whole budget. InputError below 1."""
    if until is not None and until < 1:
        raise InputError(f"a segment until epoch {until} has nothing to train; use 1 to {config.train.epochs}")
    return config.train.epochs if until is None else min(until, config.train.epochs)


def check_folder(config: RunConfig, out: Path, resume: bool) -> None:
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
    begun = RunConfig.parse(read_json(out / "config.json"), str(out / "config.json"))
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
            RunConfig.parse(read_json(config), str(config))
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


def make_model(config: RunConfig, data: RunData, lives: Callable[[], None]) -> GraphModel:
    """The model with its first weights, which depend on the seed only; ``lives`` is called between reads."""
    return build_model(
        config.model,
        config.heads,
        data.fields,
        inputs=data.inputs,
        dim=data.store.dim,
        seed=config.train.seed,
        statistics=training_degrees(data, lives) if "degrees" in architecture_of(config.model.kind).needs else None,
        edges=config.data.edges,
    )


def training_degrees(data: RunData, lives: Callable[[], None]) -> GraphStatistics:
    """Degree statistics of the training part, read in blocks."""
    indices = data.split.train

    def blocks() -> Iterator[GraphBatch]:
        for start in range(0, len(indices), DEGREE_BLOCK):
            lives()
            yield data.store.read(indices[start : start + DEGREE_BLOCK], [])

    return degree_statistics(blocks())


def first_record(config: RunConfig, data: RunData, state: TrainState, place: Place) -> RunRecord:
    """What is known before the first step."""
    trivial = trivial_metrics(data.store, data.split.train, data.split.valid, data.targets, data.normalisation)
    return RunRecord(
        config=config.to_json(),
        config_hash=config.hash,
        data_hash=data.store.fingerprint,
        seed=config.train.seed,
        parameters=state.weights.count,
        parts=data.split.counts,
        trivial=flattened(trivial, "valid"),
        versions=versions(),
        hardware=hardware(place.device),
    )


def versions() -> dict[str, str]:
    """Versions of what computes."""
    from hydragnn import __version__

    return {
        "hydragnn": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def hardware(device: torch.device) -> dict[str, str | int]:
    """The machine of this rank."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()
    return {"host": host_name(), "device": name, "threads": torch.get_num_threads()}


def processor_name() -> str:
    """The processor as the system names it."""
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
