"""Nine data sets as people have them, each from files by one ``BUILD.toml``.

``python -m tests.scripts.nine_sets [NAME ...]`` trains on them at full size and prints a table of errors beside simple predictors.
"""

import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import tomli_w
import torch
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT

import hydragnn
from hydragnn.ensemble import build_ensemble
from hydragnn.graphs.pyg import torch_geometric

Array = np.ndarray[Any, Any]
Table = dict[str, Any]


@dataclass(frozen=True)
class DataSet:
    """Files of ``count`` graphs, how to build a store of them, and what to train."""

    files: Callable[[Path, int], Table]
    """Writes the files; gives the ``BUILD.toml``."""
    heads: list[Table]
    model: Table
    count: int
    split: Table = field(default_factory=dict)
    epochs: int = 60

    def run(self, store: Path, epochs: int, seed: int = 0) -> Table:
        """The configuration of a run."""
        train = {"epochs": epochs, "seed": seed}
        table: Table = {"data": {"store": str(store)}, "model": self.model, "heads": self.heads, "train": train}
        return table | ({"split": self.split} if self.split else {})


def random_of(number: int) -> np.random.Generator:
    return np.random.default_rng(number)


def crystals(count: int) -> Iterator[tuple[Atoms, float, Array]]:
    """Shaken and strained alloys of copper, nickel and gold, with energies and forces of EMT."""
    for number in range(count):
        random = random_of(number)
        atoms = bulk("Cu", cubic=True).repeat((2, 1, 1))
        atoms.symbols[:] = random.choice(["Cu", "Ni", "Au"], len(atoms))
        strain = random.normal(scale=0.03, size=(3, 3))
        atoms.set_cell(atoms.cell @ (np.eye(3) * random.uniform(0.97, 1.1) + (strain + strain.T) / 2), scale_atoms=True)
        atoms.rattle(0.05, rng=random)
        atoms.calc = EMT()
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        atoms.calc = None
        yield atoms, energy, forces


def alloys_with_gaps(folder: Path, count: int) -> Table:
    """Every third energy and half of the forces are missing."""
    frames = []
    for number, (atoms, energy, forces) in enumerate(crystals(count)):
        atoms.info["dft_energy"] = np.nan if number % 3 == 0 else energy
        forces[random_of(number).random(len(atoms)) < 0.5] = np.nan
        atoms.arrays["dft_forces"] = forces
        frames.append(atoms)
    ase.io.write(folder / "alloys.xyz", frames, format="extxyz")
    energy = {"name": "energy", "on": "graph", "unit": "eV", "role": "target", "key": "dft_energy", "optional": True}
    forces = {"name": "forces", "on": "node", "shape": [3], "parity": "vector", "unit": "eV/Angstrom", "role": "target"}
    return {
        "kind": "ase",
        "files": ["alloys.xyz"],
        "cutoff": 5.0,
        "fields": [energy, forces | {"key": "dft_forces", "optional": True}],
    }


def crystals_with_a_table(folder: Path, count: int) -> Table:
    """A folder of CIF files beside a table of energies per atom, some of them unknown."""
    (folder / "cifs").mkdir()
    rows = ["file,formation"]
    for number, (atoms, energy, _) in enumerate(crystals(count)):
        ase.io.write(folder / "cifs" / f"{number:04}.cif", atoms)
        rows.append(f"{number:04}.cif,{'' if number % 7 == 0 else energy / len(atoms)}")
    (folder / "formation.csv").write_text("\n".join(rows) + "\n")
    target = {"name": "formation", "on": "graph", "unit": "eV", "role": "target", "optional": True}
    return {"kind": "ase", "files": ["cifs"], "cutoff": 5.0, "labels": "formation.csv", "fields": [target]}


def citations(folder: Path, count: int) -> Table:
    """One graph of papers that cite their own field mostly; few words tell it, and most labels are hidden."""
    random = random_of(0)
    kinds = random.integers(0, 4, count)
    pairs = random.integers(0, count, (2, 30 * count))
    same = kinds[pairs[0]] == kinds[pairs[1]]
    pairs = pairs[:, (pairs[0] != pairs[1]) & (random.random(pairs.shape[1]) < np.where(same, 0.3, 0.02))]
    pairs = np.unique(np.concatenate([pairs, pairs[::-1]], axis=1), axis=1)
    words = (random.random((count, 24)) < np.where(np.arange(24) % 4 == kinds[:, None], 0.2, 0.1)).astype(np.float32)
    part = random.choice(3, count, p=[0.3, 0.2, 0.5])
    masks = {
        name: torch.from_numpy(part == number) for number, name in enumerate(["train_mask", "val_mask", "test_mask"])
    }
    data = torch_geometric("data").Data(
        x=torch.from_numpy(words), edge_index=torch.from_numpy(pairs), y=torch.from_numpy(kinds), **masks
    )
    torch.save([data], folder / "citations.pt")
    target = {"name": "y", "on": "node", "role": "target", "classes": 4, "dtype": "int64"}
    return {
        "kind": "pyg",
        "files": ["citations.pt"],
        "node_split": list(masks),
        "fields": [{"name": "x", "on": "node", "shape": [24]}, target],
    }


SMALL = {"hidden_dim": 16, "num_layers": 2}

ENERGY = {"kind": "energy", "field": "energy", "references": True, "forces": "forces"}

SETS = {
    "alloys, partly labelled": DataSet(alloys_with_gaps, [ENERGY], {"kind": "painn", **SMALL}, 400),
    "CIF files and a table": DataSet(
        crystals_with_a_table, [{"kind": "scalar", "field": "formation"}], {"kind": "schnet", **SMALL}, 400
    ),
    "citations, one graph": DataSet(
        citations,
        [{"kind": "classes", "field": "y"}],
        {"kind": "sage", **SMALL},
        2000,
        split={"kind": "given", "field": "part"},
    ),
}


def build(name: str, folder: Path, count: int) -> Path:
    """Write the files of a set and build its store."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "BUILD.toml").write_text(tomli_w.dumps(SETS[name].files(folder, count)))
    hydragnn.build_store(folder / "BUILD.toml", folder / "set.h5")
    return folder / "set.h5"


def errors(name: str, folder: Path) -> Iterator[str]:
    """Train three models at full size; give a line of errors on the test part for each target."""
    one = SETS[name]
    store = build(name, folder, one.count)
    runs = [folder / f"run-{seed}" for seed in range(3)]
    for seed, run in enumerate(runs):
        hydragnn.train(one.run(store, one.epochs, seed), out=run)
    evaluation = build_ensemble(runs, folder / "ensemble")
    for target, scores in evaluation.parts["test"].items():
        shown = "accuracy" if "accuracy" in scores.ensemble else "mae"
        simple = {kind: numbers[shown] for kind, numbers in scores.baselines.items() if shown in numbers}
        words = ", ".join(f"{kind} {number:.3g}" for kind, number in simple.items())
        yield f"{name} | {target} {shown} {scores.unit} | {scores.ensemble[shown]:.3g} | {words}"


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or SETS:
            for line in errors(name, Path(folder) / re.sub(r"\W+", "-", name)):
                print(line, flush=True)


if __name__ == "__main__":
    main()
