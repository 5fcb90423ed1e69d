"""A rank that predicts and may dawdle or die on the way; started by the tests by mpirun, srun, torchrun or alone.

``python predicting.py MODEL SOURCE OUT [--resume] [--workers N] [--faulty-rank R --after N [--at piece|segment|graphs] [--seconds S | --until-there] [--others-seconds T]]``: the
faulty rank does its N-th unit (from 0), pieces, segments of the file or look at the graphs for S seconds longer, or until the file is there, or without either it is gone before that, by SIGKILL. The
others do not begin their N-th before, so that there is an N-th for the faulty one however much later it began, and only T seconds after that.
"""

import argparse
import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from hydragnn.base.errors import InputError, Interrupted
from hydragnn.datasets import BatchSettings
from hydragnn.distributed import finishing, graph_ranks, group, leave, this_launch
from hydragnn.ensemble.prediction import job, parts, work
from hydragnn.ensemble.prediction.formats import hdf5, sink
from hydragnn.ensemble.prediction.predict import predict_to_file

sys.path.append(str(Path(__file__).parents[2]))
from tests.acting import first_acts

PATCH = pytest.MonkeyPatch()
BEFORE: dict[str, tuple[Any, str]] = {
    "unit": (work, "outcome_of"),
    "piece": (parts.Parts, "keep_segment"),
    "segment": (sink.Sink, "append"),
    "graphs": (job.Inputs, "graphs"),
    "shared": (graph_ranks, "shared_prediction"),
}


def falter(note: Path, seconds: float, until: Path | None) -> None:
    """Leave a note, then hang for so many seconds, or until a file is there, or be gone; below 0: be stopped."""
    note.touch()
    if seconds < 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    if until is not None:
        wait_for(until, 0.0)
    elif not seconds:
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        time.sleep(seconds)


def wait_for(note: Path, seconds: float) -> None:
    """Return so many seconds after the note is there."""
    while not note.exists():
        time.sleep(0.01)
    time.sleep(seconds)


def main() -> tuple[int, bool]:
    """Predict, and print the counts of the rank that has them; gives the exit code, and whether to just fall off the end."""
    parser = argparse.ArgumentParser()
    for name in ("model", "source", "out"):
        parser.add_argument(name, type=Path)
    for name in ("--resume", "--until-there", "--fall-off"):  # the last: end as a script that knows nothing of ranks
        parser.add_argument(name, action="store_true")
    numbers = {"workers": 1, "graph-ranks": 1, "max-graphs": 4, "faulty-rank": -1, "after": 0, "seconds": 0.0}
    numbers |= {"others-seconds": 0.0, "farewell": group.FAREWELL, "hesitation": finishing.HESITATION}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--at", choices=list(BEFORE), default="unit")
    options = parser.parse_args()
    torch.set_num_threads(1)
    work.KEEP_SECONDS = work.LOOK_SECONDS = 0.0  # every unit for itself
    hdf5.ROWS = 8  # several chunks
    group.FAREWELL, finishing.HESITATION, group.STOPPED = options.farewell, options.hesitation, 1.0
    note = options.out.with_name(options.out.name + ".faltered")
    if this_launch().rank == options.faulty_rank:
        until = options.out if options.until_there else None
        first_acts(PATCH, *BEFORE[options.at], partial(falter, note, options.seconds, until), options.after)
    elif options.faulty_rank >= 0 and options.at != "shared":
        first_acts(PATCH, *BEFORE[options.at], partial(wait_for, note, options.others_seconds), options.after)
    try:
        result = predict_to_file(
            options.model,
            options.source,
            options.out,
            resume=options.resume,
            batch=BatchSettings(max_graphs=options.max_graphs),
            workers=options.workers,
            graph_ranks=options.graph_ranks,
        )
    except InputError as error:
        print(error, flush=True)
        return 2, options.fall_off
    except Interrupted as note:
        print(note, flush=True)
        return 130, options.fall_off
    if result:
        print(json.dumps(result.to_json()), flush=True)
    return 0, options.fall_off


if __name__ == "__main__":
    code, fall_off = main()
    sys.stdout.flush()
    if not fall_off:
        leave(code, seconds=1.0)
