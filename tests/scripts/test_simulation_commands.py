"""Relaxation and dynamics by commands: every bit and every row survives an interruption."""

import json
import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms, units
from ase.calculators.calculator import Calculator
from ase.io import read, write
from ase.optimize import BFGS

from hydragnn.base.errors import InputError
from hydragnn.datasets import MemoryStore
from hydragnn.ensemble import calculator
from hydragnn.runs import train
from hydragnn.scripts import simulation_commands
from tests.ensemble.conftest import built, config_of, ensemble, frames, runs, store, stored, strained
from tests.once import Call

DYNAMICS = ("--outside", "record", "--interval", 2, "--timestep", 0.5, "--temperature", 200, "--seed", 3)


@pytest.fixture
def start(tmp_path: Path, frames: list[Atoms]) -> Path:
    """A periodic structure, so that the search of neighbours has a choice of order."""
    atoms = frames[3].copy()
    atoms.info["my_label"] = 3.0
    atoms.set_cell([8.0, 8.0, 8.0])
    atoms.pbc = True
    write(tmp_path / "start.xyz", atoms)
    return tmp_path / "start.xyz"


def stop_at(monkeypatch: pytest.MonkeyPatch, row: int, torn: bytes, kind: signal.Signals = signal.SIGINT) -> None:
    """Let a signal arrive at a row, after so many bytes of it."""
    append = simulation_commands.XyzRows.append

    def stopping(self: Any, *args: Any, **state: Any) -> None:
        if self.state["rows"] == row:
            self.file.write(torn)
            self.file.flush()
            signal.raise_signal(kind)
        append(self, *args, **state)

    monkeypatch.setattr(simulation_commands.XyzRows, "append", stopping)


@pytest.mark.parametrize("thermostat", ["langevin", "none"])
def test_dynamics_in_parts_have_the_bits_of_one_run(
    thermostat: str, ensemble: Path, start: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole.xyz", tmp_path / "parts.xyz"
    words = ("md", ensemble, start, "--thermostat", thermostat, *DYNAMICS)
    assert call(*words, "--out", whole, "--steps", 12)[0] == 0
    with monkeypatch.context() as patch:
        stop_at(patch, 3, b"7\nLattice=")
        code, _, errors = call(*words, "--out", parts, "--steps", 8)
    assert code == 130 and "saved" in errors
    assert len(read(parts, ":")) == 3
    assert "add --resume" in call(*words, "--out", parts, "--steps", 8)[2]
    assert call(*words, "--out", parts, "--steps", 8, "--resume")[0] == 0
    assert call(*words, "--out", parts, "--steps", 12, "--resume")[0] == 0
    assert parts.read_bytes() == whole.read_bytes()
    frames_read = read(whole, ":")
    assert [one.info["step"] for one in frames_read] == [0, 2, 4, 6, 8, 10, 12]
    assert "my_label" not in frames_read[0].info
    np.testing.assert_allclose(frames_read[0].get_momenta().sum(0), 0.0, atol=1e-6)
    if thermostat == "none":  # float32 energies, and 0.5 fs against periods of 200 fs
        assert np.ptp([one.get_potential_energy() + one.info["kinetic_energy"] for one in frames_read]) < 1e-3
    last = frames_read[-1]
    assert last.info["temperature"] == pytest.approx(last.get_temperature(), rel=1e-5)
    fresh = last.copy()
    fresh.calc = calculator(ensemble, outside="record")
    assert last.get_potential_energy() == pytest.approx(fresh.get_potential_energy(), abs=1e-5)  # 8 digits in the file
    assert last.info["energy_std"] == pytest.approx(fresh.calc.results["energy_std"], abs=1e-5)
    assert {"domain_score", "time", "kinetic_energy"} <= set(last.info) and "forces_std" in last.arrays


def test_dynamics_killed_within_a_frame_go_on_with_the_same_bits(
    ensemble: Path, start: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, killed = tmp_path / "whole.xyz", tmp_path / "killed.xyz"
    words = ("md", ensemble, start, *DYNAMICS, "--steps", 12, "--out")
    child = os.fork()
    if not child:
        try:
            stop_at(monkeypatch, 4, b"7\nLattice=", signal.SIGKILL)
            call(*words, killed)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert killed.read_bytes().endswith(b"Lattice=")
    assert call(*words, whole)[0] == 0
    assert call(*words, killed, "--resume")[0] == 0
    assert killed.read_bytes() == whole.read_bytes()


def test_dynamics_stop_outside_their_domain(ensemble: Path, frames: list[Atoms], tmp_path: Path, call: Call) -> None:
    write(tmp_path / "start.xyz", frames[3])
    out = tmp_path / "hot.xyz"
    words = ("md", ensemble, tmp_path / "start.xyz", "--out", out, "--interval", 1, "--temperature", 30000)
    code, printed, errors = call(*words, "--steps", 200, "--json")
    value = json.loads(printed)
    assert code == 3 and value["status"] == "stopped" and "outside the training domain" in errors
    inside = read(out, ":")
    assert len(inside) == value["frames"] and inside[-1].info["step"] == value["step"] < 200
    assert "domain" not in inside[0].info
    steps = value["step"] + 2
    code, printed, _ = call(*words, "--steps", steps, "--resume", "--outside", "record", "--json")
    assert code == 0 and json.loads(printed)["frames"] == steps + 1
    assert read(out, -1).info["domain"] or read(out, -2).info["domain"]


def test_relaxations_go_on_where_they_were_stopped(
    ensemble: Path, frames: list[Atoms], tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = frames[1].copy()
    bad.positions[1] = bad.positions[0]
    structures = [frames[0], bad, *frames[2:5]]
    write(tmp_path / "some.xyz", structures)
    whole, parts = tmp_path / "whole.xyz", tmp_path / "parts.xyz"
    words = ("relax", ensemble, tmp_path / "some.xyz", "--steps", 30, "--fmax", 0.5)
    code, printed, errors = call(*words, "--out", whole, "--json")
    rows, table = read(whole, ":"), json.loads(printed)["structures"]
    assert code == 3 and "did not converge" in errors and len(rows) == len(table) == 5
    assert not table[1]["converged"] and table[1]["energy"] is None
    (lost,) = json.loads(printed)["not predicted"]
    assert lost["name"] == "some.xyz#1" and "0 apart" in lost["reason"] and "1 of them because" in errors
    np.testing.assert_allclose(rows[1].positions, bad.positions, atol=1e-7)
    for row, line, atoms in zip(rows, table, structures):
        if line["converged"]:
            assert np.linalg.norm(row.get_forces(), axis=1).max() <= 0.5
            atoms = row.copy()
            atoms.calc = calculator(ensemble, outside="record")
            assert atoms.get_potential_energy() == pytest.approx(line["energy"], abs=1e-5)
    assert any(line["converged"] for line in table)
    with monkeypatch.context() as patch:
        stop_at(patch, 3, b"5\n")
        assert call(*words, "--out", parts)[0] == 130
    assert len(read(parts, ":")) == 3
    code, printed, _ = call(*words, "--out", parts)
    assert code == 3 and "some.xyz#4" in printed and "domain_score" in printed
    assert parts.read_bytes() == whole.read_bytes()
    assert "was made with another fmax" in call(*words, "--fmax", 0.1, "--out", parts)[2]


def test_cells_relax_where_they_are_periodic(strained: tuple[Path, Atoms], tmp_path: Path, call: Call) -> None:
    folder, crystal = strained
    molecule = crystal.copy()
    molecule.pbc = False
    write(tmp_path / "some.xyz", [crystal, molecule])
    out = tmp_path / "out.xyz"
    words = ("relax", folder, tmp_path / "some.xyz", "--cell", "--steps", 2, "--optimizer", "BFGS", "--out", out)
    assert call(*words)[0] == 3
    relaxed, others = read(out, ":")
    assert abs(relaxed.get_volume() - crystal.get_volume()) > 1e-4 and "stress" in relaxed.calc.results
    np.testing.assert_allclose(others.cell.array, crystal.cell.array, atol=1e-7)
    assert np.abs(others.positions - crystal.positions).max() > 1e-4


def test_wrong_inputs_get_one_sentence_and_no_file(
    ensemble: Path, runs: list[Path], store: MemoryStore, stored: Path, start: Path, tmp_path: Path, call: Call
) -> None:
    config = config_of(stored, train__epochs=1)
    silent = config.model_copy(update={"heads": [config.heads[0].model_copy(update={"forces": None})]})
    train(silent, tmp_path / "silent", store=store)
    atoms = read(start)
    iron, flat = atoms.copy(), atoms.copy()
    iron.numbers[:], flat.cell[:] = 26, 0.0
    for name, own in {"iron": iron, "flat": flat, "two": [atoms, atoms]}.items():
        write(tmp_path / f"{name}.xyz", own)
    md, out = ("md", ensemble, start), tmp_path / "out.xyz"
    cases = [
        (("md", runs[0], start), "no training domain"),
        (("md", tmp_path / "silent", start, "--outside", "record"), "no forces"),
        (("relax", tmp_path / "silent", start), "no forces"),
        (("md", ensemble, tmp_path / "iron.xyz"), "26 (Fe)"),
        (("md", ensemble, tmp_path / "flat.xyz"), "cell"),
        (("md", ensemble, tmp_path / "two.xyz"), "2 structures"),
        ((*md, "--temperature", -5), "--temperature -5"),
        ((*md, "--temperature", "nan"), "--temperature nan"),
        ((*md, "--timestep", 0), "--timestep 0"),
        ((*md, "--friction", -1), "--friction -1"),
        ((*md, "--steps", 15), "multiple of --interval"),
        (("relax", ensemble, start, "--cell"), "stress"),
        (("relax", ensemble, start, "--fmax", 0), "--fmax 0"),
    ]
    for words, reason in cases:
        code, _, errors = call(*words, "--out", out)
        lines = [line for line in errors.splitlines() if line.startswith("error: ")]
        assert code == 2 and len(lines) == 1 and reason in lines[0], (words, errors)
        assert not list(tmp_path.glob("out*"))
    assert "name end in .xyz" in call(*md, "--out", tmp_path / "out.traj")[2]


NONE = "no motion of atoms: "
MASSES = "masses that are no numbers above 0"


@pytest.mark.parametrize(
    "change, options, code, words",
    [
        (lambda one: one.set_masses(np.full(len(one), 1e-4)), (), 3, NONE),
        (lambda one: None, ("--timestep", 400), 3, NONE),
        (lambda one: None, ("--timestep", 400, "--thermostat", "none"), 3, NONE),
        (lambda one: None, ("--timestep", 1000, "--outside", "warn"), 3, NONE),
        (lambda one: one.set_momenta(1e3 * np.random.default_rng(0).normal(size=(len(one), 3))), (), 2, NONE),
        (lambda one: one.set_momenta(np.full((len(one), 3), np.nan)), (), 2, f"{NONE}the temperature is nan K"),
        (lambda one: one.set_array("masses", np.zeros(len(one))), (), 2, MASSES),
        (lambda one: one.set_array("masses", np.full(len(one), -1.0)), (), 2, MASSES),
    ],
)
def test_dynamics_that_are_no_motion_of_atoms_end_with_a_reason(
    change: Any, options: tuple[Any, ...], code: int, words: str, ensemble: Path, start: Path, call: Call
) -> None:
    atoms, out = read(start), start.with_name("out.xyz")
    change(atoms)
    write(start, atoms)
    line = ("md", ensemble, start, *DYNAMICS, *options, "--steps", 40, "--out", out)
    ended, printed, errors = call(*line)
    assert ended == code and words in errors and "finished" not in printed, (printed, errors)
    if code == 2:
        assert not out.exists()
        return
    frames_read = read(out, ":")
    assert max(frame.get_temperature() for frame in frames_read) < 2e4
    again = call(*line, "--resume")
    assert again[0] == 3 and words in again[2] and len(read(out, ":")) == len(frames_read)


class Gas(Calculator):
    energy = 0.0
    implemented_properties = ("energy", "forces")

    def calculate(self, atoms: Any = None, *args: Any, **more: Any) -> None:
        super().calculate(atoms, *args, **more)
        self.results = {"energy": self.energy, "forces": np.zeros((len(atoms), 3))}


@pytest.mark.parametrize(
    "thermostat, temperature, change, words",
    [
        ("langevin", 300, lambda atoms: atoms.set_momenta(atoms.get_momenta() * 10), "the temperature is"),
        ("none", 300, lambda atoms: atoms.set_momenta(atoms.get_momenta() * 2.5), "the energy changed"),
        ("langevin", 300, lambda atoms: atoms.calc.reset() or setattr(atoms.calc, "energy", 6.0), "the energy changed"),
        ("none", 300, lambda atoms: atoms.positions.__iadd__([[0, 0, 0], [0, 1.1, 0]]), "moved 1.1 Angstrom"),
        ("none", 300, lambda atoms: atoms.positions.__iadd__(np.nan), "moved nan"),
        ("langevin", 300, lambda atoms: atoms.set_momenta(atoms.get_momenta() * 3), ""),
        ("none", 300, lambda atoms: atoms.positions.__iadd__(0.5), ""),
        ("none", 20000, lambda atoms: atoms.set_momenta(atoms.get_momenta() * 1.2), ""),
    ],
)
def test_what_no_atoms_do_in_a_step(thermostat: str, temperature: float, change: Any, words: str) -> None:
    atoms = Atoms("Ar2", [[0, 0, 0], [4, 0, 0]], calculator=Gas())
    heat = units.kB * temperature
    atoms.set_momenta(np.sqrt(atoms.get_masses()[:, None] * heat) * [[1, 1, 1], [-1, -1, -1]])
    settings: dict[str, Any] = {"temperature": float(temperature), "thermostat": thermostat}
    how = simulation_commands.Dynamics(**settings, timestep=1.0, friction=0.01, seed=0, interval=1)
    check = simulation_commands._limits(atoms, how, atoms.get_total_energy())
    check()
    change(atoms)
    with pytest.raises(InputError, match=words) if words else nullcontext():
        check()


def test_a_cell_that_flies_apart_is_not_relaxed(
    strained: tuple[Path, Atoms], tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apart(self: Any, *_: Any) -> bool:
        atoms = getattr(self.optimizable, "atoms", self.atoms)
        atoms = getattr(atoms, "atoms", atoms)
        atoms.set_cell(atoms.cell.array * 3, scale_atoms=True)
        return True

    monkeypatch.setattr(BFGS, "run", apart)
    write(tmp_path / "some.xyz", strained[1])
    words = ("relax", strained[0], tmp_path / "some.xyz", "--cell", "--optimizer", "BFGS", "--json")
    code, printed, _ = call(*words, "--out", tmp_path / "out.xyz")
    assert code == 3 and not json.loads(printed)["structures"][0]["converged"]
    assert "27 times as large" in read(tmp_path / "out.xyz").info["status"]
