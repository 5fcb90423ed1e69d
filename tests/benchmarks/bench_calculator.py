"""The ASE calculator in molecular dynamics: CPU time per step, here and in another checkout, in turns of two processes.

    python tests/benchmarks/bench_calculator.py [--atoms 64] [--kind painn] [--turns 7] [--steps 10] [--graph] [--against CHECKOUT]

Rattled copper, all neighbours within 5 Angstrom, hidden 64, 3 layers, energy and forces of a run in fp32, one thread; velocity Verlet with
2 fs at 300 K. Each side trains its own run for an epoch on a few cells first: weights do not change the time of a step. CPU
milliseconds per step, medians over the turns. ``--graph``: the graph of vibrating atoms alone, with its order by sender, searches included; the ratio is the median over turns of the other over this one.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from harness import Server

HERE = Path(__file__).resolve().parents[2]


def trained(kind: str, folder: Path, hidden: int = 64) -> None:
    """Train a run on rattled cells of copper."""
    import numpy as np
    from ase.build import bulk
    from ase.calculators.emt import EMT

    from hydragnn.config import RunConfig
    from hydragnn.datasets import StoreWriter
    from hydragnn.graphs import Field, concatenate
    from hydragnn.graphs.atomic import from_ase

    try:
        from hydragnn.runs import train
    except ImportError:  # a checkout from before there was that room
        from hydragnn.training import train

    random = np.random.default_rng(0)
    fields = (
        Field(name="energy", on="graph", unit="eV", role="target", dtype="float64"),
        Field(name="forces", on="node", shape=(3,), unit="eV/Angstrom", parity="vector", role="target"),
    )
    graphs = []
    for _ in range(12):
        atoms = bulk("Cu", cubic=True)
        atoms.rattle(0.1, rng=random)
        atoms.calc = EMT()
        atoms.get_forces()
        graphs.append(from_ase(atoms, 5.0, fields=fields))
    store = folder / "copper.h5"
    with StoreWriter(store, tuple(graphs[0].fields.values()), dim=3, attributes={"cutoff": 5.0}) as writer:
        writer.write(concatenate(graphs))
    head = {
        "kind": "energy",
        "loss": "mse",
        "stage_two_factor": 1.0,
        "per_node": False,
        "field": "energy",
        "forces": "forces",
    }
    shape = {"kind": kind, "hidden_dim": hidden, "num_layers": 3, "num_radial": 20, "cutoff": 5.0}
    table = {"data": {"store": str(store)}, "split": {"train": 0.6, "valid": 0.2}, "model": shape, "heads": [head]}
    train(RunConfig.parse({**table, "train": {"epochs": 1}}), folder / "run")


def simulate(kind: str, count: int, steps: int) -> None:
    """Take so many steps for every line that comes in; write the CPU seconds of each turn."""
    import torch
    from ase import units
    from ase.md.verlet import VelocityVerlet

    from hydragnn.ensemble import calculator

    try:
        from hydragnn.base.allocator import keep_memory

        keep_memory()
    except ImportError:  # a checkout from before
        pass
    torch.set_num_threads(1)
    import numpy as np

    atoms = copper(count)
    velocities = (
        np.random.default_rng(0).normal(size=(count, 3)) * np.sqrt(units.kB * 300 / atoms.get_masses())[:, None]
    )
    atoms.set_velocities(velocities)
    with tempfile.TemporaryDirectory() as folder:
        trained(kind, Path(folder))
        atoms.calc = calculator(Path(folder) / "run")
        dynamics = VelocityVerlet(atoms, timestep=2 * units.fs)
        dynamics.run(5)
        print("[]", flush=True)
        for _ in sys.stdin:
            start = time.process_time()
            dynamics.run(steps)
            print(f"[{time.process_time() - start}]", flush=True)


def graphs(count: int, steps: int) -> None:
    """Make the graphs of so many steps for every line that comes in: each atom swings with .085 Angstrom per axis, as copper at 300 K."""
    import numpy as np
    import torch

    from hydragnn.base.allocator import keep_memory
    from hydragnn.ensemble.reading.structures import Structures
    from hydragnn.graphs.skin import SkinList

    keep_memory()
    torch.set_num_threads(1)
    atoms, skin, step = copper(count), SkinList(), 0
    rule, random = Structures(cutoff=5.0, max_neighbours=None, fields=()), np.random.default_rng(0)
    places, phases = atoms.positions.copy(), random.uniform(0, 2 * np.pi, atoms.positions.shape)
    turns = 2 * np.pi / random.uniform(55, 110, places.shape)  # per step of 2 fs
    graph = rule.graph(atoms, "copper")
    print("[]", flush=True)
    for _ in sys.stdin:
        start = time.process_time()
        for _ in range(steps):
            step += 1
            atoms.positions = places + 0.12 * np.sin(turns * step + phases)
            graph = rule.moved(graph, atoms, "copper", skin)
            graph.topology.by_sender
        print(f"[{time.process_time() - start}]", flush=True)


def copper(count: int) -> Any:
    """Return rattled copper."""
    from ase.build import bulk

    repeats = {8: 2, 64: 4, 512: 8, 864: 6, 10976: 14}
    atoms = bulk("Cu", cubic=count in (864, 10976)).repeat(repeats[count])
    atoms.rattle(0.05, seed=0)
    return atoms


def worker(checkout: Path, options: argparse.Namespace) -> Server:
    """A process that simulates with the package of a checkout; freed memory is kept, as in commands that predict."""
    words = ["--atoms", options.atoms, "--kind", options.kind, "--steps", options.steps]
    words += [*(["--graph"] if options.graph else [])]
    command = [sys.executable, Path(__file__).resolve(), "--simulate", *words]
    process = Server(command, {"PYTHONPATH": str(checkout)}, checkout)
    process.answer()
    return process


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atoms", type=int, choices=(8, 64, 512, 864, 10976), default=64)
    parser.add_argument("--kind", default="painn")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--simulate", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.simulate and options.graph:
        graphs(options.atoms, options.steps)
        return
    if options.simulate:
        simulate(options.kind, options.atoms, options.steps)
        return
    processes = []
    for place in (HERE, options.against.resolve()) if options.against else (HERE,):
        processes.append(worker(place, options))
    turns = [[process.ask()[0] for process in processes] for _ in range(options.turns)]
    for process in processes:
        process.end()
    milliseconds = [1e3 * median(times) / options.steps for times in zip(*turns)]
    ratio = f", {median(one[1] / one[0] for one in turns):.2f} times as fast" if options.against else ""
    figures = " against ".join(f"{value:.1f}" for value in milliseconds)
    print(f"{options.kind}, {options.atoms} atoms: {figures} ms per step{ratio}")


if __name__ == "__main__":
    main()
