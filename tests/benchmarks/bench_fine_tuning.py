"""Fine-tuning beside training from nothing: force errors on held-out frames at equal CPU time, and what is forgotten.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.bench_fine_tuning DATA OUT [--only molybdenum|acac|elements]

DATA holds ``mlearn`` and ``acac``. Molybdenum begins with a model of copper, and has 20 % of its frames; acetylacetone has 30 frames at 300 K, and begins with a
model of other molecules with labels of EMT, or with one of its frames at 600 K. Runs of a comparison have one model, one batch size and as many epochs, so that
they take the same CPU time, which the table shows; with replay a run takes longer. The validation part chooses the epoch, and nothing sees the held-out part but the last figure.
The time of the start's own training is not counted: it is done once.
"""

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from ase import Atoms
from ase.build import molecule
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read, write

import hydragnn
from hydragnn.datasets import Budget, make_split, open_store
from hydragnn.models import load_model
from hydragnn.record import RunRecord, read_record
from hydragnn.runs.folder import trained_config
from hydragnn.training.evaluate import errors_on, trivial_predictor

SEEDS = 5
FIELDS = [
    {"name": "energy", "on": "graph", "unit": "eV", "role": "target", "dtype": "float64"},
    {"name": "forces", "on": "node", "shape": [3], "unit": "eV/Angstrom", "parity": "vector", "role": "target"},
    {"name": "part", "on": "graph", "role": "auxiliary", "dtype": "int64", "classes": 3},
]
MODEL = {"kind": "painn", "hidden_dim": 32, "num_layers": 2, "num_radial": 8, "cutoff": 4.2}
HEAD = {
    "kind": "energy",
    "field": "energy",
    "references": True,
    "forces": "forces",
    "loss": "mse",
    "forces_weight": 10.0,
}
MOLECULES = ("CH3COCH3", "CH3CHO", "CH3CH2OH", "CH3OCH3", "HCOOH", "HCOOCH3", "CH3CONH2", "C3H8", "H2CCO")
TRAIN, VALID, TEST = 0, 1, 2


def frames_of(path: Path) -> list[Atoms]:
    """Return the frames of a compressed file."""
    with gzip.open(path, "rt") as file:
        frames: list[Atoms] = read(file, index=":", format="extxyz")
    return frames


def other_molecules(frames: int) -> list[Atoms]:
    """Return rattled molecules of C, H, O and N with labels of EMT."""
    names = [MOLECULES[number % len(MOLECULES)] for number in range(frames)]
    return [labelled(molecule(name), number) for number, name in enumerate(names)]


def labelled(atoms: Atoms, number: int) -> Atoms:
    atoms.rattle(0.06, seed=number)
    atoms.calc = EMT()
    labels = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
    atoms.calc = SinglePointCalculator(atoms, **labels)
    return atoms


def make_store(frames: list[Atoms], parts: dict[int, int], every: int, store: Path) -> Path:
    """Build a store; of each ``every`` neighbouring frames ``parts`` says which go where, and others are left out."""
    if not store.exists():
        store.parent.mkdir(parents=True, exist_ok=True)
        kept = [(frame, parts[number % every]) for number, frame in enumerate(frames) if number % every in parts]
        for frame, part in kept:
            frame.info = {"part": part}
        path = store.with_suffix(".xyz")
        write(path, [frame for frame, _ in kept], format="extxyz")
        hydragnn.build_store(
            {"kind": "ase", "files": [str(path.resolve())], "format": "extxyz", "cutoff": 4.2, "fields": FIELDS},
            store,
            quiet=True,
        )
    return store


def train(
    store: Path, out: Path, epochs: int, rate: float, seed: int, start: dict[str, Any] | None = None
) -> RunRecord:
    """Return the record of a run, trained once."""
    table: dict[str, Any] = {
        "data": {"store": str(store)},
        "split": {"kind": "given", "field": "part"},
        "batch": {"max_graphs": 4},
        "heads": [HEAD],
        "train": {
            "epochs": epochs,
            "learning_rate": rate,
            "warmup_epochs": min(1, epochs / 4),
            "ema_decay": 0.99,
            "seed": seed,
            "checkpoint_epochs": 50,
        },
    }
    table |= {"start": start} if start else {"model": MODEL}
    return read_record(out) if (out / "record.json").exists() else hydragnn.train(table, out)


def held_out(run: Path) -> float:
    """Return the mean absolute error of forces on the held-out part, in meV/Angstrom."""
    config = trained_config(run).of_branch("")
    store, model = open_store(config.data.store), load_model(run / "model")
    test = make_split(store, config.split).test
    return 1e3 * (errors_on(model.predict, store, test, model.targets, Budget(max_graphs=32))["forces"]["mae"] or 0)


def zero_forces(run: Path) -> float:
    """Return that of predicting no forces."""
    config = trained_config(run).of_branch("")
    store, model = open_store(config.data.store), load_model(run / "model")
    split = make_split(store, config.split)
    predict = trivial_predictor(store, split.train, model.targets, model.normalisation)
    errors = errors_on(predict, store, split.test, model.targets, Budget(max_graphs=1024))
    return 1e3 * (errors["forces"]["mae"] or 0)


def compare(
    name: str, out: Path, store: Path, forms: dict[str, tuple[int, float, dict[str, Any] | None]]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each form of training: figures of all seeds."""
    for form, (epochs, rate, start) in forms.items():
        records, errors = [], []
        for seed in range(SEEDS):
            run = out / name / f"{form.replace(' ', '-')}-{seed}"
            records.append(train(store, run, epochs, rate, seed, start))
            errors.append(held_out(run))
        forgotten = [
            record.start["forgetting"]["errors"]["forces/mae"] for record in records if record.start.get("forgetting")
        ]
        yield {
            "comparison": name,
            "form": form,
            "epochs": epochs,
            "cpu_seconds": mean(record.cost.cpu_seconds for record in records),
            "valid": 1e3 * mean(record.best["valid/forces/mae"] for record in records),
            "held_out": mean(errors),
            "spread": stdev(errors),
            "old_data": mean(one["after"] / one["before"] for one in forgotten) if forgotten else None,
            "zero_forces": zero_forces(run),
        }


def molybdenum(data: Path, out: Path) -> Iterator[dict[str, Any]]:
    """Yield rows of molybdenum, with a start of copper."""
    parts = {**dict.fromkeys(range(8), TRAIN), 8: VALID, 9: TEST}
    copper = make_store(frames_of(data / "mlearn/Cu_train.extxyz.gz"), parts, 10, out / "Cu.h5")
    parts = {0: TRAIN, 5: TRAIN, 2: VALID, **dict.fromkeys((3, 7, 8), TEST)}
    store = make_store(frames_of(data / "mlearn/Mo_train.extxyz.gz"), parts, 10, out / "Mo.h5")
    train(copper, out / "start-Cu", 30, 3e-3, 0)
    start = {"model": str(out / "start-Cu")}
    for epochs in (6, 20, 80):  # rates and frozen layers were chosen by the validation frames, with seed 0
        forms: dict[str, tuple[int, float, dict[str, Any] | None]] = {
            "from nothing": (epochs, 6e-3, None),
            "from copper": (epochs, 1e-2, {**start, "freeze": 1}),
        }
        yield from compare(f"molybdenum, {epochs} epochs", out, store, forms)
    replay = {"with replay": (40, 3e-3, {**start, "replay": 0.3, "freeze": 1})}
    yield from compare("molybdenum, replay", out, store, replay)


def acac(data: Path, out: Path) -> Iterator[dict[str, Any]]:
    """Yield rows of acetylacetone, with a start of other molecules and one of other temperature."""
    parts = {**dict.fromkeys(range(8), TRAIN), 8: VALID, 9: TEST}
    others = make_store(other_molecules(400), parts, 10, out / "molecules.h5")
    hot = make_store(frames_of(data / "acac/train_600K.xyz.gz"), parts, 10, out / "acac-600K.h5")
    train(others, out / "start-molecules", 20, 3e-3, 0)
    train(hot, out / "start-600K", 20, 3e-3, 0)
    parts = {0: TRAIN, 8: VALID, **dict.fromkeys((4, 12), TEST)}
    store = make_store(frames_of(data / "acac/train_300K.xyz.gz"), parts, 17, out / "acac-300K.h5")
    forms: dict[str, tuple[int, float, dict[str, Any] | None]] = {
        "from nothing": (40, 6e-3, None),
        "from molecules": (40, 6e-3, {"model": str(out / "start-molecules")}),
        "from 600 K": (40, 3e-3, {"model": str(out / "start-600K")}),
    }
    yield from compare("acac", out, store, forms)


def show(rows: list[dict[str, Any]]) -> None:
    """Print a table."""
    print(
        "| comparison | form | epochs | CPU s | validation | held-out, meV/A | over nothing | old data, after / before | zero forces |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        nothing = next((one["held_out"] for one in rows if one["comparison"] == row["comparison"]), 0.0)
        old = "" if row["old_data"] is None else f"{row['old_data']:.2f}"
        print(
            f"| {row['comparison']} | {row['form']} | {row['epochs']} | {row['cpu_seconds']:.1f} | {row['valid']:.1f} | {row['held_out']:.1f} +- "
            f"{row['spread']:.1f} | {row['held_out'] / nothing:.2f} | {old} | {row['zero_forces']:.0f} |"
        )


def main() -> None:
    """Measure, and write every row as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", choices=PARTS)
    options = parser.parse_args()
    rows = []
    for name, part in PARTS.items():
        if options.only in (None, name):
            for row in part(options.data, options.out):
                rows.append(row)
                (options.out / f"{name}.json").write_text(json.dumps(rows))
    show(rows)


PARTS = {"molybdenum": molybdenum, "acac": acac}

if __name__ == "__main__":
    main()
