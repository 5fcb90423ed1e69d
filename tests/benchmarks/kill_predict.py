"""Kill predicting ranks with SIGKILL at random moments, resume each time, and compare every bit with an undisturbed prediction.

``python tests/benchmarks/kill_predict.py --kills 50 [--seed 0] [--suffix .h5] [--folder DIR]``; exit code 0 where all is equal. In turns: the whole
job of two MPI ranks, one of its ranks, one rank of a job step without MPI (whose work the other takes over), one of two local
workers. A prediction that ends is compared, and another one begins.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent))
from small_ensemble import crystals, make_ensemble, write_structures

from hydragnn.ensemble.prediction.parts import Parts

MEMBERS = [("schnet", 16), ("egnn", 16), ("schnet", 24), ("egnn", 24)]
WAYS = ("whole job", "MPI rank", "job step rank", "local worker")
COMMAND = [sys.executable, "-c", "from hydragnn.scripts.cli import main; main()", "predict"]
PATIENCE = 90.0  # seconds
MPIRUN = [str(Path(sys.executable).parent / "mpirun"), "-n", "2"]


def started(way: str, ensemble: Path, source: Path, out: Path) -> list[subprocess.Popen[bytes]]:
    """The prediction's processes."""
    resume = ["--resume"] if out.with_name(out.name + ".parts").exists() else []
    command = [*COMMAND, str(ensemble), str(source), "--out", str(out), *resume]
    if way in ("whole job", "MPI rank"):
        return [_process([*MPIRUN, *command])]
    if way == "local worker":
        return [_process([*command, "--workers", "2"])]
    step = {"SLURM_JOB_ID": str(random.getrandbits(30)), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    return [_process(command, **step, SLURM_PROCID=str(rank)) for rank in range(2)]


def _process(command: Sequence[str], **environment: str) -> subprocess.Popen[bytes]:
    settings = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(
        command, env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def victims(way: str, processes: Sequence[subprocess.Popen[bytes]], choice: random.Random) -> list[psutil.Process]:
    """Whom to kill: everything, or one process that predicts."""
    if way == "job step rank":
        return [psutil.Process(choice.choice(processes).pid)]
    root = psutil.Process(processes[0].pid)
    family = [*root.children(recursive=True)]
    if way == "whole job":
        return [*family, root]
    word = "spawn_main" if way == "local worker" else "hydragnn"
    ranks = [one for one in family if word in " ".join(one.cmdline()) and "mpirun" not in one.name()]
    leaves = [one for one in ranks if not one.children()]
    return [choice.choice(leaves)] if leaves else []


def killed(
    way: str, processes: Sequence[subprocess.Popen[bytes]], out: Path, length: float, choice: random.Random
) -> bool:
    """Kill at a random moment; whether there was anything left to kill. Ends when all processes have ended.

    One kill in four comes at any moment of ``length`` seconds, which are mostly spent on starting; the others come while
    the work is done, once the plan of this sitting is written.
    """
    begun, plan = time.time(), out.with_name(out.name + ".parts") / "plan.json"
    anywhere = choice.random() < 0.25
    while not anywhere and all(process.poll() is None for process in processes):
        if plan.exists() and plan.stat().st_mtime >= begun:
            break
        time.sleep(0.02)
    deadline = time.monotonic() + choice.uniform(0, length if anywhere else length / 3)
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(0.02)
    struck = False
    if all(process.poll() is None for process in processes):
        try:
            for one in victims(way, processes, choice):
                one.send_signal(signal.SIGKILL)
                struck = True
        except psutil.NoSuchProcess:
            pass
    for process in processes:
        try:
            process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:  # a peer that was killed before they met is waited for much longer
            process.kill()
            process.wait()
    return struck


def kept_units(folder: Path) -> int:
    """Return how many units are finished."""
    parts = Parts(folder)
    parts.look()
    return int(parts.finished(10_000).sum())


def main() -> int:
    """Kill, resume, compare; prints a line per kill."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--graphs", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--suffix", default=".h5", help="the format of the predictions")
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="kill_predict_"))
    folder.mkdir(parents=True, exist_ok=True)
    choice = random.Random(options.seed)
    ensemble, _ = make_ensemble(folder, MEMBERS)
    source = write_structures(folder / "structures.xyz", crystals(options.graphs, most=2))
    for name in ("whole", "cut"):
        subprocess.run(["rm", "-rf", *folder.glob(f"{name}{options.suffix}*")], check=True)
    begin = time.monotonic()
    (whole,) = started("local worker", ensemble, source, folder / f"whole{options.suffix}")
    assert whole.wait() == 0, "the undisturbed prediction failed"
    length = time.monotonic() - begin
    print(f"undisturbed prediction: {length:.1f} s; killing {options.kills} times at random", flush=True)
    kills = finished = survived = 0
    cut = folder / f"cut{options.suffix}"
    while kills < options.kills:
        way = WAYS[kills % len(WAYS)]
        if killed(way, started(way, ensemble, source, cut), cut, length, choice):
            kills += 1
            kept = kept_units(cut.with_name(f"{cut.name}.parts"))
            survived += cut.exists()
            print(
                f"kill {kills:2d}: {way}; {'finished by the others' if cut.exists() else f'{kept} units kept'}",
                flush=True,
            )
        if cut.exists():
            finished += 1
            if not _equal(cut):
                return 1
    while not cut.exists():
        for process in started("MPI rank", ensemble, source, cut):
            assert process.wait() == 0, "the last resume failed"
    if not _equal(cut):
        return 1
    print(f"{kills} kills, {survived} of which the others survived, {finished + 1} predictions: all bits equal")
    return 0


def _equal(cut: Path) -> bool:
    """Compare the finished prediction and make room for the next."""
    same = cut.read_bytes() == cut.with_name(f"whole{cut.suffix}").read_bytes()
    if not same:
        print("the predictions differ")
    subprocess.run(["rm", "-rf", *cut.parent.glob(f"{cut.name}*")], check=True)
    return same


if __name__ == "__main__":
    sys.exit(main())
