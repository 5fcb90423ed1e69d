"""Do intervals hold over trainings with splits and weights of their own, for the large and the small?

    python -m tests.benchmarks.bench_intervals DATA OUT [--seeds 10] [--only NAME]     DATA is the folder of real data

For every data set of ``interval_sets`` and every seed: a split drawn with the seed, small members with weights of their own, and
``build_ensemble`` as a user calls it. The test part judges and has chosen nothing. Per field: coverage of 90 % intervals over seeds, graphs
weighing the same; coverage in thirds by the nodes of graphs and by the size of predictions; mean width and CRPS over those of the
first version's intervals (one form, on validation), the width at equal coverage: the first version's widths are multiplied by the one
factor that gives them the coverage of the others on the test part. Below: how many test graphs are flagged as foreign. What is done is found again,
so that the command may be interrupted.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from hydragnn.config import config_from_table
from hydragnn.datasets import StoreWriter, open_store
from hydragnn.ensemble.building.build import build_ensemble
from hydragnn.ensemble.building.held_out import calibrating_split
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.estimates.calibration.numbers import Calibration
from hydragnn.ensemble.estimates.estimate import Labelled
from hydragnn.ensemble.estimates.metrics import rank_correlation
from hydragnn.ensemble.estimates.numbers import NumberEstimate, member_means
from hydragnn.ensemble.members.outputs import member_outputs
from hydragnn.models import Point, Target
from hydragnn.runs import train
from tests.benchmarks.interval_scores import NOMINAL, alone, score_intervals
from tests.benchmarks.interval_sets import SETS, IntervalSet

Row = dict[str, Any]
PARTS = ("valid", "calibration", "test")


def ensemble_of(one: IntervalSet, data: Path, folder: Path, seed: int, members: int) -> tuple[Ensemble, Path]:
    """The ensemble of a seed and the store of its set, each made once and found again."""
    store, out = (folder / "graphs.h5").resolve(), folder / str(seed) / "ensemble"
    if not store.exists():
        folder.mkdir(parents=True, exist_ok=True)
        graphs = one.graphs(data)
        with StoreWriter(store, [*graphs[0].fields.values()], dim=graphs[0].dim) as writer:
            for graph in graphs:
                writer.write(graph)
    if not out.exists():
        own = one.table(data)
        runs = [folder / str(seed) / "members" / str(number) for number in range(members)]
        for number, run in enumerate(runs):
            table = {
                **own,
                "data": {"store": str(store)},
                "split": {**own["split"], "seed": seed},
                "train": {**own["train"], "seed": 100 * seed + number},
            }
            record = train(config_from_table(table, store), run, resume=run.exists())
            print(f"{folder.name} seed {seed} member {number}: {record.cost.cpu_seconds:.0f} s", flush=True)
        build_ensemble(runs, out)
    return Ensemble.load(out), store


def labelled_parts(ensemble: Ensemble, path: Path, folder: Path) -> Mapping[str, Mapping[str, Labelled]]:
    """By target and by the part that they stand for the items of validation, calibration and test; kept in the folder."""
    kept = folder / "parts.npz"
    if not kept.exists():
        store = open_store(path)
        (split, _), read = calibrating_split(ensemble.members, store), ensemble.needed(store)
        arrays: dict[str, NDArray[Any]] = {}
        for part, graphs in (("valid", split.valid), ("calibration", split.calibration), ("test", split.test)):
            outputs = member_outputs(ensemble.members, store, graphs, read)
            for target in ensemble.targets:
                items = outputs.labelled(target)
                own = {"labels": items.labels, "graph": items.graph, "nodes": items.nodes}
                arrays |= {f"{target.name}/{part}/{key}": values for key, values in own.items()}
                arrays[f"{target.name}/{part}/members"] = member_means(items.members)
        np.savez_compressed(kept, allow_pickle=False, **arrays)
    with np.load(kept) as arrays:
        return {
            target.name: {
                part: Labelled(
                    members=[Point(mean=torch.from_numpy(one)) for one in arrays[f"{target.name}/{part}/members"]],
                    **{key: arrays[f"{target.name}/{part}/{key}"] for key in ("labels", "graph", "nodes")},
                )
                for part in PARTS
            }
            for target in ensemble.targets
        }


def seed_rows(name: str, one: IntervalSet, data: Path, out: Path, seed: int, members: int) -> tuple[list[Row], float]:
    """Of every field, for the ensemble and its first member alone; and the share of test graphs that is flagged."""
    ensemble, path = ensemble_of(one, data, out / name, seed, members)
    items = labelled_parts(ensemble, path, out / name / str(seed))
    rows: list[Row] = []
    for target in ensemble.targets:
        of_all = [items[target.name][part] for part in PARTS]
        speakers = {f"{members} members": (of_all, ensemble.weights)}
        speakers["one member"] = [alone(part) for part in of_all], np.ones(1)
        sizes = {part: len(np.unique(own.graph)) for part, own in items[target.name].items()}
        for who, ((valid, apart, fresh), weights) in speakers.items():
            now = NumberEstimate.calibration(target, valid, apart, weights, NOMINAL)
            earlier = NumberEstimate.calibration(target, valid, None, weights, NOMINAL)
            rows.append(
                {"set": name, "seed": seed, "field": target.name, "who": who, "sizes": sizes, "widths": now.sentence}
                | compared(target, now, earlier, weights, fresh)
            )
    flagged = json.loads((out / name / str(seed) / "ensemble" / "evaluation.json").read_text())["domain"]["flagged"]
    return rows, flagged["test"]


def compared(
    target: Target, now: Calibration, earlier: Calibration, weights: NDArray[np.float64], fresh: Labelled
) -> Row:
    """Scores of the intervals, and the ratios to the earlier ones."""
    scores, before = (score_intervals(target, one, weights, fresh) for one in (now, earlier))
    one = NumberEstimate.of(target, fresh.members, weights, earlier, fresh.nodes)
    factor = factor_of_coverage(one, fresh, scores["coverage"])
    actual = NumberEstimate.of(target, fresh.members, weights, now, fresh.nodes)
    error = np.abs(fresh.labels - actual.mean)
    return {
        **scores,
        "earlier": before,
        "width_ratio": scores["width"] / (factor * before["width"]),
        "crps_ratio": scores["crps"] / before["crps"],
        "spearman": rank_correlation(error.ravel(), actual.std.ravel()),
    }


def factor_of_coverage(one: NumberEstimate, fresh: Labelled, coverage: float) -> float:
    """What half-widths are multiplied with to hold this share of the truth, every graph weighing the same."""
    graph = np.repeat(fresh.graph, one.field.width)
    needed = (np.abs(fresh.labels - one.mean) / (one.upper - one.mean)).ravel()
    _, inverse, counts = np.unique(graph, return_inverse=True, return_counts=True)
    order = np.argsort(needed)
    reached = np.cumsum(1 / (len(counts) * counts[inverse][order]))
    return float(needed[order[min(np.searchsorted(reached, coverage - 1e-9), len(order) - 1)]])


def mean_of(rows: Sequence[Row], *path: str) -> NDArray[np.float64]:
    """The mean over rows of a number or list; NaN where no row has it."""
    values = []
    for row in rows:
        value: Any = row
        for key in path:
            value = value[key]
        values.append(value)
    table = np.array(values, dtype=np.float64)
    known = np.isfinite(table)
    return np.where(known, table, 0.0).sum(axis=0) / np.where(known.any(axis=0), known.sum(axis=0), np.nan)


def table_of(rows: Sequence[Row]) -> Table:
    """Means over seeds for people."""
    table = Table(
        "set", "field", "who", "seeds", "coverage", "by nodes", "by magnitude", "earlier", "width", "CRPS", "rank"
    )

    def shares(values: NDArray[np.float64]) -> str:
        return " ".join("-" if np.isnan(value) else f"{100 * value:.0f}" for value in values)

    for key in dict.fromkeys((row["set"], row["field"], row["who"]) for row in rows):
        own = [row for row in rows if (row["set"], row["field"], row["who"]) == key]
        table.add_row(
            *key,
            str(len(own)),
            f"{100 * mean_of(own, 'coverage'):.1f} ± {100 * np.std([row['coverage'] for row in own]):.1f}",
            shares(mean_of(own, "by_nodes")),
            shares(mean_of(own, "by_magnitude")),
            f"{100 * mean_of(own, 'earlier', 'coverage'):.0f}: {shares(mean_of(own, 'earlier', 'by_magnitude'))}",
            f"{mean_of(own, 'width'):.3g} ({mean_of(own, 'width_ratio'):.2f})",
            f"{mean_of(own, 'crps'):.3g} ({mean_of(own, 'crps_ratio'):.2f})",
            f"{mean_of(own, 'spearman'):.2f}",
        )
    return table


def table_of_alarms(alarms: Mapping[str, Sequence[float]], sizes: Mapping[str, Mapping[str, int]]) -> Table:
    """Shares of test graphs that are flagged, over seeds."""
    table = Table("set", "graphs", "flagged, mean", "worst")
    for name, shares in alarms.items():
        table.add_row(name, str(dict(sizes[name])), f"{100 * np.mean(shares):.1f} %", f"{100 * max(shares):.1f} %")
    return table


def main() -> None:
    """Make what is missing, judge, print tables and write OUT/intervals.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path, help="keeps stores, runs and ensembles")
    parser.add_argument("--only", action="append", choices=list(SETS), help="these data sets")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--members", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    alarms: dict[str, list[float]] = {}
    for seed in range(options.seeds):
        for name in options.only or SETS:
            own, flagged = seed_rows(name, SETS[name], options.data, options.out, seed, options.members)
            rows += own
            alarms.setdefault(name, []).append(flagged)
    console = Console(width=200)
    console.print(table_of(sorted(rows, key=lambda row: [*SETS].index(row["set"]))))
    console.print(table_of_alarms(alarms, {row["set"]: row["sizes"] for row in rows}))
    (options.out / "intervals.json").write_text(json.dumps({"rows": rows, "flagged": alarms}, indent=1))


if __name__ == "__main__":
    main()
