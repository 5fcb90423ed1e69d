"""One table of what this machine can measure without other packages, each row beside what is asked of it.

    python -m tests.benchmarks.bench_machine [--quick] [--only SECTION] [--json FILE]

Ratios and figures are processor time of one thread. Baselines are plain torch and this package without the lever.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from hydragnn.base.allocator import keep_memory
from hydragnn.datasets.packing import costs_of
from hydragnn.graphs.atomic import from_ase
from hydragnn.graphs.skin import SkinList
from hydragnn.kernels.family import plain_forms
from hydragnn.kernels.ops import OPS, random_graph
from tests.benchmarks import bench_data
from tests.benchmarks.bench_kernels import derivatives
from tests.benchmarks.bench_memory import foretold_pairs
from tests.benchmarks.bench_planning import PER_RANK, TRACES, balance, measured_costs, planning_times, trace_of
from tests.benchmarks.harness import ratio_in_turns
from tests.benchmarks.structures import CUTOFF, model_of, structures


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A figure of this run beside the one that is asked for; ratios say how many times as fast ours is."""

    what: str
    measured: float | None
    """None where it could not be measured; ``unit`` says why."""
    unit: str
    asked: str
    device: str = "cpu, one thread"


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """How much of everything is measured."""

    turns: int = 9
    nodes: int = 2000
    """Of the graph for ops, with 30 edges for each."""
    ranks: tuple[int, ...] = (2, 1024, 8192)
    steps: int = 2
    """Of every trace that is shared among ranks."""
    measured_graphs: int = 48
    edges: int = 1000 * PER_RANK
    """In batches whose training steps are measured."""
    pairs: int = 100
    """Of configurations and batches whose memory is foretold."""
    batch: int = 32
    dynamics: int = 20
    graphs: int = 100_000
    """Of the store on which trainings start."""


QUICK = Effort(
    turns=3,
    ranks=(2, 1024),
    steps=1,
    measured_graphs=16,
    edges=8_000,
    pairs=14,
    batch=8,
    dynamics=8,
    graphs=5_000,
)
"""Small sizes, for a first look; minutes, and nobody has timed them as a whole on a quiet machine."""


def ops(effort: Effort) -> Iterator[Row]:
    """Forward and gradient of every op over torch's own gathers and scatters."""
    edges = random_graph(effort.nodes, 30)
    for op in OPS.values():
        for name, case in op.cases({"random": edges}, 128):
            variant = name.removeprefix("random, ")
            if variant not in VARIANTS:
                continue
            work = partial(derivatives, op.call, case.to(dtype=torch.float32), 1)
            ratio = ratio_in_turns(partial(_plainly, work), work, effort.turns)
            asked = OPS_ASKED.get((op.name, variant), "")
            yield Row(what=f"{op.name}, {variant}, over torch's", measured=ratio, unit="times", asked=asked)


def _plainly(work: Callable[[], object]) -> None:
    with plain_forms():
        work()


VARIANTS = (
    "channels, weight per channel",
    "vectors, weight per channel",
    "channels, per channel",
    "both ends and edges",
    "directions",
    "channels",
)
OPS_ASKED = {("gather_multiply_sum", "channels, weight per channel"): "4", ("segment_statistics", "channels"): "4"}


def planning(effort: Effort) -> Iterator[Row]:
    """Balance of ranks, by predicted and by measured costs, and how long a rank plans."""
    costs = measured_costs(effort.measured_graphs, effort.edges)
    for name in TRACES:
        for ranks in effort.ranks:
            sizes, batches = trace_of(name, ranks, effort.steps if ranks > 1000 else 20 * effort.steps)
            where = f"{name}, {ranks:,} ranks"
            found = balance(sizes, batches, ranks, costs_of(sizes))
            measured = balance(sizes, batches, ranks, costs.of(sizes))
            packed, share = planning_times(sizes, batches, ranks)
            asked = {1024: "0.98", 8192: "0.97"}.get(ranks, "")
            yield Row(what=f"balance, predicted costs, {where}", measured=found.ours, unit="of perfect", asked="0.98")
            yield Row(what=f"balance, measured costs, {where}", measured=measured.ours, unit="of perfect", asked=asked)
            over = found.ours / found.node_budget
            yield Row(what=f"balance over a node budget's, {where}", measured=over, unit="times", asked="1.2")
            yield Row(what=f"packing, {where}", measured=packed * 1e6, unit="us per graph", asked="below 1")
            yield Row(what=f"share of a rank, {where}", measured=share * 1e3, unit="ms per step", asked="below 1")


def memory(effort: Effort) -> Iterator[Row]:
    """How far the foretold memory of batches is from what they take."""
    rows = foretold_pairs(effort.pairs)
    errors = np.abs(np.array([row["ratio"] for row in rows]) - 1)
    what = f"memory foretold, largest error of {len(rows)} batches"
    yield Row(what=what, measured=100 * float(errors.max()), unit="%", asked="10")


def calculator(effort: Effort) -> Iterator[Row]:
    """Energy and forces of 64 moving atoms, neighbours searched at every step over kept within a skin."""
    atoms = next(one for one in structures(200) if len(one) == 64 and one.pbc.all())
    model = model_of("painn", from_ase(atoms, CUTOFF).to(dtype=torch.float32), CUTOFF, 64, 3, ["forces"])
    random, neighbours = np.random.default_rng(0), SkinList()
    frames = [atoms.copy() for _ in range(effort.dynamics)]
    for number, frame in enumerate(frames):
        frame.positions += 0.004 * number * random.normal(size=(1, 3)) + 0.003 * random.normal(size=(len(atoms), 3))

    def run(find: SkinList | None, predicted: bool) -> None:
        for frame in frames:
            graph = from_ase(frame, CUTOFF, neighbours=find).to(dtype=torch.float32)
            if predicted:
                model(graph)

    for what, predicted in (("calculator, PaiNN, 64 atoms", True), ("its graph alone", False)):
        ratio = ratio_in_turns(partial(run, None, predicted), partial(run, neighbours, predicted), effort.turns)
        yield Row(what=f"{what}: neighbours kept within a skin, over searched", measured=ratio, unit="times", asked="")


def starts(effort: Effort) -> Iterator[Row]:
    """What a training costs before its first step, with and without the statistics of a trial before it."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store.h5"
        bench_data.write(store, effort.graphs)
        first = bench_data.started(store, shared=True)
        second = bench_data.started(store, shared=True)
    where = f"start on {effort.graphs:,} graphs"
    ratio = first["cpu"] / second["cpu"]
    yield Row(what=f"{where}, second trial over first (statistics kept)", measured=ratio, unit="times", asked="")
    asked = ("below 5 at 1,000,000", "below 300 at 1,000,000")
    yield Row(what=f"{where}, second trial", measured=second["cpu"], unit="CPU s", asked=asked[0])
    own = second["own"] - second["imports"]
    yield Row(what=f"{where}, memory beside the shared copy", measured=own, unit="MB", asked=asked[1])


SECTIONS: Mapping[str, Callable[[Effort], Iterator[Row]]] = {
    "ops": ops,
    "planning": planning,
    "memory": memory,
    "calculator": calculator,
    "starts": starts,
}


def bench_table(effort: Effort, only: str = "") -> Iterator[Row]:
    """Yield the rows of all sections, or of the one named ``only``, as they are measured."""
    torch.set_num_threads(1)
    keep_memory()
    for name, rows in SECTIONS.items():
        if only in ("", name):
            yield from rows(effort)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", choices=SECTIONS, help="one section")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer measurements")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table to a file")
    options = parser.parse_args()
    rows = []
    table = Table("what", "measured", "", "asked", "device")
    for row in bench_table(QUICK if options.quick else Effort(), options.only):
        rows.append(asdict(row))
        figure = "" if row.measured is None else f"{row.measured:.3g}"
        table.add_row(row.what, figure, row.unit, row.asked, row.device)
    Console(width=140).print(table)
    if options.json:
        options.json.write_text(json.dumps({"threads": torch.get_num_threads(), "rows": rows}))


if __name__ == "__main__":
    main()
