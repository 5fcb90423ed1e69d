"""Neutron spectra: parity with phonopy and formulas, bands that hold as often as they say, and refusals."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import bulk
from ase.calculators.calculator import Calculator, all_changes
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones
from euphonic.powder import _get_qpts_sphere
from phonopy import Phonopy
from phonopy.structure.atoms import PhonopyAtoms

from hydragnn.base.errors import MissingPackageError
from hydragnn.ensemble import Ensemble, NeutronSpectrum, ensemble_of, neutron_spectrum
from hydragnn.ensemble.uses import neutron
from tests.ensemble.conftest import refused

SIGMA, EPSILON, SHORT = 3.4, 0.0104, {"momenta": [2.0, 4.0], "supercell": (4, 4, 4)}
ARGON = bulk("Ar", a=5.3)


def argon() -> LennardJones:
    """Lennard-Jones's argon of nearest neighbours alone."""
    return LennardJones(sigma=SIGMA, epsilon=EPSILON, rc=1.35 * SIGMA, smooth=False)


@pytest.fixture(scope="module", autouse=True)
def _few_directions() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neutron, "DIRECTIONS", 60)
        yield


@pytest.fixture(scope="module")
def spectrum() -> NeutronSpectrum:
    return neutron_spectrum(argon(), ARGON, width=0.3, energies=np.arange(0, 12, 0.05), **SHORT)


def test_argon_has_the_lattice_the_highest_mode_and_the_number_of_modes_of_formulas(spectrum: NeutronSpectrum) -> None:
    distance, spring = 2 ** (1 / 6) * SIGMA, 72 * EPSILON / (2 ** (1 / 3) * SIGMA**2)
    assert np.linalg.norm(spectrum.cells[0], axis=1) == pytest.approx([distance] * 3, rel=1e-3)
    rate = np.sqrt(8 * spring / ARGON.get_masses()[0] * units._e / units._amu) * 1e10  # 1/s, at X
    highest = 1e3 * rate * units._hbar / units._e
    assert spectrum.mean().sum() * 0.05 == pytest.approx(3, abs=0.01)
    above, below = (spectrum.mean()[spectrum.energies > highest + shift].sum() * 0.05 for shift in (0.4, -0.4))
    assert above < 1e-3 < 0.05 < below


def test_the_density_of_states_is_that_of_phonopy_alone(spectrum: NeutronSpectrum) -> None:
    cell = {"cell": spectrum.cells[0], "scaled_positions": [[0, 0, 0]]}
    matrices = {"supercell_matrix": np.diag([4, 4, 4]), "primitive_matrix": np.eye(3)}
    phonopy, forces = Phonopy(PhonopyAtoms(symbols=["Ar"], **cell), **matrices), []
    phonopy.generate_displacements(distance=0.01)
    for displaced in phonopy.supercells_with_displacements:
        atoms = Atoms("Ar64", displaced.positions, cell=displaced.cell, pbc=True, calculator=argon())
        forces.append(atoms.get_forces())
    phonopy.forces = forces
    phonopy.produce_force_constants()
    phonopy.run_mesh([31, 31, 31])
    terahertz = 1e15 * 2 * np.pi * units._hbar / units._e  # in meV
    grid = {"freq_min": 0.025 / terahertz, "freq_max": 12 / terahertz, "freq_pitch": 0.05 / terahertz}
    phonopy.run_total_dos(sigma=0.3 / 2.3548 / terahertz, use_tetrahedron_method=False, **grid)
    own = phonopy.total_dos.frequency_points * terahertz, phonopy.total_dos.dos / terahertz
    expected = np.interp(spectrum.energies, *own)
    assert np.abs(spectrum.mean() - expected).sum() / expected.sum() < 0.02  # meshes differ


def test_intensities_follow_the_laws_of_scattering(spectrum: NeutronSpectrum, tmp_path: Path) -> None:
    doubled = neutron_spectrum(argon(), ARGON, **{**spectrum.settings, "scattering_lengths": {"Ar": 2 * 1.909}})
    of_numpy = spectrum.settings | {"scattering_lengths": {"Ar": np.float32(1.909)}}
    replace(spectrum, settings=of_numpy).save(tmp_path / "spectrum.npz")
    assert np.allclose(doubled.mean("intensity"), 4 * spectrum.mean("intensity"), rtol=1e-3)
    cold = neutron_spectrum(argon(), ARGON, **{**spectrum.settings, "temperature": 1.0})
    assert np.allclose(cold.mean(), spectrum.mean(), atol=1e-9)
    rows = np.searchsorted(spectrum.energies, [2.5, 6.0])
    rise = (spectrum.mean("intensity") / np.maximum(cold.mean("intensity"), 1e-12))[0, rows]
    occupation = 1 / (1 - np.exp(-spectrum.energies[rows] / (1e3 * units.kB * 300)))
    assert rise[0] / rise[1] == pytest.approx(occupation[0] / occupation[1], rel=0.05)


def test_a_turned_crystal_has_the_same_intensities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neutron, "DIRECTIONS", 1000)
    own, turned, options = bulk("Cu", a=3.6), bulk("Cu", a=3.6), {"momenta": [3.0, 5.0], "supercell": (4, 4, 4)}
    turned.rotate(47, (1, 2, 3), rotate_cell=True)
    one, other = (neutron_spectrum(EMT(), a, pressure=None, **options).mean("intensity") for a in (own, turned))
    assert np.abs(one - other).sum() < 0.03 * one.sum()  # 0.11 with a tenth of the directions


def test_energies_in_another_unit_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    neutron_spectrum(argon(), ARGON, energies=np.arange(0, 2.1, 0.05), width=0.3, **SHORT)  # THz
    assert "energies from 0 to 2.05 meV have 3% of the modes; give edges in meV" in capsys.readouterr().err


def test_a_cut_has_the_values_of_the_whole(spectrum: NeutronSpectrum) -> None:
    cut = neutron_spectrum(argon(), ARGON, **{**spectrum.settings, "energies": spectrum.settings["energies"][80:121]})
    for what in ("dos", "intensity"):
        assert np.allclose(cut.mean(what), spectrum.mean(what)[..., 80:120], rtol=1e-9)


def test_intensities_are_those_of_modes_by_phonopy() -> None:
    atoms, lengths = Atoms("AuCu3", [[0, 0, 0], *(1.854 * (1 - np.eye(3)))], cell=[3.708] * 3, pbc=True), [-5, 8, 8, 8]
    options = {"momenta": [2.5], "supercell": (3, 3, 3), "pressure": None, "temperature": 50.0}
    own = neutron_spectrum(EMT(), atoms, **options, scattering_lengths={"Au": -5.0, "Cu": 8.0})
    phonopy = Phonopy(
        PhonopyAtoms(atoms.symbols, cell=atoms.cell, scaled_positions=atoms.get_scaled_positions()),
        np.diag([3] * 3),
        "P",
    )
    phonopy.generate_displacements()
    phonopy.forces = [
        Atoms(one.symbols, one.positions, cell=one.cell, pbc=True, calculator=EMT()).get_forces()
        for one in phonopy.supercells_with_displacements
    ]
    phonopy.produce_force_constants()
    q = 2.5 * _get_qpts_sphere(150, sampling="golden")
    phonopy.run_qpoints(q @ atoms.cell.array.T / (2 * np.pi), with_eigenvectors=True)
    modes, mass = phonopy.qpoints, units._hbar**2 / (units._amu * units._e) * 1e23  # meV amu Angstrom^2
    energies, vectors = (
        modes.frequencies * 2e15 * np.pi * units._hbar / units._e,
        modes.eigenvectors.reshape(150, 4, 3, 12),
    )
    waves = np.einsum("nkam,na,k->nm", vectors.conj(), q, lengths / np.sqrt(atoms.get_masses()))
    sums = 10 * mass * np.abs(waves) ** 2 / (8 * energies * -np.expm1(-energies / (1e3 * units.kB * 50)))
    total = own.mean("intensity").sum() * np.diff(own.energies)[0]
    assert 0.9 < total / (sums.sum() / 150) < 1  # Debye and Waller's factor


class Moments(EMT):
    """EMT to which atoms with moments below 0 are gold."""

    def calculate(self, atoms: Any = None, properties: Any = None, system_changes: Any = all_changes) -> None:
        changed = (atoms or self.atoms).copy()
        changed.numbers = np.where(changed.get_initial_magnetic_moments() < 0, 79, 29)
        super().calculate(changed, properties or ["forces"], all_changes)


def test_moments_lower_the_symmetry_to_that_of_two_elements() -> None:
    atoms = bulk("Cu", "bcc", a=2.96, cubic=True)
    atoms.set_cell([2.8, 2.8, 3.7], scale_atoms=True)
    alloy = atoms.copy()
    atoms.set_initial_magnetic_moments([1, -1])
    alloy.symbols[1] = "Au"
    alloy.set_masses([63.546] * 2)
    options = {"momenta": [2.0], "supercell": (3, 3, 2), "scattering_lengths": {"Cu": 7.7, "Au": 7.7}}
    expected = neutron_spectrum(EMT(), alloy, **options)
    own = neutron_spectrum(Moments(), atoms, **expected.settings)
    assert np.abs(own.mean() - expected.mean()).sum() < 0.005 * expected.mean().sum()


def test_every_member_has_the_spectrum_of_its_run(
    strained: tuple[Path, Atoms], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neutron, "GAP", np.inf)  # a run of one epoch is not stable
    member = Ensemble.load(strained[0], torch.float64).members[0]
    two = ensemble_of([replace(member, name="one"), replace(member, name="two")])
    together = neutron_spectrum(two, COPPER, pressure=None, momenta=[2.0, 4.0])
    alone = neutron_spectrum(strained[0], COPPER, **together.settings)
    for what in ("dos", "intensity"):
        assert np.allclose(together.members[what], alone.members[what], rtol=1e-9)
    refused("one model without a spread", alone.spread)


def drawn(seed: int, noise: float = 0.2, model: str = "m") -> tuple[NeutronSpectrum, NeutronSpectrum]:
    """A spectrum of four members that err as truth does, and its reference."""
    random, edges = np.random.default_rng(seed), np.arange(0, 40.5, 0.5)
    truth = {"dos": 1 + random.random(80), "intensity": 1 + random.random((4, 80))}
    plain = {"energies": edges[1:] - 0.25, "momenta": np.arange(1.0, 5)}
    settings = plain | {"energies": edges, "pressure": float(seed), "width": 1.5, "temperature": 300.0}
    settings["scattering_lengths"] = None

    def of(count: int, scale: float) -> NeutronSpectrum:
        members = {what: one + scale * random.normal(size=(count, *one.shape)) for what, one in truth.items()}
        own = {
            "names": ("a",) * count,
            "weights": np.full(count, 1 / count),
            "crystals": (bulk("Cu", a=3.0 + seed, cubic=seed % 2 > 0),) * count,
        }
        return NeutronSpectrum(members=members, model=model, settings=settings, **own, **plain)

    return of(4, noise), of(1, noise)


OWN, TRUTH = drawn(0)
CUBIC = bulk("Cu", a=3.003, cubic=True)  # of the first, relaxed from another cell
CUBIC.rotate(30, (1, 1, 0), rotate_cell=True)
BAND = OWN.calibrated([drawn(1)])


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_a_band_holds_as_often_as_it_says_on_other_crystals(level: float, tmp_path: Path) -> None:
    band = OWN.calibrated([drawn(seed) for seed in range(1, 9)], level)
    for share, points in zip(band.coverage(TRUTH).values(), (80, 320)):
        assert share == pytest.approx(level, abs=4 * np.sqrt(level * (1 - level) / points))
    band.picture(tmp_path / "spectrum.png", TRUTH)
    band.save(tmp_path / "spectrum.npz")
    with np.load(tmp_path / "spectrum.npz") as file:
        assert file["intensity_upper"].shape == (4, 80) and (file["dos_lower"] < file["dos_mean"]).all()
        assert json.loads(str(file["facts"]))["units"]["energies"] == "meV"


@pytest.mark.parametrize(
    ("says", "call", "arguments"),
    [
        ("no band before a calibration", OWN.interval, []),
        ("level between 0 and 1", OWN.calibrated, [[drawn(1)], 90.0]),
        ("on other crystals", OWN.calibrated, [[drawn(0)]]),
        ("on other crystals", OWN.calibrated, [[(replace(OWN, crystals=(CUBIC, CUBIC)), TRUTH)]]),
        ("give all the same width", replace(OWN, settings=OWN.settings | {"width": 0.3}).calibrated, [[drawn(1)]]),
        ("is no pair", OWN.calibrated, [drawn(1)]),
        ("is no pair", OWN.calibrated, [[(*drawn(1), TRUTH)]]),
        ("is no spectrum; make it with", OWN.calibrated, [[(drawn(1)[0], "DFT")]]),
        ("of .'Au': 1., and the spectrum of", BAND.coverage, [replace(TRUTH, crystals=(bulk("Au"),))]),
        ("has no 'phonons'; give dos or intensity", OWN.mean, ["phonons"]),
        ("no name of a picture", OWN.picture, ["spectrum.abc"]),
        ("of the same ensemble", OWN.calibrated, [[drawn(1, model="another")]]),
        ("another pressure", BAND.coverage, [drawn(1)[1]]),
        ("another energies", BAND.coverage, [replace(TRUTH, settings=TRUTH.settings | {"energies": np.arange(9.0)})]),
        (
            "another scattering_lengths",
            BAND.coverage,
            [replace(TRUTH, settings=TRUTH.settings | {"scattering_lengths": {"Cu": 6.4}})],
        ),
        ("saved as .npz", BAND.save, ["spectrum.h5"]),
    ],
)
def test_what_is_no_calibration_is_refused(says: str, call: Any, arguments: list[Any]) -> None:
    refused(says, call, *arguments)


class Substrate(EMT):
    """EMT on a substrate with the period of the lattice, as a model that reads positions."""

    def calculate(self, atoms: Any = None, properties: Any = None, system_changes: Any = all_changes) -> None:
        super().calculate(atoms, properties or ["forces"], system_changes)
        self.results["forces"] = self.results["forces"] - 0.1 * np.sin(4 * np.pi * self.atoms.positions / 3.6)


COPPER, HEAVY, MIXED, POLONIUM = bulk("Cu", a=3.6), bulk("Ti"), bulk("Cu", a=3.6, cubic=True), bulk("Po", a=3.3)
HEAVY.set_masses([47.948] * 2)
MIXED.set_masses([63.0, 65.0] * 2)


@pytest.mark.parametrize(
    ("says", "model", "atoms", "options"),
    [
        ("H2O is no crystal", EMT(), Atoms("H2O", np.eye(3)), {}),
        ("X is no crystal", EMT(), Atoms("X", [[np.nan] * 3], cell=np.eye(3), pbc=True), {}),
        ("right-handed cell", EMT(), Atoms("Cu", cell=-np.eye(3), pbc=True), {}),
        ("two atoms of Cu2 are 0 Ang", EMT(), Atoms("Cu2", [[0, 0, 0], [0, 3.6, 0]], cell=[3.6] * 3, pbc=True), {}),
        ("no scattering length of Po", EMT(), POLONIUM, {}),
        ("Ti of mass 47.948 is an isotope", EMT(), HEAVY, {}),
        ("Cu has several masses", EMT(), MIXED, {"scattering_lengths": {"Cu": 6.4}}),
        ("'63Cu'.* are no elements", EMT(), COPPER, {"scattering_lengths": {"63Cu": 6.4}}),
        ("give both in meV", EMT(), COPPER, {"width": 0.0015}),
        ("give both in meV", EMT(), COPPER, {"energies": np.arange(0, 0.04, 0.0005)}),
        ("not all real and finite", EMT(), COPPER, {"scattering_lengths": {"Cu": np.nan}}),
        ("momenta do not rise", EMT(), COPPER, {"momenta": [2, 1]}),
        ("momenta do not rise", EMT(), COPPER, {"momenta": "a"}),
        ("momenta do not rise", EMT(), COPPER, {"momenta": []}),
        ("energies do not rise", EMT(), COPPER, {"energies": [0, np.nan]}),
        ("not three whole numbers", EMT(), COPPER, {"supercell": (2.5, 3, 3)}),
        ("no forces and no stress", Calculator(), COPPER, {}),
        (r"EMT computes no forces of Fe \(NotImplementedError: No EMT", EMT(), bulk("Fe"), {}),
        ("does not relax Cu", EMT(), bulk("Cu", a=4.8), {}),
        ("acoustic branches of Substrate are", Substrate(), COPPER, {"pressure": None}),
        ("EMT has an imaginary mode", EMT(), bulk("Cu", "bcc", a=2.86), {}),
        ("nothing holds cells of Ar2 together", argon(), Atoms("Ar2", [[0, 0, 0], [0, 0, 3.8]], cell=[15] * 3, pbc=True), {"supercell": (1, 1, 1)}),
    ],
)  # fmt: skip
def test_what_has_no_spectrum_is_refused(says: str, model: Any, atoms: Any, options: dict[str, Any]) -> None:
    refused(says, neutron_spectrum, model, atoms, **{"momenta": [2.0, 4.0], "supercell": (3, 3, 3)} | options)


def test_a_crystal_that_may_be_polar_says_what_its_spectrum_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    crystals = [bulk("Ar", a=5.3, cubic=True) for _ in range(2)]
    for other, crystal in zip(("C", "Ti"), crystals):
        crystal.symbols = ["Ar", other, other, "Ar"]
    polar, metal = (neutron_spectrum(argon(), one, momenta=[2.0], supercell=(2, 2, 2)) for one in crystals)
    assert "no Born charges" in polar.lacks and polar.lacks in str(polar) and polar.lacks in capsys.readouterr().err
    assert metal.lacks == "" and "lie too low" not in str(metal)


def test_a_supercell_within_two_cutoffs_of_a_model_is_refused(strained: tuple[Path, Atoms]) -> None:
    refused(
        r"at least \[4, 4, 4\] are wider than two cutoffs of 4 Ang",
        neutron_spectrum,
        strained[0],
        COPPER,
        supercell=(3, 3, 3),
    )


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "euphonic", None)
    with pytest.raises(MissingPackageError, match=r"hydragnn-ensemble\[neutron\]"):
        neutron_spectrum(EMT(), COPPER)
