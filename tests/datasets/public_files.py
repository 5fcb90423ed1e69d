"""Small files in the formats of the public HydraGNN, written from facts about them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import adios2
import numpy as np

Sample = Mapping[str, Any]


def samples(count: int, *, alike: bool = False, seed: int = 0) -> list[Sample]:
    """Return random molecules with every pair as an edge, or two periodic axes of one."""
    rng, made = np.random.default_rng(seed), []
    for number in range(count):
        nodes = 4 if alike else 3 + (number % 3)
        pairs = [(a, b) for a in range(nodes) for b in range(nodes) if a != b]
        energy = rng.random(1)
        made.append(
            {
                "x": rng.integers(1, 9, (nodes, 1)).astype("f4"),
                "pos": (np.argwhere(np.ones((2, 2, 2)))[:nodes] * 1.7 + rng.random((nodes, 3)) * 0.2).astype("f4"),
                "edge_index": np.array(pairs).T,
                "edge_shifts": np.tile(np.float32([0, 5, 0]) * (number % 2), (len(pairs), 1)),
                "edge_attr": rng.random((len(pairs), 1)).astype("f4"),
                "cell": np.eye(3, dtype="f4") * 5 * (number % 2),
                "pbc": np.array([0, 1, 1], dtype="i4") * (number % 2),
                "energy": energy.astype("f4"),
                "y": energy,
                "forces": rng.random((nodes, 3)),
                "smiles": "CO" * (1 + number % 3),
                "natoms": np.array([nodes], dtype="i4"),
            }
        )
    return made


def write_bp(path: Path, sets: Mapping[str, Sequence[Sample]], notes: Mapping[str, Any], **changes: Any) -> Path:
    """Write a set as the public HydraGNN does; ``changes`` put other values for variables and attributes by name."""
    with adios2.Stream(str(path), "w") as stream:
        stream.begin_step()
        for label, some in sets.items():
            if not some:
                continue
            stream.write_attribute(f"{label}/ndata", np.array(changes.get(f"{label}/ndata", len(some))))
            stream.write_attribute(f"{label}/keys", [*some[0], *changes.get(f"{label}/keys", [])])
            for key in sorted(some[0]):
                values = [one[key] for one in some]
                arrays = [np.frombuffer(v.encode(), dtype="u1") if isinstance(v, str) else v for v in values]
                varying = np.flatnonzero(np.ptp([array.shape for array in arrays], axis=0))
                axis = int(varying[0]) if len(varying) else 0
                counts = np.array([array.shape[axis] for array in arrays])
                written = {
                    key: np.concatenate(arrays, axis=axis),
                    f"{key}/variable_count": counts,
                    f"{key}/variable_offset": np.cumsum(counts) - counts,
                }
                for name, value in written.items():
                    array = np.ascontiguousarray(changes.get(f"{label}/{name}", value))
                    claim = changes.get(f"{label}/{name}/shape", array.shape)
                    stream.write(f"{label}/{name}", array, list(claim), [0] * array.ndim, list(array.shape))
                stream.write_attribute(f"{label}/{key}/variable_dim", np.array(changes.get(f"{label}/{key}/dim", axis)))
        for name, value in notes.items():
            stream.write_attribute(name, value)
        stream.end_step()
    return path
