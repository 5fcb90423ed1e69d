"""Stands in for hydragnn.runs.run on the nodes of a job step: same command line, record, heartbeat and fencing.

``FAKE_FAULTS`` in the environment is a JSON table: trial number -> what happens to its first attempt.
"""

import argparse
import json
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError
from hydragnn.base.files import digest, write_atomically
from hydragnn.record import Cost, RunRecord, write_record


def main() -> int:
    """Train as the command line says, without training."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    for name, default in (("until", 1), ("attempt", 0), ("micro-batches", 1), ("ranks", 1), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--beats", type=Path, default=None)
    options = parser.parse_args()
    folder: Path = options.folder
    rank, size = rank_and_size()
    stopped: list[int] = []
    for kind in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(kind, lambda number, _: stopped.append(number))
    note = {"rank": rank, "size": size, "node": node(), "attempt": options.attempt, "threads": options.threads}
    with (folder / "ranks.txt").open("a") as file:
        file.write(json.dumps(note) + "\n")
    if size != options.ranks:
        return 2
    over = folder / f".over-{options.attempt}"
    if rank:
        while not (over.exists() or stopped):
            time.sleep(0.05)
        return 0
    while (
        not stopped and ranks_there(folder, options.attempt) < size
    ):  # as real ranks wait for each other before the first step
        time.sleep(0.02)
    code = steps(folder, options, stopped)
    over.touch()
    return code


def ranks_there(folder: Path, attempt: int) -> int:
    """How many ranks of an attempt handle signals by now."""
    notes = (json.loads(line) for line in (folder / "ranks.txt").read_text().splitlines())
    return sum(note["attempt"] == attempt for note in notes)


def steps(folder: Path, options: argparse.Namespace, stopped: list[int]) -> int:
    """Epoch after epoch, each with a checkpoint and a heartbeat, until the end, a signal or a planned fault."""
    config = json.loads((folder / "config.json").read_text())
    faults = json.loads(os.environ.get("FAKE_FAULTS", "{}"))
    fault = faults.get(str(int(folder.name))) if options.attempt == 1 else None
    state, pause = folder / "weights.json", float(os.environ.get("FAKE_PAUSE", "0.1"))
    weights: list[int] = json.loads(state.read_text()) if state.exists() else []
    until = sys.maxsize if fault == "long" else options.until
    while len(weights) < until and not stopped:
        time.sleep(pause)
        if json.loads((folder / "attempt.json").read_text())["attempt"] != options.attempt:
            return 4
        if fault == "crash":
            print("something is broken")
            return 9
        while fault == "hang":
            time.sleep(0.1)
        if fault == "memory":
            print(
                "slurmstepd: error: Detected 1 oom_kill event in StepId=1.1. Some of the step tasks have been OOM Killed."
            )
            os.kill(os.getpid(), signal.SIGKILL)
        for file in (folder / "heartbeat", *([options.beats] if options.beats else [])):
            file.write_text(str(time.time()))
        weights.append(len(weights))
        write_atomically(state, json.dumps(weights) + " " * int(os.environ.get("FAKE_BYTES", "0")))
        write(config, folder, options.attempt, weights, "running")
    done = len(weights) >= config["train"]["epochs"] and fault != "long"
    write(config, folder, options.attempt, weights, "finished" if done else "paused")
    return 0


def write(config: dict[str, Any], folder: Path, attempt: int, weights: list[int], status: Any) -> None:
    """The record that real training would leave."""
    rate, width = config["train"]["learning_rate"], config["model"]["hidden_dim"]
    curve = [abs(math.log10(rate) + 3) + abs(width - 48) / 48 + 1 / (epoch + 1) for epoch in range(len(weights))]
    record = RunRecord(
        config=config,
        config_hash=digest(config),
        data_hash="d",
        seed=config["train"]["seed"],
        status=status,
        attempt=attempt,
        epochs=len(weights),
        curves={"valid/loss": curve},
        trivial={},
        cost=Cost(seconds=0.1 * len(weights), graphs_per_second=100.0),
    )
    write_record(record, folder)


def rank_and_size() -> tuple[int, int]:
    """Who this rank is, from Slurm or MPI."""
    for rank, size in (("PMI_RANK", "PMI_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")):
        if rank in os.environ and int(os.environ.get(size, "1")) > 1:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def node() -> str:
    """The node's name."""
    return os.environ.get("SLURMD_NODENAME", os.uname().nodename)


if __name__ == "__main__":
    try:
        code = main()
    except InputError as error:
        print(error, file=sys.stderr)
        code = 2
    sys.exit(code)
