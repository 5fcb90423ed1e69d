"""How evenly an ensemble's prediction is spread over two ranks, and what shared graphs are worth.

    python tests/benchmarks/bench_balance.py [--folder DIR] [--graphs 3000] [--json]

Two ranks of MPI with one thread each: the makespan over the bound of the measured costs, and the ensemble against one job per member
on the same two ranks, in turns in the same processes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from small_ensemble import crystals, make_ensemble, write_store, write_structures

from hydragnn.distributed import this_launch
from hydragnn.distributed.group import join_group
from hydragnn.ensemble.prediction.job import PredictionJob
from hydragnn.ensemble.prediction.predict import predict_with

MEMBERS = [(kind, width) for width in (16, 24, 32, 48) for kind in ("egnn", "schnet")]


def rank_main(folder: Path, repeats: int) -> None:
    """Predict with the ensemble and with one job per member, in turns."""
    torch.set_num_threads(1)
    ensemble, runs = make_ensemble(folder, MEMBERS)
    rows, plans = dict[str, list[dict[str, Any]]](), list[dict[str, Any]]()
    for source in ("structures.xyz", "graphs.h5"):
        for _ in range(repeats):
            together = _timed([ensemble], folder / source, folder)
            plans.append(json.loads((folder / "out-1-0.h5.plan.json").read_text())["measured"])
            alone = _timed(runs, folder / source, folder)
            rows.setdefault(source, []).append({"together": together, "alone": alone})
    if this_launch().rank == 0:
        (folder / "rank.json").write_text(json.dumps({"rows": rows, "plans": plans}))


def _timed(models: Sequence[Path], source: Path, folder: Path) -> dict[str, float]:
    """Wall seconds of a job per model one after the other, and the processor seconds of this rank."""
    begin, cpu = time.perf_counter(), time.process_time()
    for number, model in enumerate(models):
        out = folder / f"out-{len(models)}-{number}.h5"
        if this_launch().rank == 0:
            out.unlink(missing_ok=True)
        with join_group() as group:  # what was counted and said is of one prediction
            predict_with(group, PredictionJob(model=model, sources=(source,), out=out), lambda: None)
    return {"wall": time.perf_counter() - begin, "cpu": time.process_time() - cpu}


def measured(folder: Path, graphs: int, repeats: int) -> dict[str, Any]:
    """Make everything, start two ranks, and give what they measured."""
    torch.set_num_threads(1)
    make_ensemble(folder, MEMBERS)
    frames = crystals(graphs, seed=1, most=3)
    if not (folder / "structures.xyz").exists():
        write_structures(folder / "structures.xyz", frames)
        write_store(folder / "graphs.h5", frames)
    launcher = [str(Path(sys.executable).parent / "mpirun"), "-n", "2", sys.executable, __file__]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*launcher, "--rank", str(folder), "--repeats", str(repeats)], check=True, env=environment)
    result: dict[str, Any] = json.loads((folder / "rank.json").read_text())
    return result


def main() -> None:
    """Print the tables, or JSON with --json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--graphs", type=int, default=3000)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--rank", type=Path, default=None, help="used by the benchmark itself")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.rank:
        rank_main(options.rank, options.repeats)
        return
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="bench_balance_"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    measurement = measured(folder, options.graphs, options.repeats)
    result = {
        "measured": measurement["plans"],
        "sharing": _ratios(measurement["rows"]),
    }
    if options.json:
        print(json.dumps(result))
        return
    _print(result)


def _ratios(rows: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """How many times faster the ensemble is than one job per member, by the clock and by rank 0's processor seconds."""
    return {
        source: {
            "together_s": median(row["together"]["wall"] for row in turns),
            "alone_s": median(row["alone"]["wall"] for row in turns),
            "wall_ratio": median(row["alone"]["wall"] / row["together"]["wall"] for row in turns),
            "cpu_ratio": median(row["alone"]["cpu"] / row["together"]["cpu"] for row in turns),
        }
        for source, turns in rows.items()
    }


def _print(result: dict[str, Any]) -> None:
    print("measured, 2 ranks: makespan / lower bound of the measured costs")
    for plan in result["measured"]:
        makespan, bound = plan["makespan"], max(sum(plan["busy"]) / 2, plan["largest"])
        print(f"  {makespan:8.2f} s / {bound:8.2f} s = {makespan / bound:.4f}   ({plan['units_done']} units)")
    print("measured, 2 ranks: one job per member against the ensemble, jobs without start-up")
    for source, row in result["sharing"].items():
        print(
            f"  {source:15} {row['alone_s']:7.2f} s / {row['together_s']:7.2f} s: {row['wall_ratio']:.2f}x by the clock, "
            f"{row['cpu_ratio']:.2f}x in processor seconds"
        )


if __name__ == "__main__":
    main()
