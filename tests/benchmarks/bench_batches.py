"""Final errors at 1, 8 and 64 times the batch, at equal epochs: AdamW as it stands, by the rule for its rate, and LAMB by the rule.

    python -m tests.benchmarks.bench_batches STORE OUT [--seeds 0 1 2] [--rates adamw=1e-3 lamb=5e-3]

``STORE`` is that of the recipe ``qm9`` with a cutoff of 4. Rates are those for ``BASE`` graphs a step.
Printed are the errors of the last epoch on the validation part, which choose nothing, of every seed, with mean and standard deviation.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import hydragnn

BASE, TIMES = 4, (1, 8, 64)
TABLE: dict[str, Any] = {
    "split": {"train": 1024 / 12000, "valid": 512 / 12000},
    "model": {"kind": "schnet", "hidden_dim": 24, "num_layers": 2, "cutoff": 4.0, "num_radial": 16},
    "heads": [{"kind": "energy", "field": "energy", "references": True}],
    "train": {"epochs": 40, "warmup_epochs": 1.0, "checkpoint_seconds": 60.0},
}


def error_of(store: Path, folder: Path, seed: int, batch: int, train: dict[str, Any]) -> float:
    """Return the last validation error of a run; trains it unless it exists."""
    out = folder / f"{train['optimizer']}-{train.get('base_batch', 0)}-{batch}-{train['learning_rate']:g}-{seed}"
    if not (out / "record.json").is_file():
        table = {**TABLE, "data": {"store": str(store)}, "batch": {"max_graphs": batch}}
        table |= {"split": {**TABLE["split"], "seed": seed}, "train": {**TABLE["train"], **train, "seed": seed}}
        hydragnn.train(table, out, quiet=True)
    curve = json.loads((out / "record.json").read_text())["curves"]["valid/energy/mae"]
    return float(curve[-1])


def main() -> None:
    """Print a row per optimizer and batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rates", nargs="+", default=["adamw=1e-3", "lamb=5e-3"])
    parser.add_argument("--times", nargs="+", type=int, default=[*TIMES])
    args = parser.parse_args()
    for rate in args.rates:
        kind, number = rate.split("=")
        for times in args.times:
            for base in (BASE, 0) if times > 1 and kind == "adamw" else (BASE,):
                train = {"optimizer": kind, "learning_rate": float(number)} | ({"base_batch": base} if base else {})
                errors = [error_of(args.store.absolute(), args.out, seed, times * BASE, train) for seed in args.seeds]
                words = (
                    f"mean {np.mean(errors):.4f}, standard deviation {np.std(errors, ddof=min(1, len(errors) - 1)):.4f}"
                )
                each = ", ".join(f"{one:.4f}" for one in errors)
                print(
                    f"{kind}{' by the rule' * bool(base)}, {times * BASE} graphs a step: {each}; {words} eV", flush=True
                )


if __name__ == "__main__":
    main()
