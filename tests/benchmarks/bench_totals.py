"""Charges of QM9 with and without a total: errors, and by how much they miss neutrality.

    python -m tests.benchmarks.bench_totals qm9_dev_12000.npz [--kind schnet] [--epochs 8] [--seeds 2]

Every fifth of the molecules, 32 channels, two layers; validation part. Twenty seconds of processor time per epoch and seed.
"""

import argparse
import tempfile
import tomllib
from pathlib import Path

import numpy as np
from ase.io import write

import hydragnn
from hydragnn.datasets import open_store
from hydragnn.models import load_model
from hydragnn.scripts.recipes import qm9

WAYS = {
    "none": {},
    "total = 0": {"total": 0},
}
FIRST = 200
"""Graphs whose sums are taken."""


def make_store(raw: Path, folder: Path) -> Path:
    """Write every fifth molecule."""
    write(folder / "molecules.xyz", [*qm9.molecules(raw)][::5], format="extxyz")
    table = tomllib.loads(Path(qm9.__file__).with_name("qm9-build.toml").read_text())
    hydragnn.build_store({**table, "files": [str(folder / "molecules.xyz")]}, folder / "qm9.h5")
    return folder / "qm9.h5"


def main() -> None:
    """Print a table of mean absolute errors and of mean absolute sums."""
    parser = argparse.ArgumentParser()
    parser.add_argument("raw", type=Path)
    parser.add_argument("--kind", default="schnet")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench_totals_"))
    store = make_store(options.raw, folder)
    batch = open_store(store).read(np.arange(FIRST))
    print("| total | error of charges, e, by seed | sum over a molecule, e |\n|---|---|---|")
    for number, (way, head) in enumerate(WAYS.items()):
        errors, sums = [], []
        for seed in range(options.seeds):
            run = {
                "data": {"store": str(store), "inputs": ["atomic_numbers"]},
                "split": {"train": 0.6, "valid": 0.15},
                "batch": {"max_graphs": 16},
                "model": {"kind": options.kind, "hidden_dim": 32, "num_layers": 2, "num_radial": 16, "cutoff": 5.0},
                "heads": [{"kind": "scalar", "field": "charge", "loss": "mae", "hidden_dims": [32], **head}],
                "train": {"epochs": options.epochs, "learning_rate": 2e-3, "seed": seed},
            }
            record = hydragnn.train(run, out=folder / f"{number}-{seed}")
            assert record.best is not None
            errors.append(f"{record.best['valid/charge/mae']:.4f}")
            model = load_model(folder / f"{number}-{seed}" / "model")
            charges = model.predict(batch)["charge"].tensors()["mean"].numpy()
            sums.append(np.abs(np.bincount(batch.owner("node").numpy(), charges)).mean())
        print(f"| {way} | {', '.join(errors)} | {np.mean(sums):.1g} |", flush=True)


if __name__ == "__main__":
    main()
