"""How evenly an ensemble's prediction is spread over ranks, and what shared graphs are worth.

    python tests/benchmarks/bench_balance.py [--folder DIR] [--graphs 3000] [--json]

Measured, two ranks of MPI with one thread each: the makespan over the bound of the measured costs, and the ensemble against one job
per member on the same two ranks, in turns in the same processes. Simulated on a virtual clock that runs the predictor's own plan
and queues: 1,024 and 8,192 ranks, with the costs of eight architectures and with recorded ones: what each unit cost its process (by
processor), as where every rank has a processor to itself, and how long it took here (by clock), whatever else ran meanwhile. Then all
ranks hear that all is there, look into the files of all, each into some, of which one says to all where what is; all combine the batches whose members were spread
over ranks, hear again, look once more, one lays the file out while the others wait, and all fill it; a batch whose members are spread is read once for every
rank that has some. All at what it cost one rank here in processor seconds: of the recorded graphs ("and flagged": as if all of them were foreign), and for architectures of
batches of 32 graphs that are all flagged as foreign, with a text of 350 letters each. A row tells the scatter of its costs: the standard deviation of what units
took over what their member's rate and their load foretell.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from balance_looking import looking_costs
from balance_simulation import LOOKS, Ending, architectures, recorded, resampled, simulated
from small_ensemble import crystals, make_ensemble, write_store, write_structures

from hydragnn.datasets import BatchSettings, open_store
from hydragnn.distributed import this_launch
from hydragnn.ensemble import Ensemble
from hydragnn.ensemble.plan import Unit, chunks_of, default_budget
from hydragnn.ensemble.prediction import filling, hdf5, predict, reporting, work
from hydragnn.ensemble.prediction.group import Alone
from hydragnn.ensemble.prediction.job import Job, member_costs
from hydragnn.ensemble.prediction.joining import join_group
from hydragnn.ensemble.prediction.predict import predict_with
from hydragnn.ensemble.prediction.reporting import PredictionResult, measured_course

MEMBERS = [(kind, width) for width in (16, 24, 32, 48) for kind in ("egnn", "schnet")]
MANY_TIMES = 100
"""Pieces become a file once and so many times over, which tells what each batch takes and what the file takes."""


FLAGGED = 32
"""Graphs in a batch of those that are all flagged."""


class Course:
    """What the prediction under way costs this rank, unit by unit, and what became of it."""

    def __init__(self) -> None:
        """From now on every prediction of this process is noted."""
        self.units: list[tuple[int, int, float]] = []
        self.plans: list[dict[str, Any]] = []
        account, course = work.Worker._account, measured_course

        def noted(worker: work.Worker, unit: Unit, seconds: float) -> None:
            self.units.append((unit.chunk, unit.member, seconds))
            account(worker, unit, seconds)

        work.Worker._account = noted  # type: ignore[method-assign]
        reporting.measured_course = lambda *known: self.plans.append(course(*known)) or self.plans[-1]  # type: ignore[func-returns-value,assignment]


def rank_main(folder: Path, repeats: int) -> None:
    """What each of the two ranks does: the ensemble and one job per member, in turns; then the ensemble by one rank, in processor seconds."""
    torch.set_num_threads(1)
    ensemble, runs = make_ensemble(folder, MEMBERS)
    course, rows, plans = Course(), dict[str, list[dict[str, Any]]](), list[dict[str, Any]]()
    for source in ("structures.xyz", "graphs.h5"):
        for _ in range(repeats):
            together = _timed([ensemble], folder / source, folder)
            plans += course.plans[-1:]
            alone = _timed(runs, folder / source, folder)
            rows.setdefault(source, []).append({"together": together, "alone": alone})
    course.units.clear()
    _timed([ensemble], folder / "graphs.h5", folder)
    by_clock = list(course.units)
    course.units.clear()
    with in_processor_seconds():
        _timed([ensemble], folder / "graphs.h5", folder)
    rank, own = this_launch().rank, {"by clock": by_clock, "by processor": list(course.units)}
    (folder / f"units-{rank}.json").write_text(json.dumps(own))
    if rank == 0:
        course.units.clear()
        measurement = {"rows": rows, "plans": plans, "alone": _alone(ensemble, folder, course)}
        (folder / "rank.json").write_text(json.dumps(measurement))


def _alone(ensemble: Path, folder: Path, course: Course) -> dict[str, float]:
    """Processor seconds of one rank: to predict and keep a graph, over those of units; to begin; and per graph to join and to combine."""
    with in_processor_seconds():
        result = _predicted(Job(model=ensemble, source=folder / "graphs.h5", out=folder / "alone.h5"))
    predicting = result.seconds_of["predicting"]
    alone = {
        "keeping": predicting / sum(seconds for _, _, seconds in course.units) - 1,
        "beginning": result.seconds_of["preparing"],
        "predicting": predicting / result.graphs,
    }
    alone |= {f"{what} files": seconds for what, seconds in looking_costs(folder / "looking").items()}
    with ends_measured() as ends:
        for name, limit in (("graphs.h5", 64), ("flagged.h5", FLAGGED)):
            batch = BatchSettings(max_graphs=limit)
            result = _predicted(Job(model=ensemble, source=folder / name, out=folder / "ends.h5", batch=batch))
            many, once, reading, filling, combining, apart, together = ends
            ends.clear()
            laying = (many - once) / (MANY_TIMES - 1) / result.graphs
            alone[f"flagged in {name}"] = result.outside_training_domain / result.graphs
            alone[f"laying {name}"] = laying
            alone[f"opening {name}"] = once - laying * result.graphs
            alone[f"reading {name}"] = reading
            alone[f"filling {name}"] = filling / MANY_TIMES / result.graphs
            alone[f"combining {name}"] = combining / result.graphs
            alone[f"batch {name}"] = (apart - together) / (len(MEMBERS) - 1) / result.graphs
    return alone


def _predicted(job: Job) -> PredictionResult:
    job.out.unlink(missing_ok=True)
    result = predict_with(Alone(), job, lambda: None)
    assert result is not None
    return result


@contextmanager
def ends_measured() -> Iterator[list[float]]:
    """Files of predictions of this process are laid out once and with every piece many times over, which is filled, before they are, and pieces
    combined anew from what was kept of members; gives processor seconds of laying out many, one, of reading that, filling, combining,
    and predicting again with batches that are read for every unit, and once for all of theirs."""
    taken, fill, long = list[float](), filling.Filler.fill, work.LONG
    work.LONG = -1.0  # every unit is kept by itself, too

    def timed(do: Callable[[], Any]) -> Any:
        begin = time.process_time()
        given = do()
        taken.append(time.process_time() - begin)
        return given

    def measured(filler: filling.Filler) -> None:
        merger, worker = filler._merger, filler._worker
        entries, works = merger.pieces_found()
        outlines = []
        for times in (MANY_TIMES, 1):
            merger.pieces_found = lambda times=times: (np.tile(entries, times), works)  # type: ignore[method-assign,misc]
            outlines.append(timed(filler._laid_out))
        timed(lambda: filler._read_outline(outlines[0]))
        timed(lambda: [filler._fill(segment) for segment in range(len(filler._pieces.bounds[0]) - 1)])
        timed(lambda: [worker.keep_piece(one, worker.combine(one), []) for one in merger.chunks])
        for apart in (True, False):
            timed(lambda apart=apart: _predict_again(worker, apart=apart))
        fill(filler)

    filling.Filler.fill = measured  # type: ignore[method-assign]
    try:
        yield taken
    finally:
        filling.Filler.fill, work.LONG = fill, long  # type: ignore[method-assign]


def _predict_again(worker: work.Worker, *, apart: bool) -> None:
    for number in range(len(worker.chunks)):
        chunk = worker.chunks[number]
        read = worker.read(chunk)
        for member in worker.ensemble.members:
            work.outcome_of(member, worker.read(chunk) if apart else read)


@contextmanager
def in_processor_seconds() -> Iterator[None]:
    """Predict with accounts of what everything cost this process, however many others share its processor."""
    clock = SimpleNamespace(perf_counter=time.process_time, time=time.time, monotonic=time.monotonic)
    work.time = predict.time = clock  # type: ignore[assignment]
    try:
        yield
    finally:
        work.time = predict.time = time  # type: ignore[assignment]


def _timed(models: Sequence[Path], source: Path, folder: Path) -> dict[str, float]:
    """Wall seconds of a job per model one after the other, and the processor seconds of this rank."""
    begin, cpu = time.perf_counter(), time.process_time()
    for number, model in enumerate(models):
        out = folder / f"out-{len(models)}-{number}.h5"
        if this_launch().rank == 0:
            out.unlink(missing_ok=True)
        with join_group() as group:  # what was counted and said is of one prediction
            predict_with(group, Job(model=model, source=source, out=out), lambda: None)
    return {"wall": time.perf_counter() - begin, "cpu": time.process_time() - cpu}


def measured(folder: Path, graphs: int, repeats: int) -> dict[str, Any]:
    """Make everything, start two ranks, and give what they measured."""
    torch.set_num_threads(1)
    make_ensemble(folder, MEMBERS)
    frames = crystals(graphs, seed=1, most=3)
    if not (folder / "structures.xyz").exists():
        write_structures(folder / "structures.xyz", frames)
        write_store(folder / "graphs.h5", frames)
        pressed = crystals(graphs // 4, seed=2, most=3)
        for atoms in pressed:
            atoms.set_cell(0.8 * atoms.cell, scale_atoms=True)
        write_store(folder / "flagged.h5", pressed)
    launcher = [str(Path(sys.executable).parent / "mpirun"), "-n", "2", sys.executable, __file__]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*launcher, "--rank", str(folder), "--repeats", str(repeats)], check=True, env=environment)
    result: dict[str, Any] = json.loads((folder / "rank.json").read_text())
    shares = [json.loads((folder / f"units-{rank}.json").read_text()) for rank in range(2)]
    return result | {name: [unit for share in shares for unit in share[name]] for name in shares[0]}


def main() -> None:
    """Print the tables, or JSON with --json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--graphs", type=int, default=3000)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--rank", type=Path, default=None, help="used by the benchmark itself")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.rank:
        rank_main(options.rank, options.repeats)
        return
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="bench_balance_"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    measurement = measured(folder, options.graphs, options.repeats)
    result = {
        "measured": measurement["plans"],
        "one rank": measurement["alone"],
        "sharing": _ratios(measurement["rows"]),
        "simulated": _simulations(folder, measurement),
    }
    if options.json:
        print(json.dumps(result))
        return
    _print(result)


def _ratios(rows: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """How many times faster the ensemble is than one job per member, by the clock and by rank 0's processor seconds."""
    return {
        source: {
            "together_s": median(row["together"]["wall"] for row in turns),
            "alone_s": median(row["alone"]["wall"] for row in turns),
            "wall_ratio": median(row["alone"]["wall"] / row["together"]["wall"] for row in turns),
            "cpu_ratio": median(row["alone"]["cpu"] / row["together"]["cpu"] for row in turns),
        }
        for source, turns in rows.items()
    }


def _simulations(folder: Path, measurement: dict[str, Any]) -> list[dict[str, Any]]:
    """The largest machines, by recorded costs and by those of the architectures, with fast and slow networks."""
    store = open_store(folder / "graphs.h5")
    sizes, ensemble = store.sizes(), Ensemble.load(folder / "ensemble")
    chunks = chunks_of(sizes, np.arange(len(store)), default_budget(sizes), {})
    by = {name: recorded(len(chunks), measurement[name], len(MEMBERS)) for name in ("by processor", "by clock")}
    loads, expected = chunks.loads.tolist(), member_costs(ensemble, folder / "ensemble")
    alone = measurement["alone"]

    def ending_of(name: str, graphs: float, keeping: float) -> Ending:
        """With so many graphs in a chunk, of one of the stores."""
        once = {what: alone[f"{what} {name}"] for what in ("opening", "reading")}
        costs = {what: graphs * alone[f"{what} {name}"] for what in ("laying", "filling", "combining", "batch")}
        files = {f"{what}_files": alone[f"{what} files"] for what in LOOKS}
        return Ending(keeping=keeping, segment=hdf5.ROWS / graphs, **once, **costs, **files)

    ending, each = ending_of("flagged.h5", FLAGGED, 0.0), len(store) / len(chunks)
    own = ending_of("graphs.h5", each, alone["keeping"])
    flagged = replace(ending_of("flagged.h5", each, alone["keeping"]), batch=own.batch)
    cases = [(name, seconds, own) for name, seconds in by.items()]
    cases.append(("and flagged", by["by processor"], flagged))
    rows = []
    for ranks, per_rank in ((2, 150), (1024, 10), (1024, 50), (8192, 10)):
        for latency in (20e-6, 200e-6):
            generator = np.random.default_rng(0)
            named = {
                f"recorded {name}": simulated(
                    *resampled(loads, seconds, ranks * per_rank, generator),
                    expected,
                    ranks,
                    latency,
                    recorded_ending,
                )
                for name, seconds, recorded_ending in cases
            }
            for name, error in (("architectures", 0.3), ("unknown beforehand", 1.0)):
                named[name] = simulated(*architectures(ranks * per_rank, error, generator), ranks, latency, ending)
            rows += [{"costs": name, "latency_ms": latency * 1e3, **row} for name, row in named.items()]
    return rows


def _print(result: dict[str, Any]) -> None:
    print("measured, 2 ranks: makespan / lower bound of the measured costs")
    for plan in result["measured"]:
        print(
            f"  {plan['makespan']:8.2f} s / {plan['lower_bound']:8.2f} s = {plan['ratio']:.4f}   ({plan['units_done']} units)"
        )
    print("measured, 2 ranks: one job per member against the ensemble, jobs without start-up")
    for source, row in result["sharing"].items():
        print(
            f"  {source:15} {row['alone_s']:7.2f} s / {row['together_s']:7.2f} s: {row['wall_ratio']:.2f}x by the clock, "
            f"{row['cpu_ratio']:.2f}x in processor seconds"
        )
    alone = result["one rank"]
    looks = ", ".join(f"{what} {alone[what + ' files'] * 1e6:.1f} us" for what in LOOKS)
    print(
        f"measured, 1 rank, processor time: {alone['predicting'] * 1e6:.0f} us to predict a graph; {alone['beginning']:.2f} s for everything before (without imports); "
        f"in the files of ranks, each, {looks}"
    )
    for name in ("graphs.h5", "flagged.h5"):
        print(
            f"  {name:11} {alone[f'flagged in {name}']:.3f} flagged: {alone[f'laying {name}'] * 1e6:.2f} us per graph and {alone[f'opening {name}']:.3f} s to lay the file out, "
            f"{alone[f'filling {name}'] * 1e6:.1f} us per graph to fill it; {alone[f'combining {name}'] * 1e6:.0f} us per graph to combine what members said apart, {alone[f'batch {name}'] * 1e6:.0f} us to read it for one rank more"
        )
    print("simulated, the predictor's plan and queues on a virtual clock, the file laid out and filled as measured")
    for row in result["simulated"]:
        print(
            f"  {row['costs']:21} {row['ranks']:5d} ranks, {row['units_per_rank']:5.1f} units per rank, "
            f"scatter {row['scatter']:.2f}, take {row['latency_ms']:.2f} ms: simulated makespan / bound {row['ratio']:.4f} (bound {row['bound_s']:.2f} s); "
            f"with {row['combining_s']:.2f} s of combining, {row['waiting_s']:.2f} s of waiting and {row['joining_s']:.2f} s of laying out and filling {row['of_ideal']:.3f} of ideal"
        )


if __name__ == "__main__":
    main()
