"""A search without real training: attempts are processes of a module that learns in milliseconds."""

from pathlib import Path
from typing import Any

TRAINING = '''
"""Stands in for hydragnn.runs.run: same command line, same record, curves that depend on the configuration only.

Its epochs take FAKE_PAUSE seconds each, until the folder of the campaign has a file ``hurry``.
"""
import argparse, json, math, os, signal, sys, time
from pathlib import Path
from hydragnn.record import Cost, Failure, RunRecord, write_record
from hydragnn.base.files import digest, write_atomically

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--until", type=int)
parser.add_argument("--attempt", type=int, default=0)
parser.add_argument("--micro-batches", type=int, default=1)
options = parser.parse_args()
folder = options.folder
config = json.loads((folder / "config.json").read_text())
with (folder / "pids.txt").open("a") as file:
    file.write(f"{os.getpid()}\\n")
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
assert json.loads((folder / "attempt.json").read_text())["attempt"] == options.attempt or not options.attempt
state = folder / "weights.json"
weights = json.loads(state.read_text()) if state.exists() else []
rate, width, seed = config["train"]["learning_rate"], config["model"]["hidden_dim"], config["train"]["seed"]
pause = float(os.environ.get("FAKE_PAUSE", "0"))

def record(status, failure=None):
    curve = [abs(math.log10(rate) + 3) + abs(width - 48) / 48 + 1 / (epoch + 1) for epoch in range(len(weights))]
    curves = {"valid/loss": curve, "valid/energy/mae": [2 * c for c in curve], "valid/energy/rmse": [3 * c for c in curve]}
    write_record(RunRecord(config=config, config_hash=digest(config), data_hash="d", seed=seed,
        status=status, attempt=options.attempt, epochs=len(weights), curves=curves, trivial={"valid/energy/mae": 10.0}, failure=failure,
        cost=Cost(seconds=0.1 * len(weights), graphs_per_second=100.0)), folder)

fault = os.environ.get("FAKE_FAULT", "")
once = folder / "faulted"
if fault and (seed % 3 == 1 or fault.startswith("all")):
    kind = fault.removeprefix("all ")
    if kind == "crash":
        print("something is broken"); sys.exit(9)
    if kind == "kill once" and not once.exists():
        once.touch(); os.kill(os.getpid(), signal.SIGKILL)
    if kind == "hang once" and not once.exists():
        once.touch(); time.sleep(600)
    if kind == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (folder / "deaf").touch(); time.sleep(600)
    if kind in ("diverged", "configuration"):
        record("failed", Failure(kind=kind, message="as planned")); sys.exit(3)
while len(weights) < options.until and not stopped:
    if not (folder.parents[1] / "hurry").exists():
        time.sleep(pause)
    weights.append(hash((seed, rate, width, len(weights))) % 1000003)
    write_atomically(state, json.dumps(weights))
    record("running")
if len(weights) >= options.until:
    record("finished" if len(weights) >= config["train"]["epochs"] else "paused")
else:
    record("paused")
'''


def write_module(folder: Path) -> None:
    """The module above, as ``fake.training`` below a folder."""
    (folder / "fake").mkdir(parents=True)
    (folder / "fake" / "__init__.py").write_text(
        "import hydragnn.record\n"
    )  # once per worker, before it forks attempts
    (folder / "fake" / "training.py").write_text(TRAINING)


def campaign_table(store: Path) -> dict[str, Any]:
    """A campaign as it comes from TOML."""
    return {
        "data": {"store": str(store)},
        "model": {"kind": "schnet"},
        "heads": [{"kind": "scalar", "field": "energy"}],
        "train": {"epochs": 6},
        "search": {
            "trials": 9,
            "sampler": "random",
            "seed": 3,
            "rungs": [1, 3],
            "reduction": 3,
            "finalists": 2,
            "space": {
                "train.learning_rate": {"type": "float", "low": 1e-5, "high": 1e-1, "log": True},
                "model.hidden_dim": {"type": "int", "low": 8, "high": 128},
            },
        },
    }


def environment(folder: Path, pause: float, fault: str) -> dict[str, str]:
    """What such attempts run in."""
    root = Path(__file__).resolve().parents[2]
    return {
        "PYTHONPATH": f"{root}:{folder}",
        "FAKE_PAUSE": str(pause),
        "FAKE_FAULT": fault,
        "PYTHONHASHSEED": "0",
    }
