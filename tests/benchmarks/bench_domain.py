"""What an ensemble flags as outside its training domain, on graphs that training never showed.

    python -m tests.benchmarks.bench_domain DATA OUT            DATA is the folder of real data; OUT keeps runs and ensembles

Per data set two small members are trained (some processor minutes in all) and asked about other graphs (``domain_sets``). The
table has, per kind of graph, the share that is flagged by the detectors;
the share of values inside the 90 % intervals; and how many graphs have an error (root mean square over the graph)
above three times the median of the test part. Below it per data set: AUROC of the score, and of the members' spread alone, against such
errors; the seconds that scores take as a share of a prediction's; false alarms of the detectors that look at
graphs alone, and the least share of every other kind that they flag, over splits that are drawn anew.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from hydragnn.config import config_from_table
from hydragnn.datasets import GraphStore, MemoryStore, StoreWriter, make_split, open_store
from hydragnn.ensemble import Ensemble, Predictions
from hydragnn.ensemble.building.build import build_ensemble
from hydragnn.ensemble.domain import Domain, Doubts, GraphView, fitted_domain, scores_of
from hydragnn.ensemble.domain.doubts import STATES
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.joining import concatenate
from hydragnn.runs import train
from tests.benchmarks.domain_cantilevers import cantilevers
from tests.benchmarks.domain_sets import DomainSet, acetylacetone, alloys, darcy, fields_of, metals

SETS: Mapping[str, Callable[[Path], DomainSet]] = {
    "mlearn Cu, Ni": metals,
    "FePt": alloys,
    "acac 300 K": acetylacetone,
    "Darcy 16 x 16": darcy,
    "cantilevers": cantilevers,
}

MEMBERS = 2
SPLITS = 30
LARGE = 3.0
"""Times the median error of the test part."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Row:
    """What was said of graphs of one kind."""

    kind: str
    graphs: int
    flagged: float
    coverage: float
    large_errors: float
    by_detector: Mapping[str, float]


def train_members(name: str, made: DomainSet, folder: Path, seed: int) -> list[Path]:
    """The store and the members, each made once and found again."""
    store = (folder / "graphs.h5").resolve()
    if not store.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with StoreWriter(store, fields_of(made), dim=made.graphs[0].dim) as writer:
            for graph in made.graphs:
                writer.write(graph)
    runs = [folder / "members" / f"{seed + number}" for number in range(MEMBERS)]
    for number, run in enumerate(runs):
        if not (run / "model" / "model.json").exists():
            training = {**made.table["train"], "seed": seed + number}
            table = {**made.table, "data": {"store": str(store)}, "train": training}
            record = train(config_from_table(table, store), run)
            print(f"{name}, seed {seed + number}: {record.status}, {record.cost.cpu_seconds:.0f} s", flush=True)
    return runs


def figures_of(name: str, made: DomainSet, out: Path, seed: int) -> dict[str, Any]:
    """All figures of one data set."""
    folder = out / "".join(letter for letter in name if letter.isalnum())
    runs = train_members(name, made, folder, seed)
    if not (folder / "ensemble").exists():
        build_ensemble(runs, folder / "ensemble")
    ensemble, store = Ensemble.load(folder / "ensemble"), open_store(folder / "graphs.h5")
    train_part, held_out, test = parts_of(ensemble, store)
    asked = {"test": store.read(test, names_of(store)), **{k: concatenate(list(v)) for k, v in made.probes.items()}}
    unlabelled = {kind: concatenate(list(graphs)) for kind, graphs in made.unlabelled.items()}
    output = {kind: ensemble.predict(batch) for kind, batch in (asked | unlabelled).items()}
    errors = {kind: graph_errors(made.target, batch, output[kind]) for kind, batch in asked.items()}
    bound = LARGE * float(np.nanmedian(errors["test"]))
    rows = [
        Row(
            kind=kind,
            graphs=len(batch),
            flagged=float(np.mean([bool(reason) for reason in output[kind].domain])),
            coverage=coverage(made.target, batch, output[kind]) if kind in asked else float("nan"),
            large_errors=float((errors[kind] > bound).mean()) if kind in asked else float("nan"),
            by_detector={
                name: float(np.mean([f"{name}: " in reason for reason in output[kind].domain]))
                for name in output[kind].domain_scores
            },
        )
        for kind, batch in (asked | unlabelled).items()
    ]
    large = np.concatenate([errors[kind] > bound for kind in asked])
    score = np.concatenate([-np.log(output[kind].domain_score) for kind in asked])
    spread = np.concatenate([output[kind].domain_scores["spread"] for kind in asked])
    return {
        "set": name,
        "seeds": [seed + number for number in range(MEMBERS)],
        "sizes": [len(train_part), len(held_out), len(test)],
        "rows": [asdict(row) for row in rows],
        "graphs": {
            kind: {"errors": errors[kind].tolist(), **{k: v.tolist() for k, v in output[kind].domain_scores.items()}}
            for kind in asked
        },
        "auroc": auroc(score, large),
        "auroc_spread": auroc(spread, large),
        "cost_share": cost_share(ensemble, asked["test"]),
        "without_members": splits_drawn_anew(made, [len(train_part), len(held_out)]),
    }


def names_of(store: GraphStore) -> list[str]:
    """All fields."""
    return [field.name for field in store.fields()]


def parts_of(ensemble: Ensemble, store: GraphStore) -> list[NDArray[np.int64]]:
    """Training part, what sets thresholds (validation and calibration), and test part of the members."""
    split = make_split(store, ensemble.members[0].config.split)
    return [split.train, np.union1d(split.valid, split.calibration), split.test]


def graph_errors(field: str, batch: GraphBatch, output: Predictions) -> NDArray[np.float64]:
    """Root mean square error of a field over each graph; infinite where it could not be predicted."""
    wrong = (output[field].mean - batch[field].double().numpy()) ** 2  # type: ignore[attr-defined]
    owner, count = output.graph_of_item(field), len(output)
    sums = np.bincount(owner, weights=wrong.reshape(len(owner), -1).mean(axis=1), minlength=count)
    errors = np.sqrt(sums / np.maximum(np.bincount(owner, minlength=count), 1))
    return np.where(np.isfinite(errors), errors, np.inf)


def coverage(field: str, batch: GraphBatch, output: Predictions) -> float:
    """Share of the values inside their intervals."""
    truth, one = batch[field].double().numpy(), output[field]
    return float(((truth >= one["lower"]) & (truth <= one["upper"])).mean())


def auroc(score: NDArray[np.float64], large: NDArray[np.bool_]) -> float:
    """Area under the curve of a score against large errors; NaN where all graphs are alike."""
    return float(roc_auc_score(large, score)) if large.any() and not large.all() else float("nan")


def cost_share(ensemble: Ensemble, batch: GraphBatch) -> float:
    """Time of the scores as a share of the members' and theirs; the least of three each."""

    def seconds(work: Any) -> float:
        times = []
        for _ in range(3):
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
        return min(times)

    domain = ensemble.manifest.domain
    assert isinstance(domain, Domain)
    on_nodes = [target.name for target in ensemble.targets if target.field.on == "node"]
    doubts = Doubts(
        of_graphs={name: np.ones((len(batch), 3)) for name in (*ensemble.manifest.calibration, STATES)},
        of_nodes={name: np.ones(batch.num_nodes) for name in (*on_nodes, STATES)},
    )
    members = seconds(lambda: [member.model.predict(batch) for member in ensemble.members])
    states = [(member.latent, member.model.states(batch)) for member in ensemble.members if member.latent]

    def score() -> None:
        for space, known in states:
            space.distances(known, batch.owner("node"), len(batch))
        domain.scores(GraphView(batch=batch.select(range(len(batch))), scale=domain.scale, doubts=doubts))

    scores = seconds(score)
    return scores / (scores + members)


def splits_drawn_anew(made: DomainSet, sizes: Sequence[int]) -> dict[str, Any]:
    """What detectors without members flag when they are fitted on splits drawn with seeds 0, 1, ...: shares of test parts, and
    of graphs of other kinds the least.
    """
    inputs = [field for field in fields_of(made) if field.role == "input"]
    read = [field.name for field in inputs]
    known = MemoryStore([graph.with_fields(drop={f.name for f in fields_of(made)} - {*read}) for graph in made.graphs])
    alarms: list[float] = []
    foreign: dict[str, list[float]] = {kind: [] for kind in made.probes}
    for seed in range(SPLITS):
        order = np.random.default_rng(seed).permutation(len(known))
        train_part, held_out, test = np.split(order, [sizes[0], sizes[0] + sizes[1]])
        domain = fitted_domain(known, np.sort(train_part), np.sort(held_out), inputs, read, Doubts(), [])
        scores = scores_of(domain, known, np.sort(test), read, Doubts())
        alarms.append(float(np.mean([bool(reason) for reason in scores.reasons])))
        for kind, graphs in made.probes.items():
            said = domain.scores(GraphView(batch=concatenate(list(graphs)), scale=domain.scale))
            foreign[kind].append(float(np.mean([bool(reason) for reason in said.reasons])))
    return {"false_alarms": alarms, "least_flagged": {kind: min(shares) for kind, shares in foreign.items()}}


def table_of(result: Mapping[str, Any]) -> str:
    """The table of one data set."""
    lines = [f"{result['set']} (training, held out, test: {result['sizes']}; seeds {result['seeds']})"]
    lines.append(f"  {'':<24}{'graphs':>7}{'flagged':>9}{'coverage':>10}{'error>3x':>10}  detectors")
    for row in result["rows"]:
        actual = ", ".join(f"{name} {share:.2f}" for name, share in row["by_detector"].items() if share > 0)
        lines.append(
            f"  {row['kind']:<24}{row['graphs']:>7}{row['flagged']:>9.3f}"
            f"{row['coverage']:>10.3f}{row['large_errors']:>10.3f}  {actual}"
        )
    alarms, least = result["without_members"]["false_alarms"], result["without_members"]["least_flagged"]
    lines.append(
        f"  AUROC of the score {result['auroc']:.3f}, of the spread alone {result['auroc_spread']:.3f}; "
        f"cost {100 * result['cost_share']:.1f} % of a prediction; "
        f"false alarms without members, {len(alarms)} splits: mean {np.mean(alarms):.4f}, largest {max(alarms):.4f}; "
        f"least of other kinds flagged {json.dumps(least)}"
    )
    return "\n".join(lines)


def main() -> None:
    """Train what is missing, measure, print and write ``OUT/domain.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="of the first member")
    parser.add_argument("--only", choices=sorted(SETS), help="one data set")
    options = parser.parse_args()
    results = []
    for name, make in SETS.items():
        if options.only in (None, name):
            results.append(figures_of(name, make(options.data), options.out, options.seed))
            print(table_of(results[-1]), flush=True)
    (options.out / "domain.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
