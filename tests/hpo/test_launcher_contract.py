"""Contract of launchers: processes of this machine, job steps and packs, on every kind of command line and with many nodes.

Attempts in folders named ``long`` last until they are ended.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from campaigns import PATIENCE, ends, of_module, reports_until

from hydragnn.hpo.launching.allocation import Allocation, alike
from hydragnn.hpo.launching.allocation_launcher import Launcher, Limits
from hydragnn.hpo.launching.launcher import Begun, Exit, Task
from hydragnn.hpo.launching.local import LocalLauncher
from hydragnn.hpo.launching.packs import PackLauncher
from hydragnn.hpo.launching.sites import Site
from hydragnn.hpo.launching.sites.flux import Flux
from hydragnn.hpo.launching.sites.pbs import Mpiexec
from hydragnn.hpo.launching.sites.slurm import Slurm
from hydragnn.hpo.launching.steps import StepLauncher
from hydragnn.hpo.scheduling.events import Probed, Stopping, node_of
from hydragnn.record import RunRecord, write_record

WIDE = tuple(f"n{number:04d}" for number in range(1200))
PACK = """#!/bin/sh
# a launcher and the packs behind it: every request begins, every go is followed by an end, unless the attempt is long
case "$*" in *worker.py*) ;; *) exit 1 ;; esac
while read -r slot words; do
  case "$words" in
    "{"*/long*) long="$long $slot "; echo "$slot {\\"pid\\": 1}" ;;
    "{"*) echo "$slot {\\"pid\\": 1}" ;;
    go) case "$long" in *" $slot "*) ;; *) echo "$slot {\\"code\\": 0, \\"oom\\": false}" ;; esac ;;
    term|kill) echo "$slot {\\"code\\": -15, \\"oom\\": false}" ;;
    probe) echo "$slot {\\"healthy\\": true, \\"message\\": \\"\\"}" ;;
  esac
done
"""
STEP = """#!/bin/sh
# a launcher and the step behind it: a probe finds its node healthy, a long attempt lasts, any other ends well
case "$*" in
  *probe.py*) echo healthy ;;
  *-m*/long*) exec sleep 1000 ;;
  *-m*) ;;
  *) exit 1 ;;
esac
"""
MODULE = """
import sys, time
if sys.argv[1].endswith("long"):
    time.sleep(1000)
"""


Made = Callable[..., Launcher]
"""Makes a launcher of a few slots, or as ``wide`` as it is built for; all are closed in the end."""
LAUNCHERS: dict[str, Site | None] = {
    "processes": None,
    "steps of Hydra": Mpiexec(hydra=True, pbsnodes=False),
    "steps of Flux": Flux(),
    "packs of PALS": Mpiexec(hydra=False, pbsnodes=False),
    "packs of Slurm": Slurm(),
}
in_allocation = pytest.mark.parametrize("make", [name for name, site in LAUNCHERS.items() if site], indirect=True)


def stand_ins(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs by the names of launchers that do what a script says; schedulers' other tools say nothing."""
    for name in ("mpiexec", "srun", "flux"):
        (folder / name).write_text(script)
    for name in ("sinfo", "squeue", "scancel", "qstat", "pbsnodes"):
        (folder / name).write_text("#!/bin/sh\nexit 1\n")
    for file in folder.iterdir():
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.fixture(params=LAUNCHERS)
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    site, are_steps, made = LAUNCHERS[request.param], request.param.startswith("steps"), list[Launcher]()
    (tmp_path / "bin").mkdir()
    (tmp_path / "lasting.py").write_text(MODULE)
    if site is not None:
        stand_ins(tmp_path / "bin", STEP if are_steps else PACK, monkeypatch)

    def make(wide: bool = False) -> Launcher:
        if site is None:
            environment = {"PYTHONPATH": str(tmp_path)}
            made.append(of_module(LocalLauncher, "lasting", environment)(8 if wide else 3))
        elif are_steps:
            allocation = Allocation(by="pbs", nodes=alike(WIDE if wide else WIDE[:24], 4))
            made.append(StepLauncher(site, allocation, ranks=2, limits=Limits(rate=1e9, at_once=90)))
        else:
            allocation = Allocation(by="pbs", nodes=alike(WIDE[: 300 if wide else 3], 4))
            limits = Limits(rate=1e9, hang_seconds=1e6, probe_seconds=1e6)
            made.append(PackLauncher(site, allocation, shares=1, log=tmp_path / "packs.txt", limits=limits))
        return made[-1]

    yield make
    for launcher in made:
        launcher.close()


def slots_of_a_task(launcher: Launcher) -> int:
    return 8 if isinstance(launcher, StepLauncher) else 1


def attempt_in(launcher: Launcher, folder: Path, number: int = 0) -> Task:
    """An attempt on its own slots, whose record is complete as soon as it ends well."""
    if not folder.exists():
        folder.mkdir(parents=True)
        record = RunRecord(config={}, config_hash="", data_hash="", seed=0, status="finished", epochs=1)
        write_record(record, folder)
    size = slots_of_a_task(launcher)
    slots = launcher.slots[number * size : (number + 1) * size]
    return Task(trial=number, attempt=1, until=1, folder=folder, slots=slots)


def two_long_ones(launcher: Launcher, folder: Path) -> list[Task]:
    tasks = [attempt_in(launcher, folder / str(number) / "long", number) for number in range(2)]
    for task in tasks:
        launcher.start(task)
    reports_until(launcher, lambda found: len(found) == 2)
    return tasks


def test_every_attempt_begins_once_and_ends_once_and_nothing_stays_open(make: Made, tmp_path: Path) -> None:
    launcher = make(wide=True)
    before, count = psutil.Process().num_fds(), len(launcher.slots) // slots_of_a_task(launcher)
    for number in range(count):
        launcher.start(attempt_in(launcher, tmp_path / "trial", number))
    reports = reports_until(launcher, lambda found: len(ends(found)) >= count)
    reports += launcher.poll(0.2)
    begun = Counter(report.task.trial for report in reports if isinstance(report, Begun))
    ended = Counter((end.task.trial, end.code, end.message) for end in ends(reports))
    launcher.close()
    assert begun == dict.fromkeys(range(count), 1)
    assert ended == {(number, 0, ""): 1 for number in range(count)}
    assert psutil.Process().num_fds() <= before


def test_slots_are_different_a_bell_ends_a_wait_and_a_node_that_is_well_passes_its_probe_once(make: Made) -> None:
    launcher = make()
    assert len(set(launcher.slots)) == len(launcher.slots) > 1
    assert all(node_of(slot) for slot in launcher.slots)
    assert launcher.beat_seconds >= 1.0
    launcher.wake()
    assert launcher.poll(1e6) == []
    assert launcher.poll(0.0) == []
    node = node_of(launcher.slots[0])
    launcher.probe(node)
    reports = reports_until(launcher, bool) + launcher.poll(0.3)
    assert reports == [Probed(node=node, healthy=True)]


def test_nothing_works_before_it_may(make: Made, tmp_path: Path) -> None:
    launcher = make()
    launcher.start(attempt_in(launcher, tmp_path / "trial"))
    reports = reports_until(launcher, bool, go=False)
    reports += launcher.poll(0.5)
    assert [type(report) for report in reports] == [Begun]
    launcher.go(reports[0].task)  # type: ignore[union-attr]
    assert ends(reports_until(launcher, lambda found: bool(ends(found))))[0].code == 0


def test_an_attempt_without_a_log_ends_at_once_and_writes_nowhere_else(make: Made, tmp_path: Path) -> None:
    launcher, elsewhere = make(), tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    for number, plant in enumerate((Path.mkdir, os.mkfifo, lambda log: log.symlink_to(elsewhere))):
        task = attempt_in(launcher, tmp_path / f"trial-{number}")
        plant(task.folder / "log.txt")
        launcher.start(task)
        [end] = launcher.poll(0.5)
        assert isinstance(end, Exit) and end.code is None and "cannot start a" in end.message
    assert elsewhere.read_text() == "mine"


def test_a_cancelled_attempt_ends_once_and_the_others_go_on(make: Made, tmp_path: Path) -> None:
    launcher = make()
    two_long_ones(launcher, tmp_path)
    launcher.cancel(1, 1.0)
    launcher.cancel(1, 1.0)
    reports = reports_until(launcher, bool)
    reports += launcher.poll(0.5)
    assert [end.task.trial for end in ends(reports)] == [1] == [len(reports)]


def test_what_still_runs_ends_with_the_launcher(make: Made, tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    launcher = make()
    launcher.start(attempt_in(launcher, tmp_path / "long"))
    reports_until(launcher, bool)
    started = set(psutil.Process().children(recursive=True)) - before
    launcher.close()
    _, alive = psutil.wait_procs(started, timeout=PATIENCE)
    assert started and not alive


@in_allocation
def test_an_allocation_that_ends_blames_nobody(make: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydragnn.hpo.launching.allocation_launcher.LEAVE", 0.5)
    launcher = make()
    two_long_ones(launcher, tmp_path)
    launcher._watch.over = "CANCELLED"
    reports = reports_until(launcher, lambda found: len(ends(found)) == 2)
    assert [type(report) for report in reports] == [Stopping, Exit, Exit]
    assert all(end.interrupted and not end.suspects for end in ends(reports))
    launcher.start(attempt_in(launcher, tmp_path / "late", 2))
    [late] = launcher.poll(0.5)
    assert isinstance(late, Exit) and late.interrupted


@in_allocation
def test_a_lost_node_takes_its_attempt_along(make: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = make()
    tasks = two_long_ones(launcher, tmp_path)
    lost, news = node_of(tasks[1].slots[0]), [{node_of(tasks[1].slots[0]): "lost"}]
    monkeypatch.setattr(type(launcher._watch), "changes", lambda watch: news.pop() if news else {})
    reports = reports_until(launcher, lambda found: bool(ends(found)))
    [end] = ends(reports)
    assert (end.task, end.suspects) == (tasks[1], (lost,))
    assert [(report.node, report.healthy) for report in reports if isinstance(report, Probed)] == [(lost, False)]


def test_processes_that_outlive_their_record_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    stand_ins(tmp_path / "bin", STEP, monkeypatch)
    monkeypatch.setattr("hydragnn.hpo.launching.steps.LINGER", 0.1)
    monkeypatch.setattr("hydragnn.hpo.launching.watchdog.HOLD", 0.1)
    folder = tmp_path / "long"
    folder.mkdir()
    record = RunRecord(config={}, config_hash="", data_hash="", seed=0, status="finished", epochs=1)
    launcher = StepLauncher(Slurm(), Allocation(by="slurm", nodes=alike(("n1", "n2"), 4)), ranks=1)
    for number, slot in enumerate(launcher.slots):  # the record is that of the second
        launcher.start(Task(trial=number, attempt=number + 1, until=1, folder=folder, slots=(slot,)))
    write_record(replace(record, attempt=2), folder)
    [end] = ends(reports_until(launcher, lambda found: bool(ends(found))))
    assert (end.task.trial, end.code, end.hung) == (1, -9, False)
    launcher.close()
