"""Training steps replayed as graphs of the device beside steps that are not, on the same batches.

    python -m tests.benchmarks.bench_replay [--device cuda] [--graphs 32 | --atoms 864] [--steps 30] [--hidden 128] [--precision fp32] [painn schnet ...]

One line of JSON per architecture, as it comes: milliseconds per step of both ways (batches resident, of sizes that differ), milliseconds in which
the GPU works and its launches; the largest difference of losses and of gradient norms between the ways, relative; whether two replayed runs give the same bits;
recordings, seconds that they took, and memory. ``problem`` says what went wrong. On a CPU the tests' stand-in records.
"""

import argparse
import json
import time
import traceback
from collections.abc import Sequence
from functools import partial
from typing import Any

import ase
import ase.build
import numpy as np
import torch

from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.distributed import Ranks
from hydragnn.graphs.atomic import from_ase
from hydragnn.graphs.field import Field
from hydragnn.graphs.joining import concatenate
from hydragnn.models import TrainedModel, replay, trained
from hydragnn.models.executor import Eager
from hydragnn.runs import recording
from hydragnn.runs.assembly import Assembly, assemble
from hydragnn.runs.plan import plan_run
from hydragnn.runs.recording import with_replays
from hydragnn.runs.session import DTYPES
from hydragnn.training.data import DevicePlacement, Share
from hydragnn.training.loop import take_step, validate
from tests.benchmarks.bench_pipeline import Quiet
from tests.benchmarks.step_times import busy
from tests.benchmarks.structures import structures
from tests.hydragnn.training.recorder import StandIn

FIELDS = [
    Field(name="energy", on="graph", role="target", dtype="float64"),
    Field(name="forces", on="node", shape=(3,), parity="vector", role="target", dtype="float64"),
    Field(name="stress", on="graph", shape=(3, 3), parity="tensor", role="target", dtype="float64"),
]


def labelled(cells: Sequence[ase.Atoms]) -> MemoryStore:
    """Return periodic crystals with neighbours within 5 A and labels drawn at random."""
    for atoms in cells:
        atoms.pbc = True
    batch = concatenate([from_ase(atoms, cutoff=5.0) for atoms in cells])
    random = torch.Generator().manual_seed(0)
    values = {
        field.name: torch.randn(batch.num_items(field.on), *field.shape, generator=random, dtype=torch.float64)
        for field in FIELDS
    }
    return MemoryStore(batch.with_fields(values, fields=FIELDS))


def run_of(kind: str, store: MemoryStore, options: argparse.Namespace, graphs: str) -> Assembly:
    """The run before its first step."""
    model: dict[str, Any] = {"kind": kind, "hidden_dim": options.hidden, "num_layers": options.layers, **options.model}
    head = {"kind": "energy", "field": "energy", "forces": "forces"}
    if kind in ("gin", "sage", "mfc"):
        head = {"kind": "energy", "field": "energy"}
    else:
        model["cutoff"] = 5.0
        if options.stress:
            head["stress"] = "stress"
    train = {"precision": options.precision, "graphs": graphs, "ema_decay": 0.99, "learning_rate": 1e-4}
    if options.dropout:
        model["dropout"] = options.dropout
    if options.attention:
        model["global_attention"] = {"kind": options.attention, "heads": 4}
    config = RunConfig.parse(
        {
            "data": {"store": "in memory"},
            "split": {"train": 0.8, "valid": 0.1},
            "batch": {"max_graphs": options.graphs},
            "model": model,
            "heads": [head],
            "train": train,
        }
    )
    placement = DevicePlacement(device=torch.device(options.device), dtype=DTYPES[options.precision])
    run = assemble(plan_run(config, store), placement, Ranks(), lambda: None)
    return with_replays(run, Ranks(), lambda: None)


def wait(device: str) -> None:
    """Wait for the device."""
    if device != "cpu":
        torch.cuda.synchronize()


def steps(run: Assembly, shares: Sequence[Share], number: int, device: str) -> tuple[torch.Tensor, float]:
    """Losses and norms of so many steps ``[steps, 2]``, and milliseconds per step of the second half."""
    results = []
    for i in range(number):
        if i == number // 2:
            wait(device)
            start = time.perf_counter()
        result = take_step(run.state, shares[i % len(shares)], run.context, 1e-4)
        results.append(torch.stack([result.loss, result.norm.double()]))
    wait(device)
    return torch.stack(results).cpu(), 1e3 * (time.perf_counter() - start) / (number - number // 2)


def row(kind: str, store: MemoryStore, options: argparse.Namespace) -> dict[str, Any]:
    """What is said of an architecture."""
    result: dict[str, Any] = {
        "kind": kind,
        "precision": options.precision,
        "graphs": options.graphs,
        "hidden": options.hidden,
    }
    curves, weights, values = {}, {}, {}
    for way in ("off", "on", "again"):
        if options.device != "cpu":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        replay.USES = 0 if way == "again" else 2  # bits must not depend on when a size is recorded
        start = time.perf_counter()
        run = run_of(kind, store, options, "off" if way == "off" else "on")
        shares: list[Share] = [share for number in range(4) for share in run.data.epoch(number)]
        if way != "off":
            result["recorded"] = run.record.graphs
            result["notes"] = [note for note in run.record.notes if "replayed" in note]
            if not run.record.graphs:
                return result
        part = shares[0].parts[0]
        result |= {"nodes": part.num_nodes, "edges": part.num_edges}
        wait(options.device)
        result[f"seconds to assemble, {way}"] = round(time.perf_counter() - start, 2)
        start = time.perf_counter()
        curves[way], result[f"ms, {way}"] = steps(run, shares, options.steps, options.device)
        result[f"seconds of all, {way}"] = round(time.perf_counter() - start, 2)
        weights[way] = run.state.tensors()["weights"].clone().cpu()
        values[way] = {k: v for k, v in validate(run.state, run.data, run.context, Quiet()).items() if v}
        if options.device != "cpu":
            result[f"GB, {way}"] = round(torch.cuda.max_memory_reserved() / 1e9, 3)
        if way != "off":
            result["recordings"] = sum(len(one.replays.recordings) for one in run.context.executors)
        result[f"busy ms, {way}"], result[f"launches, {way}"] = (0.0, 0.0)
        if options.device != "cpu":
            step = partial(take_step, run.state, shares[0], run.context, 1e-4)
            result[f"busy ms, {way}"], result[f"launches, {way}"] = busy(step, 2)
        sizes = {(part.num_nodes, part.num_edges) for share in shares for part in share.parts}
        result["batches of other sizes"] = len(sizes)
    off, on = curves["off"], curves["on"]
    error = ((on - off).abs() / off.abs()).max(0).values
    first = ((on - off).abs() / off.abs())[0]
    result["first step: loss, norm off by"] = first.tolist()
    result["all steps: loss, norm off by"] = error.tolist()
    result["validation off by"] = max(abs(values["on"][k] - v) / abs(v) for k, v in values["off"].items())
    result["same bits"] = bool(torch.equal(weights["on"], weights["again"]))
    return result


def predictions(kind: str, store: MemoryStore, options: argparse.Namespace) -> dict[str, Any]:
    """What is said of predictions of one moving crystal, with graphs made before."""
    run = run_of(kind, store, options, "off")
    model, normalisation = run.state.of_branch(0), run.data.branches[0].normalisation
    plain = TrainedModel(model=model, normalisation=normalisation, executor=Eager(model=model))
    result: dict[str, Any] = {"kind": kind, "precision": options.precision, "atoms": options.atoms}
    random, atoms = np.random.default_rng(0), ase.build.bulk("Cu", "fcc", a=4.0, cubic=True)
    atoms = atoms.repeat(round((options.atoms / 4) ** (1 / 3)))
    graphs = []
    for _ in range(options.steps):
        atoms.rattle(0.01, rng=random)
        graphs.append(from_ase(atoms, cutoff=5.0))
    values: dict[str, list[torch.Tensor]] = {}
    for way, model in {"eager": plain, "replayed": plain.replayed()}.items():
        for number, graph in enumerate(graphs):
            if number == len(graphs) // 2:
                wait(options.device)
                start = time.perf_counter()
            values.setdefault(way, []).append(model.predict(graph)["forces"].mean.cpu())
        result[f"ms, {way}"] = 1e3 * (time.perf_counter() - start) / (len(graphs) - len(graphs) // 2)
    errors = [(a - b).abs().max() / a.abs().max() for a, b in zip(values["eager"], values["replayed"])]
    return {**result, "forces off by": float(max(errors))}


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=["painn", "schnet", "egnn", "pna", "mace"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--graphs", type=int, default=32)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--structures", type=int, default=200)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--stress", action="store_true")
    parser.add_argument("--attention", default="")
    parser.add_argument("--atoms", type=int, default=0, help="predict one crystal of about so many instead")
    parser.add_argument("--model", type=json.loads, default={}, help="more settings of the model, as JSON")
    return parser


def without_gpu() -> None:
    """Record by the stand-in of the tests."""
    trained.recorder_on = recording.recorder_on = lambda device: StandIn()


def main() -> None:
    """Print a row for every architecture."""
    options = parser().parse_args()
    if options.device == "cpu":
        without_gpu()
    store = labelled(structures(options.structures))
    for kind in options.kinds:
        try:
            result = (predictions if options.atoms else row)(kind, store, options)
        except Exception as error:
            result = {"kind": kind, "problem": repr(error)[:500], "where": traceback.format_exc()[-1500:]}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
