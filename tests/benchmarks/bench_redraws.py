"""Do the intervals of given ensembles hold, whichever of the graphs that chose nothing calibrate them?

    python -m tests.benchmarks.bench_redraws OUT ENSEMBLE STORE [ENSEMBLE STORE ...]

The calibration and the test part of an ensemble neither trained its members nor chose anything, so that which graph belongs to
which is a draw: here it is made again and again, as many graphs calibrating as before, and the others judge. Nothing is trained. For
ensembles of recipes, whose members take too long for many trainings (``bench_intervals`` trains small ones anew). Draws share
their graphs, so that their standard deviation tells what a draw of the calibration part does, not what other data would.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from hydragnn.datasets import open_store
from hydragnn.ensemble.building.held_out import joint_split
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.member_outputs import member_outputs
from tests.benchmarks.bench_coverage import Row, table_of, target_rows


def ensemble_rows(folder: Path, path: Path, draws: int) -> list[Row]:
    """The rows of all numeric fields of an ensemble, for all members and for the first alone."""
    ensemble, store = Ensemble.load(folder), open_store(path)
    split, needed = joint_split(ensemble.members, store), ensemble.needed(store)
    kept_back = np.concatenate([split.calibration, split.test])
    valid, pool = (member_outputs(ensemble.members, store, graphs, needed) for graphs in (split.valid, kept_back))
    options = argparse.Namespace(draws=draws, calibration=len(split.calibration))
    known = {"ensemble": str(folder), "calibration": len(split.calibration), "test": len(split.test)}
    numeric = [target for target in ensemble.targets if not target.field.classes]
    return [{**known, **row} for target in numeric for row in target_rows(ensemble, target, valid, pool, options)]


def main() -> None:
    """Judge every ensemble, print a table of each and write OUT."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="JSON file that is written")
    parser.add_argument("pairs", type=Path, nargs="+", metavar="ENSEMBLE STORE")
    parser.add_argument("--draws", type=int, default=20)
    options = parser.parse_args()
    if len(options.pairs) % 2:
        parser.error("every ensemble needs the store that it was built with")
    torch.set_num_threads(1)
    rows: list[Row] = []
    for folder, store in zip(options.pairs[::2], options.pairs[1::2]):
        actual = ensemble_rows(folder, store, options.draws)
        Console(width=190).print(f"{folder}: {actual[0]['calibration']} graphs calibrate, {actual[0]['test']} judge")
        Console(width=190).print(table_of(actual))
        rows += actual
    options.out.write_text(json.dumps({"draws": options.draws, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
