"""Field tokens and EGNN on shallow water on a sphere: roll-outs of 72 steps beside persistence and a linear predictor.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.bench_sphere OUT [--seeds 3] [--part valid]

Runs like Williamson's case 2 (a bump of water on a turned flow) and case 5 (a mountain somewhere) are netCDF files with a frame every hour, built into
stores on an icosahedral mesh. Heights and velocities are departures from the run's steady zonal flow, which is an input beside them. Edges have what
multiplies departures in the equations. Training graphs are turned and mirrored by symmetries of the mesh, with noise on the inputs. Both models have the same
inputs, heads, loss weights and seconds. Roll-outs begin at the first frames of runs that no training has seen, and of both cases themselves; settings were
chosen on the part ``valid``. Finished parts in OUT are taken as they are.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.spatial import cKDTree

import hydragnn
from hydragnn.datasets import StoreWriter, open_store
from hydragnn.ensemble import rollout
from hydragnn.ensemble.estimates.metrics import volume_scores
from hydragnn.graphs import Field
from tests.benchmarks.sphere_water import CASE_2, CASE_5, Run, random_run, write_course

HOURS, STEPS, REFINEMENT, COPIES = 1, 72, 2, 4
PARTS: dict[str, list[Run]] = {
    "train": [random_run(number) for number in range(24)],
    "valid": [random_run(number) for number in range(500, 506)],
    "test": [*(random_run(number) for number in range(1000, 1008)), CASE_2, CASE_5],
}
GROUPS: dict[str, dict[str, tuple[int, ...]]] = {
    "valid": {"like case 2": (0, 2, 4), "like case 5": (1, 3, 5)},
    "test": {"like case 2": (0, 2, 4, 6), "like case 5": (1, 3, 5, 7), "case 2": (8,), "case 5": (9,)},
}
"""Numbers of the runs of a part."""
NOISE = 0.1
"""Deviation of the noise on heights and velocities of training inputs, over that of the field; targets have none."""
GEOMETRY = {"cutoff": 0.7, "num_radial": 4, "radial": "gaussian"}
MODELS: dict[str, dict[str, Any]] = {
    "field_tokens": {"hidden_dim": 32, "num_layers": 2, **GEOMETRY},
    "egnn": {"hidden_dim": 32, "num_layers": 2, **GEOMETRY},
}
EPOCHS = {"field_tokens": 2, "egnn": 4}
PARTS_OF_COURSES = {"step 6": slice(5, 6), "all steps": slice(0, STEPS), "step 72": slice(STEPS - 1, STEPS)}
NAMES = ("height", "velocity")
COEFFICIENTS = [
    Field(name="spin", on="edge", shape=(3,), unit="1/s"),
    Field(name="depth", on="edge", shape=(3,), unit="m"),
    Field(name="flow", on="edge", unit="m/s"),
]
INPUTS = [*NAMES, "steady_velocity", "mean_height", "orography", "coriolis", "normal", "direction"]
INPUTS += [field.name for field in COEFFICIENTS]
WEIGHTS = {"height": 1.7, "velocity": 1.0}
"""Loss weights: (deviation of the field / of its change in a step)^2, over that of velocities."""


def build_table(folder: Path) -> dict[str, Any]:
    """Return the BUILD.toml of runs in a folder."""
    height = {"on": "node", "unit": "m", "key": "departed_height"}
    velocity = {"on": "node", "unit": "m/s", "shape": [3], "key": ["departed_u", "departed_v"]}
    later = {"step": 1, "role": "target"}
    fields = [
        {"name": "height", **height},
        {"name": "velocity", **velocity},
        {"name": "steady_height", **height, "key": "steady_height"},
        {"name": "steady_velocity", **velocity, "key": ["steady_u", "steady_v"]},
        {"name": "mean_height", "on": "node", "unit": "m"},
        {"name": "orography", "on": "node", "unit": "m"},
        {"name": "coriolis", "on": "node", "unit": "1/s"},
        {"name": "normal", "on": "node", "shape": [3]},
        {"name": "direction", "on": "edge", "shape": [3]},
        {"name": "volume", "on": "node", "role": "auxiliary"},
        {"name": "next_height", **height, **later},
        {"name": "next_velocity", **velocity, **later},
    ]
    files = [str(folder / "*.nc")]
    return {"kind": "climate", "files": files, "joined": False, "refinement": REFINEMENT, "fields": fields}


def write_stores(out: Path) -> None:
    """Write the files and stores that are not there yet."""
    for part, runs in PARTS.items():
        if not (out / f"{part}.h5").exists():
            (out / part).mkdir(exist_ok=True)
            write_course(runs, [out / part / f"{number:03}.nc" for number in range(len(runs))], STEPS + 1, HOURS)
            hydragnn.build_store(build_table(out / part), out / f"{part}.h5")
    if not (out / "turned.h5").exists():
        write_turned(open_store(out / "train.h5"), out / "turned.h5")


def symmetries(points: Any, neighbours: Any) -> tuple[Any, Any]:
    """Return the 120 turns and mirrors of an icosahedral mesh, and the node that each brings to a place."""
    corners, frames = points[neighbours == 5], []
    cosines = corners @ corners.T
    for mirror in (1, -1):
        for a, b in np.argwhere(abs(cosines - 5**-0.5) < 1e-3):
            up, along = corners[a], corners[b] - cosines[a, b] * corners[a]
            along = along / np.linalg.norm(along)
            frames.append(np.stack([along, mirror * np.cross(up, along), up], 1))
    turns = np.stack(frames) @ frames[0].T
    away, sources = cKDTree(points).query(points @ turns)
    assert away.max() < 1e-4
    return turns, sources


def with_coefficients(batch: Any) -> Any:
    """Return graphs with what multiplies departures in the equations: f n, H r and u . r, of edges along r."""
    along, ends = batch["direction"], (batch.receivers, batch.senders)
    water = batch["mean_height"] + batch["steady_height"] - batch["orography"]
    depth, flow = (sum(one[end] for end in ends) / 2 for one in (water, batch["steady_velocity"]))
    spin = (batch["coriolis"].unsqueeze(1) * batch["normal"])[batch.receivers]
    values = {"spin": spin, "depth": depth.unsqueeze(1) * along, "flow": (flow * along).sum(1)}
    return batch.with_fields(values, fields=COEFFICIENTS)


def write_turned(store: Any, path: Path) -> None:
    """Write copies of every graph, each turned or mirrored at random, with noise."""
    one, random, noise = store[[0]], np.random.default_rng(0), torch.Generator().manual_seed(0)
    levels = {name: NOISE * float(store[:][name].std()) for name in NAMES}
    points, count = one.positions.double().numpy(), one.num_nodes
    points = points / np.linalg.norm(points, axis=1, keepdims=True)
    turns, sources = symmetries(points, np.bincount(one.receivers.numpy()))
    fields, texts = [*store.fields(), *COEFFICIENTS], tuple(store.texts)
    with StoreWriter(path, fields, dim=3, attributes=store.attributes, texts=texts) as writer:
        for start in list(range(0, len(store), STEPS)) * COPIES:
            batch, chosen = store[list(range(start, start + STEPS))], random.integers(len(turns), size=STEPS)
            rows = torch.as_tensor((sources[chosen] + count * np.arange(STEPS)[:, None]).ravel())
            turn, nodes = torch.as_tensor(turns[chosen], dtype=torch.float32), dict(batch.nodes)
            for name in set(nodes) - {"normal", "volume"}:
                values = nodes[name][rows]
                if values.dim() == 2:
                    values = torch.einsum("gab,gnb->gna", turn, values.view(STEPS, count, 3)).reshape(-1, 3)
                if name == "coriolis":  # a mirror turns the planet the other way
                    values = values * torch.linalg.det(turn).round().repeat_interleave(count)
                nodes[name] = values
            for name, level in levels.items():
                nodes[name] = nodes[name] + level * torch.randn(nodes[name].shape, generator=noise)
            writer.write(with_coefficients(replace(batch, nodes=nodes)))


def trained(out: Path, kind: str, seed: int, epochs: int) -> float:
    """Return the CPU seconds of a run, which is trained unless it is there."""
    run = out / f"{kind}-{seed}"
    seconds = run.with_suffix(".json")
    if not seconds.exists():
        torch.set_num_threads(1)
        heads = [
            {"kind": "scalar", "field": f"next_{n}", "correction_of": n, "weight": WEIGHTS[n], "hidden_dims": [32]}
            for n in NAMES
        ]
        begin = time.process_time()
        hydragnn.train(
            {
                "data": {"store": str(out / "turned.h5"), "inputs": INPUTS},
                "model": {"kind": kind, **MODELS[kind]},
                "heads": heads,
                "split": {"group": "run", "train": 0.92, "valid": 0.04},
                "batch": {"max_graphs": 4},
                "train": {"epochs": epochs, "learning_rate": 3e-3, "ema_decay": 0.99, "seed": seed},
            },
            run,
        )
        seconds.write_text(json.dumps(time.process_time() - begin))
    return float(json.loads(seconds.read_text()))


def linear_course(train: Any, first: Any) -> dict[str, Any]:
    """Return the roll-out of a ridge regression at every node on its neighbourhood's departures and the constant fields."""
    count = first.num_nodes // len(first)
    one = first.select([0])
    rings = [[node, *one.senders[one.receivers == node].tolist()] for node in range(count)]
    scale = {n: train[n].double().std() for n in NAMES}

    def grid(batch: Any, name: str) -> Any:
        return batch[name].double().reshape(len(batch), count, -1)

    def state(batch: Any, prefix: str = "") -> Any:
        return torch.cat([grid(batch, prefix + n) / scale[n] for n in NAMES], -1)

    def rows(now: Any, batch: Any, node: int) -> Any:
        near, depth = now[:, rings[node]].flatten(1), grid(batch, "mean_height")[:, node] / 4000 - 1
        spin = grid(batch, "coriolis")[:, node] * 1e4
        bed = grid(batch, "orography")[:, rings[node]].flatten(1) / 100
        flow = grid(batch, "steady_velocity")[:, node] / 10
        push = (bed.unsqueeze(2) * flow.unsqueeze(1)).flatten(1)
        return torch.cat([near, near * depth, now[:, node] * spin, bed, push, flow, torch.ones_like(depth)], 1)

    now, change = state(train), state(train, "next_") - state(train)
    maps = []
    for node in range(count):
        x = rows(now, train, node)
        maps.append(
            torch.linalg.solve(x.T @ x + 1e-2 * len(x) * torch.eye(x.shape[1], dtype=x.dtype), x.T @ change[:, node])
        )
    now, course = state(first), []
    for _ in range(STEPS):
        now = now + torch.stack([rows(now, first, node) @ maps[node] for node in range(count)], 1)
        course.append(now)
    steps = torch.stack(course)
    return {"height": steps[..., 0] * scale["height"], "velocity": steps[..., 1:] * scale["velocity"]}


def errors_of(
    courses: dict[str, dict[str, Any]], truth: dict[str, Any], volumes: Any, groups: dict[str, tuple[int, ...]]
) -> dict[str, Any]:
    """Return scores of every predictor by group of runs and field and by part of the course."""
    table: dict[str, Any] = {}
    for group, runs in groups.items():
        for name in NAMES:
            for who, course in courses.items():
                rows = table.setdefault(f"{group}, {name}", {}).setdefault(who, {})
                for part, steps in PARTS_OF_COURSES.items():
                    own, right = (one[name][steps][:, list(runs)] for one in (course, truth))
                    shape, width = own.shape[:3], own.shape[3:]
                    weights = volumes.expand(shape).reshape(-1).numpy()
                    arrays = [one.reshape(-1, *width).numpy() for one in (right, own)]
                    scores = volume_scores(*arrays, weights, np.zeros_like(arrays[0]))
                    rows[part] = [round(scores["volume_rmse"], 3), round(scores["anomaly_correlation"], 3)]
    return table


def single_errors(model: Any, batch: Any, groups: dict[str, tuple[int, ...]]) -> dict[str, list[float]]:
    """Return errors of one step from true states over the change in it, by group of runs."""
    with torch.no_grad():
        own = model.trainable().eval()(batch)
    table = {}
    for name in NAMES:
        later = batch[f"next_{name}"].double()
        error, change = (
            (one.double() - later).square().reshape(len(batch) // STEPS, -1).mean(1)
            for one in (own[f"next_{name}"], batch[name])
        )
        table[name] = [round(float((error[[*r]].sum() / change[[*r]].sum()).sqrt()), 2) for r in groups.values()]
    return table


def draw(courses: dict[str, dict[str, Any]], truth: dict[str, Any], volumes: Any, out: Path) -> None:
    """Draw the area-weighted error of the height over the lead time, over all test runs."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    colours = {
        "persistence": "0.2",
        "steady flow": "0.6",
        "linear": "tab:green",
        "egnn": "tab:orange",
        "field_tokens": "tab:blue",
    }
    for who, course in courses.items():
        error = ((course["height"] - truth["height"]) ** 2 * volumes).mean((1, 2)) / volumes.mean()
        kind, seed = who.rpartition("-")[::2] if "-" in who else (who, "0")
        hours, label = [HOURS * step for step in range(1, STEPS + 1)], kind if seed == "0" else None
        axes.plot(hours, error.sqrt(), color=colours[kind], label=label, lw=1.2)
    axes.set(
        xlabel="lead time, h", ylabel="RMSE of the height, m", yscale="log", ylim=(1, 200), xlim=(0, HOURS * STEPS)
    )
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--part", choices=[*GROUPS], default="test", help="runs of the roll-outs")
    options = parser.parse_args()
    out, groups = options.out, GROUPS[options.part]
    out.mkdir(exist_ok=True)
    write_stores(out)
    seconds = {f"{kind}-{s}": trained(out, kind, s, EPOCHS[kind]) for s in range(options.seeds) for kind in MODELS}
    test, runs = open_store(out / f"{options.part}.h5"), len(PARTS[options.part])
    first = with_coefficients(test[list(range(0, len(test), STEPS))])
    nodes, truth = first.num_nodes // runs, {}
    for name in NAMES:
        shape = first[name].shape[1:]
        truth[name] = test[:][f"next_{name}"].double().reshape(runs, STEPS, nodes, *shape).transpose(0, 1)
    courses: dict[str, dict[str, Any]] = {
        "persistence": {n: first[n].double().reshape(1, *truth[n].shape[1:]).expand_as(truth[n]) for n in NAMES},
        "steady flow": {n: torch.zeros_like(truth[n]) for n in NAMES},
        "linear": linear_course(open_store(out / "turned.h5")[:], first),
    }
    singles = {}
    courses["linear"] = {n: courses["linear"][n].reshape(truth[n].shape) for n in NAMES}
    for run in seconds:
        model = hydragnn.load(out / run)
        singles[run], course = single_errors(model, with_coefficients(test[:]), groups), rollout(model, first, STEPS)
        courses[run] = {name: course.mean(name).reshape(truth[name].shape) for name in NAMES}
    draw(courses, truth, first["volume"].double()[:nodes], out / f"{options.part}.svg")
    scores = errors_of(courses, truth, first["volume"].double()[:nodes], groups)
    result = {"cpu seconds": seconds, "one step over its change": singles, "scores": scores}
    (out / f"{options.part}.json").write_text(json.dumps(result, indent=1))
    print(f"{'':32}" + "".join(f"{who:>18}" for who in courses))
    for row, scores in result["scores"].items():
        for part in PARTS_OF_COURSES:
            print(
                f"{row + ', ' + part:32}"
                + "".join(f"{one[part][0]:10.3f} {one[part][1]:7.3f}" for one in scores.values())
            )


if __name__ == "__main__":
    main()
