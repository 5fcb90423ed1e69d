"""How often intervals hold the truth on graphs that nobody has seen, for the large and the small among them.

    python -m tests.benchmarks.bench_coverage OUT

For every scale of the quickstart: its ensemble (``OUT/NAME/ensemble``; where a quickstart has left none, a small one of the
demo's base configuration is trained, without a search), and one of its members alone. Fresh graphs come from the quickstart's
own generator, of another family than the store. In every draw some of them calibrate and all others judge, with three ways to
make intervals: the earlier one (form without growth, on the validation part that also chose the epoch), the same form on the
drawn graphs, and the form that validation chose on the drawn graphs. Coverage counts graphs alike; thirds are of graphs by their
nodes, and of items by the size of their prediction (of vectors the length). Nothing here chooses anything in the package.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from hydragnn.base.settings import read_toml
from hydragnn.config import config_from_table
from hydragnn.datasets import MemoryStore, open_store
from hydragnn.ensemble.building.build import build_ensemble
from hydragnn.ensemble.building.held_out import joint_split
from hydragnn.ensemble.calibration.numbers import Calibration, rows_of
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.estimates import Labelled
from hydragnn.ensemble.member_outputs import MemberOutputs, member_outputs
from hydragnn.ensemble.metrics import gaussian_crps
from hydragnn.ensemble.numbers import NumberEstimate, moments_of
from hydragnn.graphs import GraphBatch
from hydragnn.models import Target
from hydragnn.runs import train
from hydragnn.scripts.demo.alloys import labelled_alloy, make_alloys
from hydragnn.scripts.demo.plates import labelled_plate, make_plates
from hydragnn.scripts.demo.polycrystals import labelled_polycrystal, make_polycrystals

NOMINAL = 0.9
FRESH_FAMILY = 1
"""Seed of the fresh graphs; the quickstart's stores are of family 0."""
MAKERS: Mapping[str, tuple[Callable[..., None], Callable[..., GraphBatch]]] = {
    "alloys": (make_alloys, labelled_alloy),
    "polycrystals": (make_polycrystals, labelled_polycrystal),
    "plates": (make_plates, labelled_plate),
}
Row = dict[str, Any]


def ensemble_of_scale(name: str, out: Path, options: argparse.Namespace) -> tuple[Ensemble, Path]:
    """The ensemble of a scale and its store, made where the quickstart has left none."""
    folder = out / name
    store, ensemble = folder / f"{name}.h5", folder / "ensemble"
    if not store.exists():
        MAKERS[name][0](store, samples=options.samples)
    if not ensemble.exists():
        demo = Path(__file__).parents[2] / "scripts" / "demo" / f"{name}.toml"
        table = {key: value for key, value in read_toml(demo).items() if key != "search"}
        table["data"]["store"] = str(store.resolve())
        runs = [folder / "runs" / str(seed) for seed in range(options.members)]
        for seed, run in enumerate(runs):
            table["train"] |= {"seed": seed, "epochs": options.epochs}
            train(config_from_table(table, demo), run, resume=run.exists())
        build_ensemble(runs, ensemble)
    return Ensemble.load(ensemble), store


def of_graphs(items: Labelled, graphs: np.ndarray) -> Labelled:
    """The items of some of the graphs."""
    use = np.isin(items.graph, graphs)
    return replace(
        items,
        labels=items.labels[use],
        members=[one.rows(torch.from_numpy(use)) for one in items.members],
        graph=items.graph[use],
        nodes=items.nodes[use],
    )


def graph_mean(values: np.ndarray, graph: np.ndarray) -> float:
    """The mean over graphs of the means of their items."""
    _, group, counts = np.unique(graph, return_inverse=True, return_counts=True)
    return float(np.mean(np.bincount(group, weights=values) / counts))


def thirds_of(inside: np.ndarray, graph: np.ndarray, by: np.ndarray) -> list[float]:
    """Coverage of the items in each third by a quantity, every graph weighing the same."""
    limits = np.quantile(by, [1 / 3, 2 / 3])
    third = np.digitize(by, limits, right=True)
    return [graph_mean(inside[third == k], graph[third == k]) if (third == k).any() else np.nan for k in range(3)]


def score_intervals(target: Target, calibration: Calibration, weights: np.ndarray, fresh: Labelled) -> dict[str, Any]:
    """Coverage, width and CRPS on fresh items; of vectors every component is an item."""
    one = NumberEstimate.of(target, fresh.members, weights, calibration, fresh.nodes)
    width = target.field.width
    graph, nodes = np.repeat(fresh.graph, width), np.repeat(fresh.nodes, width)
    inside = ((one.lower <= fresh.labels) & (fresh.labels <= one.upper)).ravel().astype(np.float64)
    crps = gaussian_crps(fresh.labels.ravel(), one.mean.ravel(), one.std.ravel())
    magnitude = rows_of(target.field, moments_of(fresh.members, weights), fresh.nodes).magnitude.ravel()
    return {
        "coverage": graph_mean(inside, graph),
        "by_nodes": thirds_of(inside, graph, nodes),
        "by_magnitude": thirds_of(inside, graph, magnitude),
        "width": graph_mean((one.upper - one.lower).ravel(), graph),
        "crps": graph_mean(crps, graph),
    }


def ways(target: Target, valid: Labelled, drawn: Labelled, weights: np.ndarray) -> dict[str, Calibration]:
    """The earlier intervals, their form on drawn graphs, and the chosen form on drawn graphs."""
    fit = partial(NumberEstimate.calibration, target)
    return {
        "earlier, on validation": fit(valid, None, weights, NOMINAL),
        "earlier form": fit(drawn, None, weights, NOMINAL),
        "chosen form": fit(valid, drawn, weights, NOMINAL),
    }


def field_rows(
    target: Target, valid: Labelled, pool: Labelled, weights: np.ndarray, options: argparse.Namespace
) -> dict[str, Row]:
    """For every way its mean scores over the draws, and the standard deviation of coverage between them."""
    actual: dict[str, list[dict[str, Any]]] = {}
    words: dict[str, str] = {}
    graphs = np.unique(pool.graph)
    for draw in range(options.draws):
        order = np.random.default_rng(draw).permutation(graphs)
        drawn = of_graphs(pool, order[: options.calibration])
        fresh = of_graphs(pool, order[options.calibration :])
        for way, calibration in ways(target, valid, drawn, weights).items():
            actual.setdefault(way, []).append(score_intervals(target, calibration, weights, fresh))
            words[way] = calibration.form.words(calibration.follows)
    return {
        way: {
            **{key: np.mean([one[key] for one in scores], axis=0).tolist() for key in scores[0]},
            "coverage_std": float(np.std([one["coverage"] for one in scores])),
            "widths": words[way],
        }
        for way, scores in actual.items()
    }


def alone(items: Labelled) -> Labelled:
    """What the first member says."""
    return replace(items, members=items.members[:1])


def scale_rows(name: str, out: Path, options: argparse.Namespace) -> list[Row]:
    """The rows of all fields of a scale, for the ensemble and for one member alone."""
    ensemble, path = ensemble_of_scale(name, out, options)
    store = open_store(path)
    fresh = MemoryStore([MAKERS[name][1](number, FRESH_FAMILY) for number in range(options.fresh)], store.attributes)
    split = joint_split(ensemble.members, store)

    def output(where: Any, graphs: np.ndarray) -> MemberOutputs:
        return member_outputs(ensemble.members, where, graphs, ensemble.needed(where))

    valid, pool = output(store, split.valid), output(fresh, np.arange(len(fresh)))
    rows = []
    for target in ensemble.targets:
        for row in target_rows(ensemble, target, valid, pool, options):
            rows.append({"scale": name, **row})
    return rows


def target_rows(
    ensemble: Ensemble, target: Target, valid: MemberOutputs, pool: MemberOutputs, options: argparse.Namespace
) -> list[Row]:
    """The rows of a field, for all members and for the first alone."""
    parts = valid.labelled(target, "valid"), pool.labelled(target, "calibration")
    speakers = {
        f"{len(ensemble.members)} members": (parts, ensemble.weights),
        "one member": (tuple(alone(part) for part in parts), np.ones(1)),
    }
    return [
        {"field": target.name, "who": who, "way": way, **scores}
        for who, ((on_valid, on_pool), weights) in speakers.items()
        for way, scores in field_rows(target, on_valid, on_pool, weights, options).items()
    ]


def table_of(rows: Sequence[Row]) -> Table:
    """The rows for people."""
    table = Table("field", "who", "way", "coverage", "by nodes", "by magnitude", "width", "CRPS", "widths")

    def shares(values: Sequence[float]) -> str:
        return " ".join("-" if np.isnan(value) else f"{100 * value:.0f}" for value in values)

    for row in rows:
        coverage = f"{100 * row['coverage']:.1f} ± {100 * row['coverage_std']:.1f}"
        thirds = shares(row["by_nodes"]), shares(row["by_magnitude"])
        sizes = f"{row['width']:.4g}", f"{row['crps']:.4g}"
        table.add_row(row["field"], row["who"], row["way"], coverage, *thirds, *sizes, row["widths"])
    return table


def main() -> None:
    """Make what is missing, judge, print tables and write OUT/coverage.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of a quickstart, or of small ensembles that are made here")
    parser.add_argument("--scale", action="append", choices=list(MAKERS), help="only these scales")
    parser.add_argument("--samples", type=int, default=350, help="graphs of a store that is made here")
    parser.add_argument("--epochs", type=int, default=15, help="epochs of members that are trained here")
    parser.add_argument("--members", type=int, default=3, help="members of an ensemble that is made here")
    parser.add_argument("--fresh", type=int, default=400, help="fresh graphs")
    parser.add_argument("--calibration", type=int, default=50, help="of these, how many calibrate in a draw")
    parser.add_argument("--draws", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for name in options.scale or MAKERS:
        actual = scale_rows(name, options.out, options)
        Console(width=190).print(table_of(actual))
        rows += actual
    settings = {key: value for key, value in vars(options).items() if key != "out"}
    (options.out / "coverage.json").write_text(json.dumps({"options": settings, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
