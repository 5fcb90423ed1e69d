"""Steps that curves predict beside steps that real ranks take.

    python -m tests.benchmarks.bench_curves [--ranks 2 4] [--turns 15]

Gloo ranks of one thread each. In every turn all ranks take steps without peers, at the same time, then sums, and then steps of copies. The prediction takes the steps without
peers, the packing of the run, and latency and bandwidth of these sums, as ``hydragnn plan --curves`` does; it knows no step of copies. So two ranks on a core
are slow devices to it. ``alone`` predicts by steps of one process on an otherwise idle machine, times ranks per core. Ratios are predicted over measured, paired by turns,
and their medians; all turns are printed, and the ratio of the least times, which other programs disturb less.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
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
SIZES = {"hidden_dim": 64, "num_layers": 3, "cutoff": 5.0}
MESHES = {"kind": "field_tokens", "hidden_dim": 32, "num_layers": 2, "angles": 3, "cutoff": 0.3}
GRAPHS = 64  # of a step, of all ranks; half as many are measured, too
FIELDS = ("height", "rate")
NEXT = [{"kind": "scalar", "field": f"next_{name}"} for name in FIELDS]
CONFIGS: dict[str, dict[str, Any]] = {
    "schnet": {"model": {"kind": "schnet", **SIZES}, "heads": [ENERGY]},
    "painn": {"model": {"kind": "painn", **SIZES}, "heads": [{**ENERGY, "forces": "forces"}]},
    "field_tokens": {"model": {**MESHES, "num_radial": 8}, "heads": NEXT},
}
"""Alloys of 8 to 64 atoms with energies, the same with forces, and fields on irregular meshes."""

PLACEMENT = DevicePlacement(device=torch.device("cpu"), dtype=torch.float32)


def extrapolation_of(config: RunConfig, ranks: int) -> Extrapolation:
    """Return the extrapolation of a run to copies, without steps and network."""
    run = assemble(plan_run(config), PLACEMENT, Ranks(), int)
    weights = sum(parameter.nbytes for parameter in run.state.model.parameters())
    alone = Steps(sizes={}, chunks=1, parts=1, costs=(), repeats=(), memory=(), state=0)
    network = Interconnect(latency=0.0, inside=0.0, within=1.0, between=1.0, source="")
    none: Any = {"layouts": (), "sent": 0.0, "layers": 0, "accelerator": False}
    none |= {"loader": run.data.branches[0].train.loader, "weights": weights, "alone": alone, "network": network}
    return Extrapolation(ranks=ranks, per_node=ranks, **none)


def predicted(
    of: Extrapolation, steps: dict[str, Any], networks: Sequence[dict[str, Any]], graphs: int, busy: float = 1.0
) -> list[float]:
    """Return the seconds of copies in every turn, by steps without peers; measured steps have no signals."""
    seconds = []
    for turn, network in enumerate(Interconnect(**one) for one in networks):
        alone = Steps(**{**steps, "repeats": tuple((busy * each[turn],) for each in steps["repeats"])})
        row = replace(of, alone=alone, network=network).row_of(ParallelSettings(), of.ranks, graphs)
        assert row is not None
        seconds.append(row["seconds"]["step"] - float(network.sums(of.ranks, 1, of.ranks, 0.0).sum()))
    return seconds


def work(config: RunConfig, graphs: int, turns: int, folder: Path) -> None:
    """Measure on the ranks of a launcher, and print the first one's figures."""
    rank_steps.TURNS, rank_steps.LONG = turns, 10.0  # no batch is made smaller
    with join_ranks(folder, torch.device("cpu")) as ranks:
        plan = replace(plan_run(config), parallel=ParallelSettings())
        run = assemble(plan, PLACEMENT, Ranks(), int, shared=ranks.size > 1)
        layouts = [ParallelSettings()] if ranks.size > 1 else []
        networks: list[dict[str, Any]] = []

        def on_step(what: str, _: float | None) -> None:
            networks.extend([asdict(measured_network(ranks))] if what.startswith("copies") else [])

        alone, copies = measured_steps(run, plan, layouts, ranks, graphs, on_step)
        if ranks.first:
            steps = {"alone": asdict(alone), "copies": [one.repeats for one in copies]}
            print(json.dumps({**steps, "networks": networks}))


def measured(name: str, ranks: int, graphs: int, turns: int, folder: Path) -> dict[str, Any]:
    """Start ranks and return their figures."""
    words = ["-m", "tests.benchmarks.bench_curves", "--work", name, str(graphs), str(turns), str(folder)]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    settings: Any = {"env": {**os.environ, "OMP_NUM_THREADS": "1"}, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, *launcher, *words], **settings)
    if done.returncode:
        raise SystemExit(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def config_of(name: str, folder: Path) -> RunConfig:
    """Return a configuration on its store."""
    data = {"store": str(folder / ("meshes.h5" if name == "field_tokens" else "alloys.h5"))}
    sizes = {"split": {"train": 0.8, "valid": 0.1}, "batch": {"max_graphs": 64}}
    return RunConfig.parse({"data": data, **sizes, **CONFIGS[name]})


def main() -> None:
    """Print predicted and measured steps of every configuration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.work:
        name, graphs, turns, folder = options.work
        work(config_of(name, Path(folder)), int(graphs), int(turns), Path(folder))
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        alloys = labelled(480)
        with StoreWriter(folder / "alloys.h5", [*alloys.fields.values()], dim=3) as writer:
            writer.write(alloys)
        write_runs(folder / "meshes.h5", range(12), 9, FIELDS)
        print("| model | ranks | graphs | predicted, ms | measured, ms | ratio | least | alone | all turns |")
        for name in CONFIGS:
            config = config_of(name, folder)
            for ranks in options.ranks:
                one, many = (measured(name, n, GRAPHS * n // ranks, options.turns, folder) for n in (1, ranks))
                busy = max(1.0, ranks / len(os.sched_getaffinity(0)))
                of = extrapolation_of(config, ranks)
                for at, graphs in ((-1, GRAPHS), (-2, GRAPHS // 2)):
                    steps = many["copies"][0][at]
                    seconds = predicted(of, many["alone"], many["networks"], graphs)
                    alone = predicted(of, one["alone"], many["networks"], graphs, busy)
                    ratios = [mine / actual for mine, actual in zip(seconds, steps)]
                    shown = (median(ratios), min(seconds) / min(steps), median(alone) / median(steps))
                    cells = [f"{1e3 * median(each):.1f}" for each in (seconds, steps)]
                    cells += [f"{ratio:.2f}" for ratio in shown]
                    cells += [" ".join(f"{ratio:.2f}" for ratio in ratios)]
                    print("|", " | ".join([name, str(ranks), str(graphs), *cells]), "|", flush=True)


if __name__ == "__main__":
    main()
