"""What does each detector of the training domain bring?

    python -m tests.benchmarks.bench_detectors [--only alloys] [--share 0.5] [--data DATA] [--out FOLDER]

Ensembles of ``trust``, with a share of its epochs, are asked about the test part and graphs beyond training. Each subset of detectors
is a domain of its own: held-out graphs set its units and its limit at 2 %. Printed for all, for each alone and with each left out, as means over sets:

- AUROC: of the score against errors above three times the median of the test part, mean over fields
- flagged: share of the test part, and of all graphs beyond

Below it the smallest subsets whose mean AUROC is within .01 of that of all. Checks of what training never showed, and of broken geometry, stay in each subset.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.metrics import roc_auc_score

from hydragnn.datasets import GraphStore, MemoryStore, open_store
from hydragnn.ensemble import Ensemble
from hydragnn.ensemble.building.build import build_ensemble
from hydragnn.ensemble.building.held_out import joint_split
from hydragnn.ensemble.building.training_domain import part_doubts
from hydragnn.ensemble.domain.detector import Channel
from hydragnn.ensemble.domain.domain import values_of
from hydragnn.ensemble.domain.fitting import channels_of, views
from hydragnn.ensemble.domain.rarity import fitted_rarity
from hydragnn.ensemble.members.outputs import member_outputs
from hydragnn.graphs import concatenate
from hydragnn.graphs.joining import unbatch
from tests.benchmarks.trust import LARGE, TEST, graph_errors, trained
from tests.benchmarks.trust_sets import NEEDS, SETS

Array = NDArray[np.float64]
FIXED = ("kinds", "references", "contacts")
"""Checks of what training never showed, and of broken geometry."""
WITHIN = 0.01


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Measured:
    """Values of all channels, and errors, of a set."""

    channels: Mapping[str, Sequence[Channel]]
    """By detector, in the order of columns."""
    held_out: Array
    values: Mapping[str, Array]
    """Of the test part and of every kind beyond."""
    large: Sequence[NDArray[np.bool_]]
    """By field, large errors of all these graphs."""


def values_in(ensemble: Ensemble, store: GraphStore, graphs: NDArray[np.int64]) -> Array:
    """Return the values of all channels for graphs of a store."""
    domain, read = ensemble.manifest.domain, ensemble.needed(store)
    outputs = member_outputs(ensemble.members, store, graphs, read)
    doubts = part_doubts(ensemble.targets, outputs, ensemble.weights_of, ensemble.manifest.calibration)
    values = np.full((len(graphs), len(channels_of(domain.detectors))), np.nan)
    for rows, view in views(store, graphs, read, domain.scale, doubts):
        values[rows] = values_of(domain.detectors, view)
    return values


def measured(name: str, data: Path, out: Path, share: float) -> Measured:
    """Train and build what is missing, and return what all channels show."""
    made = SETS[name](data)
    epochs = max(5, round(made.table["train"]["epochs"] * share))
    short = {**made.table["train"], "epochs": epochs, "checkpoint_epochs": epochs}
    path, runs = trained(name, replace(made, table={**made.table, "train": short}), out)
    folder = runs[0].parent / "ensemble"
    shutil.rmtree(folder, ignore_errors=True)
    build_ensemble(runs, folder)
    ensemble, store = Ensemble.load(folder), open_store(path)
    split = joint_split(ensemble.members, store)
    values = {TEST: values_in(ensemble, store, split.test)}
    batches = {TEST: store.read(split.test)}
    for kind, graphs in made.beyond.items():
        batches[kind] = concatenate(list(graphs))
        own = MemoryStore(unbatch(batches[kind]))
        values[kind] = values_in(ensemble, own, np.arange(len(batches[kind])))
    outputs, large = {kind: ensemble.predict(batch) for kind, batch in batches.items()}, []
    for target in ensemble.targets:
        errors = {kind: graph_errors(target.name, batch, outputs[kind]) for kind, batch in batches.items()}
        large.append(np.concatenate([*errors.values()]) > LARGE * float(np.median(errors[TEST])))
    return Measured(
        channels={one.name: one.channels for one in ensemble.manifest.domain.detectors},
        held_out=values_in(ensemble, store, np.concatenate([split.valid, split.calibration])),
        values=values,
        large=large,
    )


def figures(one: Measured, names: Sequence[str]) -> dict[str, float]:
    """Return AUROC and flagged shares of a domain with these detectors; NaN without channels."""
    columns = np.concatenate([np.full(len(of), name in names) for name, of in one.channels.items()]).astype(bool)
    if not columns.any():
        return {"auroc": np.nan, "test": np.nan, "beyond": np.nan}
    channels = [channel for name, of in one.channels.items() if name in names for channel in of]
    rarity = fitted_rarity(one.held_out[:, columns], channels)
    excesses = {kind: rarity.standardised(values[:, columns]) for kind, values in one.values.items()}
    score = np.concatenate([-np.log(rarity.p_values(some)) for some in excesses.values()])
    aurocs = [roc_auc_score(large, score) for large in one.large if 0 < large.sum() < len(large)]
    beyond = np.concatenate([rarity.outside(some) for kind, some in excesses.items() if kind != TEST])
    return {
        "auroc": float(np.mean(aurocs)),
        "test": float(rarity.outside(excesses[TEST]).mean()),
        "beyond": float(beyond.mean()),
    }


def main() -> None:
    """Measure the sets, print the table, and write OUT/detectors.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(SETS), help="these sets")
    parser.add_argument("--share", type=float, default=0.5, help="of the epochs of trust")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="published data")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "trust", help="runs, kept")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sets = [name for name in options.only or SETS if name not in NEEDS or (options.data / NEEDS[name]).exists()]
    every = {name: measured(name, options.data, options.out.resolve(), options.share) for name in sets}
    detectors = list(dict.fromkeys(name for one in every.values() for name in one.channels))
    free = [name for name in detectors if name not in FIXED]
    results: dict[str, dict[str, Any]] = {}
    for count in range(len(free) + 1):
        for some in combinations(free, count):
            results[", ".join(some)] = {name: figures(one, [*FIXED, *some]) for name, one in every.items()}
    (options.out / "detectors.json").write_text(json.dumps(results, indent=1))

    def mean(subset: str, figure: str) -> float:
        return float(np.nanmean([own[figure] for own in results[subset].values()]))

    joint = ", ".join(free)
    lines = {"all": joint} | {f"{name} alone": name for name in free}
    lines |= {f"without {name}": ", ".join(one for one in free if one != name) for name in free}
    best = sorted((s for s in results if mean(s, "auroc") >= mean(joint, "auroc") - WITHIN), key=lambda s: s.count(","))
    lines |= {one: one for one in best[:12]}
    table = Table("detectors", *every, "mean AUROC", "test flagged, %", "beyond flagged, %")
    for label, subset in lines.items():
        aurocs = [f"{own['auroc']:.3f}" for own in results[subset].values()]
        shares = [f"{100 * mean(subset, figure):.1f}" for figure in ("test", "beyond")]
        table.add_row(label, *aurocs, f"{mean(subset, 'auroc'):.3f}", *shares)
    Console(width=180).print(table)


if __name__ == "__main__":
    main()
