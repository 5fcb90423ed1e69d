"""Campaigns of tiny trials under kills, and two controllers of one campaign where locks do not reach.

    PYTHONPATH=. python tests/benchmarks/soak_search.py --trials 300 --kills 30     none lost, no resume longer than 30 s
    PYTHONPATH=. python tests/benchmarks/soak_search.py --two 20                    one of two leaves, no journal is damaged

Killed are controllers, workers, and controllers that are asked to leave, half of them while ``optuna.log`` is written.
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
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

sys.path.append(str(Path(__file__).resolve().parents[1] / "hpo"))
from rings import write_rings
from tiny import campaign_table, environment

from hydragnn.hpo import campaign_history
from hydragnn.hpo.journal import read_journal
from hydragnn.hpo.scheduling.events import Opened, Reached
from tests.forked import Forked
from tests.nolock import without_locks

PATIENCE = 240.0  # seconds for what a loaded machine does within ten
WRITING = "writing"
"""A file beside ``optuna.log`` while that is written."""

DRIVER = """
import json, sys, time
from pathlib import Path
from hydragnn.base.errors import InputError
from hydragnn.hpo import LocalLauncher, campaign_settings, run_search, study_log
table, environment, out, workers = json.loads(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
flush = study_log._Lines.flush

def flush_slowly(lines):
    (out / "writing").touch()
    flush(lines)
    time.sleep(0.02)
    (out / "writing").unlink(missing_ok=True)

study_log._Lines.flush = flush_slowly
launcher = LocalLauncher(workers, module="fake.training", environment=environment)
try:
    result = run_search(campaign_settings(table, out.parent / "CAMPAIGN.toml"), out, resume=True, launcher=launcher)
except InputError as error:
    print(error)
    sys.exit(error.code)
sys.exit(0 if result.ending == "finished" else 75)
"""


@dataclass
class Course:
    """A folder in which campaigns are driven."""

    folder: Path
    trials: int
    pause: float

    def __post_init__(self) -> None:
        write_rings(self.folder / "store.h5", 40)
        (self.folder / "driver.py").write_text(DRIVER)

    def words(self, name: str, workers: int) -> list[str]:
        table = campaign_table(self.folder / "store.h5")
        table["search"] |= {"trials": self.trials, "retries": 20}
        variables = environment(self.pause, "")
        return [
            str(self.folder / "driver.py"),
            json.dumps(table),
            json.dumps(variables),
            str(self.folder / name),
            str(workers),
        ]

    def variables(self, **more: str) -> dict[str, str]:
        return {**os.environ, "OMP_NUM_THREADS": "1", **environment(self.pause, ""), **more}


def soak(course: Course, kills: int, workers: int, seed: int) -> dict[str, Any]:
    """What became of a campaign that was struck so often."""
    out, chance, struck = course.folder / "c", random.Random(seed), Counter[str]()
    resumes: list[float] = []
    while True:
        before, begun = openings(out), time.monotonic()
        process = Forked(course.words("c", workers), course.variables())
        while openings(out) == before and process.poll() is None:
            time.sleep(0.02)
        resumes.append(time.monotonic() - begun)
        while struck.total() < kills and process.poll() is None:
            kind = strike(process, out, chance, writing=struck.total() % 2 == 0)
            struck[kind] += kind != ""
        code = process.wait(PATIENCE)
        if code not in (0, 75, -signal.SIGKILL):
            raise AssertionError(f"a controller ended with {code}: {process.communicate()[0]}")
        if code == 0:
            return {**outcome(out), "struck": dict(struck), "resumes": len(resumes) - 1, "longest": max(resumes)}


def strike(process: Forked, out: Path, chance: random.Random, *, writing: bool) -> str:
    """Strike a controller or one of its workers at a random moment, or while the study is written; what was struck."""
    kind = chance.choice(["controller", "controller", "worker", "leave"])
    end = time.monotonic() + chance.uniform(0.1, 1.0)
    while process.poll() is None and (time.monotonic() < end or (writing and not (out / WRITING).exists())):
        time.sleep(0.002)
    with suppress(psutil.NoSuchProcess):
        if kind == "worker":
            children = psutil.Process(process.pid).children()
            workers = [child for child in children if "worker.py" in " ".join(child.cmdline())]
            if not workers:
                return ""
            chance.choice(workers).kill()
            return f"{kind}{' at the study' * writing}"
        if process.poll() is None:
            process.send_signal(signal.SIGKILL if kind == "controller" else signal.SIGINT)
            process.wait(PATIENCE)
            return f"{kind}{' at the study' * writing}"
    return ""


def two(course: Course, name: str, *, stopped: bool, error: int) -> dict[str, Any]:
    """What two controllers of a campaign came to: both at work, or the first one stopped until the second is at work."""
    out = course.folder / name
    variables = course.variables(**without_locks(error))
    command = [sys.executable, *course.words(name, 2)]

    def start(before: int) -> "subprocess.Popen[str]":
        process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        while openings(out) == before and process.poll() is None:
            time.sleep(0.02)
        return process

    first = start(0)
    while not list(out.glob("trials/*/record.json")):
        time.sleep(0.01)
    if stopped:
        first.send_signal(signal.SIGSTOP)
    second = start(1)
    if stopped:
        time.sleep(0.3)
        first.send_signal(signal.SIGCONT)
    first.wait(PATIENCE)
    (out / "hurry").touch()
    said = [process.communicate(timeout=PATIENCE)[0] for process in (first, second)]
    alive = [child for child in psutil.process_iter() if str(out) in " ".join(_words(child))]
    return {**outcome(out), "codes": (first.returncode, second.returncode), "said": said, "alive": len(alive)}


def _words(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def openings(out: Path) -> int:
    """Controllers that have begun."""
    return sum(isinstance(event, Opened) for _, event in read_journal(out / "journal.jsonl"))


def outcome(out: Path) -> dict[str, Any]:
    """Trials by status, and segments that were passed more than once; InputError where the journal is damaged."""
    passed = Counter((e.trial, e.epochs) for _, e in read_journal(out / "journal.jsonl") if isinstance(e, Reached))
    statuses = Counter(trial.status for trial in campaign_history(out).trials)
    return {"trials": dict(statuses), "twice": sum(count > 1 for count in passed.values())}


def lost(result: dict[str, Any], trials: int) -> int:
    """Trials that are neither trained to their end nor rest at a rung."""
    return trials - sum(result["trials"].get(status, 0) for status in ("finished", "paused"))


def main() -> int:
    """Run one of the two; 0 where all holds that must hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--two", type=int, default=0, metavar="RUNS", help="two controllers instead, so often")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        if not options.two:
            result = soak(Course(Path(temporary), options.trials, 0.02), options.kills, options.workers, options.seed)
            print(f"{lost(result, options.trials)} trials lost: {result}")
            return int(lost(result, options.trials) > 0 or result["twice"] > 0 or result["longest"] > 30.0)
        course, bad = Course(Path(temporary), 9, 5.0), 0
        for number in range(options.two):
            kind = {"stopped": number % 2 == 1, "error": (0, 37, 38)[number % 3]}
            result = two(course, f"c{number}", **kind)
            holds = result["codes"] == (4, 0) and not (lost(result, 9) or result["twice"] or result["alive"])
            bad += not holds
            print(
                f"run {number} {kind}: exit codes {result['codes']}, {result['trials']}{'' if holds else f' {result}'}",
                flush=True,
            )
        print(f"{bad} of {options.two} runs do not hold")
        return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
