"""Cases of the first look: lists of torch_geometric, labels, meshes, tables, ranks and locks."""

import errno
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from ase import Atoms
from ase.build import bulk, fcc111
from ase.io import read, write

from hydragnn.datasets import open_store
from hydragnn.ensemble import calculator
from hydragnn.graphs import edge_vectors
from hydragnn.hpo.settings import read_campaign
from hydragnn.hpo.space.points import space_of
from hydragnn.hpo.warm import warm_points
from tests.cases import inputs
from tests.cases.running import Answer, build, hydragnn, train
from tests.nolock import without_locks


def pyg(folder: Path) -> Answer:
    """Lengths of edges of a list in the public HydraGNN's names are those of ASE's neighbour list."""
    graphs, lengths = inputs.hydragnn_list()
    torch.save(graphs, folder / "list.pt")
    text = f'kind = "pyg"\nfiles = ["list.pt"]\n[[fields]]\nname = "x"\non = "node"\nshape = [1]\n{inputs.TARGETS}'
    wanted = f"lengths {lengths[0]:.3f} to {lengths[-1]:.3f} A"
    vectors = edge_vectors(open_store(build(folder, "list", text)).read(range(len(graphs))))
    seen = np.sort(vectors.double().norm(dim=1).numpy())
    right = seen.shape == lengths.shape and bool(np.abs(seen - lengths).max() < 1e-5)
    return Answer(wanted, f"lengths {seen[0]:.3f} to {seen[-1]:.3f} A", right)


def charge(folder: Path) -> Answer:
    """A calculator asked again after a charge has changed answers as a fresh one does."""
    write(folder / "waters.xyz", inputs.charged_waters())
    text = f'kind = "ase"\nfiles = ["waters.xyz"]\ncutoff = 4.0\n{inputs.TARGETS.split("[[fields]]")[1].join(["[[fields]]", ""])}'
    build(folder, "waters", text + '[[fields]]\nname = "charge"\non = "graph"\nrole = "input"\n')
    (folder / "run.toml").write_text(inputs.RUN.format(store="waters.h5", more="", epochs=10), encoding="utf-8")
    train(folder)
    atoms = read(folder / "waters.xyz", "1")
    assert isinstance(atoms, Atoms)
    again, fresh = calculator(folder / "run"), []
    seen = []
    for value in (0, 1, -1):
        atoms.info["charge"] = value
        atoms.calc = again
        seen.append(atoms.get_potential_energy())
        copy = atoms.copy()
        copy.calc = calculator(folder / "run")
        fresh.append(copy.get_potential_energy())
    words = [", ".join(f"{energy:.4f}" for energy in energies) for energies in (fresh, seen)]
    return Answer(f"{words[0]} eV", f"{words[1]} eV", seen == fresh and len(set(seen)) == 3)


def all_electron_energies(folder: Path) -> Answer:
    """Total energies of all electrons keep a millionth of an electronvolt per atom."""
    frames = inputs.all_electron(inputs.crystals(40))
    write(folder / "crystals.xyz", frames, format="extxyz")
    text = f'kind = "ase"\nfiles = ["crystals.xyz"]\ncutoff = 5.0\n{inputs.TARGETS}'
    seen = open_store(build(folder, "crystals", text)).read(range(len(frames)))["energy"].double().numpy().ravel()
    right = np.array([atoms.calc.results["energy"] for atoms in frames])
    worst = float((np.abs(seen - right) / [len(atoms) for atoms in frames]).max())
    return Answer("off by at most 1e-6 eV/atom", f"off by at most {worst:.1e} eV/atom", worst <= 1e-6)


def stress_without_volume(folder: Path) -> Answer:
    """Stress labels of cells without a volume are refused."""
    write(folder / "slabs.xyz", inputs.slabs_without_volume(), format="extxyz")
    text = f'kind = "ase"\nfiles = ["slabs.xyz"]\ncutoff = 5.0\n{inputs.TARGETS}{inputs.STRESS}'
    (folder / "slabs.toml").write_text(text, encoding="utf-8")
    built = hydragnn(folder, "data", "build", "slabs.toml", "--out", "slabs.h5")
    return Answer("a sentence about the volume", built.sentence, built.refused and "volume" in built.text)


def stress_of_calculators(folder: Path) -> Answer:
    """A calculator has stress where there is a volume and a period, and results that ASE can pass on."""
    inputs.write_crystals(folder)
    build(folder, "crystals")
    train(folder)
    crystal = bulk("Cu", "fcc", cubic=True)
    crystal.rattle(0.05, seed=1)
    molecule = Atoms("Cu4", positions=[[0, 0, 0], [2.4, 0, 0], [1.2, 2.0, 0], [1.2, 0.7, 2.0]], cell=[20.0] * 3)
    slab = fcc111("Cu", (2, 2, 3), vacuum=8.0)
    slab.set_cell([*slab.cell.array[:2], [0, 0, 0]])
    slab.pbc = (True, True, False)
    seen = []
    for atoms in (crystal, molecule, slab):
        atoms.calc = calculator(folder / "run")
        atoms.get_potential_energy()
        seen.append("stress" in atoms.calc.results)
        atoms.get_properties(["energy", "forces"])
        write(folder / "copy.traj", atoms)
        again = read(folder / "copy.traj")
        assert isinstance(again, Atoms)
        seen.append(again.get_potential_energy() == atoms.get_potential_energy())
    words = ["yes" if value else "no" for value in seen]
    return Answer("yes yes no yes no yes", " ".join(words), seen == [True, True, False, True, False, True])


def torn_mesh(folder: Path) -> Answer:
    """Points of a mesh that lie in one place without being one are counted."""
    inputs.write_torn_mesh(folder / "torn.vtu")
    text = 'kind = "mesh"\nfiles = ["torn.vtu"]\n[[fields]]\nname = "load"\non = "node"\n[[fields]]\nname = "u"\non = "node"\nrole = "target"\n'
    (folder / "torn.toml").write_text(text, encoding="utf-8")
    wanted = "a note or a sentence: 96 nodes in 25 places"
    built = hydragnn(folder, "data", "build", "torn.toml", "--out", "torn.h5")
    if built.refused:
        return Answer(wanted, built.sentence, "25" in built.text or "71" in built.text)
    checked = hydragnn(folder, "data", "check", "torn.h5")
    lines = [line.strip() for line in checked.text.splitlines() if "25 " in line or "71 " in line]
    return Answer(wanted, " ".join(lines) or "nothing", bool(lines) and "Traceback" not in checked.text)


def grains(folder: Path) -> Answer:
    """Contacts listed from both sides are six directed edges."""
    inputs.write_grains(folder)
    edges = open_store(build(folder, "grains")).read([0, 1]).num_edges
    return Answer("6 directed edges", f"{edges} directed edges", edges == 6)


def results_table(folder: Path) -> Answer:
    """Integer choices that a spreadsheet wrote as 8.0 are read."""
    inputs.write_crystals(folder)
    build(folder, "crystals")
    inputs.write_results(folder / "results.csv")
    space = """
warm_start = ["results.csv"]
[search.space."model.kind"]
type = "categorical"
choices = ["schnet", "mfc"]
[search.space."model.hidden_dim"]
type = "categorical"
choices = [16, 32, 64]
[search.space."model.max_degree"]
type = "categorical"
choices = [4, 8]
when = { "model.kind" = "mfc" }
"""
    search = inputs.RUN.format(store="crystals.h5", more="", epochs=1).replace('kind = "schnet"\nhidden_dim = 16\n', "")
    search += inputs.RANGE.replace("trials = 2", f"trials = 12{space}")
    (folder / "search.toml").write_text(search, encoding="utf-8")
    settings = read_campaign(folder / "search.toml")
    points = warm_points(settings, space_of(settings.search.space))
    return Answer("3 configurations", f"{len(points)} configurations", len(points) == 3)


def ranks_around_a_search(folder: Path) -> Answer:
    """A search that is started on two ranks of MPI is one search, whose trials run."""
    inputs.write_crystals(folder)
    build(folder, "crystals")
    mpi = (str(Path(sys.executable).parent / "mpirun"), "-n", "2")
    searched = hydragnn(folder, "search", "search.toml", "--out", "campaign", "--workers", "1", before=mpi)
    status = hydragnn(folder, "status", "campaign", "--json")
    records = len(list((folder / "campaign" / "trials").glob("*/record.json")))
    seen = f"exit {searched.code}, {records} records"
    return Answer("exit 0, 2 records", seen, searched.code == 0 and records == 2 and status.code == 0)


def file_systems_without_locks(folder: Path) -> Answer:
    """Builds, trainings and searches work where every lock is refused."""
    inputs.write_crystals(folder)
    search = ("search", "search.toml", "--set", "search.trials=1", "--out", "campaign", "--workers", "1")
    wanted = {
        "ENOSYS": ("data", "build", "crystals.toml", "--out", "others.h5"),
        "ENOLCK": ("data", "build", "crystals.toml", "--out", "crystals.h5"),
        "ENOLCK in a search": search,
    }
    seen = []
    for name, words in wanted.items():
        command = hydragnn(folder, *words, **without_locks(getattr(errno, name.split()[0])))
        if command.code:
            seen.append(f"{name}: {command.sentence}")
    return Answer("all work", "; ".join(seen) or "all work", not seen)


CASES: dict[str, Callable[[Path], Answer]] = {
    "pyg": pyg,
    "charge": charge,
    "bige": all_electron_energies,
    "mixed": stress_without_volume,
    "calc": stress_of_calculators,
    "mesh": torn_mesh,
    "grains": grains,
    "dh": results_table,
    "mpi": ranks_around_a_search,
    "lock": file_systems_without_locks,
}
