"""Stand-in for hydragnn.runs.run that learns in milliseconds: same command line, record, heartbeat and fencing.

In the environment: ``FAKE_PAUSE``, seconds of an epoch, until the folder of the campaign has a file ``hurry``; ``FAKE_FAULT``, the fault of a
third of the trials, or after ``all`` of each; ``FAKE_FAULTS``, a JSON table of faults of first attempts by trial.
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
from hydragnn.record import Cost, Failure, RunRecord, write_record


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    for name, default in (("until", 1), ("attempt", 0), ("micro-batches", 1), ("ranks", 1), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--beats", type=Path, default=None)
    parser.add_argument("--allow-code", action="append")
    options = parser.parse_args()
    folder: Path = options.folder
    rank, size = rank_and_size()
    stopped: list[int] = []
    for kind in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(kind, lambda number, _: stopped.append(number))
    node = os.environ.get("SLURMD_NODENAME", os.uname().nodename)
    note = {"rank": rank, "size": size, "node": node, "attempt": options.attempt, "threads": options.threads}
    with (folder / "ranks.txt").open("a") as file:
        file.write(json.dumps(note) + "\n")
    if size != options.ranks:
        return 2
    over = folder / f".over-{options.attempt}"
    if rank:
        while not (over.exists() or stopped):
            time.sleep(0.05)
        return 0
    while not stopped and ranks_there(folder, options.attempt) < size:  # real ranks wait for each other as well
        time.sleep(0.02)
    code = steps(folder, options, stopped)
    over.touch()
    return code


def ranks_there(folder: Path, attempt: int) -> int:
    notes = (json.loads(line) for line in (folder / "ranks.txt").read_text().splitlines())
    return sum(note["attempt"] == attempt for note in notes)


def fault_of(folder: Path, attempt: int, seed: int) -> str:
    """The planned fault of an attempt; empty without one."""
    named = json.loads(os.environ.get("FAKE_FAULTS", "{}")).get(str(int(folder.name)), "")
    usual = os.environ.get("FAKE_FAULT", "")
    fault = usual.removeprefix("all ") if seed % 3 == 1 or usual.startswith("all") else ""
    fault, once = (named, True) if named else (fault.removesuffix(" once"), fault.endswith(" once"))
    return "" if once and attempt > 1 else fault


def steps(folder: Path, options: argparse.Namespace, stopped: list[int]) -> int:
    """Epoch after epoch, each with a checkpoint and a heartbeat, until the end, a signal or a planned fault."""
    config = json.loads((folder / "config.json").read_text())
    rate, width, seed = config["train"]["learning_rate"], config["model"]["hidden_dim"], config["train"]["seed"]
    fault = fault_of(folder, options.attempt, seed)
    state, pause = folder / "weights.json", float(os.environ.get("FAKE_PAUSE", "0.1"))
    weights: list[int] = json.loads(state.read_text()) if state.exists() else []
    if fault in ("diverged", "configuration"):
        write(config, folder, options.attempt, len(weights), "failed", Failure(kind=fault, message="as planned"))  # type: ignore[arg-type]
        return 3
    if fault == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (folder / "deaf").touch()
    until = sys.maxsize if fault == "long" else options.until
    while len(weights) < (min(until, 2) if fault == "early" else until) and not stopped:
        if not (folder.parents[1] / "hurry").exists():
            time.sleep(pause)
        if options.attempt and json.loads((folder / "attempt.json").read_text())["attempt"] != options.attempt:
            return 4
        if fault == "crash":
            print("something is broken")
            return 9
        while fault in ("hang", "deaf"):
            time.sleep(0.1)
        if fault == "memory":
            print("slurmstepd: error: Detected 1 oom_kill event in StepId=1.1. Some tasks have been OOM Killed.")
        if fault in ("memory", "kill"):
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        for file in (folder / "heartbeat", *([options.beats] if options.beats else [])):
            file.write_text(str(time.time()))
        weights.append(hash((seed, rate, width, len(weights))) % 1000003)
        write_atomically(state, json.dumps(weights))
        write(config, folder, options.attempt, len(weights), "running")
    done = len(weights) >= config["train"]["epochs"] and fault != "long"
    early = fault == "early" and len(weights) == 2
    write(config, folder, options.attempt, len(weights), "finished" if done else "stopped" if early else "paused")
    return 0


def write(
    config: dict[str, Any], folder: Path, attempt: int, epochs: int, status: Any, failure: Failure | None = None
) -> None:
    """The record that real training would leave; its curves depend on the configuration only."""
    rate, width = config["train"]["learning_rate"], config["model"]["hidden_dim"]
    curve = [abs(math.log10(rate) + 3) + abs(width - 48) / 48 + 1 / (epoch + 1) for epoch in range(epochs)]
    errors = {"valid/moment/mae": [2 * value for value in curve], "valid/moment/rmse": [3 * value for value in curve]}
    record = RunRecord(
        config=config,
        config_hash=digest(config),
        data_hash="d",
        seed=config["train"]["seed"],
        status=status,
        attempt=attempt,
        epochs=epochs,
        parameters=100 * width,
        curves={"valid/loss": curve, **errors},
        trivial={"valid/moment/mae": 10.0},
        failure=failure,
        cost=Cost(seconds=0.1 * epochs, graphs_per_second=100.0),
    )
    write_record(record, folder)


def rank_and_size() -> tuple[int, int]:
    for rank, size in (("PMI_RANK", "PMI_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")):
        if rank in os.environ and int(os.environ.get(size, "1")) > 1:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


if __name__ == "__main__":
    try:
        code = main()
    except InputError as error:
        print(error, file=sys.stderr)
        code = 2
    sys.exit(code)
