"""Cache of values that follow from a store and its split.

They lie in the folder ``statistics`` of the store, or of the user where the store cannot be written. A file is complete or absent
and has a checksum; one that is damaged, or of another version, is computed anew. What follows from a store without a folder, or
from few graphs, is not written down.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hydragnn
from hydragnn.base.environment import environment
from hydragnn.base.errors import InputError
from hydragnn.base.files import digest, read_sealed, write_sealed
from hydragnn.datasets import GraphStore, disk_store
from hydragnn.distributed.ranks import Ranks
from hydragnn.distributed.sharing import first_ranks_value, shared_rows

FORMAT = "hydragnn-statistics"
BLOCK = 4096
"""Graphs whose edges are read at once."""
LEAST_GRAPHS = 10_000
"""Below, computing takes less than a second."""


def digest_of(graphs: NDArray[np.int64]) -> str:
    """A hash of graph numbers in their order."""
    return blake2b(np.ascontiguousarray(graphs, dtype="<i8").tobytes(), digest_size=16).hexdigest()


def cache_folder(store: GraphStore) -> Path | None:
    """Return the cache folder of a store, or None.

    In the user's folder every store has its own, whatever fingerprint its manifest claims; one that moved or was touched is measured anew.
    """
    disk = disk_store(store)
    if disk is None or len(disk) < LEAST_GRAPHS:
        return None
    if os.access(disk.path, os.W_OK):
        return disk.path / "statistics"
    caches = environment().get("XDG_CACHE_HOME") or Path(environment().get("HOME") or Path.home()) / ".cache"
    return Path(caches) / "hydragnn" / f"statistics-{disk.place_and_time()}"


@dataclass(kw_only=True, slots=True, eq=False)
class StatisticsCache:
    """Cached values of a store; all ranks ask in one order."""

    store: GraphStore
    ranks: Ranks = field(default_factory=Ranks)
    heartbeat: Callable[[], None] = lambda: None

    def value(self, of: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """Return the JSON value of ``make``, computed once per store; collective.

        Runs that begin at once compute the same value, each beside the others.
        """
        folder, table = cache_folder(self.store), {**of, "store": self.store.fingerprint, "by": hydragnn.__version__}
        path = None if folder is None else folder / f"{digest(table)}.json"
        cached = first_ranks_value(lambda: None if path is None else _read(path, table), self.ranks)
        if cached is not None:
            return cached["value"]
        value = json.loads(json.dumps(make()))
        if path is not None and self.ranks.first:
            with suppress(InputError, ValueError):  # no space, or a number that is not finite: again the next time
                write_sealed(path, {"format": FORMAT, "of": table, "value": value})
        return value


Caches = Sequence[StatisticsCache]
"""Caches of the branches, in their order."""


def training_rows(
    indices: NDArray[np.int64],
    cache: StatisticsCache,
    width: int,
    row_of: Callable[[NDArray[np.int64]], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Return a row per block of the training part, shared by ranks."""

    def row(block: int) -> NDArray[np.float64]:
        cache.heartbeat()
        return row_of(indices[block * BLOCK : (block + 1) * BLOCK])

    return shared_rows(cache.ranks)(-(-len(indices) // BLOCK), width, row)


def _read(path: Path, table: dict[str, Any]) -> dict[str, Any] | None:
    """Return the content of a file with a value, None unless of ``table``."""
    with suppress(InputError):
        content, header = read_sealed(path), {"format": FORMAT, "of": json.loads(json.dumps(table))}
        if isinstance(content, dict) and "value" in content and {**content, **header} == content:
            return content
    return None
