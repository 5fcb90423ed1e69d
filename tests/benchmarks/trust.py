"""Is an ensemble trusted where it may be, and nowhere else?

    python -m tests.benchmarks.trust [--only alloys] [--kinds schnet painn mace] [--data DATA] [--out FOLDER]

Three small members per set learn from graphs that commands make (``trust_sets``), and predict their test part and graphs beyond training; of one kind and three seeds, or of the named kinds. Printed per field:

- flagged: share of graphs outside the training domain (2 % of the test part may be)
- large, caught: share of graphs whose error exceeds three times the median error of the test part, and share of those that is flagged (70 % are wanted beyond training)
- huge, caught huge: the same of ten times (90 %)
- AUROC: of the score against large errors, over the test part and all graphs beyond; of ``spread`` and of ``latent`` alone
- covered: share of values inside their 90 % intervals where there is one (85 % are wanted), and the same of graphs that are not flagged
- unknown: share of values without an interval; width: mean width of intervals of graphs that are not flagged
- nodes: AUROC of the score of nodes against errors above three times the median, over all nodes of these graphs; worst: against the
  tenth of a flagged graph's nodes with the largest errors, mean over these graphs

and mean absolute errors of the test part: of members, of the ensemble, and its ratio to the best member's (1.02 is wanted at most).

``--kelvin 300 1000 --step 4`` adds dynamics at these temperatures, of sets with a calculator of true forces: first flagged step and share of flagged ones; mean and largest true error over the median of the test part; nearest distance over the shortest in training; all until the ensemble ends them; and when true errors would have, by the same rule (mean of 200 fs above ten), within 1 ps.

Runs are kept in a folder named for a digest of graphs and settings, and trained once; ensembles are built anew. ``DATA`` holds published sets, which are left out without it.
"""

import argparse
import json
import shutil
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
from ase.units import fs
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.metrics import roc_auc_score

from hydragnn.base.files import digest
from hydragnn.config import config_from_table
from hydragnn.datasets import StoreWriter, make_split, open_store
from hydragnn.ensemble import Ensemble, OutsideDomain, Predictions, calculator
from hydragnn.ensemble.building.build import build_ensemble
from hydragnn.ensemble.uses.calculator import LARGEST_ERROR, STEPS
from hydragnn.graphs import GraphBatch, concatenate
from hydragnn.graphs.batch import edge_vectors
from hydragnn.runs import train
from tests.benchmarks.trust_sets import NEEDS, SETS, TRUTHS, TrustSet

MEMBERS = 3
LARGE, HUGE = 3.0, 10.0
"""Times the median error of the test part."""
TEST = "test"
SHARES = ("flagged", "large", "caught", "huge", "caught_huge", "covered", "covered_inside", "unknown")
RANKINGS = ("auroc", "spread", "latent", "nodes", "worst")
"""Figures of graphs of one kind, and of all of a set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One field of graphs of one kind; shares, NaN where there is nothing to count."""

    set: str
    kind: str
    field: str
    graphs: int
    flagged: float
    large: float
    caught: float
    huge: float
    caught_huge: float
    auroc: float
    spread: float
    latent: float
    covered: float
    covered_inside: float
    unknown: float
    nodes: float
    worst: float
    width: float


def member_tables(made: TrustSet, kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Return the configurations of members, of the set's kind or of these kinds, each with a seed of its own."""
    models = [{"kind": kind} for kind in kinds] or [{}] * MEMBERS
    table, train_settings = made.table, made.table["train"]
    return [
        {**table, "model": {**table["model"], **model}, "train": {**train_settings, "seed": seed}}
        for seed, model in enumerate(models)
    ]


def trained(name: str, made: TrustSet, out: Path, kinds: Sequence[str] = ()) -> tuple[Path, list[Path]]:
    """Return the store and the finished runs, made where they are not there."""
    content = concatenate(list(made.graphs))
    values = {field: float(content[field].double().sum()) for field in content.fields}
    members = list(kinds) or MEMBERS
    folder = out / f"{name}-{digest({'table': made.table, 'values': values, 'members': members})[:12]}"
    store = folder / "graphs.h5"
    if not store.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with StoreWriter(store, list(content.fields.values()), dim=content.dim) as writer:
            writer.write(content)
    tables = member_tables(made, kinds)
    runs = [folder / f"{seed}" for seed in range(len(tables))]
    for table, run in zip(tables, runs):
        if not (run / "model" / "model.json").exists():
            shutil.rmtree(run, ignore_errors=True)
            record = train(config_from_table({**table, "data": {"store": str(store)}}, store), run)
            print(f"{name}, member {run.name}: {record.status}, {record.cost.cpu_seconds:.0f} s", flush=True)
    return store, runs


def asked(name: str, data: Path, out: Path, kinds: Sequence[str] = ()) -> tuple[Path, Path, dict[str, GraphBatch]]:
    """Return an ensemble built anew, its store, and graphs of the test part and of every kind beyond training."""
    made = SETS[name](data)
    store, runs = trained(name, made, out, kinds)
    folder = runs[0].parent / "ensemble"
    shutil.rmtree(folder, ignore_errors=True)
    build_ensemble(runs, folder)
    opened = open_store(store)
    test = make_split(opened, Ensemble.load(folder).members[0].config.split).test
    graphs = {TEST: opened.read(test)}
    return folder, store, graphs | {kind: concatenate(list(some)) for kind, some in made.beyond.items()}


def graph_errors(field: str, batch: GraphBatch, output: Predictions) -> NDArray[np.float64]:
    """Return root mean square errors over graphs, per node where values add up over nodes; infinite without a prediction."""
    one, owners = output[field], output.graph_of_item(field)
    squares = ((one[one.scored] - batch[field].double().numpy()) ** 2).reshape(len(owners), -1).mean(axis=1)
    counts = np.maximum(np.bincount(owners, minlength=len(batch)), 1)
    errors = np.sqrt(np.bincount(owners, weights=squares, minlength=len(batch)) / counts)
    errors = errors / output.nodes_per_graph if one.target.extensive else errors
    return np.where(np.isfinite(errors), errors, np.inf)


def rows_of(name: str, ensemble: Ensemble, graphs: Mapping[str, GraphBatch]) -> list[Row]:
    """Return all figures of a set."""
    outputs = {kind: ensemble.predict(batch) for kind, batch in graphs.items()}
    flagged = {kind: np.array([bool(reason) for reason in output.domain]) for kind, output in outputs.items()}
    rows = []
    for field in ensemble.targets:
        errors = {kind: graph_errors(field.name, batch, outputs[kind]) for kind, batch in graphs.items()}
        usual = float(np.median(errors[TEST]))
        large, huge = ({kind: values > times * usual for kind, values in errors.items()} for times in (LARGE, HUGE))
        every = np.concatenate(list(large.values()))
        scores = {"auroc": [foreignness(output) for output in outputs.values()]}
        scores |= {name: [output.domain_scores[name] for output in outputs.values()] for name in ("spread", "latent")}
        aurocs = {name: np.nan_to_num(np.concatenate(of), nan=1e9) for name, of in scores.items()}
        mixed = 0 < every.sum() < len(every)
        aurocs = {name: float(roc_auc_score(every, of)) if mixed else np.nan for name, of in aurocs.items()}
        nodes, worst = node_figures(field.name, graphs, outputs) if field.field.on == "node" else (np.nan, np.nan)
        for kind, batch in graphs.items():
            one, owners = outputs[kind][field.name], outputs[kind].graph_of_item(field.name)
            truth, lower, upper = batch[field.name].double().numpy(), one["lower"], one["upper"]
            known = np.isfinite(upper - lower).reshape(len(owners), -1)
            inside = ((truth >= lower) & (truth <= upper)).reshape(len(owners), -1)
            out = flagged[kind][owners]
            rows.append(
                Row(
                    set=name,
                    kind=kind,
                    field=field.name,
                    graphs=len(batch),
                    flagged=float(flagged[kind].mean()),
                    large=float(large[kind].mean()),
                    caught=mean(flagged[kind][large[kind]]),
                    huge=float(huge[kind].mean()),
                    caught_huge=mean(flagged[kind][huge[kind]]),
                    **aurocs,
                    covered=mean(inside[known]),
                    covered_inside=mean(inside[~out][known[~out]]),
                    unknown=mean(~known),
                    nodes=nodes,
                    worst=worst,
                    width=mean((upper - lower).reshape(len(owners), -1)[~out][known[~out]]),
                )
            )
    return rows


def node_figures(
    field: str, graphs: Mapping[str, GraphBatch], outputs: Mapping[str, Predictions]
) -> tuple[float, float]:
    """Return AUROC of the score of nodes: over all nodes, and of the worst within flagged graphs."""
    errors, scores, within = [], [], []
    for kind, batch in graphs.items():
        one, owners = outputs[kind][field], outputs[kind].graph_of_item(field)
        squares = ((one[one.scored] - batch[field].double().numpy()) ** 2).reshape(len(owners), -1).mean(axis=1)
        errors.append(np.sqrt(squares))
        scores.append(-np.log(outputs[kind].node_domain_score))
        for graph in np.flatnonzero([bool(reason) for reason in outputs[kind].domain]):
            own, rows = errors[-1][owners == graph], scores[-1][owners == graph]
            worst = own > np.quantile(own, 0.9)
            within += [roc_auc_score(worst, rows)] if worst.any() else []
    every = np.concatenate(errors)
    large = every > LARGE * np.median(errors[0])
    return float(roc_auc_score(large, np.concatenate(scores))), mean(np.array(within))


def foreignness(output: Predictions) -> NDArray[np.float64]:
    """Return a number per graph that grows with its distance from training."""
    return -np.log(np.nan_to_num(output.domain_score, nan=1e-30))


def mean(values: NDArray[Any]) -> float:
    """Return the mean; NaN of nothing."""
    return float(values.mean()) if values.size else float("nan")


def print_rows(rows: Sequence[Row], names: Sequence[str]) -> None:
    """Print these figures as a table of Markdown, in percent."""
    print("| set | graphs | field | " + " | ".join(name.replace("_", " ") for name in names) + " |")
    print("|---" * (len(names) + 3) + "|")
    for row in rows:
        shares = " | ".join(f"{100 * getattr(row, name):.0f}" for name in names).replace("nan", "")
        print(f"| {row.set} | {row.kind} ({row.graphs}) | {row.field} | {shares} |")


def print_totals(rows: Sequence[Row]) -> None:
    """Print which large errors beyond training are flagged, and false alarms, of every set and of all."""
    print("| set | large, caught | huge, caught | false alarms |\n|---|---|---|---|")
    for name in [*dict.fromkeys(row.set for row in rows), "all"]:
        own = [row for row in rows if name in ("all", row.set)]
        beyond = [row for row in own if row.kind != TEST]
        tests = {row.set: (row.graphs * row.flagged, row.graphs) for row in own if row.kind == TEST}
        shown = []
        for size, share in (("large", "caught"), ("huge", "caught_huge")):
            counts = np.array([row.graphs * getattr(row, size) for row in beyond])
            caught = counts @ np.nan_to_num([getattr(row, share) for row in beyond])
            shown.append(f"{100 * caught / counts.sum():.0f} % of {counts.sum():.0f}" if counts.any() else "")
        alarms = np.sum(list(tests.values()), axis=0)
        print(f"| {name} | {' | '.join(shown)} | {alarms[0]:.0f} of {alarms[1]:.0f} |")


def table_of_members(ensemble: Ensemble, batch: GraphBatch) -> Table:
    """Return mean absolute errors of members and the ensemble on the test part."""
    table = Table(
        "field", *(member.model.description.model.kind for member in ensemble.members), "ensemble", "ratio to best"
    )
    output = ensemble.predict(batch)
    for target in ensemble.targets:
        one, truth = output[target.name], batch[target.name].double().numpy()
        alone = [float(np.abs(own - truth).mean()) for own in one.members]
        together = float(np.abs(one[one.scored] - truth).mean())
        table.add_row(target.name, *(f"{error:.4g}" for error in (*alone, together)), f"{together / min(alone):.3f}")
    return table


def dynamics_row(name: str, folder: Path, store: Path, test: GraphBatch, kelvin: float, step: float) -> str:
    """Return a row of 1 ps of dynamics of the first test graph: figures until the ensemble ends them."""
    ensemble, opened, random = Ensemble.load(folder), open_store(store), np.random.default_rng(0)
    known = opened.read(make_split(opened, ensemble.members[0].config.split).train)
    usual = float(np.median(graph_errors("forces", test, ensemble.predict(test))))
    first = test.select(slice(0, 1))
    kinds, periodic = first["atomic_numbers"].flatten().numpy(), first.periodic[0].numpy()
    atoms = Atoms(kinds, first.positions.numpy(), cell=first.cell[0].numpy(), pbc=periodic)
    steps, window = int(1000 / step), round(STEPS / step)  # 1 ps, and 200 fs as hydragnn md has them
    atoms.calc = guard = calculator(ensemble, outside="stop")
    guard.errors = deque(maxlen=window)
    MaxwellBoltzmannDistribution(atoms, temperature_K=kelvin, rng=random)
    dynamics = Langevin(atoms, step * fs, temperature_K=kelvin, friction=0.01 / fs, fixcm=False, rng=random)
    moments, flags, errors, near, end = dynamics.irun(steps), [], [], [], None
    while len(errors) <= steps:
        try:
            next(moments)
            wrong = atoms.get_forces() - TRUTHS[name](atoms)
        except OutsideDomain:
            end, guard.outside, moments = len(errors), "record", dynamics.irun(steps)
            continue
        except ZeroDivisionError:  # of ASE's Tersoff, for an atom with one neighbour
            break
        errors.append(float(np.sqrt((wrong**2).mean())) / usual)
        flags.append(bool(guard.results["domain"]))
        distances = atoms.get_all_distances(mic=bool(atoms.pbc.any()))[np.triu_indices(len(atoms), k=1)]
        near.append(distances.min() / float(edge_vectors(known).norm(dim=1).min()))
    late = np.flatnonzero(np.convolve(errors, np.ones(window) / window)[: len(errors)] > LARGEST_ERROR)
    until = slice(None if end is None else end + 1)
    never = "goes on" if len(errors) > steps else "unknown"
    ends = " | ".join(f"{step * at:.0f} fs" if at is not None else never for at in (end, next(iter(late), None)))
    first = f"{step * np.argmax(flags):.0f}" if any(flags[until]) else ""
    figures = f"{np.mean(errors[until]):.2g} | {np.max(errors[until]):.2g} | {np.min(near[until]):.2f} | {ends}"
    return f"| {name} | {kelvin:.0f} | {first} | {100 * np.mean(flags[until]):.0f} % | {figures} |"


def main() -> None:
    """Measure the sets, print their tables, and write OUT/trust.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(SETS), help="these sets")
    parser.add_argument("--kinds", nargs="+", default=(), help="architectures of members")
    parser.add_argument("--kelvin", nargs="+", type=float, default=(), help="temperatures of dynamics")
    parser.add_argument("--step", type=float, default=1.0, help="their step in fs")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="published data")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "trust", help="runs, kept")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out = options.out.resolve()
    rows: list[Row] = []
    for name in options.only or SETS:
        if name in NEEDS and not (options.data / NEEDS[name]).exists():
            print(f"{name}: left out, since {options.data / NEEDS[name]} is not there")
            continue
        folder, store, graphs = asked(name, options.data, options.out, options.kinds)
        ensemble = Ensemble.load(folder)
        own = rows_of(name, ensemble, graphs)
        Console(width=150).print(table_of_members(ensemble, graphs[TEST]))
        print_rows(own, SHARES)
        print_rows(own[:: len(graphs)], RANKINGS)
        rows += own
        if options.kelvin and name in TRUTHS:
            print(
                "| set | K | first flagged, fs | flagged | error, mean | largest | nearest | ends after | by true errors |"
            )
            print("|---" * 9 + "|")
        for kelvin in options.kelvin if name in TRUTHS else ():
            print(dynamics_row(name, folder, store, graphs[TEST], kelvin, options.step), flush=True)
    print_totals(rows)
    (options.out / "trust.json").write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
