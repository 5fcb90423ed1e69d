"""Field tokens on waves over irregular meshes: roll-outs, spread of an ensemble, and a field that fine-tuning adds.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.bench_field_tokens OUT [--seeds 3] [--epochs 18] [--processes 3]

Every member trains on pairs of frames of 30 runs, each on a mesh of its own, with one seed. An EGNN of as many weights trains on the same pairs for as many epochs
as take the same CPU time, which two epochs of each measure first. Both have the same heads, batches, schedule and moving average of weights; learning rates are
those of the better of two tried on runs that nothing below sees. Roll-outs of 50 steps begin at the first frame of runs on meshes that no model has seen. Fine-tuning goes on with
other runs that have a third field. Finished runs in OUT are taken as they are.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

import hydragnn
from hydragnn.datasets import open_store
from hydragnn.ensemble import Rollout, rollout, spread_factors
from hydragnn.graphs import GraphBatch
from hydragnn.models import TrainedModel, load_model
from tests.benchmarks.mesh_forecasts import pairs, write_runs

TWO, THREE = ("height", "rate"), ("height", "rate", "temperature")
FRAMES, STEPS = 51, 50
TRAINED, TUNED, UNSEEN, HELD_OUT = range(30), range(100, 115), range(5000, 5008), range(2000, 2008)
GEOMETRY = {"cutoff": 0.3, "num_radial": 8, "radial": "gaussian"}
MODELS: Mapping[str, tuple[dict[str, Any], float]] = {
    "field_tokens": ({"hidden_dim": 32, "num_layers": 2, "latents": 8, **GEOMETRY}, 6e-3),
    "egnn": ({"hidden_dim": 48, "num_layers": 4, **GEOMETRY}, 4e-3),
}


def table_of(store: Path, names: tuple[str, ...], epochs: int, rate: float, seed: int, width: int) -> dict[str, Any]:
    """Return a configuration without its model."""
    heads = [
        {"kind": "scalar", "field": f"next_{n}", "correction_of": n, "loss": "mse", "hidden_dims": [width]}
        for n in names
    ]
    return {
        "data": {"store": str(store), "inputs": list(names)},
        "heads": heads,
        "split": {"group": "run", "train": 0.8, "valid": 0.1},
        "batch": {"max_graphs": 8},
        "train": {"epochs": epochs, "learning_rate": rate, "ema_decay": 0.99, "seed": seed},
    }


def trained(out: Path, table: dict[str, Any]) -> float:
    """Return the CPU seconds of a run, which is trained unless it is there."""
    seconds = out.with_suffix(".json")
    if not seconds.exists():
        torch.set_num_threads(1)
        begin = time.process_time()
        hydragnn.train(table, out)
        seconds.write_text(json.dumps(time.process_time() - begin))
    return float(json.loads(seconds.read_text()))


def work(job: tuple[Path, str, int, int]) -> float:
    """Train one run: of a kind with a seed, or one that adds a field to it."""
    out, kind, seed, epochs = job
    if kind == "tuned":
        table = table_of(out / "three.h5", THREE, epochs, 1e-3, seed, 32)
        table["start"] = {"model": str(out / f"field_tokens-{seed}"), "encoder_rate": 0.1}
        return trained(out / f"tuned-{seed}", table)
    settings, rate = MODELS[kind]
    table = table_of(out / "two.h5", TWO, epochs, rate, seed, settings["hidden_dim"])
    table["model"] = {"kind": kind, **settings}
    name = f"{kind}-{seed}" if epochs > 2 else f"{kind}-timing"
    return trained(out / name, table)


def course_truth(run: int) -> tuple[GraphBatch, dict[str, Tensor]]:
    """Return the first frame of a run and the true course of its fields."""
    graphs = pairs(run, STEPS + 1, TWO)
    return graphs[0], {name: torch.stack([graph[f"next_{name}"].double() for graph in graphs]) for name in TWO}


def root(values: Sequence[Tensor]) -> float:
    """Return the root mean square of all numbers."""
    return float(torch.cat([value.flatten() for value in values]).square().mean().sqrt())


def course_errors(model: Any, runs: Sequence[int]) -> dict[str, dict[str, float]]:
    """Return errors of roll-outs over those of persistence, over all steps and at the last."""
    rows: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in TWO}
    for run in runs:
        first, truth = course_truth(run)
        course = rollout(model, first, STEPS)
        for name in TWO:
            rows[name].append((course.mean(name) - truth[name], first[name].double() - truth[name]))
    return {
        name: {
            "all": root([error for error, _ in rows[name]]) / root([still for _, still in rows[name]]),
            "last": root([error[-1] for error, _ in rows[name]]) / root([still[-1] for _, still in rows[name]]),
        }
        for name in TWO
    }


def spread_ratios(model: Any, held_out: Sequence[int], runs: Sequence[int]) -> dict[str, dict[str, float]]:
    """Return spread over error of roll-outs, raw and with factors of held-out roll-outs."""

    def courses(of: Sequence[int]) -> tuple[list[Rollout], list[dict[str, Tensor]]]:
        begun = [course_truth(run) for run in of]
        return [rollout(model, first, STEPS) for first, _ in begun], [truth for _, truth in begun]

    factors = spread_factors(*courses(held_out))
    raw, truths = courses(runs)
    ratios = {}
    for name in TWO:
        errors = root([one.mean(name) - truth[name] for one, truth in zip(raw, truths)])
        scaled = [one.scaled({name: factors[name]}) for one in raw]
        ratios[name] = {
            "raw": root([one.spread(name) for one in raw]) / errors,
            "scaled": root([one.spread(name) for one in scaled]) / errors,
        }
    return ratios


def kept(before: TrainedModel, after: TrainedModel, graphs: GraphBatch) -> dict[str, float]:
    """Return errors of one step after fine-tuning over those before."""
    one, other = before.predict(graphs), after.predict(graphs)
    names = [f"next_{name}" for name in TWO]
    errors = {n: [root([p[n].tensors()["mean"] - graphs[n]]) for p in (one, other)] for n in names}
    return {name: second / first for name, (first, second) in errors.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=18)
    parser.add_argument("--processes", type=int, default=3)
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(exist_ok=True)
    stores = (("two.h5", TRAINED, TWO), ("three.h5", TUNED, THREE), ("test.h5", UNSEEN, THREE))
    for name, runs, names in stores:
        if not (out / name).exists():
            write_runs(out / name, runs, FRAMES, names)
    seconds = {kind: work((out, kind, 0, 2)) for kind in MODELS}  # alone, one after the other
    epochs = {
        kind: max(3, round(options.epochs * seconds["field_tokens"] / one))
        if kind != "field_tokens"
        else options.epochs
        for kind, one in seconds.items()
    }
    jobs = [(out, kind, seed, epochs[kind]) for seed in range(options.seeds) for kind in MODELS]
    with get_context("spawn").Pool(options.processes) as pool:
        spent = pool.map(work, jobs, chunksize=1)
        pool.map(work, [(out, "tuned", seed, options.epochs) for seed in range(options.seeds)], chunksize=1)
    result: dict[str, Any] = {"epochs": epochs, "cpu": {}, "weights": {}, "roll-outs": {}, "kept": {}}
    for kind in MODELS:
        of_kind = [s for s, job in zip(spent, jobs) if job[1] == kind]
        result["cpu"][kind] = mean(of_kind)
        result["weights"][kind] = sum(p.numel() for p in load_model(out / f"{kind}-0/model").model.parameters())
        result["roll-outs"][kind] = [
            course_errors(hydragnn.load(out / f"{kind}-{seed}"), UNSEEN) for seed in range(options.seeds)
        ]
    graphs = open_store(out / "test.h5")[::5]
    for seed in range(options.seeds):
        before, after = (load_model(out / f"{name}-{seed}/model") for name in ("field_tokens", "tuned"))
        result["kept"][seed] = kept(before, after, graphs)
    runs = [out / f"field_tokens-{seed}" for seed in range(options.seeds)]
    if not (out / "ensemble").exists():
        hydragnn.build_ensemble(runs, out / "ensemble")
    result["ensemble"] = course_errors(hydragnn.load(out / "ensemble"), UNSEEN)
    result["spread over error"] = spread_ratios(hydragnn.load(out / "ensemble"), HELD_OUT, UNSEEN)
    (out / "figures.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
