"""What it costs to look into the files of many ranks of a prediction."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn.ensemble.prediction.entries import END, ENTRY, checks
from hydragnn.ensemble.prediction.group import Alone, Claims
from hydragnn.ensemble.prediction.looking import FILES, look_together
from hydragnn.ensemble.prediction.queues import Costs, FlatQueue, LocalCounter, Queue
from hydragnn.ensemble.prediction.records import Records

PARTS = 4
"""Parts of batches, of three members or so, that a rank has at the end."""


class Looking(Alone):
    """A rank of many that hear each other, which gets so many turns in a queue and says and hears by files, as ranks of MPI do."""

    hears = True

    def __init__(self, folder: Path, size: int, turns: int) -> None:
        """Ranks meet in the folder."""
        super().__init__()
        folder.mkdir(exist_ok=True)
        self.size, self._turns, self._claims = size, turns, Claims(folder, 0)

    def queue(self, number: int, costs: Costs) -> Queue:
        """The first positions."""
        return FlatQueue(self._turns, LocalCounter())

    def publish(self, name: str, make: Callable[[], Any]) -> Any:
        """By a file."""
        return self._claims.publish(name, make)


def looking_costs(folder: Path, ranks: int = 1024) -> dict[str, float]:
    """Processor seconds per rank of looking into the files of so many, which had a batch or so each in parts: to list them, to look into one for all,
    to know all that others have seen, to say where parts of which batch are, to hear it, and to find pieces."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for number in range(ranks):
        units = np.arange(3 * number * PARTS, 3 * (number + 1) * PARTS, 3)
        entries = np.zeros(PARTS + 1, dtype=ENTRY)
        entries["chunk"][:-1], entries["member"][:-1], entries["chunk"][-1] = units // 8, units % 8, END
        entries["check"] = checks(entries)
        (folder / f"{number}-first.index").write_bytes(entries.tobytes())
        (folder / f"{number}-first.work").touch()
    taken = dict[str, float]()

    def timed(what: str, do: Callable[[], Any], turns: int = 1) -> Any:
        begin = time.process_time()
        given = do()
        taken[what] = (time.process_time() - begin) / ranks / turns
        return given

    blocks = -(-ranks // FILES)
    timed("listing", lambda: [Records(folder).listed() for _ in range(10)], 10)
    timed("looking", lambda: look_together(Looking(folder / "said", ranks, blocks), Records(folder), 0))
    records = Records(folder)
    timed("knowing", look_together(Looking(folder / "said", ranks, 0), records, 0))
    count = 3 * PARTS * ranks // 8
    chunks = np.arange(count)
    said = timed(
        "saying", lambda: json.dumps(dict(zip(map(str, chunks[~records.combined(count)]), records.indices_of(chunks))))
    )
    timed("hearing", lambda: json.loads(said))
    timed("finding", lambda: (records.combined(count), records.pieces(count)))
    taken["looking"] -= taken["listing"]
    return taken
