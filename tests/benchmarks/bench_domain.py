"""What is flagged as outside the training domain."""

import argparse
from pathlib import Path

from hydragnn.config import config_from_table
from hydragnn.datasets import StoreWriter
from hydragnn.runs import train
from tests.benchmarks.domain_sets import SETS, DomainSet, fields_of

MEMBERS = 3


def trained_members(name: str, made: DomainSet, out: Path, seed: int) -> tuple[Path, list[Path]]:
    folder = out / "".join(c for c in name if c.isalnum())
    folder.mkdir(parents=True, exist_ok=True)
    store = (folder / "graphs.h5").resolve()
    if not store.exists():
        with StoreWriter(store, fields_of(made), dim=made.graphs[0].dim) as writer:
            for graph in made.graphs:
                writer.write(graph)
    runs = [folder / "members" / f"{seed + number}" for number in range(MEMBERS)]
    for number, run in enumerate(runs):
        if not (run / "model" / "model.json").exists():
            table = {
                **made.table,
                "data": {"store": str(store)},
                "train": {**made.table["train"], "seed": seed + number},
            }
            record = train(config_from_table(table, store), run)
            print(
                name,
                run.name,
                record.status,
                record.cost.cpu_seconds,
                {k: v for k, v in record.best.items() if "rmse" in k},
                flush=True,
            )
    return store, runs


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    import time

    for name, make in SETS.items():
        t = time.time()
        made = make(options.data)
        print(name, len(made.graphs), {k: len(v) for k, v in made.probes.items()}, time.time() - t, flush=True)
        trained_members(name, made, options.out, 0)
