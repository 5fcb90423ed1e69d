"""Published data sets for benchmarks of intervals: what is learnt, and how."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from hydragnn.graphs import Field, GraphBatch, from_ase, graph_from_arrays

ENERGY = Field(name="energy", on="graph", unit="eV", role="target", dtype="float64")
FORCES = Field(name="forces", on="node", shape=(3,), unit="eV/Angstrom", parity="vector", role="target")
ENTHALPY = Field(name="enthalpy", on="graph", unit="Ry/atom", role="target", dtype="float64")
CHARGE = Field(name="charge_transfer", on="node", unit="e", role="target")
MOMENT = Field(name="moment", on="node", unit="muB", role="target")
PERMEABILITY = Field(name="permeability", on="node")
PRESSURE = Field(name="pressure", on="node", role="target")
FE = 26
ALLOY_CUTOFF = 5.5  # Bohr; two shells


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DomainSet:
    """Graphs to learn from, and the configuration of a member."""

    graphs: Sequence[GraphBatch]
    table: Mapping[str, Any]


def alloys(data: Path) -> DomainSet:
    """FePt cells of 4 to 12 and 20 to 26 Fe atoms of 32."""
    with np.load(data / "fept/fept_32atoms.npz") as raw:
        cells = {name: raw[name] for name in ("Z", "pos", "header", "magmom", "charge_transfer", "symmetry_class")}
    numbers, energy = cells["Z"].astype(np.int64), cells["header"][:, 0]
    iron = (numbers == FE).sum(axis=1)
    pure = {count: energy[iron == count].mean() / 32 for count in (0, 32)}
    enthalpy = energy / 32 - (iron * pure[32] + (32 - iron) * pure[0]) / 32
    _, distinct = np.unique(cells["symmetry_class"], return_index=True)
    cell = (20.872, 10.436, 14.116)

    def graphs(low: int, high: int, count: int) -> list[GraphBatch]:
        there = distinct[(iron[distinct] >= low) & (iron[distinct] <= high)]
        rows = np.random.default_rng(0).permutation(there)[:count]
        labels = zip(cells["charge_transfer"][rows], cells["magmom"][rows], enthalpy[rows])
        return [alloy(numbers[row], cells["pos"], cell, *label) for row, label in zip(rows, labels)]

    return DomainSet(
        graphs=[*graphs(4, 12, 550), *graphs(20, 26, 450)],
        table=member_table(
            {"kind": "schnet", "cutoff": ALLOY_CUTOFF, "hidden_dim": 32, "num_layers": 3, "num_radial": 6},
            [
                {"kind": "scalar", "field": "enthalpy", "pool": "mean"},
                {"kind": "scalar", "field": "charge_transfer"},
                {"kind": "scalar", "field": "moment"},
            ],
            {"train": 0.5, "valid": 0.15, "calibration": 0.15},
            batch=8,
            epochs=8,
        ),
    )


def alloy(
    numbers: NDArray[np.int64],
    positions: NDArray[np.float64],
    cell: Sequence[float],
    charge: NDArray[np.float32],
    moment: NDArray[np.float32],
    enthalpy: float,
) -> GraphBatch:
    """One cell with its labels."""
    atoms = Atoms(numbers=numbers, positions=positions, cell=cell, pbc=True)
    atoms.arrays |= {"charge_transfer": charge, "moment": moment}
    atoms.info["enthalpy"] = enthalpy
    return from_ase(atoms, ALLOY_CUTOFF, fields=[ENTHALPY, CHARGE, MOMENT])


def acetylacetone(data: Path) -> DomainSet:
    """500 frames at 300 K."""
    return DomainSet(
        graphs=[
            from_ase(frame, 5.0, fields=[ENERGY, FORCES])
            for frame in ase.io.read(data / "acac/train_300K.xyz.gz", index=":")
        ],
        table=member_table(
            {"kind": "painn", "cutoff": 5.0, "hidden_dim": 32, "num_layers": 2, "num_radial": 8},
            [
                {
                    "kind": "energy",
                    "field": "energy",
                    "references": True,
                    "per_node": True,
                    "forces": "forces",
                    "forces_weight": 10.0,
                    "loss": "mse",
                    "stage_two_factor": 1.0,
                }
            ],
            {"train": 0.5, "valid": 0.15, "calibration": 0.15},
            batch=5,
            epochs=15,
        ),
    )


def darcy(data: Path) -> DomainSet:
    """Darcy flow on 16 x 16 points."""
    with np.load(data / "darcy/darcy_train_16.npz") as raw:
        permeability, pressure = raw["x"].astype(np.float64), raw["y"].astype(np.float64)
    return DomainSet(
        graphs=[grid(permeability[row], pressure[row]) for row in range(500)],
        table=member_table(
            {"kind": "schnet", "cutoff": 0.2, "hidden_dim": 24, "num_layers": 5, "num_radial": 8, "envelope": "none"},
            [{"kind": "scalar", "field": "pressure"}],
            {"train": 0.5, "valid": 0.15, "calibration": 0.15},
            batch=8,
            epochs=6,
        ),
    )


def grid(permeability: NDArray[np.float64], pressure: NDArray[np.float64]) -> GraphBatch:
    """A square of points from 0 to 15/16, each joined to its nearest four."""
    side = len(permeability)
    number = np.arange(side * side).reshape(side, side)
    pairs = np.concatenate(
        [
            np.stack([number[1:].ravel(), number[:-1].ravel()]),
            np.stack([number[:, 1:].ravel(), number[:, :-1].ravel()]),
        ],
        axis=1,
    )
    places = np.linspace(0, 15 / 16, side)
    positions = np.stack(np.meshgrid(places, places, indexing="ij"), axis=-1).reshape(-1, 2)
    return graph_from_arrays(
        positions,
        np.concatenate([pairs[0], pairs[1]]),
        np.concatenate([pairs[1], pairs[0]]),
        fields=[PERMEABILITY, PRESSURE],
        nodes={"permeability": permeability.ravel(), "pressure": pressure.ravel()},
    )


def member_table(
    model: Mapping[str, Any],
    heads: Sequence[Mapping[str, Any]],
    split: Mapping[str, Any],
    *,
    batch: int,
    epochs: int,
) -> dict[str, Any]:
    return {
        "split": dict(split),
        "batch": {"max_graphs": batch},
        "model": dict(model),
        "heads": [dict(head) for head in heads],
        "train": {
            "epochs": epochs,
            "learning_rate": 3e-3,
            "schedule": "cosine",
            "ema_decay": 0.99,
            "clip_norm": 10.0,
            "checkpoint_epochs": epochs,
        },
    }
