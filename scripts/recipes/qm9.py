"""QM9: the energy, the gap and the charges of organic molecules, three heads of one model."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.io import write
from ase.units import Hartree
from numpy.typing import NDArray

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.datasets import open_store
from hydragnn.ensemble import build_ensemble
from hydragnn.graphs import ATOMIC_NUMBERS_FIELD
from hydragnn.scripts.recipes.raw import array_like, raw_arrays
from hydragnn.scripts.recipes.table import Figure, evaluation_of, show_figures
from hydragnn.scripts.recipes.training import train_recipe

MEMBERS = 1
RAW = "qm9_dev_12000.npz"
ARRAYS = ("n_atoms", "z", "pos", "mulliken", "y", "y_names")
TRAINING, VALID, CALIBRATION = 9_000, 400, 600  # of the file's first 10,000; the last 2,000 judge
COLUMNS = {"energy": "InternalEnergy_0K_au", "gap": "HOMO_LUMO_gap_au"}
GOALS = {"energy": 35.0, "gap": 130.0, "charge": 0.006}
UNITS = {"energy": "meV", "gap": "meV", "charge": "e"}


def run(data: Path, out: Path, epochs: int | None) -> None:
    """A store, one model, an ensemble with its intervals, and mean absolute errors on the molecules that judge."""
    store = make_store(data / RAW, out)
    runs = [out / "members" / str(seed) for seed in range(MEMBERS)]
    records = [
        train_recipe("qm9", store, folder, f"train.seed={seed}", epochs=epochs) for seed, folder in enumerate(runs)
    ]
    ensemble = out / "ensemble"
    if not ensemble.exists():
        build_ensemble(runs, ensemble)
    show_figures("qm9", figures_of(ensemble, store), records, out, epochs=epochs)
    hydragnn.report(ensemble, out / "report.html")


def make_store(raw: Path, out: Path) -> Path:
    """The molecules as a store: `hydragnn data build qm9-build.toml` says the same of their extended XYZ."""
    store = out / "qm9.h5"
    if not store.exists():
        frames = out / "molecules.xyz"
        frames.parent.mkdir(parents=True, exist_ok=True)
        write(frames, list(molecules(raw)), format="extxyz")
        table = tomllib.loads(Path(__file__).with_name("qm9-build.toml").read_text())
        hydragnn.build_store({**table, "files": [str(frames.resolve())]}, store)
    return store


def molecules(path: Path, seed: int = 0) -> Iterator[Atoms]:
    """Yield every molecule with its labels and its part.

    Labels are in eV and e. Part 0 trains, 1 chooses the epoch, 3 calibrates, 2 tests.
    """
    with raw_arrays(path, *ARRAYS) as raw:
        table = {name: raw[name] for name in ARRAYS}
    names = [str(name) for name in table["y_names"]]
    missing = [name for name in COLUMNS.values() if name not in names]
    if missing:
        raise InputError(f"{path} has no column {missing[0]}; fetch the published file again")
    labels = array_like(table, "y", ("molecules", len(names)), path).astype(np.float64)
    ends = np.cumsum(array_like(table, "n_atoms", (len(labels),), path, kinds="iu"))
    atoms = int(ends[-1])
    numbers = array_like(table, "z", (atoms,), path, kinds="iu")
    positions = array_like(table, "pos", (atoms, 3), path)
    charges = array_like(table, "mulliken", (atoms,), path)
    parts = parts_of(len(labels), seed)
    for molecule, (start, end) in enumerate(zip(np.r_[0, ends[:-1]], ends)):
        one = Atoms(numbers=numbers[start:end], positions=positions[start:end])
        one.arrays["mulliken"] = charges[start:end]
        one.info = {name: float(labels[molecule, names.index(column)] * Hartree) for name, column in COLUMNS.items()}
        one.info["part"] = int(parts[molecule])
        yield one


def parts_of(count: int, seed: int) -> NDArray[np.int64]:
    """The part of every molecule; those after the first 10,000 judge, the first are shuffled."""
    used = TRAINING + VALID + CALIBRATION
    if count <= used:
        raise InputError(f"{count} molecules leave none to judge after {used}; fetch the published file again")
    drawn = np.repeat([0, 1, 3], [TRAINING, VALID, CALIBRATION])
    return np.concatenate([np.random.default_rng(seed).permutation(drawn), np.full(count - used, 2)])


def figures_of(ensemble: Path, store: Path) -> list[Figure]:
    """Errors of one model beside what the composition alone tells, and how many labels the intervals hold."""
    test = evaluation_of(ensemble)["parts"]["test"]
    simple = errors_of_composition(store)
    figures = []
    for field, unit in UNITS.items():
        scale = 1e3 if unit == "meV" else 1.0
        figures.append(
            Figure(
                what=f"{field} MAE, one model",
                value=scale * test[field]["members"][0]["mae"],
                unit=unit,
                goal=GOALS[field],
                beside=f"from the composition alone {scale * simple[field]:.3g}",
            )
        )
        figures.append(
            Figure(what=f"{field} inside 90 % intervals", value=100 * test[field]["ensemble"]["coverage"], unit="%")
        )
    return figures


def errors_of_composition(store: Path) -> dict[str, float]:
    """Return MAEs of simple predictors on the test part.

    Least squares in the numbers of atoms of each element, and the mean charge of each element.
    """
    reader = open_store(store)
    batch = reader.read(list(range(len(reader))))
    numbers: NDArray[Any] = batch[ATOMIC_NUMBERS_FIELD.name].numpy().astype(np.int64).reshape(-1)
    graph = batch.owner("node").numpy()
    part = batch["part"].numpy().reshape(-1)
    elements, element = np.unique(numbers, return_inverse=True)
    counts = np.zeros((len(part), len(elements) + 1))
    np.add.at(counts, (graph, element), 1.0)
    counts[:, -1] = 1.0
    errors = {}
    for field in COLUMNS:
        values = batch[field].numpy().astype(np.float64).reshape(-1)
        solution, *_ = np.linalg.lstsq(counts[part == 0], values[part == 0], rcond=None)
        errors[field] = float(np.abs(counts @ solution - values)[part == 2].mean())
    charges, trains = batch["charge"].numpy().reshape(-1), part[graph] == 0
    means = np.array([charges[trains & (element == one)].mean() for one in range(len(elements))])
    errors["charge"] = float(np.abs(means[element] - charges)[part[graph] == 2].mean())
    return errors
