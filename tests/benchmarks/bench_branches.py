"""Two data sets in one trunk against a model for each: errors on the test parts at equal epochs, beside the trivial predictor.

``python -m tests.benchmarks.bench_branches DATA OUT [--epochs N] [--frames N] [--hidden N] [--energy-weight W]
[--seed N]``; DATA holds ``acac/`` and
``mlearn/`` (see docs/recipes.md). The data sets share no element but are described by the same inputs: molecules of C, H and O,
and molybdenum crystals.
"""

import argparse
import gzip
import json
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from ase.io import iread, write

from hydragnn import build_store
from hydragnn.config import BranchedConfig, RunConfig
from hydragnn.datasets import make_split, open_store
from hydragnn.models import load_model
from hydragnn.runs import train
from hydragnn.training.evaluate import evaluate, trivial_metrics

FILES = {"acac": "acac/train_300K.xyz.gz", "molybdenum": "mlearn/Mo_train.extxyz.gz"}
CUTOFF = 4.0
COMPARED = {"energy": "mae_per_node", "forces": "mae"}
FORCES = {"name": "forces", "on": "node", "shape": [3], "unit": "eV/Angstrom", "parity": "vector", "role": "target"}
ENERGY = {"name": "energy", "on": "graph", "unit": "eV", "role": "target", "dtype": "float64"}
HEAD = {
    "kind": "energy",
    "field": "energy",
    "references": True,
    "per_node": True,
    "forces": "forces",
    "forces_weight": 10.0,
}


def make_store(data: Path, name: str, out: Path, frames: int) -> Path:
    """The first frames of a data set, evenly taken, as a store."""
    store = out / f"{name}.h5"
    if not store.exists():
        out.mkdir(parents=True, exist_ok=True)
        with gzip.open(data / FILES[name], "rt") as file:
            every = list(iread(file, format="extxyz"))
        write(out / f"{name}.xyz", list(islice(every[:: max(1, len(every) // frames)], frames)), format="extxyz")
        table = {"kind": "ase", "files": [str((out / f"{name}.xyz").resolve())], "format": "extxyz", "cutoff": CUTOFF}
        build_store({**table, "fields": [ENERGY, FORCES]}, store)
    return store


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """What all runs share."""
    return {
        "batch": {"max_graphs": 5},
        "model": {"kind": "painn", "hidden_dim": options.hidden, "num_layers": 2, "cutoff": CUTOFF, "num_radial": 8},
        "train": {"epochs": options.epochs, "learning_rate": 2e-3, "ema_decay": 0.99, "seed": options.seed},
    }


def main() -> None:
    """Train, evaluate and print one JSON value."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--frames", type=int, default=150)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--energy-weight", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    stores = {name: make_store(options.data, name, options.out, options.frames) for name in FILES}
    head = {**HEAD, "weight": options.energy_weight}
    of_data = {name: {"data": {"store": str(store)}, "heads": [head]} for name, store in stores.items()}
    together = options.out / "together"
    branches = [{"name": name, **table} for name, table in of_data.items()]
    seconds = train(BranchedConfig.parse({"branches": branches, **settings_of(options)}), together).cost.seconds
    result: dict[str, Any] = {"options": {key: str(value) for key, value in vars(options).items()}, "seconds": seconds}
    for name, table in of_data.items():
        config = RunConfig.parse({**table, **settings_of(options)})
        train(config, options.out / name)
        store = open_store(stores[name])
        split = make_split(store, config.split)
        shared, own = load_model(together / "model", branch=name), load_model(options.out / name / "model")
        errors = {
            "branch": evaluate(shared, store, split.test),
            "own model": evaluate(own, store, split.test),
            "trivial": trivial_metrics(store, split.train, split.test, own.targets, own.normalisation),
        }
        for field, metric in COMPARED.items():
            of = {
                who: metrics.get(field, metrics.get(f"{field}@{name}", {}))[metric] for who, metrics in errors.items()
            }
            result[f"{name}/{field}/{metric}"] = {**of, "ratio": of["branch"] / of["own model"]}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
