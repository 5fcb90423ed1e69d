"""A store made by several processes of one machine: the graphs, in the order, that one process writes.

Every worker goes through the whole source and makes only the graphs of its blocks, of which each is a part file of the store.
So nobody has to know before how many graphs there are, and no graph travels between processes.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from hydragnn.datasets.build import attributes_of, fields_of, makers_of
from hydragnn.datasets.build_settings import BuildSettings, settings_from_json
from hydragnn.datasets.writer import StoreWriter, clear_unfinished, finish_store
from hydragnn.errors import InputError

SMALLEST, LARGEST = 64, 65_536
"""Graphs of a block."""
ROUNDS = 4
"""A block holds so small a part of the graphs before it, for each worker, that none has much more to do than another."""


def block_sizes(workers: int) -> Iterator[tuple[int, int, int]]:
    """Number, first graph and length of every block: blocks grow with what lies before, so that large stores have few part files.

    >>> list(islice(block_sizes(2), 2))
    [(0, 0, 64), (1, 64, 64)]
    """
    first = 0
    for number in count():
        length = min(LARGEST, max(SMALLEST, first // (ROUNDS * workers)))
        yield number, first, length
        first += length


def build_with_workers(
    settings: BuildSettings, out: Path, workers: int, progress: Callable[[int], None] | None = None
) -> None:
    """Make a store as ``build_store`` does, in so many processes; InputError as there, and then no store is left behind."""
    clear_unfinished(out)
    task = {"settings": settings.model_dump(mode="json"), "kind": settings.kind, "out": str(out), "workers": workers}
    started: list[subprocess.Popen[str]] = []
    counted = [0] * workers

    def follow(worker: int) -> int:
        """Hear one worker to its end; the number of its last block, -1 where it had none."""
        process = started[worker]
        assert process.stdout is not None
        for line in process.stdout:
            word = json.loads(line)
            if "error" in word:
                raise InputError(word["error"])
            if "last" in word:
                return int(word["last"])
            counted[worker] = word["graphs"]
            if progress is not None:
                progress(sum(counted))
        raise InputError(f"worker {worker} of {workers} was ended (code {process.wait()}); build the store again")

    try:
        for worker in range(workers):
            command = [sys.executable, "-m", "hydragnn.datasets.parallel_build"]
            started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            _hand_over(started[-1], {**task, "worker": worker})
        with ThreadPoolExecutor(workers) as pool:
            ends = [pool.submit(follow, worker) for worker in range(workers)]
            blocks = _results(ends, started)
        if max(blocks) < 0:
            raise InputError(f"{', '.join(settings.files)}: no graphs in there; check the files and the index")
        finish_store(out, max(blocks) + 1)
    except BaseException:
        _end(started)
        clear_unfinished(out, folder=True)
        raise
    _end(started)


def _hand_over(process: "subprocess.Popen[str]", task: dict[str, Any]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # its end is told by who follows it
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()


def _results(ends: list[Future[int]], started: list["subprocess.Popen[str]"]) -> list[int]:
    """What every worker's thread gives; the first error ends all workers, so that no thread waits for one."""
    try:
        done, _ = wait(ends, return_when=FIRST_EXCEPTION)
        for end in ends:
            if end in done:
                end.result()  # raises what ended it
        return [end.result() for end in ends]
    except BaseException:
        _end(started)
        raise


def _end(started: list["subprocess.Popen[str]"]) -> None:
    """End the workers that are still there."""
    for process in started:
        process.kill()
    for process in started:
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def work(task: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
    """Write the blocks of one worker, telling how many graphs it has made, and its last block at the end."""
    settings, out = settings_from_json(task["kind"], task["settings"]), Path(task["out"])
    makers = makers_of(settings)
    first = next(makers, None)
    if first is None:
        return tell({"last": -1})
    graph = first()
    fields, last, made = fields_of(settings, graph), -1, 0
    for number, start, length in block_sizes(task["workers"]):
        own = islice(makers, length - 1 if number == 0 else length)
        if number % task["workers"] != task["worker"]:
            if sum(1 for _ in own) + (number == 0) < length:
                break
            continue
        graphs = (maker() for maker in own)
        head = graph if number == 0 else next(graphs, None)
        if head is None:
            break
        attributes = attributes_of(settings)
        with StoreWriter(out, fields, dim=graph.dim, attributes=attributes, part=number, first=start) as writer:
            for one in chain([head], graphs):
                writer.write(one)
                made += 1
                if made % SMALLEST == 0:
                    tell({"graphs": made})
        last = number
        if writer.graphs < length:
            break
    return tell({"last": last})


def main() -> None:
    """Do the task that stands in the first line of the standard input; ends with whoever gave it."""

    def tell(word: dict[str, Any]) -> None:
        print(json.dumps(word), flush=True)

    with suppress(KeyboardInterrupt, BrokenPipeError):
        try:
            work(json.loads(sys.stdin.readline()), tell)
        except InputError as error:
            tell({"error": str(error)})


if __name__ == "__main__":
    main()
