"""Graphs like those of training, and beyond them, for ``trust``: all made by commands, or published calculations.

Labels beyond training are true ones: EMT knows all alloys, a force field all molecules, finite elements all plates and grains.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ase.io
import numpy as np
import torch
from ase import Atom, Atoms
from ase.build import bulk, fcc111, molecule
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones
from ase.calculators.singlepoint import SinglePointCalculator
from ase.calculators.tersoff import Tersoff, TersoffParameters
from ase.data import covalent_radii
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
from ase.optimize import FIRE
from ase.units import fs
from torch import Tensor

from hydragnn.base.settings import read_toml
from hydragnn.graphs import GraphBatch, from_ase
from hydragnn.scripts.demo import alloys as demo_alloys
from hydragnn.scripts.demo import plates as demo_plates
from hydragnn.scripts.demo import polycrystals as demo_polycrystals
from tests.benchmarks.domain_sets import ENERGY, FORCES, member_table
from tests.benchmarks.interval_sets import molecules as molecules_of_qm9
from tests.benchmarks.interval_sets import table_of_molecules
from tests.benchmarks.mesh_forecasts import pairs

DEMO = Path(__file__).parents[2] / "scripts" / "demo"
SPLIT = {"train": 0.4, "valid": 0.15, "calibration": 0.2}
ASKED = 40
"""Graphs of every kind beyond training."""
BOLTZMANN = 8.617e-5  # eV per K


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TrustSet:
    """Graphs to learn from, the configuration of a member, and graphs beyond training."""

    graphs: Sequence[GraphBatch]
    table: Mapping[str, Any]
    beyond: Mapping[str, Sequence[GraphBatch]]


def forces_table(kind: str, cutoff: float, width: int, epochs: int) -> dict[str, Any]:
    """A small model of energies and forces."""
    head = {"kind": "energy", "field": "energy", "references": True, "per_node": True, "forces": "forces"}
    model = {"kind": kind, "cutoff": cutoff, "hidden_dim": width, "num_layers": 2, "num_radial": 10}
    return member_table(model, [{**head, "forces_weight": 10.0, "loss": "mse"}], SPLIT, batch=8, epochs=epochs)


def alloys(data: Path) -> TrustSet:
    """Ternary fcc crystals, with atoms displaced by .03 to .1 Angstrom."""
    random = np.random.default_rng(0)
    three = ("Cu", "Pd", "Au")

    def crystal(
        kinds: Sequence[str], rattle: tuple[float, float], scale: float = 1.0, slab: bool = False
    ) -> GraphBatch:
        shares = random.dirichlet(np.full(len(kinds), 8.0))
        lattice = scale * float(shares @ [demo_alloys.ELEMENTS[kind] for kind in kinds])
        atoms = bulk("Cu", "fcc", a=lattice, cubic=True) * (2, 2, 1)
        if slab:
            atoms = fcc111("Cu", (2, 2, 3), a=lattice, vacuum=8.0, periodic=True)
        atoms.symbols[:] = random.choice(kinds, size=len(atoms), p=shares)
        atoms.set_cell(atoms.cell.array * (1 + random.normal(0, 0.01)), scale_atoms=True)
        atoms.positions += random.normal(0.0, random.uniform(*rattle), atoms.positions.shape)
        atoms.calc = EMT()
        atoms.get_forces()
        return from_ase(atoms, 4.2, fields=[ENERGY, FORCES])

    usual = (0.03, 0.1)
    return TrustSet(
        graphs=[crystal(three, usual) for _ in range(400)],
        table=forces_table("painn", 4.2, 24, 40),
        beyond={
            "hotter (.15-.25 A)": [crystal(three, (0.15, 0.25)) for _ in range(ASKED)],
            "molten (.3-.4 A)": [crystal(three, (0.3, 0.4)) for _ in range(ASKED)],
            "binaries": [crystal(three[n % 3 : n % 3 + 1] + three[: 1 + n % 2], usual) for n in range(ASKED)],
            "pure": [crystal(three[n % 3 : n % 3 + 1], usual) for n in range(ASKED)],
            "slabs": [crystal(three, usual, slab=True) for _ in range(ASKED)],
            "compressed to .9": [crystal(three, usual, scale=0.9) for _ in range(ASKED)],
            "dynamics (300-900 K)": dynamics(random, ASKED, (300, 900), two=("Cu", "Au")),
            "dynamics (1500 K)": dynamics(random, ASKED, (1500, 1500), two=("Cu", "Au")),
        },
    )


MOLECULES = ("CH3CH2OH", "C3H8", "CH3CHO", "CH3OCH3", "CH3COOH", "CH3CH2NH2")
OTHERS = ("trans-butane", "CH3CONH2", "C2H6NH", "HCOOCH3")


def energy_of(atoms: Atoms, positions: Tensor) -> Tensor:
    """Return the energy (eV) of copies of a molecule: Morse bonds, harmonic angles, repulsion and dispersion.

    Angles stiffen and bonds soften with each other's lengths, so that no part of the energy is a sum over pairs.
    """
    radii, start = covalent_radii[atoms.numbers], torch.from_numpy(atoms.positions)
    lengths = torch.cdist(start, start)
    bonded = (lengths.numpy() < 1.25 * (radii[:, None] + radii)) & ~np.eye(len(atoms), dtype=bool)
    i, j = np.nonzero(np.triu(bonded))
    away = positions[:, :, None] - positions[:, None]
    distance = (away**2).sum(-1).add(1e-12).sqrt()
    energy = (4.5 * (1 - torch.exp(-1.9 * (distance[:, i, j] - lengths[i, j]))) ** 2).sum(1)
    triples = [
        (a, b, c)
        for b in range(len(atoms))
        for a in range(len(atoms))
        for c in range(a)
        if bonded[a, b] and bonded[b, c]
    ]
    a, b, c = np.array(triples).T
    cosine = (away[:, a, b] * away[:, c, b]).sum(-1) / (distance[:, a, b] * distance[:, c, b])
    one, other = start[a] - start[b], start[c] - start[b]
    usual = (one * other).sum(-1) / (one.norm(dim=1) * other.norm(dim=1))
    stretched = torch.exp(-1.5 * (distance[:, a, b] + distance[:, c, b] - lengths[a, b] - lengths[c, b]))
    energy = energy + (2.5 * (cosine - usual) ** 2 * stretched).sum(1)
    near = bonded | (bonded @ bonded) | np.eye(len(atoms), dtype=bool)
    i, j = np.nonzero(np.triu(~near))
    contact = torch.from_numpy(1.35 * (radii[i] + radii[j])) / distance[:, i, j]
    return energy + (0.05 * (contact**8 - contact**4)).sum(1) - 4.0 * len(atoms)


def forces_of(atoms: Atoms) -> np.ndarray:
    """Return the forces on one of the molecules, which its elements in their order name."""
    named = next(one for one in map(molecule, MOLECULES) if np.array_equal(one.numbers, atoms.numbers))
    positions = torch.from_numpy(atoms.positions)[None].requires_grad_()
    return -torch.autograd.grad(energy_of(named, positions).sum(), positions)[0][0].numpy()


def molecules_at(name: str, kelvin: float, count: int, seed: int) -> list[GraphBatch]:
    """Return frames of Langevin dynamics, each of a copy of its own (steps of .5 fs, 200 fs)."""
    atoms, random = molecule(name), np.random.default_rng(seed)
    mass = torch.from_numpy(atoms.get_masses() * 103.6427)[:, None]  # eV fs^2 / Angstrom^2
    positions = torch.from_numpy(atoms.positions).repeat(count, 1, 1)
    velocity, step, keep = torch.zeros_like(positions), 0.5, float(np.exp(-0.5 * 0.02))
    noise = torch.sqrt((1 - keep**2) * BOLTZMANN * kelvin / mass)

    def forces(at: Tensor) -> tuple[Tensor, Tensor]:
        at = at.detach().requires_grad_()
        energy = energy_of(atoms, at)
        return energy.detach(), -torch.autograd.grad(energy.sum(), at)[0]

    energy, force = forces(positions)
    for _ in range(400):
        velocity = velocity + 0.5 * step * force / mass
        positions = positions + 0.5 * step * velocity
        velocity = keep * velocity + noise * torch.from_numpy(random.normal(size=velocity.shape))
        positions = positions + 0.5 * step * velocity
        energy, force = forces(positions)
        velocity = velocity + 0.5 * step * force / mass
    frames = []
    for number in range(count):
        frame = Atoms(atoms.numbers, positions[number].numpy())
        frame.calc = SinglePointCalculator(frame, energy=float(energy[number]), forces=force[number].numpy())
        frames.append(from_ase(frame, 4.0, fields=[ENERGY, FORCES]))
    return frames


def molecules(data: Path) -> TrustSet:
    """Six molecules at 300 K."""

    def at(kelvin: float, count: int, names: Sequence[str] = MOLECULES) -> list[GraphBatch]:
        return [one for number, name in enumerate(names) for one in molecules_at(name, kelvin, count, number)]

    return TrustSet(
        graphs=at(300, 80),
        table=forces_table("painn", 4.0, 24, 70),
        beyond={
            "500 K": at(500, 10),
            "1000 K": at(1000, 8),
            "2000 K": at(2000, 8),
            "other molecules": at(300, 10, OTHERS),
        },
    )


def from_demo(
    name: str,
    count: int,
    make: Callable[..., GraphBatch],
    model: Mapping[str, Any],
    epochs: int,
    **kinds: Mapping[str, Any],
) -> TrustSet:
    """A scale of the quickstart, asked beyond the ranges of its generator."""
    table = {key: value for key, value in read_toml(DEMO / f"{name}.toml").items() if key != "search"}
    table |= {"split": SPLIT, "model": table["model"] | model}
    table["train"] |= {"epochs": epochs, "schedule": "cosine", "checkpoint_epochs": epochs}
    beyond = {}
    for kind, own in kinds.items():
        with patch.dict(make.__globals__, own):
            beyond[kind.replace("_", " ")] = [make(n, 2) for n in range(ASKED)]
    return TrustSet(graphs=[make(number, 1) for number in range(count)], table=table, beyond=beyond)


MICROSTRUCTURE, GRAIN_MODEL = demo_polycrystals.labelled_polycrystal, {"hidden_dim": 32, "num_layers": 3}


def plates(data: Path, holes: tuple[int, int], radii: tuple[float, float], **beyond: Mapping[str, Any]) -> TrustSet:
    """Plates with so many pipes of such radii."""
    with patch.dict(demo_plates.__dict__, {"HOLES": holes, "RADII": radii}):
        model = {"hidden_dim": 24, "num_layers": 4}
        return from_demo("plates", 320, demo_plates.labelled_plate, model, 30, **beyond)


def polycrystals(data: Path) -> TrustSet:
    """Polycrystals of 20 to 40 grains, with weak textures."""
    beyond = {"finer": {"GRAINS": (80, 120)}, "coarser": {"GRAINS": (5, 9)}, "sharp_texture": {"SHARPNESS": (30.0,)}}
    return from_demo("polycrystals", 400, MICROSTRUCTURE, GRAIN_MODEL, 50, **beyond)


def textures(
    data: Path, grains: tuple[int, int], sharpness: tuple[float, ...], **beyond: Mapping[str, Any]
) -> TrustSet:
    """Polycrystals of so many grains, of such textures."""
    with patch.dict(MICROSTRUCTURE.__globals__, {"GRAINS": grains, "SHARPNESS": sharpness}):
        return from_demo("polycrystals", 400, MICROSTRUCTURE, GRAIN_MODEL, 40, **beyond)


def acetylacetone(data: Path) -> TrustSet:
    """300 frames at 300 K."""
    frames = {kelvin: ase.io.read(data / f"acac/train_{kelvin}.xyz.gz", index=":") for kelvin in ("300K", "600K")}
    cold, hot = ([from_ase(one, 4.5, fields=[ENERGY, FORCES]) for one in some] for some in frames.values())
    return TrustSet(graphs=cold, table=forces_table("painn", 4.5, 24, 50), beyond={"600 K": hot[:: 500 // ASKED]})


def elements(data: Path, names: Sequence[str]) -> TrustSet:
    """Three elements of mlearn: strained crystals and dynamics, asked for vacancies and surfaces."""
    groups: dict[str, list[GraphBatch]] = {}
    for element in names:
        for atoms in ase.io.read(data / f"mlearn/{element}_train.extxyz.gz", index=":"):
            kind = atoms.info["group"]
            if kind == "?":  # Cu and Ni, whose crystals have 108 atoms
                kind = {107: "Vacancy", 108: "Crystal"}.get(len(atoms), "Surface")
            groups.setdefault(kind, []).append(from_ase(atoms, 4.2, fields=[ENERGY, FORCES]))
    beyond = {kind: groups.pop(kind) for kind in ("Vacancy", "Surface")}
    known = [graph for group in groups.values() for graph in group]
    return TrustSet(graphs=known, table=forces_table("schnet", 4.2, 24, 30), beyond=beyond)


def dynamics(
    random: np.random.Generator,
    count: int,
    kelvin: tuple[float, float],
    structure: str = "fcc",
    missing: int = 0,
    two: tuple[str, str] = ("Ni", "Pt"),
) -> list[GraphBatch]:
    """Return frames of crystals of two elements in Langevin dynamics, eight of each."""
    frames = []
    for _ in range(count // 8):
        share, (a, b) = random.uniform(0.2, 0.8), (demo_alloys.ELEMENTS[one] for one in two)
        lattice = (share * a + (1 - share) * b) * (0.81 if structure == "bcc" else 1.0)
        atoms = bulk(two[0], structure, a=lattice, cubic=True) * ((3, 3, 2) if structure == "bcc" else (2, 2, 2))
        atoms.symbols[:] = random.choice(two, size=len(atoms), p=[share, 1 - share])
        del atoms[:missing]
        atoms.calc, temperature = EMT(), random.uniform(*kelvin)
        MaxwellBoltzmannDistribution(atoms, temperature_K=2 * temperature, rng=random)
        motion = Langevin(atoms, 4 * fs, temperature_K=temperature, friction=0.02 / fs, fixcm=False, rng=random)
        for _ in range(8):
            motion.run(8)
            frames.append(from_ase(atoms, 4.2, fields=[ENERGY, FORCES]))
    return frames


def melts(data: Path) -> TrustSet:
    """Crystals of Ni and Pt in dynamics at 300 to 900 K."""
    many = partial(dynamics, np.random.default_rng(0))
    return TrustSet(
        graphs=many(360, (300, 900)),
        table=forces_table("schnet", 4.2, 32, 40),
        beyond={
            "1500 K": many(ASKED, (1500, 1500)),
            "4000 K": many(ASKED, (4000, 4000)),
            "bcc": many(ASKED, (300, 900), "bcc"),
            "vacancies": many(ASKED, (300, 900), "fcc", 2),
        },
    )


def emt_dynamics(
    random: np.random.Generator, atoms: Atoms, kelvin: tuple[float, float], cutoff: float
) -> list[GraphBatch]:
    """Return eight frames of Langevin dynamics by EMT, 32 fs apart."""
    atoms.calc, temperature, frames = EMT(), random.uniform(*kelvin), []
    MaxwellBoltzmannDistribution(atoms, temperature_K=2 * temperature, rng=random)
    motion = Langevin(atoms, 4 * fs, temperature_K=temperature, friction=0.02 / fs, fixcm=False, rng=random)
    for _ in range(8):
        motion.run(8)
        frames.append(from_ase(atoms, cutoff, fields=[ENERGY, FORCES]))
    return frames


def add_interstitial(atoms: Atoms, symbol: str, a: float) -> None:
    """Add an atom at an octahedral site, and relax."""
    atoms.append(Atom(symbol, np.ones(3) * a / 2))
    atoms.calc = EMT()
    FIRE(atoms, logfile=None).run(fmax=1.0, steps=30)


def defects(data: Path) -> TrustSet:
    """Crystals of Al and of Pd in dynamics, cells of 72 atoms, asked for defects that are few of many atoms."""
    random = np.random.default_rng(13)

    def crystal(kelvin: tuple[float, float], kind: str = "") -> list[GraphBatch]:
        element = random.choice(["Al", "Pd"])
        a = {"Al": 4.05, "Pd": 3.89}[element] * (1 + random.normal(0, 0.01))
        atoms = bulk(element, "fcc", a=a, cubic=True) * (3, 3, 2)
        if kind == "vacancy":
            del atoms[int(random.integers(72))]
        if kind == "divacancy":
            del atoms[[0, int(atoms.get_distances(0, range(72), mic=True).argsort()[1])]]
        if kind in ("surface", "adatom"):
            atoms.center(vacuum=5.0, axis=2)
        if kind == "adatom":
            atoms.append(Atom(element, [a / 2, 0, atoms.positions[:, 2].max() + a / 2]))
        if kind == "interstitial":
            add_interstitial(atoms, element, a)
        return emt_dynamics(random, atoms, kelvin, 4.2)

    def many(count: int, kelvin: tuple[float, float], *kind: str) -> list[GraphBatch]:
        return [one for _ in range(count // 8) for one in crystal(kelvin, *kind)]

    usual = (100, 800)
    known = many(360, usual)
    beyond = {kind: many(ASKED, usual, kind) for kind in ("vacancy", "divacancy", "surface", "adatom", "interstitial")}
    return TrustSet(
        graphs=known,
        table=forces_table("schnet", 4.2, 24, 25),
        beyond=beyond | {"1500 K": many(ASKED, (1500, 1500))},
    )


def silver(data: Path) -> TrustSet:
    """Crystals of Ag and Cu in dynamics, cells of 32 atoms."""
    random = np.random.default_rng(11)

    def crystal(kelvin: tuple[float, float], kind: str = "fcc") -> list[GraphBatch]:
        share = random.uniform(0.2, 0.8)
        a = share * 4.09 + (1 - share) * 3.61
        atoms = bulk("Ag", "fcc", a=a, cubic=True) * (2, 2, 2)
        if kind == "hcp":
            short = a / np.sqrt(2)
            atoms = bulk("Ag", "hcp", a=short, c=short * 1.633, orthorhombic=True) * (3, 2, 2)
        if kind == "twins":
            layer, height = fcc111("Ag", (2, 2, 1), a=a, periodic=True), a / np.sqrt(3)
            sites = (layer.cell[0] + layer.cell[1]) / 6
            places = [
                layer.positions * [1, 1, 0] + [0, 0, n * height] + at * sites for n, at in enumerate((0, 1, 2, 0, 2, 1))
            ]
            atoms = Atoms("Ag24", np.concatenate(places), cell=[*layer.cell[:2], [0, 0, 6 * height]], pbc=True)
        if kind == "cluster":
            block = bulk("Ag", "fcc", a=a, cubic=True) * (3, 3, 3)
            centre = block.cell.sum(axis=0) / 2 + random.uniform(-0.5, 0.5, 3) * a
            near = np.linalg.norm(block.positions - centre, axis=1).argsort()[:32]
            atoms = Atoms("Ag32", block.positions[near], cell=np.eye(3) * 30, pbc=True)
            atoms.center()
        atoms.symbols[:] = random.choice(["Ag", "Cu"], size=len(atoms), p=[share, 1 - share])
        if kind == "interstitial":
            add_interstitial(atoms, random.choice(["Ag", "Cu"]), a)
        if kind == "vacancy":
            del atoms[0]
        return emt_dynamics(random, atoms, kelvin, 4.4)

    def many(count: int, kelvin: tuple[float, float], *kind: str) -> list[GraphBatch]:
        return [one for _ in range(count // 8) for one in crystal(kelvin, *kind)]

    usual = (200, 800)
    known = many(400, usual)
    beyond = {f"{kelvin} K": many(ASKED, (kelvin, kelvin)) for kelvin in (1400, 3000)}
    beyond |= {kind: many(ASKED, usual, kind) for kind in ("vacancy", "interstitial", "twins", "hcp", "cluster")}
    return TrustSet(graphs=known, table=forces_table("painn", 4.4, 24, 30), beyond=beyond)


def mixed(data: Path) -> TrustSet:
    """Bulk cells, slabs and clusters of the quickstart's alloys."""
    alloy = demo_alloys.alloy

    def some(seed: int, rattle: tuple[float, float] = (0, 0), bulk_only: str = "") -> list[GraphBatch]:
        def moved(random: np.random.Generator) -> Atoms:
            atoms = alloy(random)
            atoms.positions += random.normal(0, random.uniform(*rattle), atoms.positions.shape)
            return atoms

        def cell(lattice: float, random: np.random.Generator) -> Atoms:
            return bulk("Cu", bulk_only, a=lattice * (0.81 if bulk_only == "bcc" else 1), cubic=True) * (2, 2, 2)

        own = {"alloy": moved} | ({"SHAPES": dict.fromkeys(demo_alloys.SHAPES, cell)} if bulk_only else {})
        with patch.dict(demo_alloys.__dict__, own):
            return [demo_alloys.labelled_alloy(n, seed) for n in range(ASKED)]

    return TrustSet(
        graphs=[demo_alloys.labelled_alloy(n, 1) for n in range(400)],
        table=forces_table("painn", 4.5, 24, 40),
        beyond={
            "hotter (.15-.25 A)": some(2, (0.15, 0.25)),
            "molten (.3-.4 A)": some(3, (0.3, 0.4)),
            "molten bulk": some(4, (0.3, 0.4), "fcc"),
            "hotter bulk": some(5, (0.15, 0.25), "fcc"),
            "bcc": some(6, bulk_only="bcc"),
        },
    )


def waves(data: Path) -> TrustSet:
    """Steps of waves on plates with one to three holes."""

    def steps(runs: range, **own: Any) -> list[GraphBatch]:
        with patch.dict(demo_plates.__dict__, own):
            return [graph for run in runs for graph in pairs(run, 12, ("height", "rate"))[::5]]

    heads = [{"kind": "scalar", "field": f"next_{n}", "correction_of": n, "loss": "mse"} for n in ("height", "rate")]
    model = {"kind": "field_tokens", "hidden_dim": 24, "num_layers": 2, "angles": 3, "cutoff": 0.3}
    table = member_table(model | {"num_radial": 8}, heads, {**SPLIT, "group": "run"}, batch=8, epochs=30)
    return TrustSet(
        graphs=steps(range(120)),
        table=table | {"data": {"inputs": ["height", "rate"]}},
        beyond={
            "a third finer": steps(range(200, 214), SIZES=(0.063, 0.071)),
            "a third coarser": steps(range(300, 314), SIZES=(0.2, 0.22)),
            "more holes": steps(range(400, 414), HOLES=(6, 8), RADII=(0.04, 0.08)),
        },
    )


Choice = Callable[[int, Mapping[int, int]], bool]
"""Says which molecules belong to a kind, by size and numbers of atoms of elements."""


def small_molecules(data: Path, first: int, usual: Choice, **beyond: Choice) -> TrustSet:
    """Usual ones of 4,000 molecules of QM9, and others."""
    every, table = molecules_of_qm9(first + 4000, data)[first:], table_of_molecules(data)
    epochs = {"epochs": 60, "checkpoint_epochs": 60}

    def some(choice: Choice, most: int) -> list[GraphBatch]:
        counts = (np.bincount(one["atomic_numbers"].flatten().numpy(), minlength=10) for one in every)
        return [one for one, of in zip(every, counts) if choice(one.num_nodes, dict(enumerate(of.tolist())))][:most]

    return TrustSet(
        graphs=some(usual, 400),
        table=table | {"split": SPLIT, "batch": {"max_graphs": 8}, "train": {**table["train"], **epochs}},
        beyond={name.replace("_", " "): some(choice, ASKED) for name, choice in beyond.items()},
    )


SILICON = TersoffParameters(
    3.0, 1.0, 0.0, 100390.0, 16.217, -0.59825, 0.78734, 1.1e-6, 1.7322, 471.18, 2.85, 0.15, 2.4799, 1830.8
)
CARBON = TersoffParameters(
    3, 1, 0, 38049, 4.384, -0.57058, 0.72751, 1.5724e-7, 2.2119, 346.7, 1.95, 0.15, 3.4879, 1393.6
)
COVALENT = {("Si", "Si", "Si"): SILICON, ("C", "C", "C"): CARBON}


def silicon(data: Path, element: str = "Si", size: float = 1.0) -> TrustSet:
    """Strained diamond cells of 16 atoms, displaced by .02 to .1 Angstrom times the size."""
    random = np.random.default_rng(0)

    def cell(lattice: tuple[str, float] = ("diamond", 5.432), **own: Any) -> GraphBatch:
        atoms = bulk(element, lattice[0], a=lattice[1] * size, cubic=True) * own.get("repeat", (1, 1, 2))
        if "vacuum" in own:
            atoms.center(vacuum=own["vacuum"], axis=2)
        strain = np.eye(3) + random.normal(0, own.get("strain", 0.03), (3, 3))
        atoms.set_cell(atoms.cell.array @ strain, scale_atoms=True)
        del atoms[: own.get("missing", 0)]
        atoms.positions += random.normal(0, size * random.uniform(*own.get("rattle", (0.02, 0.1))), (len(atoms), 3))
        atoms.calc = Tersoff(COVALENT)
        atoms.get_forces()
        return from_ase(atoms, 3.6 * size, fields=[ENERGY, FORCES])

    known = [cell() for _ in range(400)]
    kinds: dict[str, dict[str, Any]] = {
        "hotter (.15-.25 A)": {"rattle": (0.15, 0.25)},
        "vacancies": {"missing": 1},
        "slabs": {"vacuum": 4.0},
        "strained by 8 %": {"strain": 0.08},
        "larger cells": {"repeat": (2, 2, 1)},
        "simple cubic": {"lattice": ("sc", 2.6), "repeat": (2, 2, 4)},
    }
    beyond = {kind: [cell(**own) for _ in range(ASKED)] for kind, own in kinds.items()}
    return TrustSet(graphs=known, table=forces_table("painn", 3.6 * size, 24, 40), beyond=beyond)


def of_carbide(head: tuple[float, float, float], inner: float, *pair: float) -> TersoffParameters:
    """Return parameters of Si and C by angle, range, and pair (Tersoff 1989, doi:10.1103/PhysRevB.39.5566)."""
    n, beta, lambda2, b, lambda1, a = pair or (0,) * 6
    return TersoffParameters(3, 1, 0, *head, n, beta, lambda2, b, inner, 0.15, lambda1, a)


AT_SI, AT_C = (100390.0, 16.217, -0.59825), (38049.0, 4.3484, -0.57058)
MIXED = (1.97205, 395.1451, 2.9839, 1597.3111)
CARBIDE = COVALENT | {
    ("Si", "Si", "C"): of_carbide(AT_SI, 2.36),
    ("Si", "C", "Si"): of_carbide(AT_SI, 2.85),
    ("Si", "C", "C"): of_carbide(AT_SI, 2.36, 0.78734, 1.1e-6, *MIXED),
    ("C", "Si", "Si"): of_carbide(AT_C, 2.36, 0.72751, 1.5724e-7, *MIXED),
    ("C", "Si", "C"): of_carbide(AT_C, 1.95),
    ("C", "C", "Si"): of_carbide(AT_C, 2.36),
}


def carbide(data: Path) -> TrustSet:
    """Strained cells of silicon carbide of 16 atoms."""
    random = np.random.default_rng(12)

    def cell(kind: str = "", rattle: tuple[float, float] = (0.02, 0.1), strain: float = 0.025) -> GraphBatch:
        lattice, a = ("rocksalt", 4.05) if kind == "rocksalt" else ("zincblende", 4.32)
        atoms = bulk("SiC", lattice, a=a, cubic=True) * (1, 1, 2)
        if kind == "slabs":
            atoms.center(vacuum=4.0, axis=2)
        if kind == "antisites":
            atoms.symbols[[random.choice(np.flatnonzero(atoms.symbols == one)) for one in ("Si", "C")]] = ["C", "Si"]
        if kind == "vacancies":
            del atoms[int(random.integers(len(atoms)))]
        if kind == "interstitials":
            atoms.append(Atom(random.choice(["Si", "C"]), [a / 2, a / 2, a / 2 + 0.02]))
        atoms.set_cell(atoms.cell.array @ (np.eye(3) + random.normal(0, strain, (3, 3))), scale_atoms=True)
        atoms.positions += random.normal(0, random.uniform(*rattle), (len(atoms), 3))
        atoms.calc = Tersoff(CARBIDE)
        atoms.get_forces()
        return from_ase(atoms, 3.4, fields=[ENERGY, FORCES])

    known = [cell() for _ in range(400)]
    kinds: dict[str, dict[str, Any]] = {"hotter": {"rattle": (0.12, 0.2)}, "molten": {"rattle": (0.25, 0.35)}}
    kinds |= {kind: {"kind": kind} for kind in ("antisites", "vacancies", "interstitials", "slabs", "rocksalt")}
    beyond = {
        name: [cell(**own) for _ in range(ASKED)] for name, own in (kinds | {"strained": {"strain": 0.06}}).items()
    }
    return TrustSet(graphs=known, table=forces_table("schnet", 3.4, 24, 30), beyond=beyond)


def argon(data: Path) -> TrustSet:
    """Hot crystals of argon (Lennard-Jones), cells of 32 atoms."""
    random = np.random.default_rng(14)

    def cell(kind: str = "fcc", rattle: tuple[float, float] = (0.05, 0.3)) -> GraphBatch:
        a = 5.3 * (1 + random.normal(0, 0.015))
        atoms = bulk("Ar", "fcc", a=a, cubic=True) * (2, 2, 2)
        if kind == "bcc":
            atoms = bulk("Ar", "bcc", a=0.8 * a, cubic=True) * (3, 3, 2)
        if kind == "slabs":
            atoms.center(vacuum=6.0, axis=2)
        if kind == "vacancies":
            del atoms[int(random.integers(len(atoms)))]
        atoms.positions += random.normal(0, random.uniform(*rattle), (len(atoms), 3))
        atoms.calc = LennardJones(sigma=3.4, epsilon=0.0104, rc=8.5, smooth=True)
        atoms.get_forces()
        return from_ase(atoms, 6.0, fields=[ENERGY, FORCES])

    beyond = {kind: [cell(kind) for _ in range(ASKED)] for kind in ("vacancies", "bcc", "slabs")}
    hotter = [cell(rattle=(0.4, 0.5)) for _ in range(ASKED)]
    known = [cell() for _ in range(400)]
    return TrustSet(graphs=known, table=forces_table("schnet", 6.0, 24, 30), beyond=beyond | {"hotter": hotter})


NITROGEN, OXYGEN = 7, 8
SETS: Mapping[str, Callable[[Path], TrustSet]] = {
    "alloys": alloys,
    "molecules": molecules,
    "plates": partial(
        plates,
        holes=(1, 3),
        radii=(0.06, 0.12),
        more_pipes={"HOLES": (6, 8), "RADII": (0.04, 0.08)},
        larger_pipes={"HOLES": (1, 2), "RADII": (0.17, 0.22)},
    ),
    "polycrystals": polycrystals,
    "acac": acetylacetone,
    "mlearn": partial(elements, names=("Cu", "Ni", "Mo")),
    "melts": melts,
    "mixed": mixed,
    "waves": waves,
    "qm9": partial(
        small_molecules,
        first=0,
        usual=lambda size, of: 15 <= size <= 18 and of[NITROGEN] <= 1,
        larger=lambda size, of: 22 <= size <= 30 and of[NITROGEN] <= 1,
        smaller=lambda size, of: size <= 12 and of[NITROGEN] <= 1,
        rich_in_N=lambda size, of: 15 <= size <= 18 and of[NITROGEN] >= 3,
    ),
    "silicon": silicon,
    "grains": partial(
        textures,
        grains=(60, 90),
        sharpness=(0.0, 1.0),
        finer={"GRAINS": (140, 180)},
        coarser={"GRAINS": (20, 35)},
        medium_texture={"SHARPNESS": (4.0,)},
        sharp_texture={"SHARPNESS": (15.0,)},
    ),
    "diamond": partial(silicon, element="C", size=3.566 / 5.432),
    "textures": partial(
        textures,
        grains=(30, 50),
        sharpness=(0.0, 2.0),
        finer={"GRAINS": (70, 90)},
        coarser={"GRAINS": (10, 15)},
        sharp={"SHARPNESS": (8.0,)},
        sharpest={"SHARPNESS": (30.0,)},
    ),
    "pipes": partial(
        plates,
        holes=(2, 4),
        radii=(0.05, 0.09),
        few_large={"HOLES": (1, 1), "RADII": (0.15, 0.2)},
        many={"HOLES": (6, 8), "RADII": (0.04, 0.07)},
        finer={"SIZES": (0.065, 0.08)},
    ),
    "oxides": partial(
        small_molecules,
        first=4000,
        usual=lambda size, of: 18 <= size <= 20 and of[OXYGEN] <= 2,
        smaller=lambda size, of: size <= 15,
        larger=lambda size, of: size >= 24,
        rich_in_O=lambda size, of: of[OXYGEN] >= 4,
    ),
    "weak_textures": partial(
        textures,
        grains=(40, 60),
        sharpness=(0.5, 1.5),
        random={"SHARPNESS": (0.0,)},
        medium={"SHARPNESS": (5.0,)},
        sharp={"SHARPNESS": (10.0,)},
        finer={"GRAINS": (100, 120)},
    ),
    "amines": partial(
        small_molecules,
        first=8000,
        usual=lambda size, of: 16 <= size <= 19 and of[NITROGEN] >= 1,
        without_N=lambda size, of: 16 <= size <= 19 and of[NITROGEN] == 0,
        rich_in_N=lambda size, of: of[NITROGEN] >= 4,
        smaller=lambda size, of: size <= 13,
        larger=lambda size, of: size >= 22,
    ),
    "crystals": partial(elements, names=("Li", "Si", "Ge")),
    "silver": silver,
    "carbide": carbide,
    "defects": defects,
    "argon": argon,
}
TRUTHS: Mapping[str, Callable[[Atoms], np.ndarray]] = {
    **dict.fromkeys(("alloys", "melts", "mixed"), EMT().get_forces),
    "molecules": forces_of,
    **dict.fromkeys(("silicon", "diamond"), Tersoff(COVALENT).get_forces),
}
NEEDS = {
    "acac": "acac/train_600K.xyz.gz",
    **dict.fromkeys(("mlearn", "crystals"), "mlearn/Cu_train.extxyz.gz"),
    **dict.fromkeys(("qm9", "oxides", "amines"), "qm9/qm9_dev_12000.npz"),
}
"""Published data that a set needs."""
