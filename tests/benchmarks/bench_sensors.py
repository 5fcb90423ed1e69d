"""Sensors of a heat network: forecasts beside linear autoregression and boosted trees, and a roll-out.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.bench_sensors OUT

Water of two plants reaches 38 nodes through pipes; every other node mixes two. What leaves a pipe has cooled for as long as it was in there: minutes by day, hours
by night. Consumers draw by hour, weather and chance; plants follow weather, night, and a dispatch that jumps. Readings have noise of .3 K, and a tenth is missing.
All models have the same windows of two hours, weather to come and split of time. Prints mean absolute errors of the test part in K against readings, and the share
of these in 90 % intervals, 10 minutes, 1 and 2 hours ahead. Intervals of baselines are quantiles of calibration errors, by node; ridge penalties are chosen on
validation. Finished runs in OUT are taken as they are, and heat-network.png shows the middle test window.
"""

import csv
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import pyplot
from numpy.typing import NDArray
from scipy.signal import lfilter
from sklearn.ensemble import HistGradientBoostingRegressor

import hydragnn
from hydragnn.datasets import DiskStore, make_split, open_store
from hydragnn.datasets.settings import SplitSettings
from hydragnn.ensemble import Ensemble, rollout, spread_factors
from hydragnn.graphs import GraphBatch

Array = NDArray[np.float64]
Rows = NDArray[np.int64]
NODES, PLANTS, DAYS, WINDOW, AHEAD, SEEDS, EPOCHS = 40, 2, 30, 12, 12, 3, 12
LEADS = (0, 5, 11)
WEATHER = ("outside", "day_sin", "day_cos")
SPLIT = {"train": 0.6, "valid": 0.1, "calibration": 0.15}
PIPE = ("length", "area", "share", "downstream")
FIELDS: list[dict[str, Any]] = [
    *({"name": name, "on": "node"} for name in ("plant", "depth", "flow")),
    *({"name": name, "on": "edge"} for name in PIPE),
    *({"name": name, "on": "graph"} for name in WEATHER),
    {"name": "temperature", "on": "node", "unit": "K"},
    {"name": "ahead", "on": "node", "unit": "K", "role": "target", "key": "temperature"},
]
HEAD = {"kind": "scalar", "field": "ahead", "correction_of": "temperature_last", "loss": "mae", "hidden_dims": [64]}


def red_noise(random: np.random.Generator, steps: int, hours: float, size: int = 1) -> Array:
    """Return noise of unit deviation that forgets in so many hours."""
    keep = np.exp(-1 / (60 * hours))
    return np.asarray(lfilter([np.sqrt(1 - keep**2)], [1, -keep], random.normal(size=(steps, size)), axis=0))


def tables_of(days: int) -> dict[str, list[Any]]:
    """Return tables of a simulated network, with noise and gaps."""
    random, minute = np.random.default_rng(0), np.arange((days + 1) * 1440)
    hour, steps = minute / 60 % 24, len(minute)
    outside = 3 - 4 * np.cos(np.pi * (hour - 3) / 12) + 5 * red_noise(random, steps, 60)[:, 0]
    phase, base = random.normal(0, 1, NODES), random.uniform(0.4, 1.6, NODES) * (np.arange(NODES) >= PLANTS)
    day = sum(np.exp(-((((hour[:, None] - peak - phase + 12) % 24) - 12) ** 2) / 6) for peak in (7.5, 19))
    flow = base * (0.3 + day) * np.clip(20 - outside, 2, None)[:, None] / 17
    flow *= np.exp(0.25 * red_noise(random, steps, 1.5, NODES))
    ends: list[tuple[int, int, float]] = []  # parent, node, share
    for node in range(PLANTS, NODES):
        parents = random.choice(np.arange(max(0, node - 7), node), 1 + node % 2, replace=False)
        share = random.uniform(0.3, 0.7) if node % 2 else 1.0
        ends += [(int(parent), node, one) for parent, one in zip(parents, (share, 1 - share))]
    for parent, node, share in reversed(ends):
        flow[:, parent] += share * flow[:, node]
    temperature, depth = np.zeros_like(flow), np.zeros(NODES)
    for plant in range(PLANTS):
        jumps = np.repeat(random.normal(0, 4, steps // 90 + 1), 90)[:steps] + red_noise(random, steps, 0.5)[:, 0]
        temperature[:, plant] = 85 - 1.1 * outside + np.where((hour > 22) | (hour < 4.5), -6.0, 0.0) + jumps
    names, pipes = [f"n{node}" for node in range(NODES)], []
    for parent, node, share in ends:
        through, length = share * flow[:, node] / 1000, random.uniform(150, 900)  # m^3/s, m
        area, volume = through.mean() / 0.4, np.cumsum(through * 60)  # .4 m/s on average
        entered = np.interp(volume - area * length, volume, minute, left=0)
        cooling = np.exp(-(minute - entered) * 60 * 1e-6 / np.sqrt(area))
        temperature[:, node] += share * (8 + (np.interp(entered, minute, temperature[:, parent]) - 8) * cooling)
        depth[node] += share * (depth[parent] + length)
        both = ((names[parent], names[node], 1), (names[node], names[parent], 0))
        pipes += [[one, other, length, area, share, down] for one, other, down in both]
    chosen = np.arange(1440, steps, 10)  # a day to warm up
    times = [str(np.datetime64("2026-01-01T00:00") + int(one)) for one in minute[chosen]]
    weather = [outside[chosen], np.sin(np.pi * hour[chosen] / 12), np.cos(np.pi * hour[chosen] / 12)]
    tables: dict[str, list[Any]] = {
        "nodes": [["sensor", "plant", "depth"], *zip(names, [1] * PLANTS + [0] * NODES, depth)],
        "pipes": [["sender", "receiver", *PIPE], *pipes],
        "weather": [["time", *WEATHER], *zip(times, *weather)],
    }
    for name, values, noise in (("temperature", temperature, 0.3), ("flow", flow, 0.05)):
        read = values[chosen] + noise * random.normal(size=(len(chosen), NODES))
        read[random.random(read.shape) < 0.04] = np.nan
        for start, node in zip(random.integers(0, len(read), len(read) // 10), random.integers(0, NODES, len(read))):
            read[start : start + random.geometric(1 / 24), node] = np.nan
        tables[name] = [["time", *names], *([time, *row] for time, row in zip(times, read.round(3)))]
    return tables


def ridge(inputs: Array, target: Array, parts: Mapping[str, Rows]) -> Array:
    """Return ridge predictions of all rows, the penalty chosen on validation."""
    inputs = (inputs - inputs[parts["train"]].mean(0)) / (inputs[parts["train"]].std(0) + 1e-6)
    inputs = np.column_stack([inputs, np.ones(len(inputs))])
    train, valid = ([row for row in parts[name] if not np.isnan(target[row])] for name in ("train", "valid"))
    values, vectors = np.linalg.eigh(inputs[train].T @ inputs[train])
    right, turned = vectors.T @ (inputs[train].T @ target[train]), inputs @ vectors
    courses = [turned @ (right / (np.maximum(values, 0) + penalty)) for penalty in 10.0 ** np.arange(5)]
    return min(courses, key=lambda course: float(np.abs(course[valid] - target[valid]).mean()))


def baselines(store: DiskStore, parts: Mapping[str, Rows]) -> dict[str, Callable[[int], Array]]:
    """Return predictions ``[windows, nodes]`` of each baseline by lead."""
    names = ("temperature", "temperature_observed", "flow", "temperature_last", "ahead")
    windows, observed, flow, last, ahead = (
        store.column(name).values.reshape(len(store), NODES, -1).astype(float) for name in names
    )
    known = np.concatenate([store.column(name).values[:, WINDOW - 1 :] for name in WEATHER], axis=1)
    graph, upstream = store[[0]], np.zeros((NODES, NODES))
    down = graph["downstream"] > 0
    upstream[graph.receivers[down], graph.senders[down]] = graph["share"][down]
    own, both = np.concatenate([windows, observed, flow], axis=2), np.concatenate([windows, flow], axis=2)
    near = np.concatenate([own, np.einsum("np,wpt->wnt", upstream, both)], axis=2)
    constant = np.broadcast_to(np.stack([graph["plant"], graph["depth"]], axis=1), (len(store), NODES, 2))
    wide = np.broadcast_to(known[:, None, 1::3], (len(store), NODES, len(known[0, 1::3])))
    features = np.concatenate([near, constant, wide], axis=2).reshape(len(store) * NODES, -1).astype(np.float32)

    def linear(lead: int, inputs: Array, *more: Array) -> Array:
        changes = ahead[..., lead] - last[..., 0]
        courses = [ridge(np.column_stack([inputs[:, n], known, *more]), changes[:, n], parts) for n in range(NODES)]
        return last[..., 0] + np.stack(courses, axis=1)

    def trees(lead: int, seed: int) -> Array:
        changes = (ahead[..., lead] - last[..., 0]).reshape(-1)
        train = (parts["train"][:, None] * NODES + np.arange(NODES)).reshape(-1)
        train = train[~np.isnan(changes[train])]
        model = HistGradientBoostingRegressor(max_iter=150, random_state=seed, early_stopping=False, max_features=0.5)
        return last[..., 0] + model.fit(features[train], changes[train]).predict(features).reshape(len(store), NODES)

    inputs = {"its window": [own], "its and upstream": [near], "all windows": [own, both.reshape(len(store), -1)]}
    found: dict[str, Callable[[int], Array]] = {"last value": lambda lead: last[..., 0]}
    found |= {f"linear, {name}": lambda lead, one=one: linear(lead, *one) for name, one in inputs.items()}
    return found | {f"boosted trees, seed {seed}": lambda lead, seed=seed: trees(lead, seed) for seed in range(SEEDS)}


def courses(model: Ensemble, store: DiskStore, part: Rows) -> tuple[list[Any], list[Any]]:
    """Return roll-outs of two hours, one after the other, and their truths."""
    batches = [[store[[int(start) + step]] for step in range(AHEAD)] for start in part[: 1 - AHEAD : AHEAD]]
    rolled = [rollout(model, graphs[0], AHEAD, later=graphs[1:]) for graphs in batches]
    return rolled, [{"temperature": torch.stack([one["ahead"][:, :1] for one in graphs])} for graphs in batches]


def show(name: str, errors: Array, widths: Array | None = None) -> None:
    """Print a row: errors ``[..., leads]`` and how many are within a width."""
    cells = [f"{one:.3f}" for one in np.nanmean(np.abs(errors).reshape(-1, len(LEADS)), axis=0)]
    if widths is not None:
        inside = np.where(np.isnan(errors), np.nan, np.abs(errors) <= widths).reshape(-1, len(LEADS))
        cells += [f"{100 * one:.1f}" for one in np.nanmean(inside, axis=0)]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def draw(graph: GraphBatch, forecast: Any, path: Path) -> None:
    """Draw a network by temperature, and forecasts of three of its nodes."""
    figure, axes = pyplot.subplot_mosaic([["map", name] for name in "abc"], figsize=(12, 5), layout="constrained")
    depth, height = graph["depth"].numpy(), np.random.default_rng(0).random(NODES)
    ends = torch.stack([graph.senders, graph.receivers])[:, graph["downstream"] > 0].numpy()
    axes["map"].plot(depth[ends], height[ends], color="0.8", zorder=1)
    points = axes["map"].scatter(depth, height, c=graph["temperature"][:, -1].numpy(), cmap="inferno", zorder=2)
    figure.colorbar(points, ax=axes["map"], label="temperature now, degC")
    axes["map"].set(xlabel="metres of pipes from the plants", yticks=[])
    past, ahead = np.arange(1 - WINDOW, 1) / 6, np.arange(1, AHEAD + 1) / 6
    for name, node in zip("abc", np.argsort(depth)[[NODES // 5, NODES // 2, -1]]):
        read = graph["temperature_observed"][node].numpy() > 0
        axes[name].plot(past[read], graph["temperature"][node].numpy()[read], "k.")
        axes[name].plot(ahead, graph["ahead"][node].numpy(), "ko", fillstyle="none", markersize=4)
        axes[name].plot(ahead, forecast.mean[node])
        axes[name].fill_between(ahead, forecast.lower[node], forecast.upper[node], alpha=0.25)
        axes[name].set(ylabel=f"{depth[node] / 1000:.1f} km")
    axes["a"].set_title("readings, later ones (open), forecast with 90 % band")
    axes["c"].set_xlabel("hours from now")
    figure.savefig(path)


if __name__ == "__main__":
    out, place = Path(sys.argv[1]), Path(sys.argv[1]) / "heat.h5"
    if not place.exists():
        out.mkdir(parents=True, exist_ok=True)
        for name, rows in tables_of(DAYS).items():
            with (out / f"{name}.csv").open("w", newline="") as file:
                csv.writer(file).writerows(rows)
        rule = {
            "kind": "sensors",
            "window": WINDOW,
            "ahead": AHEAD,
            "zone": "UTC",
            "known": [*WEATHER],
            "fields": FIELDS,
        }
        rule |= {"files": [str(out / f"{name}.csv") for name in ("temperature", "flow", "weather")]}
        hydragnn.build_store(rule | {"sensors": str(out / "nodes.csv"), "edges": str(out / "pipes.csv")}, place)
    runs = [out / f"run-{seed}" for seed in range(SEEDS)]
    for seed, run in enumerate(runs):
        train = {"epochs": EPOCHS, "learning_rate": 3e-3, "seed": seed}
        model = {"kind": "pna", "hidden_dim": 32, "num_layers": 4}
        table = {"data": {"store": str(place)}, "model": model, "heads": [HEAD], "split": SPLIT, "train": train}
        if not run.exists():
            hydragnn.train(table | {"batch": {"max_graphs": 16}}, run)
    if not (out / "ensemble").exists():
        hydragnn.build_ensemble(runs, out / "ensemble")
    store, ensemble = open_store(place), hydragnn.load(out / "ensemble")
    split = make_split(store, SplitSettings.parse(SPLIT))
    parts = {name: getattr(split, name) for name in split.counts}
    truth = store.column("ahead").values.reshape(len(store), NODES, AHEAD).astype(float)[..., LEADS]
    test = truth[parts["test"]]
    print(split.counts, f"{100 * np.isnan(truth).mean():.1f} % of targets are missing")
    for name, forecast in baselines(store, parts).items():
        errors = np.stack([forecast(lead) for lead in LEADS], axis=-1) - truth
        show(name, errors[parts["test"]], np.nanquantile(np.abs(errors[parts["calibration"]]), 0.9, axis=0))
    for run in [*runs, out / "ensemble"]:
        found = hydragnn.load(run).predict(store.read(parts["test"]))["ahead"]
        mean, *ends = (one.reshape(-1, NODES, AHEAD)[..., LEADS] for one in (found.mean, found.lower, found.upper))
        inside = np.where((ends[0] <= test) & (test <= ends[1]), np.inf, 0)
        show(f"graphs, {run.name}", mean - test, inside if run not in runs else None)
    show("the same, at starts of roll-outs", (mean - test)[: 1 - AHEAD : AHEAD], inside[: 1 - AHEAD : AHEAD])
    some = store[[int(parts["test"][len(parts["test"]) // 2])]]
    draw(some, ensemble.predict(some)["ahead"], out / "heat-network.png")
    factors = spread_factors(*courses(ensemble, store, parts["calibration"]), nominal=0.9)
    rolled, truths = courses(ensemble, store, parts["test"])
    errors = torch.stack([one.mean("temperature") - true["temperature"] for one, true in zip(rolled, truths)])
    widths = torch.stack([one.scaled(factors).spread("temperature") for one in rolled])
    show("graphs, roll-out", *(one[:, LEADS, :, 0].swapaxes(1, 2).numpy() for one in (errors, widths)))
