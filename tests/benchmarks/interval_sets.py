"""Data sets for ``bench_intervals``: graphs, and the configuration of a small member that is trained on some of them.

The three scales of the quickstart come from its own generators; molecules (QM9), six elements (mlearn), an alloy (FePt),
acetylacetone and Darcy flow are published calculations. Sizes of parts are near those of the quickstart; what they leave is the
test part.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from ase import Atoms

from hydragnn.base.settings import read_toml
from hydragnn.graphs import Field, GraphBatch, from_ase
from hydragnn.scripts.demo.alloys import labelled_alloy
from hydragnn.scripts.demo.plates import labelled_plate
from hydragnn.scripts.demo.polycrystals import labelled_polycrystal
from tests.benchmarks.domain_sets import ENERGY, FORCES, DomainSet, acetylacetone, alloys, darcy, member_table

GAP = Field(name="gap", on="graph", unit="eV", role="target")
U0 = Field(name="u0", on="graph", unit="eV", role="target", dtype="float64")
CHARGES = Field(name="charges", on="node", unit="e", role="target")
QM9_NAMES = ("HOMO_LUMO_gap_au", "InternalEnergy_0K_au")
HARTREE = 27.211386  # eV
ELEMENTS = ("Cu", "Ge", "Li", "Mo", "Ni", "Si")
DEMO = Path(__file__).parents[2] / "scripts" / "demo"
GENERATED = 800
"""Graphs of a scale of the quickstart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IntervalSet:
    """Graphs, made where no store holds them yet, and the configuration of a member without its seeds."""

    graphs: Callable[[Path], Sequence[GraphBatch]]
    table: Callable[[Path], Mapping[str, Any]]


def from_demo(name: str, labelled: Callable[..., GraphBatch], model: Mapping[str, Any], epochs: int) -> IntervalSet:
    """A scale of the quickstart with the demo's configuration but for a smaller model, and without its search."""
    table = {key: value for key, value in read_toml(DEMO / f"{name}.toml").items() if key != "search"}
    table["split"] = {"train": 0.25, "valid": 0.1, "calibration": 0.1}
    table["model"] |= model
    table["train"] |= {"epochs": epochs, "schedule": "cosine", "checkpoint_epochs": epochs}
    return IntervalSet(
        graphs=lambda data: [labelled(number, 1) for number in range(GENERATED)], table=lambda data: table
    )


def from_domain(make: Callable[[Path], DomainSet], split: Mapping[str, float], **train: Any) -> IntervalSet:
    """A set of ``domain_sets``, without what is asked beside it."""
    made = cache(make)

    def table(data: Path) -> dict[str, Any]:
        own = made(data).table
        return {**own, "split": dict(split), "train": {**own["train"], **train}}

    return IntervalSet(graphs=lambda data: made(data).graphs, table=table)


def molecules(count: int, data: Path) -> list[GraphBatch]:
    """The first molecules of QM9 in an order drawn with seed 0."""
    with np.load(data / "qm9" / "qm9_dev_12000.npz") as raw:
        numbers, positions, charges = raw["z"], raw["pos"], raw["mulliken"]
        gap, energy = (HARTREE * raw["y"][:, list(raw["y_names"]).index(name)] for name in QM9_NAMES)
        first = np.concatenate([[0], np.cumsum(raw["n_atoms"])])
    graphs = []
    for row in np.random.default_rng(0).permutation(len(first) - 1)[:count]:
        own = slice(first[row], first[row + 1])
        atoms = Atoms(numbers=numbers[own].astype(int), positions=positions[own].astype(np.float64))
        atoms.arrays["charges"] = charges[own]
        atoms.info |= {"gap": gap[row], "u0": energy[row]}
        graphs.append(from_ase(atoms, 4.0, fields=[GAP, U0, CHARGES]))
    return graphs


def six_elements(count: int, data: Path) -> list[GraphBatch]:
    """Frames of every element of mlearn, drawn with seed 0."""
    graphs = []
    for element in ELEMENTS:
        frames = ase.io.read(data / "mlearn" / f"{element}_train.extxyz.gz", index=":")
        rows = np.random.default_rng(0).permutation(len(frames))[:count]
        graphs += [from_ase(frames[row], 4.2, fields=[ENERGY, FORCES]) for row in rows]
    return graphs


def table_of_molecules(data: Path) -> dict[str, Any]:
    """Two graph properties, one of which adds up over atoms, and charges."""
    return member_table(
        {"kind": "schnet", "cutoff": 4.0, "hidden_dim": 32, "num_layers": 3, "num_radial": 12},
        [
            {"kind": "scalar", "field": "gap", "pool": "mean"},
            {"kind": "energy", "field": "u0", "per_node": True, "references": True},
            {"kind": "scalar", "field": "charges"},
        ],
        {"train": 0.4, "valid": 0.1, "calibration": 0.1},
        batch=16,
        epochs=8,
    )


def table_of_elements(data: Path) -> dict[str, Any]:
    """Energies and forces of all elements by one model."""
    head = {
        "kind": "energy",
        "loss": "mse",
        "stage_two_factor": 1.0,
        "field": "energy",
        "references": True,
        "per_node": True,
        "forces": "forces",
        "forces_weight": 5.0,
    }
    return member_table(
        {"kind": "schnet", "cutoff": 4.2, "hidden_dim": 24, "num_layers": 2, "num_radial": 12},
        [{"kind": "energy", **head}],
        {"train": 0.15, "valid": 0.1, "calibration": 0.1},
        batch=4,
        epochs=6,
    )


SETS: Mapping[str, IntervalSet] = {
    "alloys": from_demo("alloys", labelled_alloy, {"hidden_dim": 24}, epochs=10),
    "polycrystals": from_demo("polycrystals", labelled_polycrystal, {"hidden_dim": 32}, epochs=8),
    "plates": from_demo("plates", labelled_plate, {"hidden_dim": 24}, epochs=6),
    "QM9": IntervalSet(graphs=partial(molecules, 1500), table=table_of_molecules),
    "mlearn": IntervalSet(graphs=partial(six_elements, 140), table=table_of_elements),
    "FePt": from_domain(alloys, {"train": 0.3, "valid": 0.1, "calibration": 0.1}, epochs=8),
    "acac": from_domain(acetylacetone, {"train": 0.4, "valid": 0.15, "calibration": 0.15}, epochs=6),
    "Darcy": from_domain(darcy, {"train": 0.4, "valid": 0.15, "calibration": 0.15}, epochs=5),
}
