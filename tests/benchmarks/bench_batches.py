"""Final errors at 1, 8 and 64 times the batch, at equal epochs: AdamW as it stands, by the rule for its rate, and LAMB by the rule.

    python -m tests.benchmarks.bench_batches STORE OUT [--seeds 0 1 2] [--rates adamw=4e-3 lamb=5e-3] [--epochs 112]

``STORE`` is that of the recipe ``qm9`` with a cutoff of 4. Rates are those for ``BASE`` graphs a step.
Printed are errors on graphs of the test part, which nothing has seen, of every seed, with mean and standard deviation. The model is that which the run keeps.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import hydragnn
from hydragnn.datasets import Budget, make_split, open_store
from hydragnn.models import load_model
from hydragnn.record import read_record
from hydragnn.runs.folder import trained_config
from hydragnn.training.evaluate import errors_on

BASE, TIMES, JUDGED = 2, (1, 8, 64), 3000
TABLE: dict[str, Any] = {
    "split": {"train": 512 / 12000, "valid": 64 / 12000},
    "model": {"kind": "schnet", "hidden_dim": 24, "num_layers": 1, "cutoff": 4.0, "num_radial": 16},
    "heads": [{"kind": "energy", "field": "energy", "references": True}],
    "train": {"checkpoint_seconds": 60.0},
}


def error_of(store: Path, folder: Path, seed: int, batch: int, train: dict[str, Any]) -> float:
    """Return the error of a run on graphs that it has not seen; trains it unless it exists."""
    words = [
        train["optimizer"],
        train.get("base_batch", 0),
        batch,
        f"{train['learning_rate']:g}",
        train["epochs"],
        seed,
    ]
    out = folder / "-".join(map(str, words))
    if not (out / "record.json").is_file() or read_record(out).status != "finished":
        table = {**TABLE, "data": {"store": str(store)}, "batch": {"max_graphs": batch}}
        table |= {"split": {**TABLE["split"], "seed": seed}, "train": {**TABLE["train"], **train, "seed": seed}}
        hydragnn.train(table, out, quiet=True, resume=(out / "record.json").is_file())
    config = trained_config(out).of_branch("")
    graphs, model = open_store(config.data.store), load_model(out / "model")
    test = make_split(graphs, config.split).test[:JUDGED]
    return float(errors_on(model.predict, graphs, test, model.targets, Budget(max_graphs=256))["energy"]["mae"] or 0)


def main() -> None:
    """Print a row per optimizer and batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rates", nargs="+", default=["adamw=4e-3", "lamb=5e-3"])
    parser.add_argument("--times", nargs="+", type=int, default=[*TIMES])
    parser.add_argument("--epochs", type=int, default=112)
    args = parser.parse_args()
    for times in args.times:
        for rate in args.rates:
            kind, number = rate.split("=")
            for base in (BASE, 0) if times > 1 and kind == "adamw" else (BASE,):
                train = {"optimizer": kind, "learning_rate": float(number), "epochs": args.epochs}
                train |= {"warmup_epochs": args.epochs / 20} | ({"base_batch": base} if base else {})
                errors = [error_of(args.store.absolute(), args.out, seed, times * BASE, train) for seed in args.seeds]
                each = ", ".join(f"{one:.4f}" for one in errors)
                words = (
                    f"mean {np.mean(errors):.4f}, standard deviation {np.std(errors, ddof=min(1, len(errors) - 1)):.4f}"
                )
                print(
                    f"{kind}{' by the rule' * bool(base)}, {times * BASE} graphs a step: {each}; {words} eV", flush=True
                )


if __name__ == "__main__":
    main()
