"""A campaign inside an allocation of a real Slurm whose controller is killed again and again, and then stays away for minutes.

    python -m tests.benchmarks.restart_slurmctld [--kills 10] [--outage 180] [--seed 0]

Four virtual nodes, trials that train nothing for half a minute each. ``slurmctld`` gets SIGKILL at random moments, and is started again
after up to ten seconds; then it is stopped for the whole outage. Prints what the journal says of it: failed attempts, nodes asked or
struck, trials and their ends; and goodput, the seconds that trials worked over those of four nodes, with the seconds without
a controller and without them. Ends with 1 where an attempt failed, a node was struck or a trial is not finished. Needs root, slurm-wlm and munge.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hydragnn.hpo.journal import read_journal, replay
from hydragnn.hpo.scheduling.events import Failed, Probed
from tests.slurm import Cluster, why_not

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "hpo"))
from rings import write_rings  # noqa: E402

NODES, EPOCHS, PAUSE = 4, 20, 1.5
BACK = 10.0
"""Seconds until a killed controller is started again, at most."""
EVERY = (2.0, 20.0)
"""Seconds between its return and the next kill, drawn between these."""


def campaign(folder: Path, trials: int) -> dict[str, object]:
    """So many trials of one node each, as a table."""
    write_rings(folder / "store.h5", 40)
    space = {"train.learning_rate": {"type": "float", "low": 1e-5, "high": 1e-1, "log": True}}
    return {
        "data": {"store": str(folder / "store.h5")},
        "model": {"kind": "schnet", "hidden_dim": 16},
        "heads": [{"kind": "scalar", "field": "energy"}],
        "train": {"epochs": EPOCHS},
        "search": {"trials": trials, "seed": 3, "rungs": [], "space": space},
    }


def disturb(cluster: Cluster, search: "subprocess.Popen[bytes]", options: argparse.Namespace) -> float:
    """Kill the controller so often, then stop it for the outage; gives the seconds without it."""
    chance, away = random.Random(options.seed), 0.0
    for number in range(options.kills + 1):
        time.sleep(chance.uniform(*EVERY))
        if search.poll() is not None:
            raise RuntimeError(f"the campaign ended after {number} kills; give it more trials")
        begin = time.monotonic()
        if number < options.kills:
            cluster.kill("slurmctld")
            time.sleep(chance.uniform(0.0, BACK))
        else:
            cluster.stop_controller()
            time.sleep(options.outage)
        cluster.start_controller()
        away += time.monotonic() - begin
        print(
            f"{'kill' if number < options.kills else 'outage'} {number + 1}: {time.monotonic() - begin:.1f} s",
            flush=True,
        )
    return away


def problems_of(out: Path, trials: int) -> list[str]:
    """What should not be in the journal."""
    state, events = replay(out / "journal.jsonl"), list(read_journal(out / "journal.jsonl"))
    failed = [event for event in events if isinstance(event, Failed)]
    asked = [event for event in events if isinstance(event, Probed)]
    ends = [trial.status for trial in state.trials.values()]
    print(
        f"{len(failed)} failed attempts, {len(asked)} nodes asked, {len(state.health)} nodes with a history, {len(ends)} trials"
    )
    found = [f"failed: {event}" for event in failed] + [f"struck: {node}" for node in state.health]
    return found + [f"{len(ends)} trials, {ends.count('finished')} finished"] * (ends.count("finished") != trials)


def main() -> int:
    """Run it; 0 if nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("kills", 10), ("outage", 180), ("seed", 0), ("trials", 48)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if why_not():
        sys.exit(why_not())
    with tempfile.TemporaryDirectory() as name, Cluster(nodes=NODES, cores=2) as cluster:
        folder = Path(name)
        (folder / "campaign.json").write_text(json.dumps(campaign(folder, options.trials)))
        here = {**cluster.environment, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'hpo'}", "FAKE_PAUSE": str(PAUSE)}
        command = [sys.executable, ROOT / "tests" / "hpo" / "pilot.py", folder / "campaign.json", folder / "campaign"]
        salloc = ["salloc", f"-N{NODES}", "--no-kill", "--time=120", *command]
        begin = time.monotonic()
        with (folder / "out.txt").open("wb") as log:
            search = subprocess.Popen(salloc, env={**os.environ, **here}, stdout=log, stderr=log)
            away = disturb(cluster, search, options)
            code = search.wait()
        seconds = time.monotonic() - begin
        found = problems_of(folder / "campaign", options.trials) + [f"exit code {code}"] * bool(code)
        worked = options.trials * EPOCHS * PAUSE / NODES
        print(
            f"{seconds:.0f} s, {away:.0f} of them without slurmctld; goodput {worked / seconds:.3f}, {worked / (seconds - away):.3f} of the others"
        )
        if found:
            print(*found, (folder / "out.txt").read_text()[-2000:], sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
