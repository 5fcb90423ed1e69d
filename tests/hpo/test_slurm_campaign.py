"""Whole campaigns inside allocations of a real Slurm, and carried by its jobs."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
import pytest
import tomli_w
from campaigns import Settings, of_module

from hydragnn.hpo import CampaignStatus, campaign_history, campaign_settings, run_search
from hydragnn.hpo.campaign import launcher_for
from hydragnn.hpo.journal import replay
from hydragnn.hpo.launching.allocation_launcher import Limits
from hydragnn.hpo.launching.packs import PackLauncher
from hydragnn.hpo.launching.sites import read_allocation, site_of
from hydragnn.hpo.launching.steps import StepLauncher
from hydragnn.hpo.scheduling.events import Event, Failed, Probed, node_of
from hydragnn.hpo.scheduling.scheduler import State
from hydragnn.hpo.settings import CampaignSettings
from hydragnn.hpo.submit import submit_campaign
from hydragnn.record import read_record

Job = Callable[[int], None]


ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240.0  # seconds that anything here may take on a loaded machine
NODES = 6


@dataclass
class Followed:
    events: list[tuple[float, Event]] = field(default_factory=list)
    uses: list[tuple[float, dict[int, tuple[str, ...]]]] = field(default_factory=list)
    """At which second the running trials and their nodes were what."""

    def __call__(self, state: State, event: Event, seconds: float) -> None:
        self.events.append((seconds, event))
        self.uses.append((seconds, {trial.number: trial.slots for trial in state.running}))

    def failures(self) -> list[Failed]:
        return [event for _, event in self.events if isinstance(event, Failed)]


@pytest.fixture(scope="module")
def cluster(slurm_module: Any) -> Iterator[Any]:
    """Nodes of their own, because some die for good."""
    with slurm_module.Cluster(*[2] * NODES) as cluster:
        yield cluster


@pytest.fixture
def job(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Takes an allocation of so many nodes, as a pilot job asks for it."""
    for name, value in {**cluster.environment, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'hpo'}"}.items():
        monkeypatch.setenv(name, value)
    taken: list[str] = []

    def take(nodes: int) -> None:
        for name in cluster.names:
            if name not in cluster._processes:
                cluster.restart(name)
        wait_for(lambda: len(printed("sinfo", "-h", "-N", "-t", "idle", "-o", "%n").split()) >= nodes)
        salloc = ["salloc", f"-N{nodes}", "--no-kill", "--no-shell", "--time=60", "--job-name=pilot"]
        subprocess.run(salloc, check=True, capture_output=True)
        taken.append(printed("squeue", "-h", "-n", "pilot", "-o", "%i").split()[0])
        monkeypatch.setenv("SLURM_JOB_ID", taken[-1])
        monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "2")

    yield take
    for number in taken:
        subprocess.run(["scancel", number], check=True)


def printed(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def wait_for(condition: Callable[[], bool], campaign: Future[CampaignStatus] | None = None) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if campaign is not None and campaign.done():
            raise AssertionError(f"the campaign has ended: {campaign.result()}")
        assert time.monotonic() < deadline
        time.sleep(0.05)


def fake_launcher(monkeypatch: pytest.MonkeyPatch, hang: float = 60.0, **faults: str) -> StepLauncher:
    monkeypatch.setenv("FAKE_FAULTS", json.dumps({number.removeprefix("trial"): f for number, f in faults.items()}))
    allocation = read_allocation(os.environ)
    limits = Limits(hang_seconds=hang, probe_seconds=60.0)
    return of_module(StepLauncher, "fake.training")(site_of(allocation), allocation, ranks=1, limits=limits)


def in_background(
    settings: CampaignSettings, out: Path, launcher: Any, followed: Followed, resume: bool = False
) -> Future[CampaignStatus]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(run_search, settings, out, resume=resume, launcher=launcher, on_event=followed)
    pool.shutdown(wait=False)
    return future


def slots_of(followed: Followed, trial: int) -> tuple[str, ...]:
    return followed.uses[-1][1].get(trial, ()) if followed.uses else ()


def assert_accounted(out: Path, trials: int) -> None:
    """Every trial has an outcome, and no fault of a machine is among what the sampler was told."""
    state = replay(out / "journal.jsonl")
    assert len(state.trials) == trials
    assert {trial.status for trial in state.trials.values()} <= {"finished", "paused"}
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(out / "optuna.log")))
    (study,) = storage.get_all_studies()
    told = Counter(trial.state.name for trial in storage.get_all_trials(study._study_id))
    assert set(told) <= {"COMPLETE", "PRUNED"} and sum(told.values()) == trials


def assert_disjoint(followed: Followed) -> None:
    for _, uses in followed.uses:
        nodes = [node_of(slot) for slots in uses.values() for slot in slots]
        assert len(nodes) == len(set(nodes))


def test_faults_of_machines_cost_the_trials_that_they_hit_one_attempt_and_nobody_else_anything(
    job: Job, cluster: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job(5)  # two pairs, and one node that idles until a pair breaks
    monkeypatch.setenv("FAKE_PAUSE", "0.4")
    campaign, followed, out = settings(trials=5, nodes_per_trial=2, rungs=[2]), Followed(), tmp_path / "campaign"
    launcher = fake_launcher(monkeypatch, hang=8.0, trial1="hang", trial2="memory", trial3="long")
    future = in_background(campaign, out, launcher, followed)
    wait_for(lambda: (out / "trials" / "0003" / "heartbeat").exists(), future)
    dead = max(slots_of(followed, 3))  # rank 0 lives on, so that nobody but the scheduler notices
    cluster.lose(dead)
    result = future.result(PATIENCE)
    assert (result.status, result.trials["failed"], sum(result.trials.values())) == ("finished", 0, 5)
    assert_accounted(out, 5)
    assert_disjoint(followed)
    assert max(len(uses) for _, uses in followed.uses) == 2
    failures = {(failed.trial, failed.kind): failed for failed in followed.failures()}
    assert set(failures) == {(1, "lost_node"), (2, "out_of_memory"), (3, "lost_node")}
    assert failures[3, "lost_node"].suspects == (dead,)
    ended = next(at for at, event in followed.events if isinstance(event, Failed) and event.trial == 3)
    assert all(dead not in slots for at, uses in followed.uses if at > ended for slots in uses.values())


def test_trials_of_two_nodes_train_together_and_go_on_elsewhere_when_a_node_is_lost(
    job: Job, cluster: Any, table: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job(3)
    search = {**table["search"], "trials": 1, "rungs": [], "nodes_per_trial": 2}
    train = {"epochs": 30, "checkpoint_seconds": 0}  # long enough that the node is lost in the middle
    campaign = campaign_settings({**table, "train": train, "search": search}, tmp_path / "CAMPAIGN.toml")
    followed, out = Followed(), tmp_path / "campaign"
    future = in_background(campaign, out, launcher_for(campaign, read_allocation(os.environ), out), followed)
    wait_for(lambda: (out / "trials" / "0000" / "checkpoints" / "latest.json").exists(), future)
    dead = slots_of(followed, 0)[1]
    cluster.lose(dead)
    result = future.result(PATIENCE)
    assert (result.status, result.trials["finished"], result.trials["failed"]) == ("finished", 1, 0)
    assert_accounted(out, 1)
    record, (failed,) = read_record(out / "trials" / "0000"), followed.failures()
    assert (record.cost.ranks, record.cost.nodes, record.epochs, record.attempt) == (2, 2, 30, 2)
    assert failed.kind == "lost_node" and failed.epochs > 0


def test_a_search_whose_salloc_is_cancelled_before_the_first_result_exits_with_75_and_is_resumed(
    cluster: Any, table: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {**cluster.environment, "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    search = {**table["search"], "trials": 1, "rungs": [], "finalists": 0}
    model, train = {"kind": "schnet", "num_layers": 1}, {"epochs": 30}
    whole = {**table, "model": model, "train": train, "search": search}
    (tmp_path / "CAMPAIGN.toml").write_text(tomli_w.dumps(whole))
    out = tmp_path / "campaign"
    salloc = ["salloc", "-N1", "--no-kill", "--job-name=search", "--time=60"]
    line = [*salloc, sys.executable, "-m", "hydragnn.scripts", "search", str(tmp_path / "CAMPAIGN.toml")]
    first = subprocess.Popen([*line, "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for((out / "trials" / "0000" / "heartbeat").exists)
    subprocess.run(["scancel", "--name=search"], check=True)
    said = first.communicate(timeout=PATIENCE)[1]
    assert first.returncode == 75, said
    assert "the allocation has ended" in said and "--resume" in said
    second = subprocess.run([*line, "--out", str(out), "--resume"], capture_output=True, text=True, timeout=PATIENCE)
    assert second.returncode == 0, second.stderr
    assert_accounted(out, 1)
    record, state = read_record(out / "trials" / "0000"), replay(out / "journal.jsonl")
    assert (record.epochs, record.attempt) == (30, 2)
    assert not state.health and state.trials[0].faults == 0


def test_a_restart_and_an_outage_of_slurmctld_cost_no_attempt_and_no_node(
    job: Job, cluster: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # the last test of this cluster: slurmctld gives the nodes to another job only a minute later
    job(4)
    monkeypatch.setenv("FAKE_PAUSE", "0.8")  # a trial takes longer than a new slurmctld does not know its nodes
    campaign, followed, out = settings(trials=6, nodes_per_trial=2, rungs=[]), Followed(), tmp_path / "campaign"
    future = in_background(campaign, out, fake_launcher(monkeypatch), followed)
    wait_for((out / "trials" / "0001" / "heartbeat").exists, future)
    cluster.stop_controller()
    cluster.start_controller()
    wait_for((out / "trials" / "0003" / "heartbeat").exists, future)
    cluster.stop_controller()
    log = out / "trials" / "0004" / "log.txt"
    wait_for(lambda: log.exists() and "Unable to contact slurm controller" in log.read_text(), future)
    cluster.start_controller()
    result = future.result(PATIENCE)
    assert (result.status, result.trials["finished"], result.trials["failed"]) == ("finished", 6, 0)
    assert_accounted(out, 6)
    state = replay(out / "journal.jsonl")
    assert followed.failures() == [] and not [event for _, event in followed.events if isinstance(event, Probed)]
    assert not state.health and {trial.attempt for trial in state.trials.values()} == {1}


def test_nodes_of_different_sizes_carry_trials_by_their_own(
    slurm_module: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with slurm_module.Cluster(8, 4, 4) as cluster:
        for name, value in {**cluster.environment, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'hpo'}"}.items():
            monkeypatch.setenv(name, value)
        subprocess.run(["salloc", "-N3", "--no-shell", "--time=60"], check=True, capture_output=True)
        monkeypatch.setenv("SLURM_JOB_ID", printed("squeue", "-h", "-o", "%i").strip())
        monkeypatch.setenv("SLURM_CPUS_ON_NODE", "8")  # as a script on the first node sees it
        allocation = read_allocation(os.environ)
        steps = fake_launcher(monkeypatch)
        packs = of_module(PackLauncher, "fake.training")(
            site_of(allocation), allocation, shares=8, log=tmp_path / "log"
        )
        for launcher, slots, sizes in ((steps, 3, {"n1": 1.0, "n2": 0.5, "n3": 0.5}), (packs, 16, {})):
            followed, notes, out = Followed(), list[str](), tmp_path / str(slots)
            campaign = settings(trials=5, rungs=[], trials_per_node=1 if launcher is steps else 8)
            result = run_search(campaign, out, launcher=launcher, on_event=followed, on_note=notes.append)
            assert (result.trials["finished"], followed.failures()) == (5, [])
            used = {node_of(slot) for _, uses in followed.uses for one in uses.values() for slot in one}
            assert (used, replay(out / "journal.jsonl").plan.sizes) == ({"n1", "n2", "n3"}, sizes)
            assert notes == [f"nodes differ: 1 node with 8 cores, 2 nodes with 4 cores; {slots} slots for trials"]


def jobs() -> dict[str, str]:
    return dict(line.split() for line in printed("squeue", "-h", "-o", "%i %T").splitlines())


@pytest.mark.slow
def test_a_campaign_goes_on_in_the_next_job_until_it_is_complete_and_then_no_job_is_left(
    slurm: Any, table: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {**slurm.environment, "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    whole = {**table, "model": {"kind": "schnet", "hidden_dim": 8, "num_layers": 1}, "train": {"epochs": 40}}
    whole["search"] = {**table["search"], "launcher": "local", "trials": 2, "rungs": [], "finalists": 1}
    whole["job"] = {"site": "slurm", "nodes": 2, "hours": 0.1, "chain": 6}
    (tmp_path / "CAMPAIGN.toml").write_text(tomli_w.dumps(whole))
    out = tmp_path / "campaign"
    first = submit_campaign(tmp_path / "CAMPAIGN.toml", out).id
    journal = out / "journal.jsonl"
    wait_for(lambda: journal.exists() and journal.read_bytes().count(b"\n") >= 4 and len(jobs()) == 2)
    host = printed("squeue", "-h", "-j", first, "-o", "%B").strip()
    slurm.lose(host)  # the node of the search itself, and with it the job, without a word
    try:
        wait_for(lambda: not jobs())
    finally:
        slurm.restart(host)
    logs = "\n".join(path.read_text() for path in sorted((out / "jobs").glob("*.log")))
    history = campaign_history(out)
    assert history.ending == "finished", logs
    assert [trial.status for trial in history.trials] == ["finished"] * 2, logs
    begun = sorted(path.name for path in (out / "jobs").glob("*.next"))
    assert begun == ["0001.next", "0002.next"], logs
    assert jobs() == {}
    assert sys.executable in (out / "jobs" / "0001.sh").read_text()
