"""An ensemble and structures for benchmarks, made on the spot: members of several kinds, trained for one epoch.

What members predict is worthless and what it costs is real, which is what benchmarks of prediction need.
"""

from pathlib import Path

import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.io import write

from hydragnn.config import RunConfig
from hydragnn.datasets import StoreWriter, open_store
from hydragnn.ensemble import Ensemble
from hydragnn.ensemble.building.build import build_ensemble
from hydragnn.graphs import Field
from hydragnn.graphs.atomic import from_ase
from hydragnn.runs import train

CUTOFF = 4.5  # Angstrom
TARGETS = (
    Field(name="energy", on="graph", unit="eV", role="target", dtype="float64"),
    Field(name="forces", on="node", shape=(3,), unit="eV/Angstrom", parity="vector", role="target"),
)


def crystals(count: int, seed: int = 0, most: int = 4) -> list[Atoms]:
    """Rattled CuAu crystals of 1 to ``most``**3 cells of four atoms, mostly small."""
    generator = np.random.default_rng(seed)
    frames = []
    for _ in range(count):
        atoms = bulk("Cu", "fcc", a=3.8, cubic=True) * tuple(int(n) for n in generator.integers(1, most + 1, 3))
        atoms.numbers = generator.choice([29, 79], len(atoms))
        atoms.positions += 0.1 * generator.normal(size=atoms.positions.shape)
        frames.append(atoms)
    return frames


def write_store(path: Path, frames: list[Atoms], *, labels: bool = False) -> Path:
    """The graphs of structures as a store."""
    fields = TARGETS if labels else ()
    with StoreWriter(path, [*_fields(fields)], dim=3, attributes={"cutoff": CUTOFF}) as writer:
        for number, atoms in enumerate(frames):
            if labels:
                atoms.calc = EMT()
                atoms.get_forces()
            writer.write(from_ase(atoms, CUTOFF, fields=fields, name=f"crystal {number}"))
    return path


def write_structures(path: Path, frames: list[Atoms]) -> Path:
    """Structures as extended XYZ."""
    write(path, frames, format="extxyz")
    return path


def make_ensemble(folder: Path, members: list[tuple[str, int]], *, forces: bool = False) -> tuple[Path, list[Path]]:
    """An ensemble of members given as (kind, hidden_dim), and its runs; made once and found again."""
    runs = [folder / "runs" / f"{number:04d}" for number in range(len(members))]
    if (folder / "ensemble" / "ensemble.json").is_file():
        return folder / "ensemble", runs
    store = write_store(folder / "training.h5", crystals(48, seed=7, most=2), labels=True)
    for number, ((kind, width), run) in enumerate(zip(members, runs)):
        train(RunConfig.parse(_table(store, kind, width, number, forces)), run)
    build_ensemble(runs, folder / "ensemble", store=open_store(store))
    assert len(Ensemble.load(folder / "ensemble").members) == len(members)
    return folder / "ensemble", runs


def _fields(extra: tuple[Field, ...]) -> tuple[Field, ...]:
    from hydragnn.graphs.atomic import ATOMIC_NUMBERS_FIELD

    return (ATOMIC_NUMBERS_FIELD, *extra)


def _table(store: Path, kind: str, width: int, seed: int, forces: bool) -> dict[str, object]:
    head = {
        "kind": "energy",
        "loss": "mse",
        "stage_two_factor": 1.0,
        "field": "energy",
        "per_node": True,
        "hidden_dims": [width],
        "references": True,
    }
    return {
        "data": {"store": str(store)},
        "split": {"train": 0.5, "valid": 0.4, "seed": 3},
        "batch": {"max_graphs": 8},
        "model": {"kind": kind, "hidden_dim": width, "num_layers": 2, "cutoff": CUTOFF},
        "heads": [head | ({"forces": "forces"} if forces else {})],
        "train": {"epochs": 1, "seed": seed},
    }
