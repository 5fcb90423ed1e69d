"""Relaxation of many small structures: torch-sim with all at once, and ASE one after the other, in one run.

    python tests/benchmarks/bench_torch_sim.py [--structures 64] [--members 4] [--rounds 3] [--json]

Rattled CuAu cells of 4 to 8 atoms, FIRE to 0.05 eV/Angstrom with the same settings on both sides, at most 300 steps. The ensemble of PaiNNs (hidden 32, 2 layers) is
trained on labels of EMT for a minute first, with calibration and training domain. CPU seconds of the process, medians over rounds in turns.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import in_turns

CUTOFF, FMAX, STEPS = 4.5, 0.05, 300


def cells(count: int, seed: int) -> list[Any]:
    """Return rattled cells of 4 to 8 atoms."""
    from ase.build import bulk

    random = np.random.default_rng(seed)
    frames = []
    for number in range(count):
        atoms = bulk("Cu", "fcc", a=3.85, cubic=True) * (1, 1, 1 + number % 2)
        atoms.numbers = random.choice([29, 79], len(atoms))
        atoms.positions += 0.12 * random.normal(size=atoms.positions.shape)
        frames.append(atoms)
    return frames


def trained(folder: Path, members: int) -> Path:
    """Train runs on labelled cells and join them."""
    from ase.calculators.emt import EMT

    from hydragnn.config import RunConfig
    from hydragnn.datasets import StoreWriter
    from hydragnn.ensemble import build_ensemble
    from hydragnn.graphs import Field, concatenate
    from hydragnn.graphs.atomic import from_ase
    from hydragnn.runs import train

    fields = (
        Field(name="energy", on="graph", unit="eV", role="target", dtype="float64"),
        Field(name="forces", on="node", shape=(3,), unit="eV/Angstrom", parity="vector", role="target"),
    )
    graphs = []
    for atoms in cells(160, seed=1):
        atoms.calc = EMT()
        atoms.get_forces()
        graphs.append(from_ase(atoms, CUTOFF, fields=fields))
    with StoreWriter(
        folder / "cells.h5", tuple(graphs[0].fields.values()), dim=3, attributes={"cutoff": CUTOFF}
    ) as writer:
        writer.write(concatenate(graphs))
    head = {"kind": "energy", "field": "energy", "forces": "forces", "references": True}
    table = {
        "data": {"store": str(folder / "cells.h5")},
        "split": {"train": 0.6, "valid": 0.2},
        "batch": {"max_graphs": 8},
        "model": {"kind": "painn", "hidden_dim": 32, "num_layers": 2, "num_radial": 12, "cutoff": CUTOFF},
        "heads": [head],
        "train": {"epochs": 15, "learning_rate": 3e-3},
    }
    runs = []
    for seed in range(members):
        runs.append(folder / f"run{seed}")
        train(RunConfig.parse({**table, "train": {**table["train"], "seed": seed}}), runs[-1])
    build_ensemble(runs, folder / "ensemble")
    return folder / "ensemble"


def with_ase(model: Path, frames: list[Any]) -> tuple[list[float], int]:
    """Return energies of relaxed structures, and all steps, one structure after the other."""
    from ase.optimize import FIRE

    from hydragnn.ensemble import calculator

    potential, energies, steps = calculator(model, outside="record"), [], 0
    for frame in frames:
        atoms = frame.copy()
        atoms.calc = potential
        optimiser = FIRE(atoms, logfile=None)
        optimiser.run(FMAX, STEPS)
        energies.append(atoms.get_potential_energy())
        steps += optimiser.nsteps
    return energies, steps


def with_torch_sim(model: Path, frames: list[Any]) -> tuple[list[float], int]:
    """Return energies of relaxed structures, and all steps, all structures at once."""
    import torch_sim

    from hydragnn.ensemble import torch_sim_model

    potential = torch_sim_model(model, outside="record")
    state = torch_sim.optimize(
        frames,
        potential,
        optimizer=torch_sim.optimizers.fire,
        convergence_fn=torch_sim.generate_force_convergence_fn(FMAX, include_cell_forces=False),
        max_steps=STEPS,
        steps_between_swaps=5,
        md_flavor="ase_fire",
        autobatcher=torch_sim.InFlightAutoBatcher(potential, memory_scales_with="n_atoms", max_memory_scaler=10_000),
    )
    return state.energy.tolist(), 0


def main() -> int:
    """Print the figures of both ways."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--structures", type=int, default=64)
    arguments.add_argument("--members", type=int, default=4)
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model, frames = trained(Path(folder), options.members), cells(options.structures, seed=2)
        (one, steps), (other, _) = with_ase(model, frames), with_torch_sim(model, frames)
        print(f"{len(frames)} structures of {options.members} members, {steps} steps with ASE")
        print(f"largest difference of relaxed energies: {np.abs(np.subtract(one, other)).max():.1e} eV")
        works = {"ase": lambda: with_ase(model, frames), "torch-sim": lambda: with_torch_sim(model, frames)}
        turns = in_turns(works, options.rounds, warm_up=0)
        for name in works:
            print(f"{name}: {turns.milliseconds(name) / 1e3:.2f} s of CPU")
        print(f"ratio: {turns.ratio('ase', over='torch-sim'):.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
