"""Structure types of real crystals, melts and surfaces: fcc, bcc or diamond from positions alone, with conformal sets.

``python -m tests.benchmarks.classify_structures --data ../shared/data/mlearn --out FOLDER``

The mlearn frames of Cu, Ni (fcc), Li, Mo (bcc), Ge, Si (diamond), hot and defective ones included, are scaled to one volume per
atom and their species are left out, so that neither names nor lattice constants give the class away. Three members from
three seeds; the ensemble's conformal sets are set on the validation part and judged on the test part, beside the trivial predictor.
"""

import argparse
import json
from pathlib import Path

import ase.io
import numpy as np

from hydragnn.base.files import read_json
from hydragnn.config import config_from_table
from hydragnn.datasets import StoreWriter
from hydragnn.ensemble import build_ensemble
from hydragnn.graphs import Field, from_ase
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.runs import train

STRUCTURES = {"Cu": 0, "Ni": 0, "Li": 1, "Mo": 1, "Ge": 2, "Si": 2}  # fcc, bcc, diamond
STRUCTURE = Field(name="structure", on="graph", classes=3, dtype="int64", role="target")
CUTOFF = 1.5
"""In units of the cube root of the volume per atom: 14 neighbours on the average."""
MEMBERS = 3


def write_frames(data: Path, store: Path) -> None:
    """All frames as graphs, scaled to one volume per atom."""
    with StoreWriter(store, [STRUCTURE], dim=3) as writer:
        for element, structure in STRUCTURES.items():
            for frame in ase.io.read(data / f"{element}_train.extxyz.gz", index=":", format="extxyz"):
                scale = (len(frame) / frame.get_volume()) ** (1 / 3)
                frame.set_cell(frame.cell * scale, scale_atoms=True)
                frame.calc, frame.info = None, {"structure": np.int64(structure)}
                for name in set(frame.arrays) - {"numbers", "positions"}:
                    del frame.arrays[name]
                graph = from_ase(frame, CUTOFF, fields=[STRUCTURE])
                writer.write(graph.with_fields(drop=[ATOMIC_NUMBERS]))


def configuration(store: Path, seed: int, epochs: int) -> dict[str, object]:
    """One member."""
    return {
        "data": {"store": str(store), "inputs": []},
        "split": {"train": 0.5, "valid": 0.25},
        "batch": {"max_graphs": 16},
        "model": {"kind": "schnet", "hidden_dim": 24, "num_layers": 2, "num_radial": 12, "cutoff": CUTOFF},
        "heads": [{"kind": "classes", "field": "structure", "class_weights": "balanced"}],
        "train": {"epochs": epochs, "learning_rate": 3e-3, "seed": seed},
    }


def main() -> None:
    """Write the store, train the members, build the ensemble, print what it says of the test part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/mlearn"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    store = options.out.resolve() / "frames.h5"
    if not store.exists():
        options.out.mkdir(parents=True, exist_ok=True)
        write_frames(options.data, store)
    runs = [options.out / f"member-{seed}" for seed in range(MEMBERS)]
    for seed, run in enumerate(runs):
        if not (run / "record.json").exists():
            config = config_from_table(configuration(store, seed, options.epochs), store)
            print(run.name, train(config, run).best)
    ensemble = options.out / "ensemble"
    if not ensemble.exists():
        build_ensemble(runs, ensemble)
    print(json.dumps(read_json(ensemble / "evaluation.json")["parts"]["test"], indent=1))


if __name__ == "__main__":
    main()
