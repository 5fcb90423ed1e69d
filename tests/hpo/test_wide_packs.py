"""Two thousand nodes under each launcher's command line: every attempt begins and ends once, and nothing stays open."""

import os
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from hydragnn.hpo.launching.allocation import Allocation
from hydragnn.hpo.launching.launcher import Begun, Exit, Task
from hydragnn.hpo.launching.packs import PackLauncher
from hydragnn.hpo.launching.sites import Flux, Mpiexec, Site, Slurm

NODES = tuple(f"n{number:04d}" for number in range(2000))
STAND_IN = """#!/bin/sh
# a launcher and the packs behind it: every request begins, every go is followed by an end
case "$*" in *--nodes*) ;; *) exit 1 ;; esac
echo x >> {started}
while read -r slot words; do
  case "$words" in
    "{{"*) echo "$slot {{\\"pid\\": 1}}" ;;
    go) echo "$slot {{\\"code\\": 0, \\"oom\\": false}}" ;;
  esac
done
"""


@pytest.mark.parametrize(
    "site",
    [Mpiexec(hydra=False, pbsnodes=False), Mpiexec(hydra=True, pbsnodes=False), Slurm(cores=4), Flux(cores=4)],
    ids=["PALS", "Hydra", "Slurm", "Flux"],
)
def test_two_thousand_nodes_begin_and_end_once(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mpiexec", "srun", "flux"):
        (tmp_path / name).write_text(STAND_IN.format(started=tmp_path / "started"))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    allocation, log = Allocation(by="pbs", nodes=NODES, cores=4, gpus=0, job=""), tmp_path / "packs.txt"
    launcher, counts = PackLauncher(site, allocation, shares=1, log=log, rate=1e9, probe_seconds=300.0), Counter[str]()
    before = psutil.Process().num_fds()
    try:
        (tmp_path / "trial").mkdir()
        for number, node in enumerate(launcher.slots):
            launcher.start(Task(trial=number, attempt=1, until=1, folder=tmp_path / "trial", slots=(node,)))
        deadline = time.monotonic() + 300
        while counts["ended"] < len(NODES) and time.monotonic() < deadline:
            for report in launcher.poll(0.5):
                if isinstance(report, Begun):
                    counts["begun"] += 1
                    launcher.go(report.task)
                elif isinstance(report, Exit):
                    counts["ended"] += report.code == 0
                    counts[report.message] += 1
    finally:
        launcher.close()
    assert counts == {"begun": len(NODES), "ended": len(NODES), "": len(NODES)}
    assert len((tmp_path / "started").read_text().split()) == -(-len(NODES) // site.pack_nodes)
    assert psutil.Process().num_fds() == before
