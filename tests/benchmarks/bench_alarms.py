"""Is a share of false alarms above 2 % the rule's, or the luck of a split?

    python -m tests.benchmarks.bench_alarms OUT [--draws 100] [--only NAME]     OUT is a folder that ``bench_intervals`` filled

Thresholds of the training domain are set on the held-out graphs (validation and calibration), and the test part shows what share of usual
graphs they flag. None of these trained the members, so that which is held out and which is a test graph is a draw, if
validation, which chose the epoch and the form of widths, is like the others. Here it is made again and again with as many graphs,
and thresholds are set anew: the mean over draws is what the rule does, their standard deviation what the split does. Nothing is trained.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from hydragnn.datasets import open_store
from hydragnn.ensemble.building.held_out import joint_split
from hydragnn.ensemble.building.training_domain import part_doubts
from hydragnn.ensemble.domain import FALSE_ALARMS, Domain
from hydragnn.ensemble.domain.domain import values_of
from hydragnn.ensemble.domain.fitting import channels_of, views
from hydragnn.ensemble.domain.rarity import fitted_rarity
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.member_outputs import member_outputs
from tests.benchmarks.interval_sets import SETS

Array = NDArray[np.float64]


def channel_values(ensemble: Ensemble, path: Path) -> tuple[Array, Array]:
    """What all channels say of the held-out graphs, and of the test graphs."""
    store = open_store(path)
    split, read, domain = joint_split(ensemble.members, store), ensemble.needed(store), ensemble.manifest.domain
    assert isinstance(domain, Domain)
    of_parts = []
    for graphs in (split.valid, split.calibration, split.test):
        outputs = member_outputs(ensemble.members, store, graphs, read)
        doubts = part_doubts(ensemble.targets, outputs, ensemble.weights_of, ensemble.manifest.calibration)
        values = np.full((len(graphs), len(channels_of(domain.detectors))), np.nan)
        for rows, view in views(store, graphs, read, domain.scale, doubts):
            values[rows] = values_of(domain.detectors, view)
        of_parts.append(values)
    return np.concatenate(of_parts[:2]), of_parts[2]


def shares_of_seed(folder: Path, path: Path, draws: int, seed: int) -> dict[str, float]:
    """The share of test graphs that is flagged; its mean and standard deviation where the split is drawn anew; the sizes."""
    ensemble = Ensemble.load(folder)
    domain = ensemble.manifest.domain
    assert isinstance(domain, Domain)
    channels = channels_of(domain.detectors)
    held_out, test = channel_values(ensemble, path)

    def share(thresholds: Array, graphs: Array) -> float:
        rarity = fitted_rarity(thresholds, channels)
        return float(rarity.outside(rarity.standardised(graphs)).mean())

    pool, generator = np.concatenate([held_out, test]), np.random.default_rng(seed)
    anew = []
    for _ in range(draws):
        order = generator.permutation(len(pool))
        anew.append(share(pool[order[: len(held_out)]], pool[order[len(held_out) :]]))
    return {
        "flagged": share(held_out, test),
        "anew": float(np.mean(anew)),
        "std": float(np.std(anew)),
        "held_out": len(held_out),
        "test": len(test),
    }


def table_of(rows: Mapping[str, list[dict[str, float]]]) -> Table:
    """Means over seeds for people, with the standard error that the split alone gives them."""
    table = Table(
        "set", "held out, test", "allowed", "flagged", "drawn anew", "standard error", "flagged - anew, in these"
    )
    for name, seeds in rows.items():
        flagged, anew = (100 * np.mean([one[key] for one in seeds]) for key in ("flagged", "anew"))
        error = 100 * np.sqrt(np.sum([one["std"] ** 2 for one in seeds])) / len(seeds)
        held_out, test = int(seeds[0]["held_out"]), int(seeds[0]["test"])
        allowed = 100 * int(FALSE_ALARMS * (held_out + 1) + 1e-9) / (held_out + 1)
        numbers = [f"{value:.2f}" for value in (allowed, flagged, anew, error, (flagged - anew) / error)]
        table.add_row(name, f"{held_out}, {test}", *numbers)
    return table


def main() -> None:
    """Judge every set that is there, print the table and write OUT/alarms.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--only", action="append", choices=list(SETS), help="these data sets")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, list[dict[str, float]]] = {}
    for name in options.only or SETS:
        for ensemble in sorted(options.out.glob(f"{name}/*/ensemble")):
            seed = int(ensemble.parent.name)
            one = shares_of_seed(ensemble, options.out / name / "graphs.h5", options.draws, seed)
            rows.setdefault(name, []).append(one)
    Console(width=160).print(table_of(rows))
    (options.out / "alarms.json").write_text(json.dumps({"draws": options.draws, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
