"""Kill a training run with SIGKILL at random moments, resume it each time, and compare every bit with an undisturbed run.

``python tests/benchmarks/kill_train.py --kills 20 [--ranks 2] [--model painn] [--seed 0] [--folder DIR]``; exit code 0 where
all is equal. With several ranks (under mpirun) only one of them is killed, a random one each time. With ``--wake`` the one
process is stopped instead, and woken beside its successor, which it must leave alone.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from safetensors.torch import load_file

from hydragnn.base.files import write_json
from hydragnn.record import read_record

WORKER = Path(__file__).resolve().parents[1] / "hydragnn" / "training" / "worker.py"
ROOT = WORKER.parents[3]
FENCED = 4


def configuration(model: str, epochs: int) -> dict[str, Any]:
    """Energies with forces and node charges, dropout, an average of weights, warm-up and a checkpoint every epoch."""
    return {
        "data": {"store": "made on the spot", "inputs": ["atomic_numbers"]},
        "split": {"train": 0.7, "valid": 0.2},
        "batch": {"max_graphs": 8},
        "model": {"kind": model, "hidden_dim": 16, "num_layers": 2, "cutoff": 3.0, "dropout": 0.1},
        "heads": [
            {
                "kind": "energy",
                "loss": "mse",
                "stage_two_factor": 1.0,
                "field": "energy",
                "per_node": True,
                "references": True,
                "forces": "forces",
            },
            {"kind": "scalar", "field": "charge", "loss": "huber"},
        ],
        "train": {"epochs": epochs, "ema_decay": 0.99, "warmup_epochs": 2, "checkpoint_seconds": 0},
    }


def started(out: Path, config: Path, ranks: int, attempt: int) -> subprocess.Popen[bytes]:
    """The training process, or the launcher of several."""
    resume = ["--resume"] if (out / "config.json").exists() else []
    out.mkdir(exist_ok=True)
    write_json(out / "attempt.json", {"attempt": attempt})
    launcher = [str(Path(sys.executable).parent / "mpirun"), "-n", str(ranks)] if ranks > 1 else []
    command = [*launcher, sys.executable, str(WORKER), str(out), str(config), "--graphs", "120", *resume]
    command += ["--attempt", str(attempt)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill(process: subprocess.Popen[bytes], ranks: int, choice: random.Random) -> str:
    """Kill the process, or one of the launcher's ranks, and wait until nothing of it runs; gives what was killed."""
    actual = psutil.Process(process.pid).children(recursive=True) if ranks > 1 else []
    working = sorted((child for child in actual if str(WORKER) in child.cmdline()), key=lambda child: child.pid)
    if working:
        number = choice.randrange(len(working))
        working[number].kill()
        process.wait(timeout=120)
        return f"process {number + 1} of {len(working)}"
    process.kill()
    process.wait()
    return "the launcher" if ranks > 1 else "the process"


Stopped = list[tuple[subprocess.Popen[bytes], int]]
"""Processes that were stopped, and the codes with which they must leave."""


def stop(process: subprocess.Popen[bytes], run: Path, stopped: Stopped) -> str:
    """Stop the process for the next attempt to wake; gives what was stopped."""
    process.send_signal(signal.SIGSTOP)
    done = (run / "record.json").exists() and read_record(run).status == "finished"
    stopped.append((process, 0 if done else FENCED))
    return "the process, by SIGSTOP"


def wake(stopped: Stopped, pause: float) -> None:
    """Wake what was stopped a while after its successor began, and see it leave for that reason."""
    while stopped:
        time.sleep(pause)
        process, expected = stopped.pop()
        process.send_signal(signal.SIGCONT)
        code = process.wait(timeout=120)
        assert code == expected, f"a woken process left with code {code}, not {expected}"


def tensors(run: Path) -> dict[str, bytes]:
    """Everything in the newest checkpoint, and the exported model, as bytes."""
    newest = max(path for path in (run / "checkpoints").iterdir() if path.is_dir())
    values = load_file(newest / "tensors.safetensors")
    actual = {name: value.numpy().tobytes() for name, value in values.items()}
    return actual | {"model": (run / "model" / "weights.safetensors").read_bytes()}


def main() -> int:
    """Kill, resume, compare; prints a line per kill."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--wake", action="store_true")
    parser.add_argument("--model", default="schnet")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="kill_train_"))
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.json"
    config.write_text(json.dumps(configuration(options.model, options.epochs)))
    whole, cut, moments = folder / "whole", folder / "cut", random.Random(options.seed)
    begin = time.monotonic()
    assert started(whole, config, options.ranks, 1).wait() == 0, "the undisturbed run failed"
    length = time.monotonic() - begin
    print(f"undisturbed run: {length:.1f} s; killing {options.kills} times at random", flush=True)
    kills, attempt, stopped = 0, 0, Stopped()
    while kills < options.kills:
        attempt += 1
        process = started(cut, config, options.ranks, attempt)
        moment = moments.uniform(0.3, 1.0) * length
        wake(stopped, moments.uniform(0.0, 0.5) * moment)
        try:
            code = process.wait(timeout=moment)
        except subprocess.TimeoutExpired:
            victim = stop(process, cut, stopped) if options.wake else kill(process, options.ranks, moments)
            kills += 1
            pointer = cut / "checkpoints" / "latest.json"
            newest = json.loads(pointer.read_text())["checkpoint"] if pointer.exists() else "none"
            print(f"kill {kills:2d} of {victim} after {moment:5.2f} s; newest checkpoint {newest}", flush=True)
            continue
        print(f"finished (exit code {code}) before kill {kills + 1}; beginning another run", flush=True)
        length *= 0.8  # the machine is faster now than it was
        if differences(whole, cut):
            break
        for path in sorted(cut.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        cut.rmdir()
    last = started(cut, config, options.ranks, attempt + 1)
    wake(stopped, 0.3 * length)
    assert last.wait() == 0, "the last resume failed"
    different = differences(whole, cut)
    print(f"compared {len(tensors(whole))} tensors and files and {len(read_record(whole).curves)} curves: ", end="")
    print("all bits equal" if not different else f"different: {', '.join(different)}")
    return 1 if different else 0


def differences(whole: Path, cut: Path) -> list[str]:
    """What is not the same in two finished runs."""
    one, other = tensors(whole), tensors(cut)
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    before, after = read_record(whole), read_record(cut)
    names += ["status"] if before.status != after.status else []
    return names + [name for name, curve in before.curves.items() if after.curves.get(name) != curve]


if __name__ == "__main__":
    sys.exit(main())
