"""Processes of this machine, job steps and packs keep one contract, on every kind of command line and with thousands of nodes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from launcher_contract import AllocationContract, LauncherContract, Made, ends, reports_until, stand_ins

from hydragnn.hpo.launching.allocation import Allocation, alike
from hydragnn.hpo.launching.allocation_launcher import Limits
from hydragnn.hpo.launching.launcher import Launcher, Task
from hydragnn.hpo.launching.local import LocalLauncher
from hydragnn.hpo.launching.packs import PackLauncher
from hydragnn.hpo.launching.sites import Site
from hydragnn.hpo.launching.sites.flux import Flux
from hydragnn.hpo.launching.sites.pbs import Mpiexec
from hydragnn.hpo.launching.sites.slurm import Slurm
from hydragnn.hpo.launching.steps import StepLauncher
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


class TestProcessesOfThisMachine(LauncherContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Iterator[Made]:
        (tmp_path / "module").mkdir()
        (tmp_path / "module" / "lasting.py").write_text(MODULE)
        made: list[Launcher] = []

        def make(wide: bool = False) -> Launcher:
            environment = {"PYTHONPATH": str(tmp_path / "module")}
            made.append(LocalLauncher(8 if wide else 3, module="lasting", environment=environment))
            return made[-1]

        yield make
        for launcher in made:
            launcher.close()


@pytest.mark.parametrize("site", [Mpiexec(hydra=True, pbsnodes=False), Flux()], ids=["Hydra", "Flux"])
class TestJobSteps(AllocationContract):
    slots_of_a_task = 8

    @pytest.fixture
    def make(self, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
        (tmp_path / "bin").mkdir()
        stand_ins(tmp_path / "bin", STEP, monkeypatch)
        made: list[Launcher] = []

        def make(wide: bool = False) -> Launcher:
            allocation = Allocation(by="pbs", nodes=alike(WIDE if wide else WIDE[:24], 4))
            made.append(StepLauncher(site, allocation, ranks=2, limits=Limits(rate=1e9, at_once=90)))
            return made[-1]

        yield make
        for launcher in made:
            launcher.close()


@pytest.mark.parametrize("site", [Mpiexec(hydra=False, pbsnodes=False), Slurm()], ids=["PALS", "Slurm"])
class TestPacks(AllocationContract):
    @pytest.fixture
    def make(self, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
        (tmp_path / "bin").mkdir()
        stand_ins(tmp_path / "bin", PACK, monkeypatch)
        made: list[Launcher] = []

        def make(wide: bool = False) -> Launcher:
            allocation = Allocation(by="pbs", nodes=alike(WIDE[:600] if wide else WIDE[:3], 4))
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

        yield make
        for launcher in made:
            launcher.close()


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
