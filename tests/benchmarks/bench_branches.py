"""Two data sets in one trunk against a model for each: errors on the test parts at equal epochs, beside the trivial predictor.

``python -m tests.benchmarks.bench_branches DATA OUT [--seeds 0 1 2 3 4] [--epochs N] [--frames N] [--hidden N]
[--energy-weight W]``; DATA holds ``acac/`` and ``mlearn/`` (see docs/recipes.md). Every seed has splits and weights of its own;
what counts is the median over the seeds of the ratio of the branch's error to that of the own model. The data sets share no
element but are described by the same inputs: molecules of C, H and O, and molybdenum crystals.
"""

import argparse
import gzip
import json
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
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
    "forces": "forces",
}
SPLIT = {"train": 0.58, "valid": 0.07}
"""Of 200 frames 116 train, 14 choose and 70 judge."""


def make_store(data: Path, name: str, out: Path, frames: int) -> Path:
    """Frames of a data set, evenly taken, as a store."""
    store = out / f"{name}.h5"
    if not store.exists():
        out.mkdir(parents=True, exist_ok=True)
        with gzip.open(data / FILES[name], "rt") as file:
            every = list(iread(file, format="extxyz"))
        numbers = np.linspace(0, len(every) - 1, min(frames, len(every))).round().astype(int)
        write(out / f"{name}.xyz", [every[number] for number in numbers], format="extxyz")
        table = {"kind": "ase", "files": [str((out / f"{name}.xyz").resolve())], "format": "extxyz", "cutoff": CUTOFF}
        build_store({**table, "fields": [ENERGY, FORCES]}, store)
    return store


def common_settings(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """What all runs of a seed share."""
    return {
        "batch": {"max_graphs": 5},
        "model": {"kind": "painn", "hidden_dim": options.hidden, "num_layers": 2, "cutoff": CUTOFF, "num_radial": 8},
        "train": {"epochs": options.epochs, "learning_rate": 2e-3, "ema_decay": 0.99, "seed": seed},
    }


def errors_of_seed(stores: dict[str, Path], options: argparse.Namespace, seed: int) -> dict[str, dict[str, float]]:
    """Train one model of both data sets and one of each; gives errors on the test parts by data set, field and metric."""
    out = options.out / f"seed-{seed}"
    head = {**HEAD, "weight": options.energy_weight}
    split = {**SPLIT, "seed": seed}
    tables = {name: {"data": {"store": str(store)}, "split": split, "heads": [head]} for name, store in stores.items()}
    common = common_settings(options, seed)
    branches = [{"name": name, **table} for name, table in tables.items()]
    train(BranchedConfig.parse({"branches": branches, **common}), out / "together")
    result = {}
    for name, table in tables.items():
        config = RunConfig.parse({**table, **common})
        train(config, out / name)
        store = open_store(stores[name])
        split_of = make_split(store, config.split)
        shared, own = load_model(out / "together" / "model", branch=name), load_model(out / name / "model")
        errors = {
            "trivial": trivial_metrics(store, split_of.train, split_of.test, own.targets, own.normalisation),
            "own model": evaluate(own, store, split_of.test),
            "branch": evaluate(shared, store, split_of.test),
        }
        for field, metric in COMPARED.items():
            row = {who: of.get(field, of.get(f"{field}@{name}", {}))[metric] for who, of in errors.items()}
            result[f"{name}/{field}/{metric}"] = {**row, "ratio": row["branch"] / row["own model"]}
    return result


def main() -> None:
    """Train and evaluate every seed; print a line for each and the medians as one JSON value."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--energy-weight", type=float, default=1.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    stores = {name: make_store(options.data, name, options.out, options.frames) for name in FILES}
    by_seed = {}
    for seed in options.seeds:
        by_seed[seed] = errors_of_seed(stores, options, seed)
        print(json.dumps({"seed": seed, **by_seed[seed]}), flush=True)
    first = by_seed[options.seeds[0]]
    medians = {
        name: {who: median(of[name][who] for of in by_seed.values()) for who in row} for name, row in first.items()
    }
    print(json.dumps({"medians": medians}, indent=1))


if __name__ == "__main__":
    main()
