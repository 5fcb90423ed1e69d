"""Contract of launchers: processes of this machine, job steps and packs, on every kind of command line and with many nodes."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from campaigns import PATIENCE, ends, reports_until

from hydragnn.hpo.launching.allocation import Allocation, alike
from hydragnn.hpo.launching.allocation_launcher import AllocationLauncher, Limits
from hydragnn.hpo.launching.descriptors import WakeupPipe
from hydragnn.hpo.launching.launcher import Begun, Exit, Launcher, Revoked, Task
from hydragnn.hpo.launching.local import LocalLauncher
from hydragnn.hpo.launching.packs import PackLauncher
from hydragnn.hpo.launching.sites import Site
from hydragnn.hpo.launching.sites.flux import Flux
from hydragnn.hpo.launching.sites.pbs import Mpiexec
from hydragnn.hpo.launching.sites.slurm import Slurm
from hydragnn.hpo.launching.steps import StepLauncher
from hydragnn.hpo.scheduling.events import Probed, node_of
from hydragnn.record import RunRecord, write_record

WIDE = tuple(f"n{number:04d}" for number in range(1200))
PACK = """#!/bin/sh
# a launcher and the packs behind it: every request begins, every go is followed by an end, unless the attempt is long
case "$*" in *--nodes*) ;; *) exit 1 ;; esac
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


@pytest.fixture
def made() -> Iterator[list[Launcher]]:
    """Launchers to be closed in the end."""
    launchers: list[Launcher] = []
    yield launchers
    for launcher in launchers:
        launcher.close()


class LauncherContract:
    """Inherited with a fixture ``make``; attempts in folders named ``long`` last until they are ended."""

    slots_of_a_task = 1
    """Neighbouring slots that each attempt gets."""

    def task(self, launcher: Launcher, folder: Path, number: int = 0) -> Task:
        """An attempt on its own slots, whose record is complete as soon as it ends well."""
        if not folder.exists():
            folder.mkdir(parents=True)
            record = RunRecord(config={}, config_hash="", data_hash="", seed=0, status="finished", epochs=1)
            write_record(record, folder)
        size = self.slots_of_a_task
        slots = launcher.slots[number * size : (number + 1) * size]
        return Task(trial=number, attempt=1, until=1, folder=folder, slots=slots)

    def test_every_attempt_begins_once_and_ends_once_and_nothing_stays_open(self, make: Made, tmp_path: Path) -> None:
        launcher = make(wide=True)
        before, count = psutil.Process().num_fds(), len(launcher.slots) // self.slots_of_a_task
        for number in range(count):
            launcher.start(self.task(launcher, tmp_path / "trial", number))
        reports = reports_until(launcher, lambda found: len(ends(found)) >= count)
        reports += launcher.poll(0.2)
        begun = Counter(report.task.trial for report in reports if isinstance(report, Begun))
        ended = Counter((end.task.trial, end.code, end.message) for end in ends(reports))
        launcher.close()
        assert begun == dict.fromkeys(range(count), 1)
        assert ended == {(number, 0, ""): 1 for number in range(count)}
        assert psutil.Process().num_fds() <= before

    def test_slots_are_different_and_their_nodes_can_be_told(self, make: Made) -> None:
        launcher = make()
        assert len(set(launcher.slots)) == len(launcher.slots) > 1
        assert all(node_of(slot) for slot in launcher.slots)
        assert launcher.beat_seconds >= 1.0

    def test_nothing_works_before_it_may(self, make: Made, tmp_path: Path) -> None:
        launcher = make()
        launcher.start(self.task(launcher, tmp_path / "trial"))
        reports = reports_until(launcher, bool, go=False)
        reports += launcher.poll(0.5)
        assert [type(report) for report in reports] == [Begun]
        launcher.go(reports[0].task)  # type: ignore[union-attr]
        assert ends(reports_until(launcher, lambda found: bool(ends(found))))[0].code == 0

    def test_an_attempt_without_a_log_ends_at_once_and_writes_nowhere_else(self, make: Made, tmp_path: Path) -> None:
        launcher, elsewhere = make(), tmp_path / "elsewhere"
        elsewhere.write_text("mine")
        for number, plant in enumerate((Path.mkdir, os.mkfifo, lambda log: log.symlink_to(elsewhere))):
            task = self.task(launcher, tmp_path / f"trial-{number}")
            plant(task.folder / "log.txt")
            launcher.start(task)
            [end] = launcher.poll(0.5)
            assert isinstance(end, Exit) and end.code is None and "cannot start a" in end.message
        assert elsewhere.read_text() == "mine"

    def test_a_cancelled_attempt_ends_once_and_the_others_go_on(self, make: Made, tmp_path: Path) -> None:
        launcher = make()
        for number in range(2):
            launcher.start(self.task(launcher, tmp_path / str(number) / "long", number))
        reports_until(launcher, lambda found: len(found) == 2)
        launcher.cancel(1, 1.0)
        launcher.cancel(1, 1.0)
        reports = reports_until(launcher, bool)
        reports += launcher.poll(0.5)
        assert [end.task.trial for end in ends(reports)] == [1] == [len(reports)]

    def test_a_node_that_is_well_passes_its_probe_once(self, make: Made) -> None:
        launcher = make()
        node = node_of(launcher.slots[0])
        launcher.probe(node)
        reports = reports_until(launcher, bool) + launcher.poll(0.3)
        assert reports == [Probed(node=node, healthy=True)]

    def test_a_bell_ends_a_wait(self, make: Made) -> None:
        launcher, bell = make(), WakeupPipe()
        bell.wake()
        assert launcher.poll(1e6, bell.fileno()) == []
        bell.clear()
        assert launcher.poll(0.0, bell.fileno()) == []
        bell.close()

    def test_what_still_runs_ends_with_the_launcher(self, make: Made, tmp_path: Path) -> None:
        before = set(psutil.Process().children(recursive=True))
        launcher = make()
        launcher.start(self.task(launcher, tmp_path / "long"))
        reports_until(launcher, bool)
        started = set(psutil.Process().children(recursive=True)) - before
        launcher.close()
        _, alive = psutil.wait_procs(started, timeout=PATIENCE)
        assert started and not alive


class AllocationContract(LauncherContract):
    """Of launchers in an allocation, on every kind of command line."""

    def test_an_allocation_that_ends_interrupts_its_attempts_and_nobody_is_to_blame(
        self, make: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("hydragnn.hpo.launching.allocation_launcher.LEAVE", 0.5)
        launcher = make()
        assert isinstance(launcher, AllocationLauncher)
        for number in range(2):
            launcher.start(self.task(launcher, tmp_path / str(number) / "long", number))
        reports_until(launcher, lambda found: len(found) == 2)
        launcher._watch.over = "CANCELLED"
        reports = reports_until(launcher, lambda found: len(ends(found)) == 2)
        assert [type(report) for report in reports] == [Revoked, Exit, Exit]
        assert all(end.interrupted and not end.suspects for end in ends(reports))
        launcher.start(self.task(launcher, tmp_path / "late", 2))
        [late] = launcher.poll(0.5)
        assert isinstance(late, Exit) and late.interrupted

    def test_a_node_that_the_scheduler_has_lost_takes_its_attempt_with_it_and_no_other(
        self, make: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        launcher = make()
        assert isinstance(launcher, AllocationLauncher)
        tasks = [self.task(launcher, tmp_path / str(number) / "long", number) for number in range(2)]
        for task in tasks:
            launcher.start(task)
        reports_until(launcher, lambda found: len(found) == 2)
        lost, news = node_of(tasks[1].slots[0]), [{node_of(tasks[1].slots[0]): "lost"}]
        monkeypatch.setattr(type(launcher._watch), "changes", lambda watch: news.pop() if news else {})
        reports = reports_until(launcher, lambda found: bool(ends(found)))
        [end] = ends(reports)
        assert (end.task, end.suspects) == (tasks[1], (lost,))
        assert [(report.node, report.healthy) for report in reports if isinstance(report, Probed)] == [(lost, False)]


def stand_ins(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs by the names of launchers that do what a script says; schedulers' other tools say nothing."""
    for name in ("mpiexec", "srun", "flux"):
        (folder / name).write_text(script)
    for name in ("sinfo", "squeue", "scancel", "qstat", "pbsnodes"):
        (folder / name).write_text("#!/bin/sh\nexit 1\n")
    for file in folder.iterdir():
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


class TestProcessesOfThisMachine(LauncherContract):
    @pytest.fixture
    def make(self, made: list[Launcher], tmp_path: Path) -> Made:
        (tmp_path / "module").mkdir()
        (tmp_path / "module" / "lasting.py").write_text(MODULE)

        def make(wide: bool = False) -> Launcher:
            environment = {"PYTHONPATH": str(tmp_path / "module")}
            made.append(LocalLauncher(8 if wide else 3, module="lasting", environment=environment))
            return made[-1]

        return make


@pytest.mark.parametrize("site", [Mpiexec(hydra=True, pbsnodes=False), Flux()], ids=["Hydra", "Flux"])
class TestJobSteps(AllocationContract):
    slots_of_a_task = 8

    @pytest.fixture
    def make(self, made: list[Launcher], site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
        (tmp_path / "bin").mkdir()
        stand_ins(tmp_path / "bin", STEP, monkeypatch)

        def make(wide: bool = False) -> Launcher:
            allocation = Allocation(by="pbs", nodes=alike(WIDE if wide else WIDE[:24], 4))
            made.append(StepLauncher(site, allocation, ranks=2, limits=Limits(rate=1e9, at_once=90)))
            return made[-1]

        return make


@pytest.mark.parametrize("site", [Mpiexec(hydra=False, pbsnodes=False), Slurm()], ids=["PALS", "Slurm"])
class TestPacks(AllocationContract):
    @pytest.fixture
    def make(self, made: list[Launcher], site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
        (tmp_path / "bin").mkdir()
        stand_ins(tmp_path / "bin", PACK, monkeypatch)

        def make(wide: bool = False) -> Launcher:
            allocation = Allocation(by="pbs", nodes=alike(WIDE[:300] if wide else WIDE[:3], 4))
            made.append(
                PackLauncher(
                    site,
                    allocation,
                    shares=1,
                    log=tmp_path / "packs.txt",
                    limits=Limits(rate=1e9, hang_seconds=1e6, probe_seconds=1e6),
                )
            )
            return made[-1]

        return make


def test_processes_that_outlive_the_complete_record_of_their_attempt_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
