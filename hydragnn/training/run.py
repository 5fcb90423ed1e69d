"""Entry for worker processes: ``python -m hydragnn.training.run RUN [--until N]``, also under torchrun, mpirun or srun.

Reads RUN/config.json, begins or resumes, writes RUN/record.json. Exit code 0: the record says finished, paused or
stopped; 3: it says failed, with a typed reason; 2: bad input. What counts is the record, not the code.
"""

import argparse
import sys
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from hydragnn.config import RunConfig
from hydragnn.errors import InputError, Interrupted
from hydragnn.files import read_json
from hydragnn.record import RunRecord, read_record, write_record
from hydragnn.training.distributed import leave, this_launch
from hydragnn.training.failures import failure_of
from hydragnn.training.progress import console_progress
from hydragnn.training.session import train


def main(arguments: list[str] | None = None) -> int:
    """Train as the command line says; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hydragnn.training.run", description=__doc__)
    parser.add_argument("folder", type=Path, help="run folder with config.json")
    parser.add_argument("--until", type=int, default=None, help="end of the segment, in epochs (default: all epochs)")
    parser.add_argument("--threads", type=int, default=1, help="threads of this process on the CPU (default: 1)")
    parser.add_argument("--device", default=None, help="cpu, cuda or cuda:N (default: a GPU where there is one)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    folder: Path = options.folder
    try:
        config = RunConfig.parse(read_json(folder / "config.json"), str(folder / "config.json"))
        record = train(
            config, folder, until=options.until, resume=True, progress=console_progress(), device=options.device
        )
    except Interrupted as note:
        print(note, file=sys.stderr)
        return 0
    except Exception as error:
        note_failure(folder, error)
        if isinstance(error, InputError):
            print(error, file=sys.stderr)
            return 2
        traceback.print_exc()
        return 3
    return 3 if record.status == "failed" else 0


def note_failure(folder: Path, error: Exception) -> None:
    """Leave a record of a run that failed before it could write one itself; a record that says so already stays."""
    if this_launch().rank != 0 or not (folder / "config.json").is_file():
        return
    with suppress(InputError):  # an unreadable configuration has no record; the message on stderr says it all
        config = RunConfig.parse(read_json(folder / "config.json"), str(folder / "config.json"))
        record = RunRecord(config=config.to_json(), config_hash=config.hash, data_hash="", seed=config.train.seed)
        if (folder / "record.json").is_file():
            record = read_record(folder)
        if record.status != "failed" or record.failure is None:
            write_record(replace(record, status="failed", failure=failure_of(error)), folder)


if __name__ == "__main__":
    leave(main())
