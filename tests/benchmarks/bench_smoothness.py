"""Energies with and without a cusp at symmetric sites: PaiNN, or a kind of PNA, of the paper beside the smooth one, trained on copper.

``python -m tests.benchmarks.bench_smoothness DATA OUT [--kind painn] [--epochs N] [--frames N] [--hidden N] [--seeds N]``; DATA holds ``mlearn/``
(see docs/recipes.md). In a perfect fcc crystal one atom is displaced by u along x: minus its force over u is a force constant,
and a smooth energy gives the same one for every small u. Errors are those of the cells that were held out, mean and standard
deviation over seeds. A few minutes of processor time.
"""

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase.build import bulk
from ase.io import iread, write

from hydragnn import build_store
from hydragnn.config import RunConfig
from hydragnn.datasets import make_split, open_store
from hydragnn.graphs import from_ase
from hydragnn.models import TrainedModel, load_model
from hydragnn.runs import train
from hydragnn.training.evaluate import evaluate, trivial_metrics

FILE = "mlearn/Cu_train.extxyz.gz"
LATTICE, CUTOFF = 3.621, 4.2
STEPS = (0.1, 0.01, 0.001, 0.0001)
FORCES = {"name": "forces", "on": "node", "shape": [3], "unit": "eV/Angstrom", "parity": "vector", "role": "target"}
ENERGY = {"name": "energy", "on": "graph", "unit": "eV", "role": "target", "dtype": "float64"}
HEAD = {
    "kind": "energy",
    "field": "energy",
    "references": True,
    "per_node": True,
    "weight": 10.0,
    "forces": "forces",
    "forces_weight": 10.0,
    "loss": "mse",
    "stage_two_factor": 1.0,
}


def make_store(data: Path, out: Path, frames: int) -> Path:
    """Cells of the data set, evenly taken, as a store."""
    store = out / "copper.h5"
    if not store.exists():
        out.mkdir(parents=True, exist_ok=True)
        with gzip.open(data / FILE, "rt") as file:
            every = list(iread(file, format="extxyz"))
        write(out / "copper.xyz", every[:: max(1, len(every) // frames)][:frames], format="extxyz")
        table = {"kind": "ase", "files": [str((out / "copper.xyz").resolve())], "format": "extxyz", "cutoff": CUTOFF}
        build_store({**table, "fields": [ENERGY, FORCES]}, store)
    return store


FORMS = {"painn": "norm", "pna": "statistics", "pnaplus": "statistics", "pnaeq": "statistics"}
"""The setting that says which form, by architecture."""


def config_of(store: Path, form: str, seed: int, options: argparse.Namespace) -> RunConfig:
    """The run of one form and seed; the split is the same for all."""
    kind = options.kind
    model = {"kind": kind, FORMS[kind]: form, "hidden_dim": options.hidden, "num_layers": 2, "cutoff": CUTOFF}
    return RunConfig.parse(
        {
            "data": {"store": str(store)},
            "split": {"train": 0.7, "valid": 0.1},
            "batch": {"max_graphs": 4},
            "model": {**model, "num_radial": 8},
            "heads": [HEAD],
            "train": {"epochs": options.epochs, "learning_rate": 4e-3, "ema_decay": 0.99, "seed": seed},
        }
    )


def force_constants(model: TrainedModel) -> list[float]:
    """-F / u of an atom of a perfect crystal, eV/Angstrom^2, for every u."""
    actual = []
    for step in STEPS:
        atoms = bulk("Cu", "fcc", a=LATTICE, cubic=True) * (3, 3, 3)
        atoms.positions[0, 0] += step
        actual.append(-float(model.predict(from_ase(atoms, CUTOFF))["forces"].mean[0, 0]) / step)
    return actual


def results_of(store: Path, form: str, options: argparse.Namespace) -> dict[str, Any]:
    """Mean and standard deviation over seeds of every figure of one form."""
    rows = []
    for seed in range(options.seeds):
        config, folder = config_of(store, form, seed, options), options.out / f"{form}-{seed}"
        train(config, folder)
        model, graphs = load_model(folder / "model", dtype=torch.float64), open_store(store)
        split = make_split(graphs, config.split)
        errors = evaluate(model, graphs, split.test)
        known = [1e3 * errors["energy"]["mae_per_node"], 1e3 * errors["forces"]["mae"]]
        rows.append([*known, *force_constants(model)])
    names = ["energy meV/atom", "forces meV/A", *(f"-F/u at {step:g} A" for step in STEPS)]
    table = np.asarray(rows)
    return {name: [float(m), float(s)] for name, m, s in zip(names, table.mean(0), table.std(0, ddof=1))}


def main() -> None:
    """Train, measure and print one JSON value."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kind", choices=FORMS, default="painn")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--frames", type=int, default=48)
    parser.add_argument("--hidden", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    store = make_store(options.data, options.out, options.frames)
    result: dict[str, Any] = {"options": {key: str(value) for key, value in vars(options).items()}}
    for form in ("paper", "smooth"):
        result[form] = results_of(store, form, options)
        print(json.dumps({form: result[form]}), flush=True)
    graphs, config = open_store(store), config_of(store, "smooth", 0, options)
    split, model = make_split(graphs, config.split), load_model(options.out / "smooth-0" / "model")
    result["trivial"] = trivial_metrics(graphs, split.train, split.test, model.targets, model.normalisation)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
