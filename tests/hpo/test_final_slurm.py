"""The last training inside an allocation of a real Slurm: nodes in proportion to cost."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from virtual import transition

from hydragnn.config import RunConfig
from hydragnn.hpo import GivenRun, run_final
from hydragnn.hpo.journal import read_journal
from hydragnn.hpo.launching.allocation_launcher import Limits
from hydragnn.hpo.launching.sites import read_allocation, site_of
from hydragnn.hpo.launching.steps import StepLauncher
from hydragnn.hpo.scheduling.events import Start
from hydragnn.hpo.scheduling.scheduler import State


def printed(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_run_that_costs_three_times_as_much_gets_three_times_the_nodes_and_both_train_at_once(
    slurm: Any, root: Path, table: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {**slurm.environment, "PYTHONPATH": f"{root}:{root / 'tests' / 'hpo'}"}.items():
        monkeypatch.setenv(name, value)
    salloc = ["salloc", "-N4", "--no-kill", "--no-shell", "--time=60", "--job-name=final"]
    subprocess.run(salloc, check=True, capture_output=True)
    number = printed("squeue", "-h", "-n", "final", "-o", "%i").split()[0]
    monkeypatch.setenv("SLURM_JOB_ID", number)
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "4")
    runs: list[GivenRun] = []
    for work in (2.0, 6.0):
        train = {"epochs": 2, "seed": len(runs)}
        config = {"data": table["data"], "model": {"kind": "schnet"}, "heads": table["heads"], "train": train}
        runs.append(GivenRun(config=RunConfig.parse(config), work=work))
    try:
        allocation = read_allocation(os.environ)
        launcher = StepLauncher(
            site_of(allocation), allocation, ranks=1, limits=Limits(hang_seconds=120.0), module="fake_steps"
        )
        final = run_final(runs, tmp_path / "c", launcher=launcher)
    finally:
        subprocess.run(["scancel", number], check=True)
    assert (final.result.ending, final.result.finished) == ("finished", 2)
    state, sizes, most = State(), {}, 0
    for now, event in read_journal(tmp_path / "c" / "journal.jsonl"):
        state, actions = transition(state, event, now)
        for action in actions:
            if isinstance(action, Start):
                sizes.setdefault(action.trial, len(action.slots))
        most = max(most, len(state.running))
    assert sizes == {0: 1, 1: 3}
    assert most == 2
