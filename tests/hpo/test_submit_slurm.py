"""A campaign carried by jobs of a real Slurm: cut, continued by the next job, and over when it is complete."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from hydragnn.hpo import campaign_history
from hydragnn.hpo.submit import Submission, submit_campaign

PATIENCE = 240.0  # seconds for something that a loaded machine does within sixty


def wait_until(ready: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < deadline, f"{what} did not happen within {PATIENCE:.0f} s"
        time.sleep(0.2)


class Queue:
    """What Slurm knows, asked from outside."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = {**os.environ, **environment}

    def __call__(self, *command: str) -> str:
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def jobs(self) -> dict[str, str]:
        """State by job."""
        return dict(line.split() for line in self("squeue", "-h", "-o", "%i %T").splitlines())


@pytest.fixture
def queue(slurm: Any, monkeypatch: pytest.MonkeyPatch, root: Path) -> Queue:
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return Queue(slurm.environment)


@pytest.fixture
def submit(table: dict[str, Any], tmp_path: Path) -> Callable[..., Submission]:
    """Submits a campaign of real trainings; keyword arguments are members of [job]."""

    def submitting(search: dict[str, Any], **job: Any) -> Submission:
        base = {**table, "model": {"kind": "schnet", "hidden_dim": 8, "num_layers": 1}, "train": {"epochs": 40}}
        search = {**table["search"], "launcher": "local", "trials": 4, "rungs": [10], "finalists": 1, **search}
        whole = {**base, "search": search, "job": {"site": "slurm", "nodes": 2, "hours": 0.1, "chain": 6, **job}}
        path = tmp_path / "CAMPAIGN.toml"
        path.write_text(tomli_w.dumps(whole))
        return submit_campaign(path, tmp_path / "campaign")

    return submitting


def lines_of(out: Path) -> int:
    journal = out / "journal.jsonl"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


@pytest.mark.slow
def test_a_campaign_goes_on_in_the_next_job_until_it_is_complete_and_then_no_job_is_left(
    slurm: Any, queue: Queue, submit: Callable[..., Submission], tmp_path: Path
) -> None:
    out = tmp_path / "campaign"
    first = submit({}).id
    assert first is not None

    def logs() -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted((out / "jobs").glob("*.log")))

    wait_until(lambda: lines_of(out) >= 4 and len(queue.jobs()) == 2, "the first job with its successor")
    queue("scancel", "--signal=USR1", "--batch", first)  # as Slurm does before the walltime ends
    wait_until(lambda: first not in queue.jobs(), "the end of the first job")
    wait_until(lambda: (out / "jobs" / "0002.next").exists(), "the second job")
    before = lines_of(out)
    second = json.loads((out / "jobs" / "chain.json").read_text())["jobs"][1]["id"]
    wait_until(lambda: lines_of(out) >= before + 3 and len(queue.jobs()) == 2, "progress of the second job")
    host = queue("squeue", "-h", "-j", second, "-o", "%B")
    slurm.kill(host)  # the node of the search itself, and with it the job, without a word
    try:
        wait_until(lambda: not queue.jobs(), "the end of the chain")
    finally:
        slurm.restart(host)
    history = campaign_history(out)
    assert history.ending == "finished", logs()
    assert len(history.trials) == 4
    assert sum(trial.status == "finished" for trial in history.trials) >= 1
    assert {trial.failure for trial in history.trials if trial.status == "failed"} == set(), logs()
    begun = sorted(path.name for path in (out / "jobs").glob("*.next"))
    assert begun == ["0001.next", "0002.next", "0003.next"], logs()
    assert queue("squeue", "-h") == ""
    assert sys.executable in (out / "jobs" / "0001.sh").read_text()
