"""Folders of runs: checks of what is there, and moved stores."""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from hydragnn.base import files
from hydragnn.base.errors import Busy, InputError
from hydragnn.base.places import StorePlace, paths_of
from hydragnn.config import AnyConfig, parse_config, stored_config
from hydragnn.datasets import GraphStore, WithoutEdges, open_store
from hydragnn.distributed.ranks import Ranks
from hydragnn.distributed.sharing import first_ranks_value
from hydragnn.record import OUTSIDE, RunRecord, read_record
from hydragnn.runs.attempt import RunAttempt

ATTEMPT = "attempt.json"

FIRST_FILES = ("config.json", ATTEMPT, "heartbeat")
"""Files in the folder of a run before it begins."""

INDIFFERENT = {
    "data": ("store", "memory", "group"),
    "split": ("calibration",),
    "batch": ("memory",),
    "train": ("checkpoint_epochs", "checkpoint_seconds", "callbacks", "tensorboard"),
    "start": ("model", "store"),
}
"""Settings that no training depends on: where the store and the start lie (their contents are compared) and what keeps the data in memory, which of the graphs that it never
sees calibrate an ensemble, how much memory a step may take, and what else is written when. Nor does any depend on the section parallel."""


CONTINUED: tuple[str, ...] = ("epochs", "learning_rate", "schedule", "plateau_patience", "warmup_epochs")
CONTINUED += ("clip_norm", "patience", "stage_two")
"""Settings under [train] that a resumed run may change: its state has the same meaning with all of them."""


def table_as_begun(config: AnyConfig, out: Path) -> dict[str, Any]:
    """Return the configuration as JSON, as ``config.json`` has it.

    A later program knows more keys; what it would add would make another hash of it, and checkpoints those of another run. Only what no
    training depends on is that of today.
    """
    now, path = config.to_json(), out / "config.json"
    if not path.is_file():
        return now
    parsed = stored_config(path).to_json()
    if differences(essential(parsed), essential(now)):
        return now
    begun = {key: value for key, value in files.read_json(path).items() if key != "parallel"}
    table = _with_indifferent(begun | {key: now[key] for key in ("parallel",) if key in now}, now)
    changed = {key: now["train"][key] for key in CONTINUED if now["train"][key] != parsed["train"][key]}
    return {**table, "train": {**table["train"], **changed}} if changed else table


def _with_indifferent(begun: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with today's values of indifferent settings."""
    table = dict(begun)
    if "branches" in begun:
        table["branches"] = [_with_indifferent(*pair) for pair in zip(begun["branches"], now["branches"], strict=True)]
    for section, keys in INDIFFERENT.items():
        if begun.get(section):
            kept = {key: value for key, value in begun[section].items() if key not in keys}
            table[section] = {**kept, **{key: now[section][key] for key in keys if key in now[section]}}
    return table


def check_folder(config: dict[str, Any], out: Path, resume: bool) -> None:
    """Raise InputError where ``out`` cannot hold the run.

    That is where it holds something else, a run and nobody said resume, another run, or nothing to resume. An empty folder
    will do, and so will one that whoever starts the run has prepared with ``config.json``.
    """
    files.check_utf8(out)
    if os.path.lexists(out) and not out.is_dir():
        raise InputError(f"{out} is a {'file' if out.exists() else 'broken link'}, not a folder; choose another --out")
    check_nothing_else(out, resume)
    for name in ("checkpoints", "model"):
        files.check_no_link(out / name)
    holds_run = (out / "record.json").exists() or (out / "checkpoints").exists()
    if not resume:
        if holds_run:
            raise InputError(f"{out} holds a run already; add --resume to continue it, or choose another folder")
        return
    if not (out / "config.json").exists():
        raise InputError(f"{out} holds no run to resume; leave out --resume to begin one")
    saved = stored_config(out / "config.json").to_json()
    if files.read_json(out / "config.json").get("batch", {}).get("budget") == "auto":
        fault = f'{out} was begun with batch.budget = "auto", which is gone'
        raise InputError(f"{fault}; begin a new run with batch.max_graphs in another folder")
    changed = differences(essential(saved), essential(config))
    if changed:
        problem = f"{out} was begun with another configuration ({', '.join(changed[:3])})"
        raise InputError(f"{problem}; resume it with the same one, or begin a new run in another folder")
    changed = differences(decisive(saved), decisive(config))
    if changed and (out / ATTEMPT).is_file():
        problem = f"{out} is a trial of a campaign, which resumes it as it was begun ({', '.join(changed[:3])})"
        raise InputError(f"{problem}; begin another run like it with --out NEW")


LOCK = ".lock"

LEFT_BEHIND = re.compile(r"\.lock|\.failure-.*|\..*\.tmp")
"""Files that ranks and interrupted writes leave."""


@contextmanager
def alone_in(attempt: RunAttempt, ranks: Ranks) -> Iterator[None]:
    """Reserve the folder of a run; Busy where another process trains.

    Attempts that somebody counts are told apart by their number, since one that hangs would keep its lock. Where the file system
    knows no locks, nobody looks. All ranks call it together.
    """
    if attempt.number is not None:
        with attempt.alone() if ranks.first else nullcontext():
            yield
        return
    held: list[int] = []
    with files.empty_folders_removed(attempt.folder):  # of a run that ends before it has begun
        if not first_ranks_value(lambda: _is_locked(attempt.folder, held), ranks):
            raise Busy(f"another process trains in {attempt.folder}; wait for it, or choose another --out")
        try:
            yield
        finally:
            if held and not (attempt.folder / "config.json").exists():
                (attempt.folder / "heartbeat").unlink(missing_ok=True)
            for descriptor in held:
                files.unlock_file(attempt.folder / LOCK, descriptor)


def _is_locked(folder: Path, held: list[int]) -> bool:
    """Return True once the folder is this process's."""
    with suppress(OSError):  # who writes there says what is wrong
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = files.lock_file(folder / LOCK)
        if descriptor is None:
            return False
        held.append(descriptor)
    return True


def check_nothing_else(out: Path, resume: bool) -> None:
    """Raise InputError where the folder holds something else."""
    kind = "a model" if (out / "model.json").is_file() else files.kind_of_folder(out)  # a member has a record, too
    if kind and kind != "a run":
        raise InputError(f"{out} is {kind}, and a run would be mixed into it; choose another --out")
    if resume or kind or not out.exists():
        return
    config, own = out / "config.json", {*FIRST_FILES, "checkpoints"}
    if config.is_file():
        own.add("model")
        try:
            stored_config(config)
        except InputError as error:
            raise InputError(f"{config} is not the configuration of a run ({error}); choose another --out") from error
    names = {entry.name for entry in out.iterdir()} - own
    if foreign := sorted(name for name in names if not LEFT_BEHIND.fullmatch(name)):
        raise InputError(f"{out} holds {foreign[0]}, which belongs to no run; choose another --out")


def earlier_record(out: Path) -> RunRecord | None:
    """Return the record in a folder, if any."""
    return read_record(out) if (out / "record.json").exists() else None


def trained_config(run: Path) -> AnyConfig:
    """Return a run's configuration; InputError unless it is what was trained."""
    config = stored_config(run / "config.json")
    if record := earlier_record(run):
        trained = parse_config(record.config, f"{run / 'record.json'}")
        changed = differences(decisive(trained.to_json()), decisive(config.to_json()))
        if changed:
            problem = f"{run / 'config.json'} is not what was trained, as record.json has it ({', '.join(changed[:3])})"
            raise InputError(f"{problem}; copy the run again")
    return config


def identity(record: RunRecord) -> dict[str, Any]:
    """Return the hashes that identify a run's checkpoints."""
    replayed = {"replayed_hash": record.start["earlier_data"]} if record.start.get("replayed_per_epoch") else {}
    return {"configuration_hash": files.digest(essential(record.config)), "data_hash": record.data_hash, **replayed}


def identities(record: RunRecord, out: Path) -> dict[str, Collection[str]]:
    """Return the hashes of a run's checkpoints, also by earlier versions."""
    begun, earlier = out / "config.json", earlier_record(out)
    tables = [
        record.config,
        *([files.read_json(begun)] if begun.is_file() else []),
        *([earlier.config] if earlier else []),
    ]
    whole = {files.digest(decisive(table)) for table in tables}
    own = {name: {value} for name, value in identity(record).items()}
    return {**own, "configuration_hash": own["configuration_hash"] | whole}


def check_checkpoint(checkpoint: Path | None, out: Path) -> None:
    """Raise InputError where a run that ended has no checkpoint."""
    record = None if checkpoint or (out / ATTEMPT).is_file() else earlier_record(out)
    if record and OUTSIDE in record.start:
        raise InputError(
            f"{out} was trained outside of this program and has no checkpoint to go on from; fine-tune it in another folder, by [start] "
            f'with model = "{out}"'
        )
    if record and record.status in ("finished", "stopped", "paused"):
        problem = f"{out} has trained {record.epochs} epochs, but the checkpoint to go on from is gone"
        raise InputError(f"{problem}; copy {out / 'checkpoints'} back as a whole, or begin a new run in another folder")


def continued(config: dict[str, Any], out: Path, epoch: int) -> list[str]:
    """Return what a run was continued with after an epoch, latest last."""
    record = earlier_record(out)
    if record is None:
        return []
    # parsed both, since keys of later versions are in neither
    before, now = (parse_config(table, str(out / "record.json")).to_json() for table in (record.config, config))
    changed = differences(decisive(before), decisive(now))
    return [*record.continued, *([f"after epoch {epoch} with {', '.join(changed)}"] if changed else [])]


def decisive(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a configuration that results depend on.

    >>> decisive({"data": {"store": "here.h5", "inputs": None}})
    {'data': {'inputs': None}}
    >>> decisive({"branches": [{"name": "metals", "data": {"store": "here.h5"}}]})
    {'branches': [{'name': 'metals', 'data': {}}]}
    """
    if "branches" in config:
        config = {**config, "branches": [decisive(branch) for branch in config["branches"]]}
    return {
        section: {key: item for key, item in value.items() if key not in INDIFFERENT.get(section, ())}
        if isinstance(value, dict)
        else value
        for section, value in config.items()
        if section != "parallel"
    }


def essential(config: dict[str, Any]) -> dict[str, Any]:
    """Return the decisive part without what a resumed run may change.

    >>> essential({"data": {"store": "here.h5"}, "train": {"seed": 1, "epochs": 10}})
    {'data': {}, 'train': {'seed': 1}}
    """
    table = decisive(config)
    return {**table, "train": {key: one for key, one in table.get("train", {}).items() if key not in CONTINUED}}


def differences(before: object, now: object, path: str = "") -> list[str]:
    """Paths at which two JSON values differ.

    >>> differences({"train": {"epochs": 5, "seed": 0}}, {"train": {"epochs": 9, "seed": 0}})
    ['train.epochs: 5, now 9']
    >>> differences({}, {"base_batch": 2})
    ['base_batch was not set, is 2 now']
    """
    if isinstance(before, dict) and isinstance(now, dict):
        below = [(key, f"{path}.{key}" if path else str(key)) for key in {**before, **now}]
        return [entry for key, place in below for entry in differences(before.get(key), now.get(key), place)]
    form = "{} was {}, is {} now" if None in (before, now) else "{}: {}, now {}"
    words = ["not set" if value is None else value for value in (before, now)]
    return [] if before == now else [form.format(path, *words)]


def is_data(store: GraphStore, data_hash: str) -> bool:
    """Return True where a run was trained on the store's graphs."""
    return data_hash in (store.fingerprint, WithoutEdges(store).fingerprint)


def name_store(runs: Iterable[Path], place: Path, branch: str = "") -> None:
    """Let configurations of runs name a store; InputError for other graphs."""
    store, runs = open_store(place), [run for run in runs if (run / "config.json").is_file()]
    for run in runs:
        record = earlier_record(run)
        trained = record.of_branch(branch).data_hash if record else ""
        if trained and not is_data(store, trained):
            raise InputError(
                f"the store {place} is not what {run} was trained on (fingerprint {store.fingerprint}, trained on {trained}); "
                "give the original store, or a copy of it"
            )
    for run in runs:
        write_places(run, {branch: place})


def write_places(run: Path, places: Mapping[str, StorePlace]) -> None:
    """Write the stores' places into a run's ``config.json``."""
    path = run / "config.json"
    files.check_no_link(path)
    config = files.read_json(path)
    sections = {section.get("name", ""): section for section in config.get("branches") or [config]}
    previous = {name: section["data"]["store"] for name, section in sections.items()}
    now = {**previous}
    for name in places.keys() & previous.keys():
        paths = [str(path.resolve()) for path in paths_of(places[name])]
        now[name] = paths if len(paths) > 1 else paths[0]
    if now == previous:
        return
    for name, section in sections.items():
        section["data"]["store"] = now[name]
    files.write_json(path, config)
