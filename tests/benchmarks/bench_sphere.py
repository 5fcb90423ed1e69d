"""Field tokens and EGNN on shallow water on a sphere: roll-outs of 72 steps beside persistence and climatology.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.bench_sphere OUT [--seeds 3]

Runs like Williamson's case 2 (a bump of water on a turned flow) and case 5 (a mountain somewhere) are netCDF files with a frame every three hours, built into
stores on an icosahedral mesh. Both models have the same inputs, heads and loss weights. Roll-outs begin at the first frames of runs that no training has
seen, and of both cases themselves. Climatology is the mean of the training store on every node. Finished parts in OUT are taken as they are.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import hydragnn
from hydragnn.datasets import open_store
from hydragnn.ensemble import rollout
from hydragnn.ensemble.estimates.metrics import volume_scores
from tests.benchmarks.sphere_water import CASE_2, CASE_5, Run, random_run, write_course

HOURS, STEPS, REFINEMENT = 3, 72, 2
PARTS: dict[str, list[Run]] = {
    "train": [random_run(number) for number in range(16)],
    "test": [*(random_run(number) for number in range(1000, 1008)), CASE_2, CASE_5],
}
GROUPS = {"like case 2": (0, 2, 4, 6), "like case 5": (1, 3, 5, 7), "case 2": (8,), "case 5": (9,)}
"""Numbers of the test runs."""
GEOMETRY = {"cutoff": 0.7, "num_radial": 4, "radial": "gaussian"}
MODELS: dict[str, tuple[dict[str, Any], float]] = {
    "field_tokens": ({"hidden_dim": 32, "num_layers": 3, "latents": 16, "angles": 1, **GEOMETRY}, 4e-3),
    "egnn": ({"hidden_dim": 32, "num_layers": 3, **GEOMETRY}, 4e-3),
}
EPOCHS = {"field_tokens": 3, "egnn": 11}
NAMES = ("height", "velocity")
WEIGHTS = {"height": 34.0, "velocity": 1.0}
"""Loss weights: (deviation of the field / of its change in a step)^2, over that of velocities."""


def build_table(folder: Path) -> dict[str, Any]:
    """Return the BUILD.toml of runs in a folder."""
    height = {"on": "node", "unit": "m", "key": "height"}
    velocity = {"on": "node", "unit": "m/s", "shape": [3], "key": ["u", "v"]}
    later = {"step": 1, "role": "target"}
    fields = [
        {"name": "height", **height},
        {"name": "velocity", **velocity},
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


def trained(out: Path, kind: str, seed: int, epochs: int) -> float:
    """Return the CPU seconds of a run, which is trained unless it is there."""
    run = out / f"{kind}-{seed}"
    seconds, (settings, rate) = run.with_suffix(".json"), MODELS[kind]
    if not seconds.exists():
        torch.set_num_threads(1)
        heads = [
            {"kind": "scalar", "field": f"next_{n}", "correction_of": n, "weight": WEIGHTS[n], "hidden_dims": [32]}
            for n in NAMES
        ]
        begin = time.process_time()
        hydragnn.train(
            {
                "data": {"store": str(out / "train.h5")},
                "model": {"kind": kind, **settings},
                "heads": heads,
                "split": {"group": "run", "train": 0.85, "valid": 0.1},
                "batch": {"max_graphs": 8},
                "train": {"epochs": epochs, "learning_rate": rate, "ema_decay": 0.99, "seed": seed},
            },
            run,
        )
        seconds.write_text(json.dumps(time.process_time() - begin))
    return float(json.loads(seconds.read_text()))


def errors_of(courses: dict[str, dict[str, Any]], truth: dict[str, Any], volumes: Any, usual: Any) -> dict[str, Any]:
    """Return scores of every predictor by group of runs and field: over all steps and at the last."""
    table: dict[str, Any] = {}
    for group, runs in GROUPS.items():
        for name in NAMES:
            for who, course in courses.items():
                rows = table.setdefault(f"{group}, {name}", {}).setdefault(who, {})
                for part, steps in (("all", slice(0, STEPS)), ("last", slice(STEPS - 1, STEPS))):
                    own, right = (one[name][steps][:, list(runs)] for one in (course, truth))
                    shape, width = own.shape[:3], own.shape[3:]
                    weights, means = volumes.expand(shape).reshape(-1), usual[name].expand(*shape, *width)
                    arrays = [one.reshape(-1, *width).numpy() for one in (right, own)]
                    scores = volume_scores(*arrays, weights.numpy(), means.reshape(-1, *width).numpy())
                    rows[part] = [round(scores["volume_rmse"], 3), round(scores["anomaly_correlation"], 3)]
    return table


def draw(courses: dict[str, dict[str, Any]], truth: dict[str, Any], volumes: Any, out: Path) -> None:
    """Draw the area-weighted error of the height over the lead time, over all test runs."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    colours = {"persistence": "0.2", "climatology": "0.6", "egnn": "tab:orange", "field_tokens": "tab:blue"}
    for who, course in courses.items():
        error = ((course["height"] - truth["height"]) ** 2 * volumes).mean((1, 2)) / volumes.mean()
        kind, seed = who.rpartition("-")[::2] if "-" in who else (who, "0")
        hours, label = [HOURS * step for step in range(1, STEPS + 1)], kind if seed == "0" else None
        axes.plot(hours, error.sqrt(), color=colours[kind], label=label, lw=1.2)
    axes.set(xlabel="lead time, h", ylabel="RMSE of the height, m", yscale="log", xlim=(0, HOURS * STEPS))
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    out = options.out
    out.mkdir(exist_ok=True)
    write_stores(out)
    seconds = {f"{kind}-{s}": trained(out, kind, s, EPOCHS[kind]) for s in range(options.seeds) for kind in MODELS}
    train, test, runs = open_store(out / "train.h5")[:], open_store(out / "test.h5"), len(PARTS["test"])
    first, nodes = test[list(range(0, len(test), STEPS))], train.num_nodes // len(train)
    truth, usual = {}, {}
    for name in NAMES:
        shape = first[name].shape[1:]
        truth[name] = test[:][f"next_{name}"].double().reshape(runs, STEPS, nodes, *shape).transpose(0, 1)
        usual[name] = train[f"next_{name}"].double().reshape(len(train), nodes, *shape).mean(0)
    courses: dict[str, dict[str, Any]] = {
        "persistence": {n: first[n].double().reshape(1, *truth[n].shape[1:]).expand_as(truth[n]) for n in NAMES},
        "climatology": {n: usual[n].expand_as(truth[n]) for n in NAMES},
    }
    for run in seconds:
        course = rollout(hydragnn.load(out / run), first, STEPS)
        courses[run] = {name: course.mean(name).reshape(truth[name].shape) for name in NAMES}
    draw(courses, truth, first["volume"].double()[:nodes], out / "sphere.svg")
    result = {"cpu seconds": seconds, "scores": errors_of(courses, truth, first["volume"].double()[:nodes], usual)}
    (out / "figures.json").write_text(json.dumps(result, indent=1))
    print(f"{'':26}" + "".join(f"{who:>18}" for who in courses))
    for row, scores in result["scores"].items():
        for part in ("all", "last"):
            print(
                f"{row + ', ' + part:26}"
                + "".join(f"{one[part][0]:10.3f} {one[part][1]:7.3f}" for one in scores.values())
            )


if __name__ == "__main__":
    main()
