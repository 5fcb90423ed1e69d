"""Fronts of real campaigns on the quickstart's alloys: the search with rungs against random search of as many epochs.

    python -m tests.benchmarks.bench_front OUT [--seeds 0 1 2] [--trials 24]

Epochs, rungs and parameters are those of the quickstart, with wider ranges of sizes, on 96 graphs with 60 that validate. The seed
is that of data, split and sampler. Random search trains in full, with at least as many epochs.
Campaigns go by the costs that they measure. Fronts of finished trials are judged by CPU times that are measured afterwards: of
all trials of both sides in turn in one process, the least of all rounds and trials of one size, so that load does not matter.
Hypervolumes are of the logarithms of both objectives up to ``REFERENCE``; without logarithms they are in brackets.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hydragnn.base.settings import read_toml
from hydragnn.datasets import open_store
from hydragnn.graphs.joining import concatenate
from hydragnn.hpo import campaign_history, campaign_records, campaign_settings, run_search
from hydragnn.hpo.fronts import front_of, hypervolume
from hydragnn.models import load_model
from hydragnn.scripts import demo
from tests.benchmarks.harness import in_turns
from tests.benchmarks.quickstart_seeds import SMALL

OBJECTIVE = ["valid/energy/mae", "cost/ms_per_graph"]
REFERENCE = (4.0, 2.0)
"""Error in eV and CPU milliseconds per graph beyond which a trial counts nothing."""
SIZES = {
    "model.hidden_dim": {"type": "int", "low": 8, "high": 64, "log": True},
    "model.num_layers": {"type": "int", "low": 1, "high": 4},
}
GRAPHS, ROUNDS = 32, 15


def search(folder: Path, name: str, seed: int, **changes: Any) -> int:
    """Search or go on in a folder, and return the epochs of all its trials."""
    path = Path(demo.__file__).with_name("alloys.toml")
    table = read_toml(path)
    table["data"]["store"] = str(folder.resolve() / "store.h5")
    table["split"] = {**SMALL, "seed": seed}
    table["train"]["seed"] = 1000 * seed
    section = {**table["search"], "seed": seed, "objective": OBJECTIVE, **changes}
    section["space"] = section["space"] | SIZES
    if not section["rungs"]:
        section = {key: value for key, value in section.items() if key not in ("rungs", "reduction", "finalists")}
    run_search(campaign_settings({**table, "search": section}, path), folder / name, resume=True, workers=1)
    return sum(record.epochs for _, record, _ in campaign_records(folder / name))


def points(folder: Path, names: Sequence[str]) -> dict[str, list[tuple[float, float]]]:
    """Return errors and measured CPU milliseconds per graph of finished trials, by campaign."""
    torch.set_num_threads(1)
    store = open_store(folder / "store.h5")
    batch = concatenate([store[number] for number in range(GRAPHS)])
    trials = {
        f"{name} {trial.number}": trial
        for name in names
        for trial in campaign_history(folder / name).trials
        if trial.status == "finished"
    }
    models = {key: load_model(trial.folder / "model") for key, trial in trials.items()}
    works = {key: lambda model=model: model.predict(batch) for key, model in models.items()}
    turns, costs = in_turns(works, ROUNDS), dict[tuple[Any, ...], float]()
    sizes = {key: tuple(trial.values[name] for name in ("model.kind", *SIZES)) for key, trial in trials.items()}
    for key, size in sizes.items():
        costs[size] = min(turns.least(key) / GRAPHS, costs.get(size, math.inf))
    return {
        name: [(one.objectives[0], costs[sizes[key]]) for key, one in trials.items() if key.split()[0] == name]
        for name in names
    }


def volumes(found: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the hypervolume of logarithms, and that without."""
    logs = [tuple(math.log(one) for one in point) for point in found]
    return hypervolume(logs, [math.log(one) for one in REFERENCE]), hypervolume(found, REFERENCE)


def main() -> None:
    """Print a row per seed, and in how many the search has the larger hypervolume."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(10)))
    parser.add_argument("--trials", type=int, default=24)
    options = parser.parse_args()
    wins = 0
    for seed in options.seeds:
        folder = options.out / f"{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "store.h5").exists():
            demo.make_alloys(folder / "store.h5", samples=240, seed=seed)
        epochs = search(folder, "rungs", seed, trials=options.trials)
        full = read_toml(Path(demo.__file__).with_name("alloys.toml"))["train"]["epochs"]
        random = search(folder, "random", seed, trials=math.ceil(epochs / full), sampler="random", rungs=[])
        found = points(folder, ["rungs", "random"])
        own, other = (volumes(found[name]) for name in ("rungs", "random"))
        wins += own[0] > other[0]
        print(
            f"seed {seed}: epochs {epochs}, {random}; hypervolume {own[0]:.3f} ({own[1]:.3f}), random {other[0]:.3f} ({other[1]:.3f})"
        )
        for name, every in found.items():
            front = [every[one] for one in front_of(every, (None, None))]
            print(
                f"  {name}, {len(every)} trials, front:",
                *(f"{error:.4g}/{cost:.4g}" for error, cost in front),
                flush=True,
            )
    print(f"larger in {wins} of {len(options.seeds)} seeds")


if __name__ == "__main__":
    main()
