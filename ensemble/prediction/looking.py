"""How many ranks look into the files of all: each file is looked into by one of them, and whoever needs to know everything reads what few say.

A rank that opens the files of thousands would hold up all others, and a shared file system answers many ranks sooner than one.
"""

import base64
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hydragnn.ensemble.prediction.entries import ENTRY, is_first
from hydragnn.ensemble.prediction.group import Group
from hydragnn.ensemble.prediction.records import Records

FILES = 64
"""Files that one rank looks into for all, or so."""


def look_together(group: Group, records: Records, number: int, *, later: bool = False) -> Callable[[], None]:
    """Look into some files of all ranks, as many as this rank gets from the queue ``number``; gives what a rank does that has to know all of them.

    All that is to be seen is there before the first rank comes; where it is what came ``later``, it is not in the first files of ranks. What a rank that hangs has not
    said, the one that has to know looks for. Few ranks, and those that do not hear of each other, each look for themselves.
    """
    blocks = -(-group.size // FILES)
    if not group.hears or blocks < 2:
        return partial(records.look, all_files=True)
    queue, blocks_of = group.queue(number, [1.0] * blocks), dict[int, list[str]]()

    def look_into(block: int) -> dict[str, Any]:
        for name in () if blocks_of else records.listed():
            if not (later and is_first(name)):
                blocks_of.setdefault(zlib.crc32(name.encode()) % blocks, []).append(name)
        return _seen(records, blocks_of.get(block, []))

    def seen_in(block: int) -> dict[str, Any]:
        seen: dict[str, Any] = group.publish(f"seen-{number}-{block}", partial(look_into, block))
        return seen

    while (block := queue.take()) is not None:
        seen_in(block)

    def know_all() -> None:
        for block in range(blocks):
            seen = seen_in(block)
            entries = np.frombuffer(base64.b64decode(seen["entries"]), dtype=ENTRY)
            records.learn(seen["names"], seen["read"], seen["ended"], seen["counts"], entries)

    return know_all


def _seen(records: Records, names: Sequence[str]) -> dict[str, Any]:
    """What is in these files: their names, the bytes that were read of each, which have ended, how many sound entries they have, and these."""
    records.look_at(names)
    logs = [records.log(name) for name in names]
    entries = b"".join(log.entries.tobytes() for log in logs)
    return {
        "names": names,
        "read": [log.read for log in logs],
        "ended": [log.ended for log in logs],
        "counts": [len(log.entries) for log in logs],
        "entries": base64.b64encode(entries).decode(),
    }
