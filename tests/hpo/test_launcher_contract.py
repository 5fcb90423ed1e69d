"""Processes of this machine, job steps and packs keep one contract, on every kind of command line and with thousands of nodes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher_contract import AllocationContract, LauncherContract, Made, stand_ins

from hydragnn.hpo.launching.allocation import Allocation, alike
from hydragnn.hpo.launching.launcher import Launcher
from hydragnn.hpo.launching.local import LocalLauncher
from hydragnn.hpo.launching.packs import PackLauncher
from hydragnn.hpo.launching.sites import Site
from hydragnn.hpo.launching.sites.flux import Flux
from hydragnn.hpo.launching.sites.pbs import Mpiexec
from hydragnn.hpo.launching.sites.slurm import Slurm
from hydragnn.hpo.launching.steps import Limits, StepLauncher

WIDE = tuple(f"n{number:04d}" for number in range(2000))
SITES = {
    "PALS": Mpiexec(hydra=False, pbsnodes=False),
    "Hydra": Mpiexec(hydra=True, pbsnodes=False),
    "Slurm": Slurm(),
    "Flux": Flux(),
}
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


@pytest.mark.parametrize("site", SITES.values(), ids=list(SITES))
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


@pytest.mark.parametrize("site", SITES.values(), ids=list(SITES))
class TestPacks(AllocationContract):
    @pytest.fixture
    def make(self, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
        (tmp_path / "bin").mkdir()
        stand_ins(tmp_path / "bin", PACK, monkeypatch)
        made: list[Launcher] = []

        def make(wide: bool = False) -> Launcher:
            allocation = Allocation(by="pbs", nodes=alike(WIDE if wide else WIDE[:3], 4))
            made.append(
                PackLauncher(
                    site,
                    allocation,
                    shares=1,
                    log=tmp_path / "packs.txt",
                    rate=1e9,
                    hang_seconds=1e6,
                    probe_seconds=1e6,
                )
            )
            return made[-1]

        yield make
        for launcher in made:
            launcher.close()
