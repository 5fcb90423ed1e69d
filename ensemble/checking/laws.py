"""Laws of energies, forces and stress, of all fields, and of committees."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import combinations, combinations_with_replacement
from typing import Any, TypeVar

import numpy as np
import torch
from ase import Atoms, units
from ase.data import chemical_symbols, covalent_radii
from ase.data.vdw_alvarez import vdw_radii
from ase.md.verlet import VelocityVerlet
from jaxtyping import Float

from hydragnn.conformance.transforms import jump, mapped, permuted
from hydragnn.ensemble.checking.subject import DoesNotApply, Results, Subject, Values, results_of
from hydragnn.ensemble.members import outcome
from hydragnn.ensemble.predictions import Predictions, estimates_of
from hydragnn.ensemble.uncertainty import Array
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.joining import unbatch
from hydragnn.models import Number

STEP = 0.01  # Angstrom
STENCIL = ((-2, 1 / 12), (-1, -8 / 12), (1, 8 / 12), (2, -1 / 12))
RATTLE = 0.05
"""Angstrom: away from minima, where wrong forces would vanish as right ones do."""
PAIRS, ATOMS, STEPS = 6, 6, 300
"""Most pairs of elements (all of three), atoms with force constants, and steps of dynamics."""
SHORTEST_BOND = 0.6
"""Of the sum of covalent radii: Cr2, H2 and Mo2 are bound there, and no dimer below."""

Seen = Iterator[tuple[float, str]]
"""Figures, and where each was seen."""
Figures = Callable[[Subject], Seen]
Thing = TypeVar("Thing")
Change = tuple[Thing, Any, Any]
"""A changed thing, with the turn and the order that its results follow, or None."""
Changing = Callable[[Thing], Change[Thing]]


LAWS: dict[str, Figures] = {}
"""Figures of laws by name, with the place of each; ``laws.toml`` has their limits."""


def law(name: str) -> Callable[[Figures], Figures]:
    """Enter a function of figures into the table."""
    return lambda figures: LAWS.setdefault(name, figures)


# laws of equal results


def _of_atoms(result: dict[str, Any]) -> dict[str, Values]:
    atoms = len(result["forces"]) if "forces" in result else 1
    values = {"energy": Values(np.array([result["energy"] / atoms]), "graph", "scalar", 1.0)}
    values |= {"forces": Values(result["forces"], "node", "vector", 1.0)} if "forces" in result else {}
    return values | ({"stress": Values(result["stress"][None], "graph", "tensor", 0.1)} if "stress" in result else {})


def _of_fields(predictions: Predictions) -> dict[str, Values]:
    values = {}
    for name, one in predictions.fields.items():
        values[name] = Values(np.moveaxis(one.members, 0, 1), one.field.on, one.field.parity, 1e-9)
        values[f"uncertainty of {name}"] = Values(one.doubt, one.field.on, "scalar", 1e-9)
    return values


def _gaps(actual: dict[str, Values], expected: dict[str, Values], name: str, turn: Any, order: Any) -> Seen:
    """Yield differences from what is expected of a turn and another order, over the largest value."""
    for key, (numbers, on, parity, size) in expected.items():
        numbers = numbers[order] if order is not None and on == "node" else numbers
        if turn is not None and parity != "scalar":
            numbers = numbers @ turn.T if parity == "vector" else turn @ numbers @ turn.T
        finite = np.isfinite(numbers) & (order is None or on != "edge")
        if finite.any():
            error = np.abs(actual[key].numbers - numbers)[finite].max()
            yield float(error / max(size, np.abs(numbers[finite]).max())), f"{key} of {name}"


def _compared(
    subject: Subject, of_atoms: Changing[Atoms], of_graphs: Changing[GraphBatch], *, of_space: bool = False
) -> Seen:
    """Yield gaps between structures, graphs and changed ones.

    DoesNotApply where laws ``of_space`` meet graphs without positions.
    """
    if of_space and subject.graphs is not None and subject.graphs.dim == 0:
        raise DoesNotApply("the graphs have no positions")
    for name, atoms in subject.structures() if subject.new_calculator else ():
        changed, *how = of_atoms(atoms)
        before, after = map(_of_atoms, subject.results([atoms, changed]))
        yield from _gaps(after, before, name, *how)
    if subject.ensemble is not None:
        ensemble, graphs = subject.ours
        changed_graphs, *how = of_graphs(graphs)
        before, after = (_of_fields(ensemble.predict(one)) for one in (graphs, changed_graphs))
        yield from _gaps(after, before, "graphs", *how)


def _turn(dim: int) -> Float[Array, "dim dim"]:
    turn, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(dim, dim)))
    turn[0] *= np.sign(np.linalg.det(turn))
    return turn


@law("rotation")
def _rotation(subject: Subject) -> Seen:
    def atoms(one: Atoms) -> Change[Atoms]:
        turned, turn = one.copy(), _turn(3)
        turned.set_cell(one.cell.array @ turn.T)
        turned.positions = one.positions @ turn.T
        return turned, turn, None

    def graphs(one: GraphBatch) -> Change[GraphBatch]:
        turn = torch.from_numpy(_turn(one.dim))
        acts = {"vector": lambda x: x @ turn.T, "tensor": lambda x: turn @ x @ turn.T}
        inputs = [field for field in subject.ours[0].inputs if field.parity in acts]
        vectors = {
            field.name: acts[field.parity](one[field.name].double()).to(one[field.name].dtype) for field in inputs
        }
        return mapped(one, turn.T.to(one.positions.dtype)).with_fields(vectors), turn.numpy(), None

    return _compared(subject, atoms, graphs, of_space=True)


@law("permutation")
def _permutation(subject: Subject) -> Seen:
    def atoms(one: Atoms) -> Change[Atoms]:
        order = np.roll(np.arange(len(one)), 1)  # no atom in its place
        return one[order], None, order

    def graphs(one: GraphBatch) -> Change[GraphBatch]:
        owner, drawn = one.owner("node"), torch.from_numpy(np.random.default_rng(1).permutation(one.num_nodes))
        order = drawn[owner[drawn].sort(stable=True).indices]
        return permuted(one, order), None, order.numpy()

    return _compared(subject, atoms, graphs)


@law("translation")
def _translation(subject: Subject) -> Seen:
    def atoms(one: Atoms) -> Change[Atoms]:
        moved = one.copy()
        moved.translate([1.3, -2.1, 0.7])
        moved.wrap()
        return moved, None, None

    def graphs(one: GraphBatch) -> Change[GraphBatch]:
        return replace(one, positions=one.positions + torch.tensor([1.3, -2.1, 0.7])[: one.dim]), None, None

    return _compared(subject, atoms, graphs, of_space=True)


@law("arrays that are not contiguous")
def _contiguity(subject: Subject) -> Seen:
    def atoms(one: Atoms) -> Change[Atoms]:
        other = one.copy()
        other.cell.array = np.asfortranarray(one.cell.array)
        other.arrays["positions"] = np.asfortranarray(one.positions)
        return other, None, None

    def graphs(one: GraphBatch) -> Change[GraphBatch]:
        transposed = {name: getattr(one, name).mT.contiguous().mT for name in ("positions", "edge_shifts", "cell")}
        return replace(one, **transposed), None, None

    return _compared(subject, atoms, graphs, of_space=True)


@law("repetition")
def _repetition(subject: Subject) -> Seen:
    for _ in range(5):
        yield from _compared(subject, lambda one: (one.copy(), None, None), lambda one: (replace(one), None, None))


@law("batches")
def _batches(subject: Subject) -> Seen:
    if subject.new_calculator is not None:
        names, frames = zip(*subject.structures())
        for name, atoms, result in zip(names, frames, subject.results(frames)):
            yield from _gaps(_of_atoms(result), _of_atoms(results_of(atoms, subject.fresh())), name, None, None)
    if subject.ensemble is not None:
        ensemble, graphs = subject.ours
        several = _of_fields(ensemble.predict(graphs))
        for number, graph in enumerate(unbatch(graphs)):
            own = {key: one.numbers[graphs.owner(one.on).numpy() == number] for key, one in several.items()}
            values = {key: one._replace(numbers=own[key]) for key, one in several.items()}
            yield from _gaps(values, _of_fields(ensemble.predict(graph)), f"graph {number}", None, None)


def _energies(subject: Subject, frames: list[Atoms]) -> Float[Array, " frames"]:
    return np.array([result["energy"] for result in subject.results(frames)])


def _energy_gap(energy: float, expected: float, atoms: int) -> float:
    """Return a difference per atom, relative above 1 eV per atom."""
    return float(abs(energy - expected) / max(atoms, abs(expected)))


@law("extensivity")
def _extensivity(subject: Subject) -> Seen:
    for name, atoms in subject.structures():
        for axis in np.flatnonzero(atoms.pbc)[:1]:
            one, two = _energies(subject, [atoms, atoms.repeat(np.where(np.arange(3) == axis, 2, 1))])
            yield _energy_gap(two, 2 * one, 2 * len(atoms)), name


@law("detached fragments")
def _fragments(subject: Subject) -> Seen:
    names, frames = zip(*subject.structures())
    for atoms in frames:
        atoms.pbc, atoms.cell = False, None
    for name, one, other in zip(names, frames, [*frames[1:], frames[0]]):
        moved = other.copy()
        moved.positions[:, 0] += one.positions[:, 0].max() - other.positions[:, 0].min() + 2 * subject.cutoff
        both, first, second = _energies(subject, [one + moved, one, other])
        yield _energy_gap(both, first + second, len(one + moved)), name


# laws of dimers, compressed structures and paths


def _of_pair(subject: Subject, pair: tuple[int, int], distances: Any) -> Sequence[Results]:
    """Return results of a dimer along the first axis.

    The force on the second atom is positive where atoms repel.
    """
    frames = [subject.frames[0][:1] + subject.frames[0][:1] for _ in distances]
    for frame, distance in zip(frames, distances):
        frame.numbers, frame.positions, frame.pbc, frame.cell = pair, [[0, 0, 0], [distance, 0, 0]], False, None
    return subject.results(frames)


def _pairs(subject: Subject) -> dict[str, tuple[int, int]]:
    numbers = np.unique(np.concatenate([atoms.numbers for _, atoms in subject.structures()])).tolist()
    every = sorted(combinations_with_replacement(numbers, 2), key=lambda pair: pair[0] != pair[1])[:PAIRS]
    return {"-".join(chemical_symbols[one] for one in pair): pair for pair in every}


@cache
def _dimers(subject: Subject) -> dict[str, Sequence[Results]]:
    """Return results of pairs at the distances of MLIP Arena.

    From .9 of the covalent radius to 3.1 of van der Waals's in steps of .01 Angstrom, of means of both radii for pairs.
    """
    results = {}
    for name, pair in _pairs(subject).items():
        begin, end = 0.9 * covalent_radii[list(pair)].mean(), np.nan_to_num(3.1 * vdw_radii[list(pair)].mean(), nan=6.0)
        results[name] = _of_pair(subject, pair, np.linspace(end, begin, int((end - begin) / 0.01)))
    return results


@law("tortuosity of dimers")
def _tortuosity(subject: Subject) -> Seen:
    for name, results in _dimers(subject).items():
        energies = np.array([one["energy"] for one in results])
        span = abs(energies[0] - energies.min()) + abs(energies[-1] - energies.min())
        yield float(np.abs(np.diff(energies)).sum() / span if span > 1e-3 else 1), name


@law("energy jump of dimers")
def _energy_jump(subject: Subject) -> Seen:
    for name, results in _dimers(subject).items():
        steps = np.diff([one["energy"] for one in results])
        large = steps[np.abs(steps) >= 1e-3]
        flips = np.diff(np.sign(large)) != 0
        yield float(np.abs(large[:-1][flips]).sum() + np.abs(large[1:][flips]).sum()), name


@law("force flips of dimers")
def _force_flips(subject: Subject) -> Seen:
    for name, results in _dimers(subject).items():
        forces = np.array([one["forces"][1, 0] for one in results])
        yield float((np.diff(np.sign(forces[np.abs(forces) >= 1e-2])) != 0).sum()), name


@law("repulsion")
def _repulsion(subject: Subject) -> Seen:
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
def _compression(subject: Subject) -> Seen:
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
def _through_the_cutoff(subject: Subject) -> Seen:
    def moved(share: float) -> Atoms:
        _, atoms = next(subject.structures(RATTLE))
        atoms.positions[0] += share * np.array([0.6, 0.5, 0.4])
        return atoms

    def of_moved(shares: tuple[float, ...]) -> Any:
        return subject.results([moved(share) for share in shares])

    paths: dict[str, Callable[[tuple[float, ...]], Any]] = {"structure 0 with an atom on its way": of_moved}
    for name, pair in _pairs(subject).items():
        for begin in np.arange(2.5, subject.cutoff + 0.5):
            name_of_path = f"{name} from {begin:g} to {begin + 1:g} Angstrom"
            paths[name_of_path] = partial(
                lambda shares, pair, begin: _of_pair(subject, pair, begin + np.array(shares)), pair=pair, begin=begin
            )
    for name, path in paths.items():
        both = cache(path)
        for what in (name for name in ("energy", "forces") if name in both((0.0,))[0]):

            def values(shares: tuple[float, ...], both: Any = both, what: str = what) -> torch.Tensor:
                return torch.from_numpy(np.reshape([one[what] for one in both(shares)], (len(shares), -1)))

            place, height = jump(values, refinements=2)  # single precision resolves 5e-4 of a path
            yield height, name if place is None else f"{what} of {name}, at {place:.3f}"


# laws of derivatives and dynamics


def _slope(subject: Subject, atoms: Atoms, change: Callable[[Atoms, float], None], what: str = "energy") -> Any:
    """Return the derivative of results along a change."""
    frames = [atoms.copy() for _ in STENCIL]
    for frame, (step, _) in zip(frames, STENCIL):
        change(frame, step * STEP)
    return sum(weight * result[what] for result, (_, weight) in zip(subject.results(frames), STENCIL)) / STEP


def _move(atoms: Atoms, step: float, along: Any) -> None:
    atoms.positions += step * along


@law("forces")
def _forces(subject: Subject) -> Seen:
    for name, atoms in subject.structures(RATTLE):
        forces = subject.results([atoms])[0]["forces"]
        for seed in range(3):
            along = np.random.default_rng(seed).normal(size=forces.shape)
            along /= np.linalg.norm(along)
            error = _slope(subject, atoms, partial(_move, along=along)) + (forces * along).sum()
            yield float(abs(error) / max(0.1, np.abs(forces).max())), name


@law("stress")
def _stress(subject: Subject) -> Seen:
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
def _force_constants(subject: Subject) -> dict[str, Float[Array, "some 3 atoms 3"]]:
    constants = {}
    for name, atoms in subject.structures(RATTLE):
        units_of = np.eye(3 * len(atoms))[: 3 * min(ATOMS, len(atoms))].reshape(-1, len(atoms), 3)
        rows = [-_slope(subject, atoms, partial(_move, along=along), "forces") for along in units_of]
        constants[name] = np.reshape(rows, (-1, 3, len(atoms), 3))
    return constants


@law("symmetric force constants")
def _symmetric(subject: Subject) -> Seen:
    for name, constants in _force_constants(subject).items():
        square = constants[:, :, : len(constants)].reshape(3 * len(constants), -1)
        yield float(np.abs(square - square.T).max() / max(0.1, np.abs(constants).max())), name


@law("acoustic sums")
def _acoustic(subject: Subject) -> Seen:
    for name, constants in _force_constants(subject).items():
        yield float(np.abs(constants.sum(axis=2)).max() / max(0.1, np.abs(constants).max())), name


@law("drift")
def _drift(subject: Subject) -> Seen:
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
def _stale(subject: Subject) -> Seen:
    name, atoms = next(subject.structures())
    atoms.info.setdefault("charge", 0)
    calculator, changes = (
        subject.fresh(),
        {"positions": ("positions", atoms.positions + RATTLE * np.eye(len(atoms), 3))},
    )
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
        yield _energy_gap(energy, results_of(changed, subject.fresh())["energy"], len(atoms)), f"{what} of {name}"


@law("errors are not silent")
def _silent(subject: Subject) -> Seen:
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
def _shapes(subject: Subject) -> Seen:
    for name, atoms in subject.structures():
        calculator, n = subject.fresh(), len(atoms)
        results_of(atoms, calculator)
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


# laws of committees


@law("precision")
def _precision(subject: Subject) -> Seen:
    ensemble, graphs = subject.ours
    assert subject.single is not None
    what = [atoms for _, atoms in subject.structures(RATTLE)] if subject.new_calculator else graphs
    own, double = (_of_fields(one.predict(what)) for one in (subject.single, ensemble))
    yield from _gaps(own, double, "graphs", None, None)


def _difference(one: Array, other: Array) -> float:
    """Return the largest difference over the largest value."""
    finite = np.isfinite(one) & np.isfinite(other)
    return float(np.abs(one - other)[finite].max(initial=0.0) / max(1e-12, np.abs(one[finite]).max(initial=0.0)))


@law("no copies")
def _copies(subject: Subject) -> Seen:
    ensemble, graphs = subject.ours
    fields = {name: one.members for name, one in ensemble.predict(graphs).fields.items()}
    for (a, name), (b, other) in combinations(enumerate(ensemble.names), 2):
        yield max(_difference(one[a], one[b]) for one in fields.values()), f"members {name} and {other}"
    for (name, one), (other, two) in combinations(fields.items(), 2):
        if one.shape == two.shape:
            yield _difference(one, two), f"heads {name} and {other}"


def _raw(subject: Subject, factor: float = 1.0) -> dict[str, Any]:
    """Return estimates without calibration from members times a factor."""
    ensemble, graphs = subject.ours
    if len(ensemble.members) == 1:
        raise DoesNotApply("there is one member")
    outcomes, estimates = [outcome(member, graphs).predictions for member in ensemble.members], {}
    for target in ensemble.targets:
        members = [one[target.name] for one in outcomes]
        scaled = [one.scale_by(torch.tensor(factor).double()) for one in members if isinstance(one, Number)]
        if scaled:
            weights, owners = ensemble.weights_of(target.name), graphs.owner(target.field.on)
            nodes = graphs.counts("node")[owners].numpy()
            estimates[target.name] = estimates_of(target).of(target, scaled, weights, None, nodes)
    return estimates


@law("change of units")
def _units(subject: Subject) -> Seen:
    doubled = _raw(subject, 2.0)
    for name, one in _raw(subject).items():
        yield _difference(4 * one.std**2, doubled[name].std ** 2), name
    if subject.new_calculator is not None and subject.ensemble is not None:
        calculator, (name, atoms) = subject.calculator, next(subject.structures())
        results_of(atoms, calculator)
        predictions = subject.ensemble.predict([atoms])
        for what, field in calculator.names.items():
            expected = predictions[field]["std"] * calculator.factors[what]
            if what != "stress" and np.isfinite(expected).all():
                yield _difference(expected.ravel(), np.ravel(calculator.results[f"{what}_std"])), f"{what} of {name}"


@law("spread of members")
def _spread(subject: Subject) -> Seen:
    for name, one in _raw(subject).items():
        weights = subject.ours[0].weights_of(name)
        second = np.tensordot(weights, (one.members - np.tensordot(weights, one.members, axes=1)) ** 2, axes=1)
        axes = {"scalar": (), "vector": (-1,), "tensor": (-2, -1)}[one.field.parity]
        yield _difference(np.broadcast_to(second.mean(axis=axes, keepdims=True), second.shape), one.epistemic**2), name
