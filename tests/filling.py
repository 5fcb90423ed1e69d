"""Write a file again and again where there is room for more and more bytes, each time in a process of its own; print how each ended.

``python -P filling.py DISK WAY BYTES...``: WAY is ``disk``, where a file system of so many bytes is mounted at DISK, or ``limit``, where no
file may have more. A line of JSON for each number and kind of file: the kind, the number, the exit code, which is minus the signal's number
where one ended it, what was printed, and what lies there afterwards.
"""

import ctypes
import gc
import json
import os
import resource
import shutil
import sys
import tempfile
from itertools import product
from pathlib import Path

import numpy as np

from hydragnn.base.errors import InputError
from hydragnn.datasets import StoreWriter, writer
from hydragnn.ensemble.prediction.formats.hdf5 import Hdf5Sink
from hydragnn.ensemble.prediction.formats.sink import Heading
from hydragnn.graphs import Field
from hydragnn.graphs.validate import graph_from_arrays

KINDS = ("store.h5", "store.bp", "predictions.h5")
PIECES, ROWS = 6, 20_000
LIBC = ctypes.CDLL(None, use_errno=True)


def write_store(path: Path) -> None:
    """Six blocks of half a megabyte."""
    density = Field(name="density", on="node", shape=(3,))
    values = np.random.default_rng(0).normal(size=(ROWS, 3))
    writer.BLOCK_GRAPHS = 1
    with StoreWriter(path, [density], dim=3) as store:
        for _ in range(PIECES):
            store.write(graph_from_arrays(values, [0], [1], fields=[density], nodes={"density": values}))


def write_predictions(path: Path) -> None:
    """Six pieces of a megabyte, texts among them."""
    values = np.random.default_rng(0).normal(size=(ROWS // 2, 10))
    status = ["ok", "the graph has no nodes; leave it out"] * (ROWS // 4)
    edges = np.zeros(len(status), dtype=np.int64)
    piece = {"status": status, "domain": [""] * len(status), "fields/energy/mean": values, "edges": edges}
    heading = Heading(targets=(), nominal=0.9, ensemble="e", members=("a",))
    sink = Hdf5Sink(path, heading)
    sink.begin()
    try:
        for _ in range(PIECES):
            sink.append(piece)
        sink.complete()
    except InputError:
        sink.discard()
        raise


def attempt(kind: str, path: Path, limit: int) -> int:
    message, (_, hard) = "", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        (write_store if kind.startswith("store") else write_predictions)(path)
    except InputError as error:
        message = f"{error}\n"
    gc.collect()  # what engines keep is taken apart
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    sys.stdout.write(message)
    return 2 if message else 0


def in_a_process(kind: str, path: Path, limit: int) -> tuple[int, str]:
    """The exit code and what was printed."""
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if not child:
            for descriptor in (1, 2):
                os.dup2(output.fileno(), descriptor)
            code = 1
            try:
                code = attempt(kind, path, limit)
            finally:
                sys.stdout.flush()
                LIBC.exit(code)  # with the ends of libraries in C, without Python's, which takes a second
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return code, output.read()


def main() -> None:
    disk, way = Path(sys.argv[1]), sys.argv[2]
    gc.freeze()
    for kind, size in product(KINDS, map(int, sys.argv[3:])):
        if way == "disk" and LIBC.mount(b"tmpfs", os.fsencode(disk), b"tmpfs", 0, f"size={max(size, 4096)}".encode()):
            raise OSError(ctypes.get_errno(), "a file system cannot be mounted here")
        code, text = in_a_process(kind, disk / kind, size if way == "limit" else resource.RLIM_INFINITY)
        left = list(disk.iterdir())
        print(json.dumps([kind, size, code, text, [path.name for path in left]]), flush=True)
        for path in left:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if way == "disk" and LIBC.umount2(os.fsencode(disk), 2):
            raise OSError(ctypes.get_errno(), "a file system cannot be taken away")


if __name__ == "__main__":
    main()
