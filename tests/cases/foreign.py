"""Cases of the second look: calculators of others, fine-tuning and dynamics."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.build import bulk, fcc111
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read, write

from tests.cases.running import Answer, Command, build, hydragnn, train

BUILD = """kind = "ase"
files = ["{name}.xyz"]
cutoff = 5.0
[[fields]]
name = "{energy}"
key = "energy"
on = "graph"
unit = "eV"
role = "target"
[[fields]]
name = "forces"
on = "node"
shape = [3]
parity = "vector"
unit = "eV/Angstrom"
role = "target"
[[fields]]
name = "stress"
on = "graph"
shape = [3, 3]
parity = "tensor"
unit = "eV/Angstrom^3"
role = "target"
optional = true
"""
RUN = """[data]
store = "{name}.h5"
[split]
train = 0.6
valid = 0.3
[model]
kind = "schnet"
hidden_dim = 8
num_layers = 1
[[heads]]
kind = "energy"
field = "{energy}"
forces = "forces"
stress = "stress"
references = true
[train]
epochs = {epochs}
learning_rate = 3e-3
"""
POTENTIALS = """
from ase.calculators.emt import EMT

class GPa(EMT):
    def calculate(self, *arguments, **keywords):
        super().calculate(*arguments, **keywords)
        if "stress" in self.results:
            self.results["stress"] = self.results["stress"] * 160.2176

class NoLone(EMT):
    def calculate(self, atoms=None, *arguments, **keywords):
        if len(atoms) == 1:
            raise ValueError("isolated atom")
        super().calculate(atoms, *arguments, **keywords)

gpa, nolone, emt = GPa, NoLone, EMT
"""


def labelled(atoms: Atoms, *, stress: bool) -> Atoms:
    """Return a structure with results of EMT."""
    atoms.calc = EMT()
    results = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
    results |= {"stress": atoms.get_stress()} if stress else {}
    atoms.calc = SinglePointCalculator(atoms, **results)
    return atoms


def crystals(count: int, symbols: tuple[str, ...] = ("Cu", "Ag")) -> list[Atoms]:
    """Return strained and displaced cells."""
    random, frames = np.random.default_rng(0), []
    for number in range(count):
        atoms = bulk(symbols[number % len(symbols)], "fcc", cubic=True)
        atoms.set_cell(atoms.cell.array @ (np.eye(3) + random.normal(0, 0.03, (3, 3))), scale_atoms=True)
        atoms.positions += random.normal(0, 0.08, atoms.positions.shape)
        frames.append(labelled(atoms, stress=True))
    return frames


def slabs(count: int) -> list[Atoms]:
    """Return slabs without a stress."""
    frames = []
    for seed in range(count):
        slab = fcc111("Cu", (1, 1, 3), vacuum=6.0)
        slab.rattle(0.08, seed=seed)
        slab.pbc, slab.info = (True, True, False), {}
        frames.append(labelled(slab, stress=False))
    return frames


def stored(folder: Path, name: str, frames: list[Atoms], energy: str = "energy", epochs: int = 2) -> None:
    """Write ``NAME.h5`` and ``run.toml`` for it."""
    write(folder / f"{name}.xyz", frames, format="extxyz")
    build(folder, name, BUILD.format(name=name, energy=energy))
    (folder / "run.toml").write_text(RUN.format(name=name, energy=energy, epochs=epochs), encoding="utf-8")


def joined(folder: Path, frames: list[Atoms], factory: str) -> Command:
    """Train two runs on these structures, and build an ensemble beside a calculator."""
    stored(folder, "mix", frames)
    for seed in ("1", "2"):
        hydragnn(folder, "train", "run.toml", "--out", f"run{seed}", "--set", f"train.seed={seed}")
    (folder / "pots.py").write_text(POTENTIALS, encoding="utf-8")
    words = ("ensemble", "run1", "run2", "--baseline", f"pots:{factory}", "--allow-code", "pots", "--out", "ens")
    return hydragnn(folder, *words, PYTHONPATH=str(folder))


def foreign_gpa(folder: Path) -> Answer:
    """A calculator with its stress in GPa is not taken."""
    ended = joined(folder, crystals(40), "gpa")
    return Answer("refused: GPa", ended.sentence[:90], ended.refused and "(GPa?)" in ended.text)


def foreign_refuses(folder: Path) -> Answer:
    """Two atoms that a calculator refuses are left out and named."""
    frames = crystals(40) + [labelled(Atoms(symbol), stress=False) for symbol in ("Cu", "Ag")]
    ended = joined(folder, frames, "nolone")
    note = next((line for line in ended.text.splitlines() if "isolated" in line), "no note")
    return Answer("an ensemble and a note", f"exit {ended.code}, {note[-90:]}", not ended.code and "isolated" in note)


def foreign_slabs(folder: Path) -> Answer:
    """Slabs have an energy beside a calculator with a stress of crystals."""
    ended = joined(folder, crystals(36) + slabs(8), "emt")
    if ended.code:
        return Answer("an ensemble", ended.sentence, False)
    test = json.loads((folder / "ens" / "evaluation.json").read_text())["parts"]["test"]
    fields = [name for name, scores in test.items() if "emt" in scores.get("baselines", {})]
    return Answer("errors of energy, forces and stress", f"errors of {', '.join(fields)}", len(fields) == 3)


def md_timestep(folder: Path) -> Answer:
    """Dynamics with steps of 50 fs end with a reason."""
    stored(folder, "data", crystals(40), epochs=10)
    train(folder)
    write(folder / "start.xyz", bulk("Cu", "fcc", a=3.6, cubic=True).repeat(2))
    words = ("md", "run", "start.xyz", "--out", "md.xyz", "--outside", "record", "--timestep", "50", "--steps", "40")
    ended = hydragnn(folder, *words)
    hottest = max(frame.get_temperature() for frame in read(folder / "md.xyz", ":"))
    seen = f"exit {ended.code}, frames up to {hottest:.3g} K"
    return Answer("a reason, exit 3", seen, ended.code == 3 and "no motion of atoms" in ended.text and hottest < 1e4)


def finetune_name(folder: Path) -> Answer:
    """A run tuned on fewer elements, and on an energy of another name, finishes."""
    stored(folder, "data", crystals(40))
    train(folder)
    stored(folder, "copper", crystals(20, ("Cu",)), "REF_energy")
    text = (folder / "run.toml").read_text()
    head, tail = text[: text.index("[model]")], text[text.index("[[heads]]") :]
    (folder / "run.toml").write_text(f'{head}[start]\nmodel = "run"\n{tail}')
    ended = hydragnn(folder, "train", "run.toml", "--out", "tuned")
    status = json.loads((folder / "tuned" / "record.json").read_text())["status"]
    return Answer("finished", f"{status}, exit {ended.code}", (status, ended.code) == ("finished", 0))


CASES: dict[str, Callable[[Path], Answer]] = {
    "foreign_gpa": foreign_gpa,
    "foreign_refuses": foreign_refuses,
    "foreign_slabs": foreign_slabs,
    "md_timestep": md_timestep,
    "finetune_name": finetune_name,
}
