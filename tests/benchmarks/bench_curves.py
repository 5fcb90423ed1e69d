"""Steps that curves predict beside steps that real ranks take.

    python -m tests.benchmarks.bench_curves [--ranks 2 4] [--turns 15] [--only painn] [--graphs 64] [--json FILE]

Gloo ranks of one thread each. In every turn all ranks take steps without peers, at the same time, and then steps of copies. The prediction takes the steps without
peers, the packing of the run, and latency and bandwidth of sums over these ranks, as ``hydragnn plan --curves`` does; it knows no step of copies. So two ranks on a core
are slow devices to it. ``alone`` predicts by steps of one process on an otherwise idle machine, times ranks per core. Ratios are predicted over measured, paired by turns,
and their medians; all turns are printed, and the ratio of the least times, which other programs disturb less. Batches have ``--graphs`` and half as many.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from hydragnn.config import RunConfig
from hydragnn.datasets import StoreWriter
from hydragnn.distributed.ranks import Ranks, join_ranks
from hydragnn.parallel import ParallelSettings
from hydragnn.runs import rank_steps
from hydragnn.runs.assembly import assemble
from hydragnn.runs.extrapolation import Extrapolation
from hydragnn.runs.plan import plan_run
from hydragnn.runs.rank_steps import Interconnect, Steps, measured_network, measured_steps
from hydragnn.training.data import DevicePlacement
from tests.benchmarks.bench_pipeline import labelled
from tests.benchmarks.mesh_forecasts import write_runs

ENERGY = {"kind": "energy", "field": "energy"}
MESHES = {"kind": "field_tokens", "hidden_dim": 32, "num_layers": 2, "latents": 0, "angles": 3, "cutoff": 0.3}
CONFIGS: dict[str, dict[str, Any]] = {
    "schnet": {"model": {"kind": "schnet", "hidden_dim": 64, "num_layers": 3, "cutoff": 5.0}, "heads": [ENERGY]},
    "painn": {
        "model": {"kind": "painn", "hidden_dim": 64, "num_layers": 3, "cutoff": 5.0},
        "heads": [{**ENERGY, "forces": "forces"}],
    },
    "field_tokens": {
        "model": {**MESHES, "num_radial": 8},
        "heads": [{"kind": "scalar", "field": f"next_{name}"} for name in ("height", "rate")],
    },
}
"""Alloys of 8 to 64 atoms with energies, the same with forces, and fields on irregular meshes."""

LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def extrapolation_of(config: RunConfig, ranks: int, network: dict[str, Any]) -> Extrapolation:
    """Return the extrapolation of a run to copies, without steps."""
    run = assemble(plan_run(config), DevicePlacement(device=torch.device("cpu"), dtype=torch.float32), Ranks(), int)
    return Extrapolation(
        loader=run.data.branches[0].train.loader,
        alone=Steps(sizes={}, chunks=1, parts=1, costs=(), repeats=(), memory=(), state=0),
        layouts=(),
        network=Interconnect(**network),
        ranks=ranks,
        per_node=ranks,
        weights=sum(parameter.nbytes for parameter in run.state.model.parameters()),
        sent=0.0,
        layers=0,
        accelerator=False,
    )


def predicted(of: Extrapolation, steps: dict[str, Any], graphs: int, busy: float = 1.0) -> list[float]:
    """Return the seconds of copies in every turn, by steps without peers."""
    seconds = []
    for turn in range(len(steps["repeats"][0])):
        repeats = tuple((busy * each[turn],) for each in steps["repeats"])
        row = replace(of, alone=Steps(**{**steps, "repeats": repeats})).row_of(ParallelSettings(), of.ranks, graphs)
        assert row is not None
        seconds.append(row["seconds"]["step"])
    return seconds


def work(config: RunConfig, graphs: int, turns: int, folder: Path) -> None:
    """Measure on the ranks of a launcher, and print the first one's figures."""
    rank_steps.TURNS, rank_steps.LONG = turns, 10.0  # no batch is made smaller
    with join_ranks(folder, torch.device("cpu")) as ranks:
        placement = DevicePlacement(device=torch.device("cpu"), dtype=torch.float32)
        plan = replace(plan_run(config), parallel=ParallelSettings())
        run = assemble(plan, placement, Ranks(), int, shared=ranks.size > 1)
        layouts = [ParallelSettings()] if ranks.size > 1 else []
        alone, copies = measured_steps(run, plan, layouts, ranks, graphs)
        network = asdict(measured_network(ranks)) if layouts else {}
        if ranks.first:
            print(json.dumps({"alone": asdict(alone), "copies": [asdict(one) for one in copies], "network": network}))


def measured(name: str, ranks: int, graphs: int, turns: int, folder: Path) -> dict[str, Any]:
    """Start ranks and return their figures."""
    words = ["-m", "tests.benchmarks.bench_curves", "--work", name, str(graphs), str(turns), str(folder)]
    command = [*LAUNCHER, str(ranks), *words] if ranks > 1 else words
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def config_of(name: str, folder: Path) -> RunConfig:
    """Return a configuration on its store."""
    store = folder / ("meshes.h5" if name == "field_tokens" else "alloys.h5")
    return RunConfig.parse(
        {
            "data": {"store": str(store)},
            "split": {"train": 0.8, "valid": 0.1},
            "batch": {"max_graphs": 64},
            **CONFIGS[name],
        }
    )


def main() -> None:
    """Print predicted and measured steps of every configuration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--graphs", type=int, default=64)
    parser.add_argument("--only", nargs="*", choices=[*CONFIGS], default=[*CONFIGS])
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.work:
        name, graphs, turns, folder = options.work
        work(config_of(name, Path(folder)), int(graphs), int(turns), Path(folder))
        return
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        alloys = labelled(480)
        with StoreWriter(folder / "alloys.h5", [*alloys.fields.values()], dim=3) as writer:
            writer.write(alloys)
        write_runs(folder / "meshes.h5", range(12), 9, ("height", "rate"))
        print(
            "| model | ranks | graphs | predicted, ms | measured, ms | ratio | of the least | all turns | alone |\n|"
            + "---|" * 9
        )
        for name in options.only:
            config = config_of(name, folder)
            for ranks in options.ranks:
                one, many = (measured(name, n, options.graphs * n // ranks, options.turns, folder) for n in (1, ranks))
                found[f"{name} {ranks}"] = [one, many]
                busy = max(1.0, ranks / len(os.sched_getaffinity(0)))
                of = extrapolation_of(config, ranks, many["network"])
                for at, graphs in ((-1, options.graphs), (-2, options.graphs // 2)):
                    steps = many["copies"][0]["repeats"][at]
                    seconds, alone = predicted(of, many["alone"], graphs), predicted(of, one["alone"], graphs, busy)
                    ratios = [mine / actual for mine, actual in zip(seconds, steps)]
                    times = f"{1e3 * median(seconds):.1f} | {1e3 * median(steps):.1f} | {median(ratios):.3f} | {min(seconds) / min(steps):.3f}"
                    every = " ".join(f"{ratio:.2f}" for ratio in ratios)
                    whole = median(alone) / median(steps)
                    print(f"| {name} | {ranks} | {graphs} | {times} | {every} | {whole:.3f} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
