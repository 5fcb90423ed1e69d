"""Measurements that need a GPU, as rows of JSON that are written as they come; ``gpu.sh`` runs all parts.

    python -m tests.benchmarks.gpu PART [--out results.jsonl] [--works painn:32:fp32,mace:32:fp32] [--kinds painn,mace]

Parts: ``machine`` (card, versions), ``ops`` (every op in Triton against its reference in fp64, and its bits twice), ``runs`` (training runs with
and without replayed steps, one seed twice, and once more with kill -9 and ``--resume``), ``speed`` (a longer run both ways, alone),
``steps`` (``bench_replay`` on crystals of 64 atoms, and other packages on the same batch), ``dynamics`` (the ASE calculator),
``page`` (the tables of docs/measurements/gpu.md from the rows). ``--cpu`` tries a part on small sizes.

Steps: neighbours within 5 Angstrom, hidden 128, 3 layers (MACE 2), energies and forces, AdamW, clipping. Times are of the host's clock around many steps.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ase
import numpy as np
import tomli_w
import torch
from ase.build import bulk

from hydragnn.base.settings import read_toml
from hydragnn.record import read_record
from hydragnn.scripts.demo import alloys
from tests.benchmarks import bench_replay
from tests.benchmarks.step_peers import PEERS
from tests.benchmarks.step_times import MODELS, StepSettings, dynamics_rows, peer_measured
from tests.hydragnn.op_checks import OPS, case_graphs

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs/measurements/gpu.md"
HIDDEN = 128
KINDS = ("painn", "schnet", "egnn", "pna")
WORKS = [f"{kind}:32:fp32" for kind in KINDS] + ["painn:256:fp32", "schnet:256:fp32", "mace:32:fp32"]
WORKS += [f"{kind}:32:bf16" for kind in KINDS]
COMMAND = [sys.executable, "-m", "hydragnn.scripts"]


class Rows:
    """Rows of JSON, appended to a file at once, from any process."""

    def __init__(self, path: Path | None, part: str) -> None:
        self.path, self.part, self.start = path, part, time.perf_counter()

    def write(self, **values: Any) -> None:
        """Print and append one row."""
        line = json.dumps({"part": self.part, "at": round(time.perf_counter() - self.start, 1), **values}, default=str)
        print(line, flush=True)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(line + "\n")

    @contextmanager
    def trying(self, **values: Any) -> Iterator[None]:
        """Write an error as a row, so that the next measurement still runs."""
        try:
            yield
        except Exception as error:
            where = [f"{Path(one.filename).name}:{one.lineno}" for one in traceback.extract_tb(error.__traceback__)]
            self.write(**values, error=f"{type(error).__name__}: {error}"[:600], where=where[-6:])


def machine(rows: Rows, options: argparse.Namespace) -> None:
    """Name the card and the versions."""
    card = "none" if options.cpu else torch.cuda.get_device_name()
    versions = {name: version(name) for name in ("torch", "triton", "numpy", "torch-geometric")}
    rows.write(card=card, date=time.strftime("%Y-%m-%d"), cores=os.cpu_count(), versions=versions)


def ops(rows: Rows, options: argparse.Namespace) -> None:
    """Compare every op, in several processes; the widths and dtypes that models use most come first."""
    cases = [("float32", 64), ("bfloat16", 64), ("float64", 3), ("float32", 3), ("float16", 64)]
    works = [(name, *case, options.device) for case in cases for name in OPS]
    if options.cpu:
        works = [("segment_sum", "float64", 3, "cpu"), ("segment_max", "float64", 3, "cpu")]
    with multiprocessing.get_context("spawn").Pool(2 if options.cpu else 6) as pool:
        for result in pool.imap_unordered(compared_op, works):
            rows.write(**result)


def compared_op(work: tuple[str, str, int, str]) -> dict[str, Any]:
    """Return the largest errors of an op (value, gradient, second gradient), cases beyond its tolerance, and cases that give other bits the second time."""
    torch.set_num_threads(1)
    name, dtype_name, channels, device = work
    op, dtype = OPS[name], getattr(torch, dtype_name)
    cases = differing = 0
    worst, beyond, failed = [0.0, 0.0, 0.0], [], []
    for case, values in op.cases(case_graphs(), channels) if dtype in op.tolerance else ():
        cases += 1
        try:
            errors = op.compare(values, dtype=dtype, device=device)
            there = values.to(device, dtype)
            first, second = (op.call(*there.tensors, *there.rest) for _ in range(2))
            tensors = [one if isinstance(one, tuple) else (one,) for one in (first, second)]
            differing += not all(map(torch.equal, *tensors))
        except Exception as error:
            failed.append(f"{case}: {type(error).__name__}: {error}"[:300])
            continue
        worst = [float(f"{max(pair):.2g}") for pair in zip(worst, errors)]
        if not op.within(errors, dtype):
            beyond.append(f"{case}: {[float(f'{error:.2g}') for error in errors]}")
    found = {"op": name, "case": f"{dtype_name}, {channels} channels", "cases": cases, "worst": worst}
    return {**found, "other bits": differing, "beyond": beyond, "errors": failed}


def run_table(folder: Path, samples: int) -> dict[str, Any]:
    """Make the store of demo alloys; return the configuration of its search without the search."""
    alloys.make_alloys(folder / "alloys.h5", samples=samples)
    table = read_toml(Path(alloys.__file__).with_name("alloys.toml"))
    table["data"]["store"] = str(folder / "alloys.h5")
    return {name: value for name, value in table.items() if name != "search"}


class Run:
    """A command that trains, in a folder."""

    def __init__(self, folder: Path, name: str, table: dict[str, Any], *words: str) -> None:
        """Start it."""
        self.out, self.log, config = folder / name, folder / f"{name}.log", folder / f"{name}.toml"
        config.write_text(tomli_w.dumps(table))
        with self.log.open("ab") as file:
            command = [*COMMAND, "train", str(config), "--out", str(self.out), *words]
            self.process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)

    def facts(self) -> dict[str, Any]:
        """Wait until it ends; return its record and the hash of its weights, or its last words."""
        if self.process.wait():
            return {"code": self.process.returncode, "output": self.log.read_text().splitlines()[-8:]}
        record, weights = read_record(self.out), self.out / "model" / "weights.safetensors"
        return {
            "seconds": round(record.cost.seconds, 2),
            "graphs per second": round(record.cost.graphs_per_second, 1),
            "MB": round(record.cost.peak_memory_mb),
            "replayed": record.graphs,
            "notes": [note[:200] for note in record.notes if "replayed" in note],
            "valid": record.curves.get("valid/loss"),
            "weights": hashlib.sha256(weights.read_bytes()).hexdigest()[:12],
        }

    def kill(self) -> None:
        """End it by SIGKILL some steps after its first checkpoint."""
        while self.process.poll() is None and not any((self.out / "checkpoints").glob("*")):
            time.sleep(0.02)
        time.sleep(0.3)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def curves_off_by(one: dict[str, Any], other: dict[str, Any]) -> float | None:
    """Return the largest relative difference of two validation curves."""
    pairs = zip(one.get("valid") or (), other.get("valid") or ())
    return max((abs(a - b) / abs(b) for a, b in pairs), default=None)


def runs(rows: Rows, options: argparse.Namespace) -> None:
    """Train each architecture without and with replayed steps; with them also twice, and with kill -9 and --resume."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = run_table(folder, 40 if options.cpu else 160)
        settings = {**table["train"], "epochs": 3 if options.cpu else 10, "checkpoint_seconds": 0}

        def start(kind: str, way: str, *words: str) -> Run:
            model = {**table["model"], "kind": kind}
            train = {**settings, "graphs": "off" if way == "off" else "on"}
            return Run(folder, f"{kind}-{way}", {**table, "model": model, "train": train}, *words)

        running = {kind: {way: start(kind, way) for way in ("off", "on", "killed")} for kind in options.kinds}
        for kind, ways in running.items():
            ways["killed"].kill()
            running[kind] |= {"killed": start(kind, "killed", "--resume"), "again": start(kind, "again")}
        for kind, ways in running.items():
            with rows.trying(kind=kind):
                facts = {way: run.facts() for way, run in ways.items()}
                hashes = {facts[way].get("weights", way) for way in ("on", "again", "killed")}
                off_by = curves_off_by(facts["on"], facts["off"])
                rows.write(kind=kind, **{"same bits": len(hashes) == 1, "valid off by": off_by, "runs": facts})


def speed(rows: Rows, options: argparse.Namespace) -> None:
    """Train one configuration for some hundreds of steps, without replayed steps and with them, one after the other."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = run_table(folder, 40 if options.cpu else 240)
        table["model"] |= {"num_layers": 3, "hidden_dim": 16 if options.cpu else HIDDEN}
        for way, epochs in (("off", 24), ("on", 24), ("on", 96)):
            with rows.trying(graphs=way, epochs=epochs):
                train = {**table["train"], "epochs": 2 if options.cpu else epochs, "graphs": way}
                begin = time.perf_counter()
                facts = Run(folder, f"run-{way}-{epochs}", {**table, "train": train}).facts()
                command = round(time.perf_counter() - begin, 1)
                rows.write(
                    kind=table["model"]["kind"],
                    graphs=way,
                    epochs=epochs,
                    **{"seconds of the command": command},
                    **facts,
                )


def crystals(count: int, seed: int = 0) -> list[ase.Atoms]:
    """Return alloys of 64 atoms."""
    random, cells = np.random.default_rng(seed), []
    for _ in range(count):
        atoms = bulk("Cu", "fcc", a=random.uniform(3.9, 4.1)).repeat((4, 4, 4))
        atoms.numbers = random.choice([13, 28, 29, 46, 47, 78, 79], len(atoms))
        atoms.rattle(0.1, rng=random)
        cells.append(atoms)
    return cells


def step_options(options: argparse.Namespace, count: int, precision: str, *more: str) -> argparse.Namespace:
    """Return options of ``bench_replay``."""
    fixed = ["--device", options.device, "--graphs", str(count), "--precision", precision, *more]
    fixed += ["--hidden", "16" if options.cpu else str(HIDDEN)]
    return bench_replay.parser().parse_args([*fixed, "--steps", "4" if options.cpu else "40" if count < 100 else "24"])


def steps(rows: Rows, options: argparse.Namespace) -> None:
    """Measure steps of architectures, and of other packages on the same batch."""
    stores: dict[int, Any] = {}
    for work in options.works:
        kind, number, precision = work.split(":")
        count = 2 if options.cpu else int(number)
        with rows.trying(work=work):
            if count not in stores:
                stores[count] = bench_replay.labelled(crystals(round(count * (6.25 if count < 100 else 2.5)) + 2))
            own = step_options(options, count, precision, "--model", json.dumps(MODELS.get(kind, {})))
            if options.warm:
                own.steps = 2
            result = bench_replay.row(kind, stores[count], own)
            rows.write(**({"warm": work} if options.warm else result))
            if precision == "fp32" and not options.warm:
                run = bench_replay.run_of(kind, stores[count], own, "off")
                settings = StepSettings(device=options.device, hidden=own.hidden)
                for package in PEERS.get(kind, ()):
                    figures = peer_measured(package, kind, next(iter(run.data.epoch(0))), settings)
                    rows.write(peer=package, kind=kind, graphs=count, **figures)
        if not options.cpu:
            torch.cuda.empty_cache()


def dynamics(rows: Rows, options: argparse.Namespace) -> None:
    """Measure steps of the ASE calculator, and predictions of its model both ways."""
    settings = StepSettings(device=options.device, hidden=16 if options.cpu else HIDDEN)
    with rows.trying():
        for row in dynamics_rows(replace(settings, atoms=(8,)) if options.cpu else settings):
            rows.write(**row)
    store = bench_replay.labelled(crystals(20))
    for atoms in (32,) if options.cpu else (64, 864, 10976):
        with rows.trying(atoms=atoms):
            own = step_options(options, 4, "fp32", "--atoms", str(atoms))
            rows.write(**bench_replay.predictions("painn", store, own))


def page(rows: Rows, options: argparse.Namespace) -> None:
    """Write the tables of the page below its text."""
    found = [json.loads(line) for line in options.out.read_text().splitlines()]
    of_part = {part: [row for row in found if row["part"] == part and "error" not in row] for part in PARTS}
    about = of_part["machine"][-1]
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    text = PAGE.read_text().partition("\n## Tables\n")[0]
    text += f"\n## Tables\n\n{about['date']}, {about['card']}, {about['cores']} cores. {versions}.\n"
    of_part["ops"] = op_sums(of_part["ops"])
    for row in of_part["runs"]:
        row |= {f"seconds, {way}": row["runs"][way].get("seconds") for way in WAYS}
    for title, part, names in TABLES:
        columns = [name.replace(": ", ", ") for name in names.split(",")]
        chosen = [row for row in of_part[part] if columns[-1] in row]
        if chosen:
            cells = [columns, ["---"] * len(columns), *([cell(row.get(name)) for name in columns] for row in chosen)]
            text += f"\n### {title}\n\n" + "\n".join("| " + " | ".join(row) + " |" for row in cells) + "\n"
    PAGE.write_text(text)


def op_sums(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for every case of ops, and one for every op with comparisons beyond its tolerance."""
    rows = []
    for case in dict.fromkeys(row["case"] for row in found):
        own = [row for row in found if row["case"] == case]
        groups = {"all others": [row for row in own if not row["beyond"]]}
        groups |= {row["op"]: [row] for row in own if row["beyond"]}
        for name, group in groups.items():
            counts: dict[str, Any] = {key: sum(len(row[key]) for row in group) for key in ("beyond", "errors")}
            counts |= {key: sum(row[key] for row in group) for key in ("cases", "other bits")}
            counts["worst"] = [max(one) for one in zip(*(row["worst"] for row in group))]
            rows.append({"case": case, "ops": name, **counts})
    return rows


WAYS = ("off", "on")
TABLES = (
    ("Ops beside their reference in fp64", "ops", "case,ops,cases,worst,beyond,errors,other bits"),
    (
        "Steps, without replays (off) and recorded at the first use of a size (again)",
        "steps",
        "kind,graphs,precision,ms: off,ms: again,busy ms: off,busy ms: again,launches: off,GB: off,GB: again,recordings,validation off by,same bits",
    ),
    ("Steps of other packages", "steps", "peer,kind,graphs,ms,busy ms,launches"),
    ("Training runs", "runs", "kind,seconds: off,seconds: on,valid off by,same bits"),
    ("A longer run", "speed", "kind,graphs,epochs,seconds of the command,seconds,graphs per second"),
    ("Dynamics by the calculator", "dynamics", "atoms,ms,graph ms,busy ms,launches"),
    ("Predictions of one crystal", "dynamics", "kind,atoms,ms: eager,ms: replayed,forces off by"),
)
"""Title, part and columns; rows that have the last column are in a table."""


def cell(value: Any) -> str:
    """Return a value as text of a table."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "**no**", None: ""}[value]
    if isinstance(value, list):
        return " / ".join(map(cell, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


PARTS = {part.__name__: part for part in (machine, ops, runs, speed, steps, dynamics, page)}


def words(text: str) -> list[str]:
    """Return what stands between commas."""
    return text.split(",")


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--kinds", type=words, default=["painn", "mace", "pna"], help="architectures of runs")
    parser.add_argument(
        "--works", type=words, default=WORKS, help="architecture:structures:precision of steps, with commas"
    )
    parser.add_argument("--warm", action="store_true", help="take few steps, which compiles their kernels")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    if not (options.cpu or options.part == "page" or torch.cuda.is_available()):
        parser.exit(2, "torch sees no GPU here, and these measurements need one\n")
    options.device = "cpu" if options.cpu else "cuda"
    if options.cpu:
        bench_replay.without_gpu()
    rows = Rows(None if options.part == "page" else options.out, options.part)
    with rows.trying():
        PARTS[options.part](rows, options)


if __name__ == "__main__":
    main()
