"""Laws of energies, forces and stress, and of all fields."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import combinations_with_replacement
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ase import Atoms, units
from ase.data import chemical_symbols, covalent_radii
from ase.data.vdw_alvarez import vdw_radii
from ase.md.verlet import VelocityVerlet
from jaxtyping import Float

from hydragnn.base.settings import read_toml
from hydragnn.conformance import law as laws
from hydragnn.conformance.law import Change, Figures, Law, Values, gaps, moved
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.joining import unbatch

if TYPE_CHECKING:
    from hydragnn.ensemble.checking import Subject

STEP = 0.01  # Angstrom
RATTLE = 0.05
"""Angstrom: away from minima, where wrong forces would vanish as right ones do."""
PAIRS, ATOMS, STEPS = 6, 6, 300
"""Most pairs of elements (all of three), atoms with force constants, and steps of dynamics."""
SHORTEST_BOND = 0.6
"""Share of the sum of covalent radii: Cr2, H2 and Mo2 are bound there, and no dimer below."""

Results = dict[str, Any]


LAWS: dict[str, Law] = {}
"""Laws by name; ``laws.toml`` has their limits, meanings and the failures that they show."""
TABLE = read_toml(Path(__file__).with_name("laws.toml"))


def law(name: str) -> Callable[[Any], Any]:
    facts = {**TABLE[name], "failures": tuple(TABLE[name]["failures"])}
    return lambda measure: LAWS.setdefault(name, Law(name=name, measure=measure, **facts)).measure


# laws of equal results


def of_atoms(result: Results) -> dict[str, Values]:
    """Return results as values of fields, the energy per atom."""
    atoms = len(result["forces"]) if "forces" in result else 1
    values = {"energy": Values(np.array([result["energy"] / atoms]), "graph", "scalar", 1.0)}
    values |= {"forces": Values(result["forces"], "node", "vector", 1.0)} if "forces" in result else {}
    return values | ({"stress": Values(result["stress"][None], "graph", "tensor", 0.1)} if "stress" in result else {})


def _compared(
    subject: "Subject",
    change_atoms: Callable[[Atoms], Change],
    change_graphs: Callable[[GraphBatch], Change],
    *,
    of_space: bool = True,
) -> Figures:
    """Yield gaps between structures, graphs and changed ones.

    DoesNotApply where laws ``of_space`` meet graphs without positions.
    """
    if of_space and subject.graphs is not None and subject.graphs.dim == 0:
        raise laws.DoesNotApply("the graphs have no positions")
    for name, atoms in subject.structures() if subject.new_calculator else ():
        change = change_atoms(atoms)
        expected, actual = map(of_atoms, subject.results([atoms, change.changed]))
        yield from gaps(actual, expected, name, change)
    if subject.graphs is not None:
        change = change_graphs(subject.graphs)
        yield from gaps(subject.predicted(change.changed), subject.predicted(subject.graphs), "graphs", change)


@law("rotation")
def _rotation(subject: "Subject") -> Figures:
    def atoms(one: Atoms) -> Change:
        other, turn = one.copy(), laws.turn_of(3)
        other.set_cell(one.cell.array @ turn.T)
        other.positions = one.positions @ turn.T
        return Change(other, turn)

    return _compared(subject, atoms, laws.turned)


@law("permutation")
def _permutation(subject: "Subject") -> Figures:
    def atoms(one: Atoms) -> Change:
        order = np.roll(np.arange(len(one)), 1)  # no atom in its place
        return Change(one[order], order={"node": order})

    return _compared(subject, atoms, laws.reordered, of_space=False)


@law("translation")
def _translation(subject: "Subject") -> Figures:
    def atoms(one: Atoms) -> Change:
        other = one.copy()
        other.translate(laws.AWAY)
        other.wrap()
        return Change(other)

    return _compared(subject, atoms, moved)


@law("arrays that are not contiguous")
def _contiguity(subject: "Subject") -> Figures:
    def atoms(one: Atoms) -> Change:
        other = one.copy()
        other.cell.array = np.asfortranarray(one.cell.array)
        other.arrays["positions"] = np.asfortranarray(one.positions)
        return Change(other)

    def graphs(one: GraphBatch) -> Change:
        transposed = {name: getattr(one, name).mT.contiguous().mT for name in ("positions", "edge_shifts", "cell")}
        return Change(replace(one, **transposed))

    return _compared(subject, atoms, graphs)


@law("repetition")
def _repetition(subject: "Subject") -> Figures:
    for _ in range(5):
        yield from _compared(subject, lambda one: Change(one.copy()), lambda one: Change(replace(one)), of_space=False)


@law("batches")
def _batches(subject: "Subject") -> Figures:
    if subject.new_calculator:
        names, frames = zip(*subject.structures())
        for name, atoms, result in zip(names, frames, subject.results(frames)):
            yield from gaps(of_atoms(result), of_atoms(subject.alone(atoms)), name)
    if subject.graphs is not None:
        several = subject.predicted(subject.graphs)
        for number, graph in enumerate(unbatch(subject.graphs)):
            own = {on: subject.graphs.owner(on).numpy() == number for on in ("node", "edge", "graph")}
            values = {key: one._replace(numbers=one.numbers[own[one.on]]) for key, one in several.items()}
            yield from gaps(values, subject.predicted(graph), f"graph {number}")


def _energies(subject: "Subject", frames: list[Atoms]) -> Float[laws.Array, " frames"]:
    return np.array([result["energy"] for result in subject.results(frames)])


def _energy_gap(energy: float, expected: float, atoms: int) -> float:
    """Return a difference per atom, relative above 1 eV per atom."""
    return float(abs(energy - expected) / max(atoms, abs(expected)))


@law("extensivity")
def _extensivity(subject: "Subject") -> Figures:
    for name, atoms in subject.structures():
        for axis in np.flatnonzero(atoms.pbc)[:1]:
            one, two = _energies(subject, [atoms, atoms.repeat(np.where(np.arange(3) == axis, 2, 1))])
            yield _energy_gap(two, 2 * one, 2 * len(atoms)), name


@law("detached fragments")
def _fragments(subject: "Subject") -> Figures:
    names, frames = zip(*subject.structures())
    for atoms in frames:
        atoms.pbc, atoms.cell = False, None
    for name, one, other in zip(names, frames, [*frames[1:], frames[0]]):
        moved = other.copy()
        moved.positions[:, 0] += one.positions[:, 0].max() - other.positions[:, 0].min() + 2 * subject.cutoff
        both, first, second = _energies(subject, [one + moved, one, other])
        yield _energy_gap(both, first + second, len(one + moved)), name


# laws of dimers, compressed structures and paths


def _of_pair(subject: "Subject", pair: tuple[int, int], distances: Any) -> Sequence[Results]:
    """Return results of a dimer along the first axis.

    The force on the second atom is positive where atoms repel.
    """
    frames = [subject.frames[0][:1] + subject.frames[0][:1] for _ in distances]
    for frame, distance in zip(frames, distances):
        frame.numbers, frame.positions, frame.pbc, frame.cell = pair, [[0, 0, 0], [distance, 0, 0]], False, None
    return subject.results(frames)


def _pairs(subject: "Subject") -> dict[str, tuple[int, int]]:
    numbers = np.unique(np.concatenate([atoms.numbers for _, atoms in subject.structures()])).tolist()
    every = sorted(combinations_with_replacement(numbers, 2), key=lambda pair: pair[0] != pair[1])[:PAIRS]
    return {"-".join(chemical_symbols[one] for one in pair): pair for pair in every}


@cache
def _dimers(subject: "Subject") -> dict[str, Sequence[Results]]:
    """Return results of pairs at the distances of MLIP Arena.

    From .9 of the covalent radius to 3.1 of van der Waals's in steps of .01 Angstrom, of means of both radii for pairs.
    """
    results = {}
    for name, pair in _pairs(subject).items():
        begin, end = 0.9 * covalent_radii[list(pair)].mean(), np.nan_to_num(3.1 * vdw_radii[list(pair)].mean(), nan=6.0)
        results[name] = _of_pair(subject, pair, np.linspace(end, begin, int((end - begin) / 0.01)))
    return results


@law("tortuosity of dimers")
def _tortuosity(subject: "Subject") -> Figures:
    for name, results in _dimers(subject).items():
        energies = np.array([one["energy"] for one in results])
        span = abs(energies[0] - energies.min()) + abs(energies[-1] - energies.min())
        yield float(np.abs(np.diff(energies)).sum() / span if span > 1e-3 else 1), name


@law("energy jump of dimers")
def _energy_jump(subject: "Subject") -> Figures:
    for name, results in _dimers(subject).items():
        steps = np.diff([one["energy"] for one in results])
        large = steps[np.abs(steps) >= 1e-3]
        flips = np.diff(np.sign(large)) != 0
        yield float(np.abs(large[:-1][flips]).sum() + np.abs(large[1:][flips]).sum()), name


@law("force flips of dimers")
def _force_flips(subject: "Subject") -> Figures:
    for name, results in _dimers(subject).items():
        forces = np.array([one["forces"][1, 0] for one in results])
        yield float((np.diff(np.sign(forces[np.abs(forces) >= 1e-2])) != 0).sum()), name


@law("repulsion")
def _repulsion(subject: "Subject") -> Figures:
    for name, pair in _pairs(subject).items():
        longest = SHORTEST_BOND * covalent_radii[list(pair)].sum()
        for atoms in subject.frames:
            distances = atoms.get_all_distances(mic=True)
            own = distances[np.ix_(*(atoms.numbers == number for number in pair))]
            longest = min(longest, 0.9 * own[own > 0].min(initial=np.inf))
        distances = np.geomspace(0.05, longest, 40)
        forces = np.array([one["forces"][1, 0] for one in _of_pair(subject, pair, distances)])
        yield float(forces.min()), f"{name} at {distances[forces.argmin()]:.2f} Angstrom"


@law("compression")
def _compression(subject: "Subject") -> Figures:
    scales = (0.9, 0.8, 0.7, 0.6, 0.5)
    for name, atoms in subject.structures():
        if len(atoms) > 1 or atoms.pbc.any():
            frames = [atoms.copy() for _ in scales]
            for frame, scale in zip(frames, scales):
                frame.set_cell(atoms.cell * scale)
                frame.positions = atoms.positions * scale
            rises = np.diff(_energies(subject, frames)) / len(atoms)
            yield float(rises.min()), f"{name} at {scales[rises.argmin() + 1]:g}"


@law("through the cutoff")
def _through_the_cutoff(subject: "Subject") -> Figures:
    def on_its_way(share: float) -> Atoms:
        _, atoms = next(subject.structures(RATTLE))
        atoms.positions[0] += share * np.array([0.6, 0.5, 0.4])
        return atoms

    def arrays(results: Sequence[Results]) -> dict[str, torch.Tensor]:
        some = [name for name in ("energy", "forces") if name in results[0]]
        return {name: torch.from_numpy(np.reshape([one[name] for one in results], (len(results), -1))) for name in some}

    def of_pair(shares: tuple[float, ...], pair: tuple[int, int], begin: float) -> dict[str, torch.Tensor]:
        return arrays(_of_pair(subject, pair, begin + np.array(shares)))

    paths: dict[str, Callable[[tuple[float, ...]], dict[str, torch.Tensor]]] = {
        "structure 0 with an atom on its way": lambda shares: arrays(subject.results([*map(on_its_way, shares)]))
    }
    for name, pair in _pairs(subject).items():
        for begin in np.arange(2.5, subject.cutoff + 0.5):
            paths[f"{name} from {begin:g} to {begin + 1:g} Angstrom"] = partial(of_pair, pair=pair, begin=begin)
    for name, what, place, height in laws.jumps(paths, refinements=2):  # single precision resolves 5e-4 of a path
        yield height, name if place is None else f"{what} of {name}, at {place:.3f}"


# laws of derivatives and dynamics


def _slope(subject: "Subject", atoms: Atoms, change: Callable[[Atoms, float], None], what: str = "energy") -> Any:
    def values(steps: Sequence[float]) -> Sequence[Any]:
        frames = [atoms.copy() for _ in steps]
        for frame, step in zip(frames, steps):
            change(frame, step)
        return [result[what] for result in subject.results(frames)]

    return laws.derivative(values, STEP)


def _move(atoms: Atoms, step: float, along: Any) -> None:
    atoms.positions += step * along


@law("forces")
def _forces(subject: "Subject") -> Figures:
    for name, atoms in subject.structures(RATTLE):
        forces = subject.results([atoms])[0]["forces"]
        for seed in range(3):
            along = np.random.default_rng(seed).normal(size=forces.shape)
            along /= np.linalg.norm(along)
            error = _slope(subject, atoms, partial(_move, along=along)) + (forces * along).sum()
            yield float(abs(error) / max(0.1, np.abs(forces).max())), name


@law("stress")
def _stress(subject: "Subject") -> Figures:
    along = np.random.default_rng(5).normal(size=(3, 3)) / 10
    along += along.T
    for name, atoms in subject.structures(RATTLE):
        result = subject.results([atoms])[0]
        if "stress" in result:

            def strain(one: Atoms, step: float) -> None:
                one.set_cell(one.cell.array @ (np.eye(3) + step * along), scale_atoms=True)

            error = _slope(subject, atoms, strain) / atoms.get_volume() - (result["stress"] * along).sum()
            yield float(abs(error) / max(1e-3, np.abs(result["stress"]).max())), name


@cache
def _force_constants(subject: "Subject") -> dict[str, Float[laws.Array, "some 3 atoms 3"]]:
    constants = {}
    for name, atoms in subject.structures(RATTLE):
        units_of = np.eye(3 * len(atoms))[: 3 * min(ATOMS, len(atoms))].reshape(-1, len(atoms), 3)
        rows = [-_slope(subject, atoms, partial(_move, along=along), "forces") for along in units_of]
        constants[name] = np.reshape(rows, (-1, 3, len(atoms), 3))
    return constants


@law("symmetric force constants")
def _symmetric(subject: "Subject") -> Figures:
    for name, constants in _force_constants(subject).items():
        square = constants[:, :, : len(constants)].reshape(3 * len(constants), -1)
        yield float(np.abs(square - square.T).max() / max(0.1, np.abs(constants).max())), name


@law("acoustic sums")
def _acoustic(subject: "Subject") -> Figures:
    for name, constants in _force_constants(subject).items():
        yield float(np.abs(constants.sum(axis=2)).max() / max(0.1, np.abs(constants).max())), name


@law("drift")
def _drift(subject: "Subject") -> Figures:
    for name, atoms in subject.structures():
        if len(atoms) == 1:
            continue
        _ = subject.results([atoms])[0]["forces"]
        atoms.calc, step = subject.fresh(), 0.25 if 1 in atoms.numbers else 1.0  # fs
        spread = np.sqrt(300 * units.kB * atoms.get_masses())[:, None]  # Maxwell and Boltzmann at 300 K
        atoms.set_momenta(spread * np.random.default_rng(0).standard_normal((len(atoms), 3)))
        energies, dynamics = [], VelocityVerlet(atoms, step * units.fs)
        dynamics.attach(lambda: energies.append(atoms.get_total_energy() / len(atoms)))  # noqa: B023
        dynamics.run(STEPS)
        yield float(abs(np.polyfit(np.arange(len(energies)) * step, energies, 1)[0]) * 1e6), name
        return


# laws of memory and shapes


@law("stale results")
def _stale(subject: "Subject") -> Figures:
    name, atoms = next(subject.structures())
    atoms.info.setdefault("charge", 0)
    changes = {"positions": ("positions", atoms.positions + RATTLE * np.eye(len(atoms), 3))}
    calculator = subject.fresh()
    for number in {one for pair in _pairs(subject).values() for one in pair} - {atoms.numbers[0]}:
        changes["elements"] = ("numbers", np.array([number, *atoms.numbers[1:]]))
    if atoms.pbc.any():
        changes |= {"cell": ("cell", atoms.cell * 1.05), "periodic axes": ("pbc", False)}
    for holder in ("info", "arrays"):
        for key, value in getattr(atoms, holder).items():
            if key not in ("numbers", "positions") and np.asarray(value).dtype.kind in "fiu":
                changes[key] = (holder, {**getattr(atoms, holder), key: value + 1})
    for what, (attribute, value) in changes.items():
        changed = atoms.copy()
        changed.calc = calculator
        changed.get_potential_energy()
        setattr(changed, attribute, value)
        energy = changed.get_potential_energy()
        yield _energy_gap(energy, subject.alone(changed)["energy"], len(atoms)), f"{what} of {name}"


@law("errors are not silent")
def _silent(subject: "Subject") -> Figures:
    name, atoms = next(subject.structures())
    atoms.calc, finite = subject.fresh(), 0
    atoms.get_potential_energy()
    atoms.positions[0, 0] = np.nan
    for _ in range(2):
        try:
            finite += bool(np.isfinite(atoms.get_potential_energy()))
        except Exception:  # of whatever kind, it is right
            continue
    yield float(finite), name


@law("shapes of results")
def _shapes(subject: "Subject") -> Figures:
    for name, atoms in subject.structures():
        calculator, n = subject.fresh(), len(atoms)
        subject.alone(atoms, calculator)
        expected: dict[str, list[tuple[int, ...]]] = {
            "energy": [()],
            "forces": [(n, 3)],
            "stress": [(6,), (3, 3)],
            "energies": [(n,)],
            "stresses": [(n, 6), (n, 3, 3)],
            "charges": [(n,)],
        }
        results = getattr(calculator, "results", {})
        every = {**results, **getattr(results, "others", {})}
        shapes = {key: expected.get(key, expected.get(key.rpartition("_")[0], [])) for key in every}
        bad = [key for key, value in every.items() if shapes[key] and np.shape(value) not in shapes[key]]
        yield float(len(bad)), ", ".join([name, *bad])
