"""A small PaiNN learns a foundation potential on one element, and is compared with it.

    pip install chgnet
    python -m tests.benchmarks.bench_distil Cu_train.extxyz.gz OUT [--teacher chgnet]

Of ten neighbouring frames of mlearn's file seven train, one chooses the epoch and two judge; copies of some training frames are displaced at
random. ``hydragnn data label`` asks the teacher for the labels of all, and goes on where it was stopped. The second figure is of an ensemble
of two PaiNN that is trained on the file's own labels, beside the teacher. CPU seconds are those of this process and its
children, labels included.
"""

import argparse
import json
import os
import subprocess
import sys
import tomllib
from io import StringIO
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from ase.io import read, write

import hydragnn
from hydragnn.datasets import open_store
from hydragnn.scripts.recipes import mlearn
from hydragnn.scripts.recipes.raw import raw_text
from hydragnn.scripts.recipes.training import model_of, predictions, recipe_table

HERE = "tests.benchmarks.foreign_potentials"
COPIES, RATTLE = 40, 0.06
"""Displaced copies of training frames, and the standard deviation of their displacements in Angstrom."""
DISTIL = (
    "train.epochs=30",
    "batch.max_graphs=2",
    "heads.0.weight=1.0",
    "heads.0.stage_two_factor=1.0",
)
OWN = ("train.epochs=12",)


def frames_of(file: Path) -> list[Any]:
    """Return all frames with their part, and displaced copies of some that train."""
    frames = read(StringIO(raw_text(file)), ":", format="extxyz")
    generator = np.random.default_rng(0)
    for start in range(0, len(frames), 10):
        block = frames[start : start + 10]
        order = generator.permutation(len(block))
        for place, number in enumerate(order):
            block[number].info["part"] = 2 if place < 2 else 1 if place == 2 else 0
    training = [atoms for atoms in frames if atoms.info["part"] == 0]
    for number in generator.permutation(len(training))[:COPIES]:
        copy = training[number].copy()
        copy.positions += generator.normal(0.0, RATTLE, copy.positions.shape)
        frames.append(copy)
    for number, atoms in enumerate(frames):
        atoms.info["name"] = f"frame {number}"
    return frames


def labelled(frames: list[Any], teacher: str, out: Path) -> Path:
    """Return the file of the teacher's labels."""
    source, target = out / "structures.xyz", out / "labelled.xyz"
    if not source.exists():
        write(source, [bare(atoms) for atoms in frames])
    options = ["--calculator", f"{HERE}:{teacher}", "--allow-code", HERE, "--out", str(target)]
    command = [sys.executable, "-W", "ignore", "-m", "hydragnn", "data", "label", str(source), *options]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])})
    return target


def bare(atoms: Any) -> Any:
    """Return a structure with its name and part alone."""
    copy = atoms.copy()
    copy.info = {key: atoms.info[key] for key in ("name", "part")}
    return copy


def student(store: Path, out: Path, seed: int, *settings: str) -> Path:
    """Return the run of a PaiNN on the energies and forces of a store."""
    table = recipe_table("mlearn")
    table["data"]["store"] = str(store)
    table["heads"][0].pop("stress")
    if not (out / "record.json").exists():
        hydragnn.train(table, out, overrides=[f"train.seed={seed}", *settings], quiet=False)
    return out


def store_of(file: Path, out: Path) -> Path:
    """Return the store of a file of labelled frames."""
    table = tomllib.loads(Path(mlearn.__file__).with_name("mlearn-build.toml").read_text())
    fields = [field for field in table["fields"] if field["name"] != "stress"]
    if not out.exists():
        hydragnn.build_store({**table, "fields": fields, "files": [str(file.resolve())]}, out)
    return out


def main() -> None:
    """Distil, join, print both figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--teacher", default="chgnet", choices=["chgnet", "sevennet"])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    frames = frames_of(options.file)
    store = store_of(labelled(frames, options.teacher, options.out), options.out / "teacher.h5")
    started = process_time()
    run = student(store, options.out / "student", 0, *DISTIL)
    seconds = process_time() - started
    parts = open_store(store).read(np.arange(len(open_store(store))), ["part"])["part"].numpy()
    judged = np.flatnonzero(parts == 2).tolist()
    pairs = [one["forces"] for one in predictions(model_of(run), store, judged)]
    errors = np.concatenate([(own - label).numpy().ravel() for own, label in pairs])
    size = np.concatenate([label.numpy().ravel() for _, label in pairs])
    distilled = {
        "forces_mae_mev": 1000 * float(np.abs(errors).mean()),
        "forces_rmse_mev": 1000 * float(np.sqrt((errors**2).mean())),
        "teacher_rms_mev": 1000 * float(np.sqrt((size**2).mean())),
        "frames": len(judged),
        "training_cpu_seconds": seconds,
    }
    print(json.dumps({"distilled": distilled}, indent=2), flush=True)

    write(options.out / "own.xyz", [atoms for atoms in frames if atoms.calc is not None])
    own = store_of(options.out / "own.xyz", options.out / "own.h5")
    runs = [student(own, options.out / "own" / str(seed), seed, *OWN) for seed in range(2)]
    ensemble = options.out / "ensemble"
    if not ensemble.exists():
        hydragnn.build_ensemble(runs, ensemble, baselines=[f"{HERE}:{options.teacher}"], allow_code=[HERE])
    test = json.loads((ensemble / "evaluation.json").read_text())["parts"]["test"]
    print(
        json.dumps(
            {name: {"ensemble": of["ensemble"], "baselines": of["baselines"]} for name, of in test.items()}, indent=2
        )
    )


if __name__ == "__main__":
    main()
