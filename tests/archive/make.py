"""Make one file of every kind that this version writes: ``python -m tests.archive.make FOLDER``.

Every release runs it once, and nothing that it made is ever made anew. ``expected.json`` has the numbers that later versions must read.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

import hydragnn
from hydragnn.config import config_from_table
from hydragnn.datasets import convert_store, open_store
from hydragnn.runs import train

BUILD = """
kind = "ase"
files = ["structures.xyz"]
cutoff = 3.2
texts = ["config_type"]
[[fields]]
name = "energy"
on = "graph"
unit = "eV"
role = "target"
[[fields]]
name = "forces"
on = "node"
shape = [3]
parity = "vector"
unit = "eV/Angstrom"
role = "target"
optional = true
[[fields]]
name = "phase"
on = "graph"
classes = 2
dtype = "int64"
role = "target"
"""
MODEL = {"kind": "schnet", "hidden_dim": 4, "num_layers": 1, "num_radial": 4, "cutoff": 3.2}
ENERGY = {"kind": "energy", "field": "energy", "references": True, "forces": "forces", "hidden_dims": [8]}
PHASE = {"kind": "classes", "field": "phase", "hidden_dims": [8]}
RUN: dict[str, Any] = {
    "data": {"store": "store.h5"},
    "split": {"train": 0.5, "valid": 0.25, "calibration": 0.1},
    "batch": {"max_graphs": 4},
    "model": MODEL,
    "heads": [ENERGY, PHASE],
    "train": {"epochs": 4, "precision": "fp64", "learning_rate": 0.01, "ema_decay": 0.9},
}
BRANCHES: dict[str, Any] = {
    "model": MODEL,
    "batch": {"max_graphs": 4},
    "train": {"epochs": 2, "precision": "fp64"},
    "branches": [
        {"name": name, "data": {"store": f"store.{name}"}, "heads": [head]}
        for name, head in {"h5": ENERGY, "bp": PHASE}.items()
    ],
}
SEARCH = {
    "trials": 3,
    "rungs": [1],
    "finalists": 2,
    "seed": 1,
    "space": {
        "model.num_layers": {"type": "int", "low": 1, "high": 2},
        "train.learning_rate": {"type": "float", "low": 0.001, "high": 0.02, "log": True},
    },
}
SUFFIXES = (".h5", ".csv", ".xyz")


def structures() -> list[Atoms]:
    """Return 24 molecules, lone atoms and crystals with EMT's energies; every sixth has no forces."""
    random = np.random.default_rng(0)
    frames = []
    for number in range(24):
        if number % 3:
            places = 2.4 * np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]])
            atoms = Atoms(random.choice(["Cu", "Au"], size=5), places)[: 1 if number == 1 else 3 + number % 3]
        else:
            atoms = bulk(("Cu", "Au")[number % 2], a=3.8)
        atoms.positions += random.normal(0, 0.1, atoms.positions.shape)
        atoms.info |= {"name": f"frame {number}", "config_type": ("molecule", "crystal")[number % 3 == 0]}
        atoms.info["phase"] = int(number % 3 == 0)
        copy = atoms.copy()
        copy.calc = EMT()
        results = {"energy": copy.get_potential_energy(), "forces": copy.get_forces()}
        atoms.calc = SinglePointCalculator(atoms, **dict(list(results.items())[: 1 if number % 6 == 5 else 2]))
        frames.append(atoms)
    return frames


def make() -> None:
    write("structures.xyz", structures(), format="extxyz")
    Path("BUILD.toml").write_text(BUILD, encoding="utf-8")
    hydragnn.build_store("BUILD.toml", "store.h5")
    convert_store(Path("store.h5"), Path("store.bp"))
    config = config_from_table(RUN, Path("RUN.toml").resolve())
    whole = train(config, "whole")
    shutil.rmtree("whole")
    train(config, "run", until=2)
    hydragnn.train(BRANCHES, "branches")
    Path("CAMPAIGN.toml").write_text(tomli_w.dumps({**RUN, "search": SEARCH}), encoding="utf-8")
    hydragnn.search("CAMPAIGN.toml", "campaign", workers=1)
    evaluation = hydragnn.build_ensemble("campaign", "ensemble", top_k=2)
    for large in ("branches", "campaign/trials/0001", "campaign/trials/0002"):  # as large as those of "run", and alike
        shutil.rmtree(f"{large}/checkpoints")
    for suffix in SUFFIXES:
        hydragnn.predict("ensemble", "store.h5", f"predictions{suffix}")
    hydragnn.predict("ensemble", "store.h5", "view.h5", keep_parts=True)
    status = hydragnn.status("campaign")
    store = open_store(Path("store.h5"))
    branch = hydragnn.load("branches", branch="h5").predict(store)
    expected = {
        "fingerprint": store.fingerprint,
        "curves": whole.curves,
        "paused": hydragnn.load("run").predict(store)["energy"].mean.tolist(),
        "branch": branch["energy@h5"].mean.tolist(),
        "best": [status.best.trial, status.best.value],
        "statuses": dict(status.trials),
        "evaluation": evaluation.to_json()["parts"],
    }
    Path("expected.json").write_text(json.dumps(expected), encoding="utf-8")


def main(out: Path) -> None:
    """Make the files elsewhere, so that they hold no path of this machine, then move them to ``out``."""
    if out.exists():
        sys.exit(f"{out} exists; files of a version are made once")
    with tempfile.TemporaryDirectory(prefix="archive-") as folder:
        place = Path(folder) / "data"
        place.mkdir()
        os.chdir(place)
        make()
        shutil.move(place, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
