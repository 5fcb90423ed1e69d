"""A rank that joins its peers, says at which addresses it listens, and sums once more when it is told to go on.

``python listening.py FOLDER RESULTS``: writes RESULTS/RANK.json when all have met, then waits for RESULTS/go.
"""

import json
import sys
import time
from pathlib import Path

import psutil
import torch

from hydragnn.distributed import join_ranks, leave


def listening() -> list[tuple[str, int]]:
    connections = psutil.Process().net_connections("tcp")
    return [(c.laddr.ip, c.laddr.port) for c in connections if c.status == psutil.CONN_LISTEN]


def main(folder: Path, results: Path) -> int:
    torch.set_num_threads(1)
    inherited = listening()  # what the launcher handed down is not ours
    with join_ranks(folder) as ranks:
        seen = {"listening": [one for one in listening() if one not in inherited], "nodes": ranks.nodes}
        partial = results / f"{ranks.rank}.partial"
        partial.write_text(json.dumps(seen))
        partial.rename(results / f"{ranks.rank}.json")
        while not (results / "go").exists():
            time.sleep(0.05)
        total = float(ranks.sum_in_place(torch.tensor([ranks.rank + 1.0], dtype=torch.float64)))
        print(f"rank {ranks.rank}: sum {total}", flush=True)
    return 0


if __name__ == "__main__":
    leave(main(Path(sys.argv[1]), Path(sys.argv[2])))
