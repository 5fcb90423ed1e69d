"""Digests of graphs, and the fingerprint of a store."""

import json
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray

from hydragnn.datasets.arrays import FlatGraphs, array_name, array_specs, mask_name
from hydragnn.graphs.field import Field

DIGEST_BYTES = 16


def graph_digests(flat: FlatGraphs) -> UInt8[ndarray, "graphs 16"]:
    """Return ``[graphs, 16]``: BLAKE2b of each graph's counts and arrays.

    Fields come in the order of their names. A field that the graph lacks counts as one zero byte, one that it has as a
    one followed by its values.
    """
    specs = array_specs(flat.dim, flat.fields)
    fields = sorted(flat.fields, key=lambda field: field.name)
    structure = [name for name in specs if "/" not in name]
    views = [_bytes_per_graph(flat, name) for name in structure]
    masks = [flat.arrays.get(mask_name(field), np.ones(len(flat), dtype=np.bool_)).tolist() for field in fields]
    values = [(_bytes_per_graph(flat, array_name(field)), mask) for field, mask in zip(fields, masks)]
    counts = np.stack([np.diff(flat.node_offsets), np.diff(flat.edge_offsets)], axis=1).astype("<i8")
    digests = bytearray()
    for graph in range(len(flat)):
        state = blake2b(counts[graph].tobytes(), digest_size=DIGEST_BYTES)
        for view, offsets in views:
            state.update(view[offsets[graph] : offsets[graph + 1]])
        for (view, offsets), present in values:
            state.update(b"\1" if present[graph] else b"\0")
            if present[graph]:
                state.update(view[offsets[graph] : offsets[graph + 1]])
        digests += state.digest()
    return np.frombuffer(bytes(digests), dtype=np.uint8).reshape(-1, DIGEST_BYTES)


def _bytes_per_graph(flat: FlatGraphs, name: str) -> tuple[memoryview, list[int]]:
    spec = array_specs(flat.dim, flat.fields)[name]
    array = flat.full(spec)
    row = spec.dtype.itemsize * int(np.prod(spec.shape, dtype=np.int64))
    little_endian = array.astype(spec.dtype.newbyteorder("<"), copy=False)
    return little_endian.reshape(-1).view(np.uint8).data, (flat.offsets(spec.location) * row).tolist()


def fingerprint_of(dim: int, fields: Sequence[Field], digests: UInt8[ndarray, "graphs 16"]) -> str:
    """Return the hash of a store's dimension, fields and digests in order."""
    header = {"dim": dim, "fields": [field.to_json() for field in sorted(fields, key=lambda field: field.name)]}
    state = blake2b(json.dumps(header, sort_keys=True, separators=(",", ":")).encode(), digest_size=DIGEST_BYTES)
    state.update(digests.tobytes())
    return state.hexdigest()
