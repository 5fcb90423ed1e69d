"""A rank that keeps its share of stores in the memory of its group, and compares graphs with the disk, again after the last rank has died.

``python keeping.py STORES FOLDER NODES``: ranks are declared to run on so many nodes.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hydragnn.datasets import GraphStore, Loader, open_store
from hydragnn.datasets.packing import Budget
from hydragnn.distributed import join_ranks
from hydragnn.distributed.rank_store import RankStore, kept_by_ranks
from tests.contracts.test_stores import assert_same


def main(stores: Path, folder: Path, nodes: int) -> None:
    torch.set_num_threads(1)
    with join_ranks(folder) as ranks:
        machine = f"node {ranks.rank * nodes // ranks.size}" if nodes > 1 else None
        pairs = []
        for path in sorted(stores.iterdir()):
            store = open_store(path)
            graphs, names = np.arange(0, len(store), 2 if len(store) > 6 else 1), [one.name for one in store.fields()]
            group = ranks.size * (nodes > 1)
            kept = kept_by_ranks(store, graphs, names, ranks, group=group, machine=machine)
            pairs.append((kept, store, graphs))
        for kept, store, graphs in pairs:
            compare(kept, store, graphs)
            share: dict[str, Any] = {"rank": ranks.rank, "ranks": ranks.size}
            loaders = [Loader(one, graphs, Budget(max_graphs=3), **share) for one in (kept, store)]
            for (_, a), (_, b) in zip(*(loader.epoch(0) for loader in loaders), strict=True):
                assert_same(a, b)
                ranks.wait()  # as steps do, while the next batch is fetched
        if ranks.rank == ranks.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.5)  # its memory and its connections are gone
        for kept, store, graphs in pairs:
            compare(kept, store, graphs)
        print(f"rank {ranks.rank} has read all", file=sys.stderr, flush=True)
        os._exit(0)


def compare(kept: RankStore, store: GraphStore, graphs: NDArray[np.int64]) -> None:
    """Read graphs in several orders and numbers, also some that are not kept."""
    for chosen in (graphs, graphs[::-1], graphs[:0], graphs[:1].repeat(2), np.arange(len(store))):
        assert_same(kept.read(chosen), store.read(chosen))
    names = [field.name for field in store.fields()][:1]
    assert_same(kept.read(graphs, names), store.read(graphs, names))
    assert kept.fingerprint == store.fingerprint and len(kept) == len(store)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
