"""Kill a real search with SIGKILL at random moments, resume it each time, and compare with the undisturbed search.

    PYTHONPATH=. python tests/benchmarks/kill_search.py --kills 20 --workers 1

One worker: the same trials, promotions, objective values and top-K, and the same weights bit for bit. Several workers:
no trial is lost, none passes a rung twice, and every trial's weights are those that its configuration gives when it is
trained alone and undisturbed. Prints the evidence and ends with 1 if anything differs.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from hydragnn.hpo import campaign_history, campaign_records
from hydragnn.hpo.scheduling.events import Reached
from tests.charged_rings import write_rings

sys.path.append(str(Path(__file__).resolve().parents[1] / "hpo"))
from campaigns import read_journal

ROOT = Path(__file__).resolve().parents[2]

CAMPAIGN = """
[data]
store = "store.h5"
[batch]
max_graphs = 8
[model]
cutoff = 3.0
num_layers = 2
num_radial = 8
[[heads]]
kind = "scalar"
field = "moment"
[train]
epochs = 12
ema_decay = 0.9
[search]
trials = 9
seed = 1
rungs = [2, 5]
reduction = 3
finalists = 3
[search.space."train.learning_rate"]
type = "float"
low = 1e-4
high = 1e-1
log = true
[search.space."model.hidden_dim"]
type = "int"
low = 4
high = 16
[search.space."model.kind"]
type = "categorical"
choices = ["schnet", "egnn"]
[search.space."model.attention"]
type = "categorical"
choices = [true, false]
when = {"model.kind" = ["egnn"]}
"""

DRIVER = """
import sys
from pathlib import Path
from hydragnn.hpo import read_campaign, run_search
print(run_search(read_campaign(Path(sys.argv[1])), Path(sys.argv[2]), resume=True, workers=int(sys.argv[3])).status)
"""

TRAIN = [sys.executable, "-m", "hydragnn.runs.run"]
TOP = 3


def main() -> int:
    """Run the experiment; 0 if everything is equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")
    parser.add_argument("--folder", type=Path, default=None, help="keep everything here (default: a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "store.h5").exists():
            write_rings(folder / "store.h5", 60)
        (folder / "CAMPAIGN.toml").write_text(CAMPAIGN)
        begun = time.monotonic()
        assert search(folder, "undisturbed", options.workers).wait() == 0
        whole = time.monotonic() - begun
        print(f"undisturbed search: {whole:.1f} s, {len(campaign_records(folder / 'undisturbed'))} trials", flush=True)
        names = disturbed(folder, options.kills, options.workers, random.Random(options.seed))
        compare = same if options.workers == 1 else nothing_lost
        problems = [problem for name in names for problem in compare(folder, name)]
    print("\n".join(problems) if problems else "no difference")
    return 1 if problems else 0


def search(folder: Path, name: str, workers: int) -> subprocess.Popen[bytes]:
    """A controller in a process of its own."""
    command = [sys.executable, "-c", DRIVER, str(folder / "CAMPAIGN.toml"), str(folder / name), str(workers)]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL)


def environment() -> dict[str, str]:
    """One thread, and this checkout."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def disturbed(folder: Path, kills: int, workers: int, chance: random.Random) -> list[str]:
    """Searches that are killed at random moments, as many as the kills need; their names."""
    names: list[str] = []
    done, slowest = 0, 0.0
    while done < kills:
        names.append(f"killed-{len(names)}")
        while True:
            journal = folder / names[-1] / "journal.jsonl"
            before = lines_of(journal)
            process = search(folder, names[-1], workers)
            if done == kills or over_before(process, journal, before, chance):
                process.wait()
                break
            slowest = max(slowest, kill(process))
            done += 1
            print(f"kill {done} of {kills} in {names[-1]} after {lines_of(journal)} events", flush=True)
        assert process.returncode == 0, f"the resumed search ended with {process.returncode}"
    print(f"attempts were gone at most {slowest:.2f} s after their controller")
    return names


def over_before(process: subprocess.Popen[bytes], journal: Path, before: int, chance: random.Random) -> bool:
    """Wait for a random moment: at once, or up to eight events on, and then some time; whether the search ended first."""
    events = before + chance.choice((0, 1, 2, 4, 6, 8))
    while process.poll() is None and lines_of(journal) < events:
        time.sleep(0.01)
    try:
        process.wait(timeout=chance.uniform(0.0, 4.0))
    except subprocess.TimeoutExpired:
        return False
    return True


def lines_of(journal: Path) -> int:
    """Events in a journal so far."""
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def kill(process: subprocess.Popen[bytes]) -> float:
    """SIGKILL the controller alone; the seconds until everything that it started was gone as well."""
    workers: list[psutil.Process] = []
    attempts: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        workers = psutil.Process(process.pid).children()
        attempts = [attempt for worker in workers for attempt in worker.children(recursive=True)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    begun = time.monotonic()
    _, alive = psutil.wait_procs(attempts, timeout=10)
    assert not alive, "an attempt outlived its controller"
    seconds = time.monotonic() - begun
    psutil.wait_procs(workers, timeout=60)  # they may be importing, and notice afterwards
    return seconds if attempts else 0.0


def same(folder: Path, name: str) -> list[str]:
    """Differences between a disturbed and the undisturbed search."""
    pairs = [(describe(folder / "undisturbed"), describe(folder / name))]
    problems = [f"{name}: {key} differ" for one, other in pairs for key in one if one[key] != other[key]]
    print(f"{name}: {len(pairs[0][1]['trials'])} trials, top-{TOP} {pairs[0][1]['top']}, ", end="")
    print(f"{len(pairs[0][1]['weights'])} sets of weights compared")
    return problems


def nothing_lost(folder: Path, name: str) -> list[str]:
    """What is lost or doubled in a search with several workers."""
    out = folder / name
    history = campaign_history(out)
    problems = [] if [t.number for t in history.trials] == list(range(9)) else [f"{name}: trials are missing"]
    passed = Counter((e.trial, e.epochs) for _, e in read_journal(out / "journal.jsonl") if isinstance(e, Reached))
    problems += [f"{name}: {segment} passed {count} times" for segment, count in passed.items() if count > 1]
    problems += [f"{name}: trial {t.number} is {t.status}" for t in history.trials if t.status not in STATUS]
    equal = 0
    for number, record, run in campaign_records(out):
        alone = folder / f"{name}-alone" / str(number)
        alone.mkdir(parents=True)
        (alone / "config.json").write_text(json.dumps(record.config))
        command = [*TRAIN, str(alone), "--until", str(record.epochs)]
        subprocess.run(command, check=True, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        equal += checksum(alone) == checksum(run)
    print(f"{name}: {len(history.trials)} trials, {equal} sets of weights equal those of undisturbed training")
    return [*problems, *([] if equal == 9 else [f"{name}: weights of {9 - equal} trials differ"])]


STATUS = ("finished", "paused")


def describe(out: Path) -> dict[str, Any]:
    """Everything that must be the same twice."""
    records = campaign_records(out)
    ranked = sorted(records, key=lambda item: (item[1].best["valid/loss"], item[0]))
    return {
        "trials": [(t.number, t.status, t.values, t.rungs) for t in campaign_history(out).trials],
        "top": [(number, record.best["valid/loss"]) for number, record, _ in ranked[:TOP]],
        "curves": {number: record.curves for number, record, _ in records},
        "weights": {number: checksum(run) for number, _, run in records},
    }


def checksum(run: Path) -> str:
    """Of the weights that a run leaves."""
    return hashlib.sha256((run / "model" / "weights.safetensors").read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
