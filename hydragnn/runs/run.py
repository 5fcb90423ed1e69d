"""Entry of worker processes: ``python -m hydragnn.runs.run RUN [--until N]``.

Also under torchrun, mpirun or srun.

Reads RUN/config.json, begins or resumes, writes RUN/record.json. Exit code 0: the record says finished, paused or
stopped; 3: it says failed, with a typed reason; 2: bad input; 4: a later attempt owns the run, and nothing was written.
What counts is the record, not the code.
"""

import argparse
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from hydragnn.base.allocator import keep_memory
from hydragnn.base.errors import Busy, InputError, Interrupted, SaidByFirst
from hydragnn.base.files import read_sealed
from hydragnn.base.imports import allow_code
from hydragnn.config import RunConfig, stored_config
from hydragnn.datasets import open_store
from hydragnn.distributed.launch import SECONDS_FOR_THE_FIRST, LaunchError, leave, this_launch
from hydragnn.record import Failure, RunRecord, read_record, write_record
from hydragnn.runs.attempt import Fenced, RunAttempt
from hydragnn.runs.failures import failure_of
from hydragnn.runs.progress import Progress
from hydragnn.runs.session import train

BAD_INPUT, FAILED, FENCED = 2, 3, 4


def main(arguments: list[str] | None = None) -> int:
    """Train as the command line says; gives the exit code."""
    options = parse(arguments)
    keep_memory()
    torch.set_num_threads(options.threads)
    attempt = RunAttempt(folder=options.folder, number=options.attempt)
    try:
        return _train(options, attempt)
    except Exception as error:
        try:
            return ended_by(error, attempt)
        except Fenced as note:
            print(note, file=sys.stderr)
            return FENCED


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m hydragnn.runs.run", description=__doc__)
    parser.add_argument("folder", type=Path, help="run folder with config.json")
    parser.add_argument("--until", type=int, default=None, help="end of the segment, in epochs (default: all epochs)")
    parser.add_argument("--threads", type=int, default=1, help="threads of this process on the CPU (default: 1)")
    words = "parts in which a batch is computed, to save memory"
    parser.add_argument("--micro-batches", type=int, default=1, help=words)
    parser.add_argument("--sharing", type=int, default=1, help="processes that share the device and its memory")
    parser.add_argument("--ranks", type=int, default=None, help="how many ranks there must be (default: any number)")
    parser.add_argument("--attempt", type=int, default=None, help="write only while RUN/attempt.json has this number")
    parser.add_argument("--beats", type=Path, default=None, help="file on this node that shows that the run lives")
    words = "the configuration may name classes of this module"
    parser.add_argument("--allow-code", metavar="MODULE", action="append", default=[], help=words)
    return parser.parse_args(arguments)


def _train(options: argparse.Namespace, attempt: RunAttempt) -> int:
    allow_code(options.allow_code)
    actual = this_launch()
    if options.ranks is not None and actual.size != options.ranks:  # a wrong MPI silently starts many single ranks
        raise LaunchError(
            f"{options.ranks} ranks were asked for, but this process is one of {actual.size} (started by: {actual.by}); use the MPI "
            "that mpi4py is linked with, or another --mpi of srun"
        )
    config, store = stored_config(options.folder / "config.json"), None
    if isinstance(config, RunConfig) and attempt.number is not None:  # this node may have a copy of the store
        with suppress(InputError):
            note = read_sealed(attempt.folder / "attempt.json")
            path = note.get("store") if isinstance(note, dict) else None
            store = open_store(path) if isinstance(path, str) and Path(path).exists() else None
    record = train(
        config,
        options.folder,
        until=options.until,
        resume=True,
        progress=Progress(),
        micro_batches=options.micro_batches,
        sharing=options.sharing,
        attempt=attempt.number,
        beats=options.beats,
        store=store,
    )
    return FAILED if record.status == "failed" else 0


def ended_by(error: Exception, attempt: RunAttempt) -> int:
    """Record and print the end; return the exit code."""
    attempt.check()
    if isinstance(error, Interrupted):
        if not this_launch().rank and attempt.number is not None:  # before its first save
            record_end(attempt, "paused", None)
        print(error, file=sys.stderr)
        return 0
    if not isinstance(error, Busy):  # the run is another process's
        note_failure(failure_of(error), attempt)
    if isinstance(error, InputError):
        if not isinstance(error, SaidByFirst):
            print(error, file=sys.stderr)
        return FAILED if isinstance(error, LaunchError) else BAD_INPUT
    traceback.print_exception(error)
    return FAILED


def note_failure(failure: Failure, attempt: RunAttempt) -> None:
    """Record a failure that happened before the run wrote one.

    Other ranks than the first leave that to it, and stand in where it does not come to it, hanging in a collective.
    """
    folder = attempt.folder
    if not (folder / "config.json").is_file():
        return
    if this_launch().rank and (is_recorded_in_time(attempt) or failure.kind == "lost_node"):
        return
    record_end(attempt, "failed", failure)


def record_end(attempt: RunAttempt, status: Literal["failed", "paused"], failure: Failure | None) -> None:
    """Record an end unless the attempt has recorded one."""
    folder = attempt.folder
    with suppress(InputError):  # an unreadable configuration has no record; the message on stderr says it all
        if (folder / "record.json").is_file():
            record = read_record(folder)
        else:
            config = stored_config(folder / "config.json")
            record = RunRecord(config=config.to_json(), config_hash=config.hash, data_hash="", seed=config.train.seed)
        if not is_recorded(record, attempt):
            changed = replace(record, status=status, failure=failure, attempt=attempt.name)
            with attempt.alone():
                write_record(changed, folder, attempt.check)


def is_recorded_in_time(attempt: RunAttempt) -> bool:
    """Return True where the first rank records the end in time."""
    deadline = time.monotonic() + SECONDS_FOR_THE_FIRST
    while time.monotonic() < deadline:
        with suppress(InputError):
            if is_recorded(read_record(attempt.folder), attempt):
                return True
        time.sleep(0.05)
    return False


def is_recorded(record: RunRecord, attempt: RunAttempt) -> bool:
    """Return True where the record says how this very attempt ended."""
    if attempt.number is None:
        return record.status == "failed" and record.failure is not None
    return record.attempt == attempt.number and record.status != "running"


if __name__ == "__main__":
    leave(main(), seconds=0.0)  # note_failure has waited for the first rank already
