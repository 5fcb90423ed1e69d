"""Arrays of graphs in memory that all ranks of a node map.

The memory has no name in any file system: the kernel frees it when the last rank that maps it ends, however that ends.
"""

import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.base.machine import free_memory
from hydragnn.datasets.arrays import Array, ArraySpec, FlatGraphs, array_specs, mask_name
from hydragnn.graphs.field import Field

ALIGNMENT = 64
"""Bytes; arrays begin at multiples of it."""


def held_specs(dim: int, fields: Sequence[Field]) -> dict[str, ArraySpec]:
    """Return all arrays of graphs in memory, masks of fields included."""
    specs = array_specs(dim, fields)
    for name in ("senders", "receivers"):
        specs[name] = ArraySpec(name=name, location="edge", dtype=np.dtype(np.int32), shape=())
    for name in map(mask_name, fields):
        specs[name] = ArraySpec(name=name, location="graph", dtype=np.dtype(np.bool_), shape=())
    return specs


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SharedLayout:
    """Places of the arrays of consecutive graphs in shared memory."""

    specs: Mapping[str, ArraySpec]
    node_offsets: NDArray[np.int64]
    edge_offsets: NDArray[np.int64]

    def rows(self, spec: ArraySpec) -> NDArray[np.int64]:
        """Return the first row of every graph, and all rows last."""
        graphs = np.arange(len(self.node_offsets))
        return {"graph": graphs, "node": self.node_offsets, "edge": self.edge_offsets}[spec.location]

    def first_rows(self, spec: ArraySpec, graphs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first row of these graphs alone."""
        if spec.location == "graph":
            return graphs
        return (self.node_offsets if spec.location == "node" else self.edge_offsets)[graphs]

    @property
    def starts(self) -> dict[str, int]:
        """Return the first byte of every array; "": bytes of all."""
        starts, place = {}, 0
        for name, spec in self.specs.items():
            starts[name] = place
            place += -(-int(self.rows(spec)[-1]) * row_bytes(spec) // ALIGNMENT) * ALIGNMENT
        return {**starts, "": place}

    def arrays(self, memory: memoryview) -> dict[str, Array]:
        """Return the arrays as views of the memory."""
        starts, result = self.starts, dict[str, Array]()
        for name, spec in self.specs.items():
            if 0 not in spec.shape:
                count = int(self.rows(spec)[-1]) * int(np.prod(spec.shape, dtype=np.int64))
                result[name] = np.frombuffer(memory, spec.dtype, count, starts[name]).reshape(-1, *spec.shape)
        return result


def row_bytes(spec: ArraySpec) -> int:
    """Return the bytes of a row of an array."""
    return spec.dtype.itemsize * int(np.prod(spec.shape, dtype=np.int64))


class SharedMemory:
    """Anonymous memory of one rank, mapped by others of its node."""

    def __init__(self, size: int, made_by: tuple[int, int] | None = None) -> None:
        """Make memory, or map what process and descriptor ``made_by`` name.

        InputError where the node has too little memory, or another rank's is not seen.
        """
        self.size = max(size, 1)
        if made_by is None:
            free = free_memory()
            if size > free:
                raise InputError(
                    f"the training data of a node take {size / 1e9:.1f} GB and it has {free / 1e9:.1f} GB free; set data.group to "
                    'the ranks of more nodes, or data.memory to "auto"'
                )
            if not hasattr(os, "memfd_create"):
                raise InputError('data.memory = "ranks" needs Linux; set data.memory to "auto"')
            self.descriptor = os.memfd_create("hydragnn")
            os.ftruncate(self.descriptor, self.size)
        else:
            try:
                self.descriptor = os.open(f"/proc/{made_by[0]}/fd/{made_by[1]}", os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:
                raise InputError(
                    f"memory of process {made_by[0]} cannot be mapped ({error.strerror}); start all ranks of a node in one "
                    'container, or set data.memory to "auto"'
                ) from error
        self.memory = memoryview(mmap.mmap(self.descriptor, self.size))

    def reserve(self, start: int, length: int) -> None:
        """Take memory for bytes that are written next; OSError without any.

        Pages that nothing reserves take none, and a write without memory would stop the process.
        """
        if length:
            os.posix_fallocate(self.descriptor, start, length)


def write_graphs(flat: FlatGraphs, first: int, layout: SharedLayout, memory: SharedMemory) -> set[str]:
    """Write graphs from number ``first`` on; return the arrays that have values.

    A field that all these graphs have gets its mask written, which some other graph may need.
    """
    starts, written = layout.starts, set()
    for name, view in layout.arrays(memory.memory).items():
        array = flat.arrays.get(name)
        if array is None and not name.startswith("present/"):
            continue
        spec, rows = layout.specs[name], layout.rows(layout.specs[name])
        a, b = int(rows[first]), int(rows[first + len(flat)])
        memory.reserve(starts[name] + a * row_bytes(spec), (b - a) * row_bytes(spec))
        view[a:b] = True if array is None else array
        if array is not None:
            written.add(name)
    return written
