"""Neutron spectra of Cu, Si and Ge: bands of small ensembles beside the spectra of the potentials that labelled them.

    python tests/benchmarks/bench_neutron.py FOLDER [--elements Cu Si Ge] [--image docs/images/neutron.png]

Labels are of EMT (Cu) and of Tersoff's potentials (Si, Ge; Phys. Rev. B 39, 5566), both of ASE, on rattled and strained cells. Four members
each, which differ in their seed. The spectrum of every crystal, at six pressures, is computed from the ensemble and straight from the
potential. Bands are calibrated on the crystals of the other five pressures; nothing else is fitted to a reference.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.calculators.calculator import Calculator
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.calculators.tersoff import Tersoff, TersoffParameters

import hydragnn
import hydragnn.ensemble
from hydragnn.ensemble import NeutronSpectrum

TERSOFF = {
    "Si": (3, 1, 0, 1.0039e5, 16.217, -0.59825, 0.78734, 1.1e-6, 1.7322, 471.18, 2.85, 0.15, 2.4799, 1830.8),
    "Ge": (3, 1, 0, 1.0643e5, 15.652, -0.43884, 0.75627, 9.0166e-7, 1.7047, 419.23, 2.95, 0.15, 2.4451, 1769.0),
}
CELLS = {"Cu": ((2, 2, 2), 3.6), "Si": ((2, 2, 1), 5.43), "Ge": ((2, 2, 1), 5.66)}
"""Cubic cells of training, and a lattice constant to begin with."""
CUTOFF = {"Cu": 5.0, "Si": 4.2, "Ge": 4.2}  # Angstrom
PRESSURES = (-4.0, -2.0, 0.0, 2.0, 4.0, 6.0)  # GPa
STRUCTURES, MEMBERS, EPOCHS = 120, 4, 100
FIELDS = [
    {"name": "energy", "on": "graph", "unit": "eV", "role": "target"},
    {"name": "forces", "on": "node", "shape": [3], "parity": "vector", "unit": "eV/Angstrom", "role": "target"},
    {"name": "stress", "on": "graph", "shape": [3, 3], "parity": "tensor", "unit": "eV/Angstrom^3", "role": "target"},
]


def potential(element: str) -> Calculator:
    """The independent truth."""
    if element == "Cu":
        return EMT()
    return Tersoff({(element,) * 3: TersoffParameters(*TERSOFF[element])})


def structures(element: str) -> list[Atoms]:
    """Rattled and strained cells with labels."""
    random, frames = np.random.default_rng(0), []
    repeat, constant = CELLS[element]
    for number in range(STRUCTURES):
        atoms = bulk(element, a=constant, cubic=True).repeat(repeat)
        strain = random.normal(scale=0.01, size=(3, 3)) + np.eye(3) * random.uniform(-0.03, 0.03)
        atoms.set_cell(atoms.cell @ (np.eye(3) + (strain + strain.T) / 2), scale_atoms=True)
        atoms.rattle(random.choice([0.01, 0.03, 0.06, 0.1]), seed=number)
        atoms.calc = potential(element)
        labels = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces(), "stress": atoms.get_stress()}
        atoms.calc = SinglePointCalculator(atoms, **labels)
        frames.append(atoms)
    return frames


def ensemble(element: str, folder: Path) -> tuple[Path, float]:
    """Folder of an ensemble, trained once, and CPU seconds of its training."""
    place, timing = folder / element / "ensemble", folder / element / "seconds.json"
    if not timing.is_file():
        store = folder / element / "store.h5"
        build = {"kind": "ase", "cutoff": CUTOFF[element], "fields": FIELDS}
        hydragnn.build_store(build, store, data=structures(element), quiet=True)
        head = {"kind": "energy", "field": "energy", "references": True, "forces": "forces", "stress": "stress"}
        begin, runs = time.process_time(), [folder / element / f"run{seed}" for seed in range(MEMBERS)]
        for seed, run in enumerate(runs):
            table: dict[str, Any] = {
                "data": {"store": str(store)},
                "split": {"train": 0.8, "valid": 0.2, "seed": 0},
                "batch": {"max_graphs": 8},
                "model": {"kind": "painn", "hidden_dim": 32, "num_layers": 2, "cutoff": CUTOFF[element]},
                "heads": [head],
                "train": {"epochs": EPOCHS, "seed": seed, "learning_rate": 3e-3},
            }
            hydragnn.train(table, run)
        hydragnn.build_ensemble(runs, place)
        timing.write_text(json.dumps(time.process_time() - begin))
    return place, json.loads(timing.read_text())


def best_member(folder: Path, names: tuple[str, ...]) -> int:
    """Position of the member that a user without an ensemble would take: that of the lowest validation loss."""
    records = [json.loads((folder / name / "record.json").read_text()) for name in names]
    return int(np.argmin([record["best"]["valid/loss"] for record in records]))


def error(values: np.ndarray, truth: np.ndarray) -> float:
    """Area between two spectra over that of the reference, in percent."""
    return float(100 * np.abs(values - truth).sum() / truth.sum())


def debye(reference: NeutronSpectrum) -> np.ndarray:
    """Debye's density of states with the reference's own mean energy, three quarters of Debye's."""
    energies, dos = reference.energies, reference.mean("dos")
    end = 4 / 3 * (energies * dos).sum() / dos.sum()
    return 9 * energies**2 / end**3 * (energies < end)


def element_row(element: str, folder: Path, image: Path | None) -> list[dict[str, Any]]:
    """Figures of the crystal at every pressure, with a band from the other pressures."""
    place, training = ensemble(element, folder)
    atoms, pairs, seconds = bulk(element, a=CELLS[element][1]), {}, {}
    for pressure in PRESSURES:
        begin = time.process_time()
        own = hydragnn.ensemble.neutron_spectrum(place, atoms, pressure=pressure)
        seconds[pressure] = time.process_time() - begin
        pairs[pressure] = own, hydragnn.ensemble.neutron_spectrum(potential(element), atoms, **own.settings)
    best, rows = best_member(folder / element, own.names), []
    for pressure, (own, truth) in pairs.items():
        own = own.calibrated([pair for other, pair in pairs.items() if other != pressure])
        row: dict[str, Any] = {
            "element": element,
            "pressure": pressure,
            "members": len(own.names),
            "training s": training,
            "s": seconds[pressure],
        }
        row |= {"lattice": float(own.cells[:, 0, 1].mean() * 2), "true lattice": float(truth.cells[0, 0, 1] * 2)}
        for what, share in own.coverage(truth).items():
            mean, true = own.mean(what), truth.mean(what)
            raw = replace(own, factors=dict.fromkeys(own.factors, 1.645))
            row |= {f"{what} cover": 100 * share, f"{what} raw cover": 100 * raw.coverage(truth)[what]}
            row |= {f"{what} factor": own.factors[what], f"{what} error": error(mean, true)}
            row[f"{what} best member"] = error(own.members[what][best], true)
        row["dos debye"] = error(debye(truth), truth.mean("dos"))
        rows.append(row)
        if pressure == 0.0:
            own.save(folder / f"{element}.npz")
            own.picture(
                folder / f"{element}.png" if image is None else image.with_name(f"{image.stem}-{element}.png"), truth
            )
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--elements", nargs="+", default=["Cu", "Si", "Ge"])
    parser.add_argument("--image", type=Path)
    options = parser.parse_args()
    for name in options.elements:
        for line in element_row(name, options.folder, options.image):
            print(
                json.dumps({key: one if isinstance(one, str) else float(f"{one:.4g}") for key, one in line.items()}),
                flush=True,
            )
