"""Builds of a store by several ranks, which share its blocks.

Ranks meet as those of a prediction do, and share who makes which block, how many graphs each has made, and what went wrong. Rank 0
alone decides that there is a store.
"""

import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError, SaidByFirst
from hydragnn.base.machine import Workers
from hydragnn.datasets.build import fields_of, one_thread
from hydragnn.datasets.parallel_build import Source, blocks_for, check_whole, first_and_count
from hydragnn.datasets.sources.base import BuildSettings
from hydragnn.datasets.tools import refuse_useless
from hydragnn.datasets.writer import clear_unfinished, finish_store, only_maker
from hydragnn.distributed import LaunchError
from hydragnn.ensemble.prediction.group import Group, join_group
from hydragnn.graphs.field import field_from_json

SECONDS = 0.5
"""Between two looks at what other ranks have told, for one that works."""
PAUSE = 0.05
"""And for one that waits."""
NOWHERE = -1
"""In place of a block's number: what went wrong concerns all blocks."""

Read = Callable[[], BuildSettings]
Table = dict[str, Any]


def build_with_ranks(
    read: Read, out: Path, workers: Workers = 1, progress: Callable[[int], None] = lambda graphs: None
) -> None:
    """Make on all ranks the store that one process makes.

    InputError as of ``build_store`` (Busy by its sentence alone), and where a rank was ended, and then no store is left behind. Rank 0
    raises it, the others raise SaidByFirst.
    """
    with join_group() as group, ExitStack() as alone:
        try:
            opening = group.begin(lambda: _opening(read, out, workers, alone), out)
        except LaunchError:
            raise
        except InputError as error:
            raise _for_all(group, str(error)) from error
        tally = RankTally(group, out, progress)
        with one_thread():
            result = _work(group, tally, read, out, opening)
        group.note("done", result)
        if group.rank:
            tally.wait_for(lambda: bool(group.notes("end")) or group.gone(0))
            if not group.notes("end"):
                raise InputError(f"{out}: rank 0 was ended, perhaps for want of memory; run it again")
            (problem,) = group.notes("end")
        else:
            problem = _problem_of_store(tally, read, opening["graphs"])
            group.note("end", problem)
            group.wrote = True
        if problem:
            raise _for_all(group, problem)


def _opening(read: Read, out: Path, workers: Workers, alone: ExitStack) -> Table:
    """Return the fields and the count of graphs; rank 0 reserves ``out``."""
    if workers != 1:
        raise InputError(
            "--workers starts processes, and a launcher has started ranks already; leave --workers out and start as many ranks as there "
            "are cores"
        )
    settings = read()
    alone.enter_context(only_maker(out))
    try:
        first, graphs = first_and_count(settings, out)
    except InputError:
        clear_unfinished(out, folder=True)
        raise
    return {"dim": first.dim, "fields": [field.to_json() for field in fields_of(settings, first)], "graphs": graphs}


def _for_all(group: Group, sentence: str) -> InputError:
    """Return the error as this rank raises it."""
    return InputError(sentence) if group.rank == 0 else SaidByFirst(sentence)


def _work(group: Group, tally: "RankTally", read: Read, out: Path, opening: Table) -> Table:
    """Write the blocks that this rank claims; return its counts."""
    parts = graphs = 0
    try:
        fields = [field_from_json(field) for field in opening["fields"]]
        source = Source(settings=read(), out=out, fields=fields, dim=opening["dim"], tally=tally)
        for block in blocks_for(group.size, opening["graphs"]):
            if not group.first_to(f"block-{block.number}"):
                continue
            tally.block = block.number
            written = source.write(block)
            graphs += written
            parts = block.number + 1 if written else parts
            if written < block.length or group.notes("failed"):
                break
    except InputError as error:
        tally.fail(tally.block, str(error))
    except Exception as error:  # a defect, of which the others hear, who would wait for this rank
        traceback.print_exc()
        tally.fail(tally.block, f"rank {group.rank} met a defect ({error!r}); its traceback is on standard error")
    return {"rank": group.rank, "parts": parts, "graphs": graphs}


class RankTally:
    """Notes that ranks share: graphs made, failures, and who is done."""

    def __init__(self, group: Group, out: Path, progress: Callable[[int], None]) -> None:
        """Nothing is made yet."""
        self.group, self.out, self.block = group, out, NOWHERE
        self._progress, self._made, self._looked, self._goes_on = progress, 0, 0.0, True

    def add(self, graphs: int) -> bool:
        """Count graphs of this rank; return False where the build has failed."""
        self._made += graphs
        if time.monotonic() - self._looked > SECONDS:
            self.group.note("made", self._made)
            self.look()
            failed = any(failure["block"] < self.block for failure in self.group.notes("failed"))
            self._goes_on = not failed and not (self.group.rank and self.group.gone(0))
            self._looked = time.monotonic()
        return self._goes_on

    def fail(self, block: int, sentence: str) -> None:
        """Note that a block failed, so that there is no store."""
        self.group.note("failed", {"block": block, "sentence": sentence})

    def look(self) -> None:
        """Show progress on rank 0 and note ranks that ended early."""
        if self.group.rank:
            return
        self._progress(sum(self.group.notes("made")))
        finished = {note["rank"] for note in self.group.notes("done")}
        lost = [rank for rank in range(1, self.group.size) if rank not in finished and self.group.gone(rank)]
        if lost:
            sentence = (
                f"{self.out}: rank {lost[0]} of {self.group.size} was ended, perhaps for want of memory; run it again"
            )
            self.fail(NOWHERE, sentence)

    def all_are(self, name: str) -> bool:
        """Return True where every other rank left this note or ended."""
        ranks = {note["rank"] for note in self.group.notes(name)}
        return all(rank in ranks or self.group.gone(rank) for rank in range(1, self.group.size))

    def wait_for(self, reached: Callable[[], bool]) -> None:
        """Return when it is reached."""
        while not reached():
            self.look()
            time.sleep(PAUSE)


def _problem_of_store(tally: RankTally, read: Read, counted: int | None) -> str:
    """Complete the store once every rank is done; return any error."""
    group, out = tally.group, tally.out
    tally.wait_for(lambda: tally.all_are("done"))
    tally.look()
    results, failed = group.notes("done"), group.notes("failed")
    try:
        if failed:
            raise InputError(min(failed, key=lambda failure: int(failure["block"]))["sentence"])
        check_whole(out, counted, sum(note["graphs"] for note in results))
        finish_store(out, max(note["parts"] for note in results))
        refuse_useless(out, read())
    except InputError as error:
        clear_unfinished(out, folder=True)
        return str(error)
    return ""
