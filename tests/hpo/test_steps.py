"""Attempts as job steps: on a real Slurm of virtual nodes, and through mpiexec's PBS form, with real processes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from campaigns import PATIENCE, ends, of_module, reports_until

from hydragnn.base.files import digest
from hydragnn.hpo.launching import steps
from hydragnn.hpo.launching.allocation import Allocation, alike
from hydragnn.hpo.launching.allocation_launcher import Launcher, Limits
from hydragnn.hpo.launching.launcher import Begun, Exit, Report, Task
from hydragnn.hpo.launching.packs import PackLauncher
from hydragnn.hpo.launching.sites import Site, read_allocation
from hydragnn.hpo.launching.sites.pbs import Mpiexec
from hydragnn.hpo.launching.sites.slurm import Slurm
from hydragnn.hpo.launching.steps import StepLauncher
from hydragnn.hpo.launching.verdict import verdict
from hydragnn.hpo.scheduling.events import Probed, Reached
from hydragnn.record import read_record

Packs = Callable[..., PackLauncher]

Steps = Callable[..., StepLauncher]

ROOT = Path(__file__).resolve().parents[2]
CONFIG = {"train": {"learning_rate": 1e-3, "epochs": 2000, "seed": 0}, "model": {"hidden_dim": 48}}
MPIEXEC = Path(sys.executable).with_name("mpiexec")
needs_mpiexec = pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec beside this Python; install the extra mpi")


@pytest.fixture(scope="module")
def job(slurm: Any) -> Iterator[dict[str, str]]:
    """The environment of an allocation of four nodes that survives the loss of some."""
    environment = {**os.environ, **slurm.environment}
    asked = ["salloc", "-N4", "--no-kill", "--no-shell", "--job-name=pilot"]
    subprocess.run(asked, env=environment, check=True, capture_output=True)
    found = subprocess.run(["squeue", "-h", "-n", "pilot", "-o", "%i"], env=environment, capture_output=True, text=True)
    number = found.stdout.split()[0]
    variables = {"SLURM_JOB_ID": number, "SLURM_JOB_NODELIST": "n[1-4]", "SLURM_JOB_CPUS_PER_NODE": "4(x4)"}
    yield {**slurm.environment, **variables}
    subprocess.run(["scancel", number], env=environment, check=True)


@pytest.fixture
def allocation(job: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Allocation:
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    return read_allocation(os.environ)


@pytest.fixture
def make() -> Iterator[Callable[..., Any]]:
    """A maker of launchers whose attempts train nothing; names in capitals are their environment; all are closed in the end."""
    made: list[Launcher] = []

    def maker(kind: Callable[..., Launcher], site: Site, allocation: Allocation, **options: Any) -> Launcher:
        environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'hpo'}"}
        environment |= {name: options.pop(name) for name in list(options) if name.isupper()}
        made.append(of_module(kind, "fake.training", environment)(site, allocation, **options))
        return made[-1]

    yield maker
    for launcher in made:
        launcher.close()


@pytest.fixture
def on_slurm(allocation: Allocation, make: Callable[..., Any]) -> Callable[..., StepLauncher]:
    return partial(make, StepLauncher, Slurm(), allocation, ranks=1)


@pytest.fixture
def in_packs(make: Callable[..., Any], tmp_path: Path) -> Callable[..., PackLauncher]:
    return partial(make, PackLauncher, Slurm(), log=tmp_path / "packs.txt")


@pytest.fixture
def on_pbs(tmp_path: Path, make: Callable[..., Any]) -> Callable[..., StepLauncher]:
    """The same through mpiexec, on five nodes that are all this machine."""
    (tmp_path / "nodes").write_text("n1\nn1\nn2\nn3\nn4\nn5\n")
    site = Mpiexec(hydra=True, program=str(MPIEXEC), options=("-launcher", "fork"), pbsnodes=False)
    environment = {"PBS_NODEFILE": str(tmp_path / "nodes"), "PBS_JOBID": "7.host", "NCPUS": "4"}
    return partial(make, StepLauncher, site, read_allocation(environment), ranks=1)


def task(tmp_path: Path, trial: int, *slots: str, attempt: int = 1, until: int = 4) -> Task:
    folder = tmp_path / f"{trial:04d}"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "attempt.json").write_text(json.dumps({"attempt": attempt}))
    return Task(trial=trial, attempt=attempt, until=until, folder=folder, slots=slots)


def begin(launcher: Launcher, *tasks: Task) -> list[Begun]:
    for one in tasks:
        launcher.start(one)
    begun = [report for report in launcher.poll(5.0) if isinstance(report, Begun)]
    for one in tasks:
        launcher.go(one)
    return begun


until = partial(reports_until, go=False)


def exits(launcher: Launcher, count: int = 1) -> dict[int, Exit]:
    return {end.task.trial: end for end in ends(until(launcher, lambda found: len(ends(found)) == count))}


def ranks_of(one: Task) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (one.folder / "ranks.txt").read_text().splitlines()]


def appears(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.05)


def test_two_trials_run_at_once_on_exactly_the_nodes_that_they_were_given(on_slurm: Steps, tmp_path: Path) -> None:
    launcher = on_slurm(ranks=2, SLURM_GPUS_PER_TASK="1")  # an option of the job that no step may inherit
    first, second = task(tmp_path, 0, "n4", "n2"), task(tmp_path, 1, "n3")
    begin(launcher, first, second)
    ended = exits(launcher, 2)
    assert {end.code for end in ended.values()} == {0}
    assert sorted((r["node"], r["size"]) for r in ranks_of(first)) == [("n2", 4)] * 2 + [("n4", 4)] * 2
    assert sorted((r["node"], r["size"]) for r in ranks_of(second)) == [("n3", 2)] * 2
    assert verdict(ended[0], digest(CONFIG), "valid/loss").epochs == 4
    assert "--- attempt 1: until epoch 4" in (first.folder / "log.txt").read_text()


def test_a_cancelled_trial_saves_itself_on_all_nodes(on_slurm: Steps, tmp_path: Path) -> None:
    launcher = on_slurm(FAKE_PAUSE="0.2")
    one = task(tmp_path, 0, "n1", "n2", until=1000)
    begin(launcher, one)
    appears(one.folder / "heartbeat")
    launcher.cancel(0, 20.0)
    end = exits(launcher)[0]
    assert read_record(one.folder).status == "paused"
    assert verdict(end, digest(CONFIG), "valid/loss").kind == "preempted"


def test_the_code_of_the_rank_that_failed_is_told_not_that_of_the_others(on_slurm: Steps, tmp_path: Path) -> None:
    launcher = on_slurm(FAKE_FAULTS='{"0": "crash"}')
    begin(launcher, task(tmp_path, 0, "n1", "n2"), task(tmp_path, 1, "n9"))
    ended = exits(launcher, 2)
    assert ended[0].code == 9 and not ended[0].suspects
    assert ended[1].code is None and "srun" in ended[1].message, "a step that cannot start"


def test_steps_of_a_dead_controller_are_ended_and_no_others(on_slurm: Steps, tmp_path: Path) -> None:
    launcher, one = on_slurm(FAKE_PAUSE="0.2"), task(tmp_path, 0, "n1", until=1000)
    launcher.recover("c0ffee00", [])
    (begun,) = begin(launcher, one)
    appears(one.folder / "heartbeat")
    elsewhere = {**begun.identity, "host": "another machine"}
    on_slurm().recover("c0ffee00", [elsewhere])
    exits(launcher)
    second = task(tmp_path, 0, "n1", attempt=2, until=1000)
    (begun,) = begin(launcher, second)
    assert begun.identity["step"] == "c0ffee00-trial-0-2"
    for step in ("c0ffee00-trial-0-2", "decaf000-trial-0-2", "trial-0-2"):
        on_slurm().recover("decaf000", [{**begun.identity, "step": step}])
    assert launcher.poll(1.0) == [], "another campaign ends none of its steps, whatever its journal says"
    on_slurm().recover("c0ffee00", [begun.identity])
    exits(launcher)
    assert read_record(second.folder).epochs < 1000


def is_healthy(found: object, node: str) -> bool:
    """Return True for the probe of a node that answered, in a time that was measured."""
    return isinstance(found, Probed) and found == Probed(node=node, healthy=True, seconds=found.seconds)


def test_trials_of_a_pack_have_their_own_records(in_packs: Packs, allocation: Allocation, tmp_path: Path) -> None:
    faults = '{"1": "crash", "2": "hang"}'
    launcher = in_packs(allocation, shares=2, limits=Limits(hang_seconds=8.0), FAKE_FAULTS=faults, FAKE_PAUSE="0.05")
    tasks = [task(tmp_path, number, slot) for number, slot in enumerate(launcher.slots)]
    tasks[3] = task(tmp_path, 3, launcher.slots[3], until=1000)
    for one in tasks:
        launcher.start(one)

    def enough(found: list[Report]) -> bool:
        if (tasks[3].folder / "heartbeat").exists():
            launcher.cancel(3, 20.0)
        return len(ends(found)) == 8

    reports = reports_until(launcher, enough)
    ended = {end.task.trial: end for end in ends(reports)}
    assert sum(isinstance(report, Begun) for report in reports) == 8
    results = {number: verdict(end, digest(CONFIG), "valid/loss") for number, end in ended.items()}
    assert {number for number, one in results.items() if isinstance(one, Reached)} == {0, 4, 5, 6, 7}
    assert ended[1].code == 9 and ended[2].hung and read_record(tasks[3].folder).status == "paused"
    assert {one["node"] for task in tasks for one in ranks_of(task)} == set(allocation.names)
    assert {(one["size"], one["threads"]) for task in tasks for one in ranks_of(task)} == {(1, 1)}
    launcher.probe("n2")
    (found,) = until(launcher, bool)
    assert is_healthy(found, "n2")


def test_a_pack_starts_without_a_node_that_cannot(in_packs: Packs, allocation: Allocation, tmp_path: Path) -> None:
    launcher = in_packs(Allocation(by="slurm", nodes=alike(("n1", "n9", "n2"), 4)), shares=1)
    for number, slot in enumerate(launcher.slots):
        launcher.start(task(tmp_path, number, slot))
    reports = until(launcher, lambda found: len(found) == 3)
    assert {r.task.slots[0] for r in reports if isinstance(r, Begun)} == {"n1", "n2"}
    assert [(r.task.slots, r.code) for r in reports if isinstance(r, Exit)] == [(("n9",), None)]


def test_a_lost_node_is_told_and_disturbs_only_the_trials_that_are_on_it(
    on_slurm: Steps, in_packs: Packs, allocation: Allocation, slurm: Any, tmp_path: Path
) -> None:
    """Of packs; whole campaigns show it of steps."""
    launcher, pack = on_slurm(limits=Limits(probe_seconds=3.0)), in_packs(allocation, shares=1)
    struck, well = task(tmp_path, 2, "n4", until=1000), task(tmp_path, 3, "n3", until=1000)
    for one in (struck, well):
        pack.start(one)
    for begun in until(pack, lambda found: len(found) == 2):
        pack.go(begun.task)
    for one in (struck, well):
        appears(one.folder / "heartbeat")
    slurm.kill("n4")
    try:
        launcher.probe("n4")
        (end,) = ends(until(pack, ends))
        assert end.task == struck and end.suspects == ("n4",)
        assert [(r.node, r.healthy) for r in until(launcher, bool) if isinstance(r, Probed)] == [("n4", False)]
        epochs = read_record(well.folder).epochs
        assert read_allocation(os.environ).names == ("n1", "n2", "n3")
        pack.cancel(3, 20.0)
        exits(pack)
        assert read_record(well.folder).status == "paused" and read_record(well.folder).epochs >= epochs
    finally:
        slurm.restart("n4")


@needs_mpiexec
def test_the_form_of_pbs_places_saves_and_kills_like_slurm(on_pbs: Steps, tmp_path: Path) -> None:
    launcher = on_pbs(
        ranks=2, limits=Limits(hang_seconds=8.0), FAKE_FAULTS='{"2": "hang", "3": "crash"}', FAKE_PAUSE="0.1"
    )
    done, saved = task(tmp_path, 0, "n1", "n2"), task(tmp_path, 1, "n3", until=1000)
    begin(launcher, done, saved, task(tmp_path, 2, "n4"), task(tmp_path, 3, "n5"))
    appears(saved.folder / "heartbeat")
    launcher.cancel(1, 20.0)
    ended = exits(launcher, 4)
    assert sorted(r["rank"] for r in ranks_of(done)) == [0, 1, 2, 3]
    assert verdict(ended[0], digest(CONFIG), "valid/loss").epochs == 4
    assert read_record(saved.folder).status == "paused"
    assert ended[2].hung and ended[3].code == 9
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True)
    assert left.stdout == ""
    launcher.probe("n2")
    (found,) = until(launcher, bool)
    assert is_healthy(found, "n2")


def test_an_attempt_begins_once_in_an_outage(make: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "AGAIN", 0.1)
    script = """
        n=$(cat "$0/tries" 2>/dev/null || echo 0); echo $((n + 1)) >"$0/tries"
        [ "$n" -ge 3 ] && exec "$@"
        echo "srun: error: Unable to create step for job 7: Socket timed out on send/recv operation"; exit 1"""
    command = ["sh", "-c", script, str(tmp_path)]
    monkeypatch.setattr(Slurm, "command", lambda self, step: [*command, *step.program])
    environment = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    launcher = make(StepLauncher, Slurm(), Allocation(nodes=alike(("n1",), 1, 0), job="7"), ranks=1, **environment)
    one = task(tmp_path, 0, "n1")
    assert len(begin(launcher, one)) == 1
    reports = until(launcher, ends)
    assert [(type(report), report.code) for report in reports if isinstance(report, Exit)] == [(Exit, 0)]
    assert not [report for report in reports if isinstance(report, Begun)]
    assert (tmp_path / "tries").read_text() == "4\n"
