"""Neutron spectra of crystals: density of states, S(|Q|, E), and a band."""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from numbers import Number
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from ase import Atoms, units
from ase.calculators.calculator import Calculator
from ase.data import atomic_masses, atomic_numbers
from jaxtyping import Float

from hydragnn.base.arguments import check_arguments
from hydragnn.base.errors import InputError, as_input_error, as_missing, print_note
from hydragnn.base.files import write_atomically
from hydragnn.ensemble.ensemble import Ensemble, ensemble_of
from hydragnn.ensemble.estimates.moments import Array
from hydragnn.ensemble.uses.calculator import EnsembleCalculator

FORCE, STEPS = 5e-4, 300  # largest force (eV/Angstrom) and most steps of a relaxation
OVERLAP, EQUAL = 0.3, 3e-3  # Angstrom between overlapping atoms; of lengths and an atom's volume in equal crystals
GROWTH = 1.5  # of the volume: it would be another crystal
STILL = 0.5  # meV, above all that moves a molecule in a box as a whole
GAP = 0.5  # meV, of what rounding and interpolation leave of acoustic branches at the origin, and of imaginary modes
CUTOFF = 5.0  # Angstrom, of calculators, which do not say theirs, unless their supercell is given
FINEST = 0.01  # meV, of widths: less is one in eV
MESH, DIRECTIONS = 0.1, 1000  # 1/Angstrom between points of the density of states; directions for each momentum,
OF_ATOM = 10  # times as many over the atoms of the cell: the fewer, the sharper peaks are
ISOTOPE = 5e-4  # of a mass: beyond the rounding of tables; Ti-48 and Fe-56 are 0.0016 away
POLAR = " H B C N O F Si P S Cl Ge As Se Br Sb Te I "  # insulators of several elements have at least one
UNSPLIT = "in an insulator of these elements, longitudinal optical modes near the origin lie too low: models have no Born charges, and nothing splits them from transverse ones"
WHOLE = 0.9  # of the modes, below which energies may be in another unit, or a cut
FLOOR = 0.01  # of the largest value: a spectrum is empty below. Spreads have it in addition: equal members may be wrong


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NeutronSpectrum:
    """Spectra of a crystal by members, on the same energies and momenta."""

    members: Mapping[str, Array]
    """Values of ``"dos"`` in modes per meV and atom, and of ``"intensity"`` in mbarn.

    ``[members, energies]``, the density of states, which adds up to 3; ``[members, momenta, energies]``, S(|Q|, E) per meV and atom."""
    energies: Float[Array, " energies"]  # middles of bins, meV
    momenta: Float[Array, " momenta"]  # |Q|, 1/Angstrom
    settings: Mapping[str, Any]
    """Arguments that give the same axes to a reference: ``neutron_spectrum(calculator, atoms, **settings)``."""
    model: str  # digest of the ensemble
    names: tuple[str, ...]
    weights: Float[Array, " members"]
    crystals: tuple[Atoms, ...]  # relaxed by each member
    domain: str = ""  # reason why the crystal is outside the training domain
    lacks: str = ""  # what the spectrum leaves out, and this crystal may have
    factors: Mapping[str, float] = field(default_factory=dict)  # half widths of the band over the spread
    level: float = math.nan

    def __str__(self) -> str:
        what = (
            f"neutron spectrum of {len(self.names)} members to {self.energies[-1]:.3g} meV, {len(self.momenta)} momenta"
        )
        return f"{what}; {self.lacks}" if self.lacks else what

    @property
    def cells(self) -> Float[Array, "members 3 3"]:
        """Relaxed cells in Angstrom."""
        return np.stack([one.cell.array for one in self.crystals])

    def mean(self, what: str = "dos") -> Array:
        """Return the weighted mean of the members."""
        if what not in self.members:
            raise InputError(f"a spectrum has no {what!r:.40}; give {' or '.join(self.members)}")
        return np.tensordot(self.weights, self.members[what], axes=1)

    def spread(self, what: str = "dos") -> Array:
        """Return the deviation of truth, if it is like one more member."""
        if len(self.weights) < 2:
            raise InputError(f"{self.names[0]} is one model without a spread; give an ensemble of two or more members")
        mean, squares = self.mean(what), (self.weights**2).sum()
        variance = np.tensordot(self.weights, (self.members[what] - mean) ** 2, axes=1)
        return np.sqrt((1 + squares) / (1 - squares) * variance) + FLOOR * mean.max(axis=-1, keepdims=True)

    def interval(self, what: str = "dos") -> tuple[Array, Array]:
        """Return the ends of the band; InputError before ``calibrated``."""
        if not self.factors:
            raise InputError("no band before a calibration; call calibrated with other crystals and their references")
        mean, half = self.mean(what), self.factors[what] * self.spread(what)
        return np.maximum(mean - half, 0), mean + half

    def calibrated(self, pairs: Any, level: float = 0.9) -> "NeutronSpectrum":
        """Return the spectrum with a band that held on other crystals.

        ``pairs`` are their spectra, by the same ensemble, and references, of which it has the share ``level``. InputError where this crystal is among them.
        """
        if not (isinstance(pairs, Sequence) and pairs and 0 < level < 1):
            raise InputError("give a list of one pair or more, and a level between 0 and 1")
        for pair in pairs:
            if not (isinstance(pair, Sequence) and len(pair) == 2 and isinstance(pair[0], NeutronSpectrum)):
                raise InputError(f"{pair!s:.60} is no pair; give the spectrum of another crystal and its reference")
            if pair[0].model != self.model or _are_equal(pair[0].crystals[0], self.crystals[0]):
                raise InputError("only spectra of the same ensemble on other crystals calibrate; leave this one out")
            if pair[0].settings["width"] != self.settings["width"]:
                raise InputError("spectra of another width have other errors; give all the same width")
        scores = {what: np.concatenate([own._scores(truth, what) for own, truth in pairs]) for what in self.members}
        factors = {what: float(np.quantile(one, level)) for what, one in scores.items()}
        return replace(self, factors=factors, level=level)

    def coverage(self, reference: Any) -> dict[str, float]:
        """Return shares of energies at which the band has the reference."""
        self.interval()
        return {what: float((self._scores(reference, what) <= own).mean()) for what, own in self.factors.items()}

    def _scores(self, reference: Any, what: str) -> Float[Array, " scores"]:
        """Return errors over the spread where there is a spectrum."""
        if not isinstance(reference, NeutronSpectrum):
            raise InputError(f"{reference!r:.40} is no spectrum; make it with **spectrum.settings")
        ours, theirs = (one.crystals[0].symbols.formula.reduce()[0].count() for one in (self, reference))
        if ours != theirs:
            raise InputError(f"the reference is of {theirs}, and the spectrum of {ours}; give that of the same crystal")
        for name in ("energies", "momenta", "width", "temperature", "pressure", "scattering_lengths"):
            if not np.array_equal(self.settings[name], reference.settings[name]):
                raise InputError(f"the reference has another {name}; make it with **spectrum.settings")
        mean, truth = self.mean(what), reference.mean(what)
        filled = np.logical_or(*(one > FLOOR * one.max(axis=-1, keepdims=True) for one in (mean, truth)))
        return (np.abs(mean - truth) / self.spread(what))[filled]

    def save(self, path: Path | str) -> None:
        """Write arrays to an ``.npz`` file, with settings and units as JSON."""
        if Path(path).suffix != ".npz":
            raise InputError(f"{path}: a spectrum is saved as .npz; name it so")
        own = ("settings", "names", "factors", "level", "domain", "lacks", "model")
        facts: dict[str, Any] = {name: getattr(self, name) for name in own}
        facts["units"] = {"energies": "meV", "momenta": "1/Angstrom", "dos": "1/meV", "intensity": "mbarn/meV"}
        arrays = {name: getattr(self, name) for name in ("energies", "momenta", "weights", "cells")}
        arrays["positions"] = np.stack([one.positions for one in self.crystals])
        for what, values in self.members.items():
            arrays |= {f"{what}_members": values, f"{what}_mean": self.mean(what)}
            if self.factors:
                arrays[f"{what}_lower"], arrays[f"{what}_upper"] = self.interval(what)
        content = BytesIO()
        np.savez_compressed(content, facts=json.dumps(facts, default=lambda one: one.tolist()), **arrays)
        write_atomically(Path(path), content.getvalue())

    def picture(self, path: Path | str, reference: "NeutronSpectrum | None" = None) -> None:
        """Draw the density of states, S(|Q|, E), and a cut through it."""
        from matplotlib.figure import Figure

        figure, ending, content = Figure(figsize=(11, 3.3), layout="constrained"), Path(path).suffix[1:], BytesIO()
        if ending not in (endings := figure.canvas.get_supported_filetypes()):
            raise InputError(f"{path} is no name of a picture; end it in .png, or in one of {', '.join(endings)}")
        first, middle, last = figure.subplots(1, 3)
        cut = int(0.6 * len(self.momenta))
        whole = self.mean("intensity").T
        middle.pcolormesh(self.momenta, self.energies, whole, shading="nearest", vmax=np.quantile(whole, 0.99))
        middle.set(xlabel="|Q|, 1/Å", ylabel="E, meV", title="S(|Q|, E)")
        first.set(title="density of states, 1/meV")
        last.set(title=f"S at |Q| = {self.momenta[cut]:.3g} 1/Å, mbarn/meV")
        for axes, what, row in ((first, "dos", slice(None)), (last, "intensity", cut)):
            axes.plot(self.energies, self.members[what][:, row].T, linewidth=0.5, color="grey")
            if self.factors:
                lower, upper = (one[row] for one in self.interval(what))
                axes.fill_between(self.energies, lower, upper, alpha=0.35, label=f"{self.level:.0%} band")
            axes.plot(self.energies, self.mean(what)[row], label="mean")
            if reference is not None:
                axes.plot(reference.energies, reference.mean(what)[row], "k--", label="reference")
            axes.set(xlabel="E, meV", ylim=(0, None))
            axes.legend(frameon=False)
        figure.savefig(content, format=ending, dpi=100)
        write_atomically(Path(path), content.getvalue())


@check_arguments
def neutron_spectrum(
    model: "Path | str | Ensemble | Calculator",
    atoms: Atoms,
    *,
    energies: Any = None,
    momenta: Any = None,
    width: float = 1.5,
    temperature: float = 300.0,
    pressure: float | None = 0.0,
    supercell: Any = None,
    scattering_lengths: Mapping[str, float] | None = None,
    allow_code: Sequence[str] = (),
) -> NeutronSpectrum:
    """Return the neutron spectrum of a crystal by every member.

    Each member relaxes the cell within its symmetry at ``pressure`` (GPa; None keeps the cell), and has force constants by finite displacements in
    ``supercell`` (repetitions; by default wider than twice the cutoff). ``energies`` are edges of bins in meV, ``momenta`` |Q| in 1/Angstrom, ``width`` the instrument's full
    width at half maximum in meV, ``temperature`` is in K. ``scattering_lengths`` in fm by element replace those of Sears (1992), as for isotopes.
    ``model`` is a folder, which may name classes of the modules in ``allow_code``, an ensemble, or a calculator of ASE as a reference. InputError for what has no spectrum, as molecules and unstable crystals.
    """
    numbers = [width, temperature, pressure or 0.0, *(scattering_lengths or {}).values()]
    if (
        not all(isinstance(one, Number) and np.isreal(one) and np.isfinite(one) for one in numbers)
        or min(width, temperature) <= 0
    ):
        raise InputError(
            "width, temperature, pressure and lengths are not all real and finite, or the first two not above 0"
        )
    momenta = _axis("momenta", np.arange(0.25, 8.01, 0.25) if momenta is None else momenta, 0.0, even=False)
    energies = energies if energies is None else _axis("energies", energies, -1e-9, even=True)
    step = width / 4 if energies is None else energies[1] - energies[0]
    if width < FINEST or step < width / 100:
        raise InputError(f"a width of {width:g} and bins of {step:.3g} are too fine for a powder; give both in meV")
    lengths = _lengths(atoms, scattering_lengths or {})
    model = Ensemble.load(model, torch.float64) if isinstance(model, str | Path) else model
    model = model.ensemble if isinstance(model, EnsembleCalculator) else model
    if not isinstance(model, Ensemble | Calculator):
        raise InputError(f"{model!r:.40} is no model; give a folder, a loaded ensemble, or a calculator of ASE")
    calculators, weights, cutoff = _potentials(model, CUTOFF if supercell is None else 0.0)
    if domain := model.predict([atoms]).domain[0] if isinstance(model, Ensemble) else "":
        print_note(f"the crystal is outside the training domain: {domain}")
    symbols = {*atoms.symbols}
    if lacks := UNSPLIT if len(symbols) > 1 and any(f" {one} " in POLAR for one in symbols) else "":
        print_note(f"{atoms.symbols}: {lacks}")
    repeats = _repeats(atoms, cutoff, supercell)
    with warnings.catch_warnings():
        for words in ("More than one OpenMP", "primitive_matrix defaulted"):  # one thread; the primitive cell
            warnings.filterwarnings("ignore", words)
        phonons = [_phonons(name, _relaxed(name, one, atoms, pressure), repeats) for name, one in calculators]
        if energies is None:
            highest = max(mesh.frequencies.to("meV").magnitude.max() for _, mesh, _ in phonons)
            energies = np.arange(width, 1.05 * highest + 2 * width, step)
        own = {"energies": energies, "momenta": momenta, "width": width, "temperature": temperature}
        pairs = [_spectra(*one[:2], lengths, own) for one in phonons]
    if (share := min(one.sum() for one, _ in pairs) * step / 3) < WHOLE:
        ends = f"energies from {energies[0]:g} to {energies[-1]:g} meV"
        print_note(f"{ends} have {share:.0%} of the modes; give edges in meV that hold all")
    return NeutronSpectrum(
        members={what: np.stack(values) for what, values in zip(("dos", "intensity"), zip(*pairs))},
        energies=(energies[1:] + energies[:-1]) / 2,
        momenta=momenta,
        settings=own | {"pressure": pressure, "supercell": repeats, "scattering_lengths": scattering_lengths},
        model=model.digest if isinstance(model, Ensemble) else "",
        names=tuple(name for name, _ in calculators),
        weights=weights / weights.sum(),
        crystals=tuple(crystal for *_, crystal in phonons),
        domain=domain,
        lacks=lacks,
    )


def _spectra(constants: Any, mesh: Any, lengths: dict[str, Any], axes: Mapping[str, Any]) -> tuple[Array, Array]:
    """Return broadened density of states and S(|Q|, E)."""
    from euphonic import ureg
    from euphonic.powder import sample_sphere_structure_factor

    energies, momenta, width, temperature = (axes[name] for name in ("energies", "momenta", "width", "temperature"))
    step = energies[1] - energies[0]
    beyond = math.ceil(2 * width / step)  # bins whose share the instrument moves to the first and last energies
    edges, inside = energies[0] + step * np.arange(-beyond, len(energies) + beyond), slice(beyond, -beyond)
    heat, wide, bins = temperature * ureg("K"), width * ureg("meV"), edges * ureg("meV")
    count = max(DIRECTIONS, OF_ATOM * DIRECTIONS // constants.crystal.n_atoms)
    how = {"temperature": heat, "energy_bins": bins, "npts": count, "scattering_lengths": lengths}
    how["dw"] = mesh.calculate_debye_waller(heat)
    rows = [sample_sphere_structure_factor(constants, one * ureg("1/angstrom"), **how) for one in momenta]
    intensity = np.stack([one.broaden(wide).y_data.to("mbarn/meV").magnitude[inside] for one in rows])
    return mesh.calculate_dos(bins).broaden(wide).y_data.to("1/meV").magnitude[inside], intensity


def _axis(name: str, values: Any, least: float, even: bool) -> Float[Array, " values"]:
    try:
        axis = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        axis = np.empty(0)
    rises = axis.ndim == 1 and np.isfinite(axis).all() and (np.diff(axis, prepend=least) > 0).all()
    if not rises or len(axis) < 1 + 2 * even or (even and np.ptp(np.diff(axis)) > 1e-6 * axis[-1]):
        move = "give |Q| in 1/Angstrom, or edges of even bins, two or more, in meV"
        raise InputError(f"{name} do not rise from 0; {move}")
    return axis


def _lengths(atoms: Atoms, own: Mapping[str, float]) -> dict[str, Any]:
    """Return scattering lengths by element; InputError without them, or a crystal."""
    with as_missing("euphonic", "neutron", "a neutron spectrum"):
        import phonopy  # noqa: F401
        from euphonic import ureg
        from euphonic.isotopes import LegacyJsonData
    crystal = isinstance(atoms, Atoms) and len(atoms) and atoms.pbc.all() and np.isfinite(atoms.positions).all()
    if not crystal or not np.linalg.det(atoms.cell.array) > 1e-6:
        what = getattr(atoms, "symbols", type(atoms).__name__)
        raise InputError(f"{what} is no crystal; give ase.Atoms with a right-handed cell and three periodic axes")
    if (nearest := atoms.get_all_distances(mic=True)[~np.eye(len(atoms), dtype=bool)].min(initial=9)) < OVERLAP:
        raise InputError(f"two atoms of {atoms.symbols} are {nearest:.3g} Angstrom apart; remove one")
    if unknown := own.keys() - atomic_numbers.keys():
        raise InputError(f"scattering_lengths: {sorted(unknown)} are no elements; name isotopes by their element")
    table, lengths = LegacyJsonData("Sears1992"), {one: length * ureg("fm") for one, length in own.items()}
    for number, symbol in set(zip(atoms.numbers, atoms.symbols)):
        masses = atoms.get_masses()[atoms.numbers == number]
        if np.ptp(masses) > ISOTOPE * masses[0]:
            raise InputError(f"{symbol} has several masses, but one scattering length; give an element one mean mass")
        if symbol in own:
            continue
        mass, hint = masses[0], f"give scattering_lengths = {{{symbol!r}: ...}} in fm"
        if abs(mass / atomic_masses[number] - 1) > ISOTOPE:
            raise InputError(f"{symbol} of mass {mass:g} is an isotope with a scattering length of its own; {hint}")
        try:
            lengths[symbol] = table.get_value(symbol, mass, "coherent_scattering_length")
        except KeyError as error:
            raise InputError(f"no scattering length of {symbol} is known (Sears 1992); {hint}") from error
    return lengths


def _potentials(model: Any, unknown: float) -> tuple[list[tuple[str, Calculator]], Float[Array, " members"], float]:
    """Return names and calculators of members, weights, and the cutoff."""
    if isinstance(model, Calculator):
        return [(type(model).__name__, model)], np.ones(1), unknown
    names = EnsembleCalculator(model, "record").names
    calculators, weights = [], model.weights_of(names.get("forces", names["energy"]))
    for member, weight in zip(model.members, weights):
        if weight > 0:
            alone = ensemble_of([replace(member, weight=1.0)])
            alone = alone.with_manifest(replace(alone.manifest, data=model.manifest.data))
            calculators.append((member.name, EnsembleCalculator(alone, "record")))
    return calculators, weights[weights > 0], model.structures.cutoff


def _repeats(atoms: Atoms, cutoff: float, supercell: Any) -> tuple[int, ...]:
    """Return repetitions of a cell wider than two cutoffs; InputError for fewer."""
    least = [math.floor(2 * cutoff * float(np.linalg.norm(one))) + 1 for one in atoms.cell.reciprocal()]
    repeats = np.ravel(least if supercell is None else supercell)
    if len(repeats) != 3 or repeats.dtype.kind != "i" or (repeats < least).any():
        need = f"at least {least} are wider than two cutoffs of {cutoff:g} Angstrom"
        raise InputError(f"supercell = {supercell} is too small, or not three whole numbers; {need}")
    return tuple(repeats.tolist())


def _relaxed(name: str, calculator: Calculator, atoms: Atoms, pressure: float | None) -> Atoms:
    """Return the relaxed crystal of the same symmetry; InputError without one."""
    from ase.constraints import FixSymmetry
    from ase.filters import FrechetCellFilter
    from ase.optimize import BFGS

    if lacks := {"forces", *(["stress"] * (pressure is not None))} - {*calculator.implemented_properties}:
        what = " and no ".join(sorted(lacks))
        raise InputError(f"{name} has no {what}; train with it (pressure=None needs no stress)")
    crystal = atoms.copy()
    crystal.calc = calculator
    crystal.set_constraint(FixSymmetry(crystal) if _is_symmetric(crystal) else None)
    moves = crystal if pressure is None else FrechetCellFilter(crystal, scalar_pressure=pressure * units.GPa)
    converged, times = False, 1.0
    with as_input_error(f"{name} computes no forces of {atoms.symbols}", "give a model of these elements"):
        for converged in BFGS(moves, logfile=None, maxstep=0.05).irun(FORCE, STEPS):  # small steps, for FixSymmetry
            times = crystal.cell.volume / atoms.cell.volume
            if converged or not 1 / GROWTH < times < GROWTH:
                break
    if not converged or not 1 / GROWTH < times < GROWTH:
        how = f"does not relax {atoms.symbols} in {STEPS} steps, with a cell {times:.3g} times as large"
        raise InputError(f"member {name} {how}; begin nearer to equilibrium, or leave that member out")
    crystal.set_constraint()
    return crystal


def _is_symmetric(crystal: Atoms) -> bool:
    """Return whether atoms of an element differ in place alone."""
    names, structures = {"initial_magmoms", "initial_charges"}, getattr(crystal.calc, "structures", None)
    names |= {structures.key(crystal, one) for one in structures.fields} if structures else set()
    read, numbers = [crystal.arrays[name] for name in names & {*crystal.arrays}], {*crystal.numbers}
    return not any(np.ptp(values[crystal.numbers == one], axis=0).any() for values in read for one in numbers)


def _are_equal(one: Atoms, other: Atoms) -> bool:
    """Return whether two crystals are one, whatever their cells and axes."""
    from ase.utils.structure_comparator import SymmetryEquivalenceCheck

    volume = EQUAL * one.cell.volume / len(one)
    how: dict[str, Any] = {"angle_tol": 0.1, "ltol": EQUAL, "stol": 0.01, "vol_tol": volume, "to_primitive": True}
    return bool(SymmetryEquivalenceCheck(**how).compare(one, other))


def _phonons(name: str, crystal: Atoms, repeats: Sequence[int]) -> tuple[Any, Any, Atoms]:
    """Return force constants, modes and crystal; InputError for unstable crystals."""
    from euphonic import ForceConstants, ureg
    from euphonic.util import mp_grid
    from phonopy import Phonopy
    from phonopy.structure.atoms import PhonopyAtoms

    what = {"symbols": list(crystal.symbols), "masses": crystal.get_masses(), "cell": crystal.cell.array}
    cell = PhonopyAtoms(**what, scaled_positions=crystal.get_scaled_positions())
    even = _is_symmetric(crystal)
    phonopy = Phonopy(cell, np.diag(repeats), primitive_matrix="auto" if even else "P", is_symmetry=even)
    phonopy.generate_displacements()
    origin, forces = [phonopy.supercell.u2u_map[one] for one in phonopy.supercell.s2u_map], []
    for displaced in phonopy.supercells_with_displacements:
        frame = crystal[origin]  # with all that members read of atoms, in phonopy's order
        frame.cell, frame.positions, frame.calc = displaced.cell, displaced.positions, crystal.calc
        forces.append(frame.get_forces())
    phonopy.forces = np.array(forces)
    phonopy.produce_force_constants(calculate_full_force_constants=False)
    with TemporaryDirectory() as folder:
        phonopy.save(Path(folder) / "phonopy.yaml", settings={"force_constants": True})
        constants = ForceConstants.from_phonopy(path=folder)
    at_origin = constants.calculate_qpoint_phonon_modes(np.zeros((1, 3))).frequencies.to("meV").magnitude
    if (gap := np.sort(np.abs(at_origin).ravel())[2]) > GAP:
        raise InputError(f"acoustic branches of {name} are {gap:.3g} meV at the origin, not 0; ask hydragnn check why")
    points = constants.crystal.get_mp_grid_spec(MESH * ureg("1/angstrom"))  # even: Debye-Waller is infinite at 0
    mesh = constants.calculate_qpoint_phonon_modes(mp_grid([one + one % 2 for one in points]))
    modes = np.sort(mesh.frequencies.to("meV").magnitude, axis=1)
    lowest = modes[:, 0]
    if modes[:, 2].max() < STILL:
        why = f"three modes stay below {STILL:g} meV, as those of a molecule in a box"
        raise InputError(f"by member {name} nothing holds cells of {crystal.symbols} together: {why}; give a crystal")
    if lowest.min() < -GAP:
        mode = f"an imaginary mode, {-lowest.min():.3g}i meV at q = {mesh.qpts[lowest.argmin()].round(3).tolist()}"
        raise InputError(f"member {name} has {mode}; leave it out, or train it on crystals like this one")
    return constants, mesh, crystal.copy()
