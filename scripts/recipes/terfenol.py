"""Polycrystals of Terfenol-D: a graph per microstructure, a node per grain, both directions of every contact."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.datasets import Make, OwnBuild, find_files
from hydragnn.datasets.sources.table_files import Table, read_npz, table_column
from hydragnn.graphs import Field, GraphBatch, graph_from_arrays, relation_field

EASY = np.array([[1, 1, 1], [1, 1, -1], [1, -1, 1], [-1, 1, 1]]) / np.sqrt(3)  # axes
INPUTS = (
    Field(name="orientation", on="node", shape=(13,)),
    Field(name="size", on="node", shape=(3,)),
    Field(name="log_grains", on="graph"),
    relation_field(1, "contact"),
)


class Terfenol(OwnBuild):
    """Microstructures in npz files.

    ``n_grains`` and ``n_edges`` count rows of ``euler_size_nnb`` [grains, 5] (Bunge angles in rad, voxels, neighbours) and ``edge``
    [contacts, 2]. ``graph_index``, ``field_kA_per_m`` and ``magnetostriction`` are labels; a strength without one is NaN.
    """

    kind: str = "hydragnn.scripts.recipes.terfenol:Terfenol"

    def graphs(self) -> Iterator[Make]:
        """Yield a maker per microstructure."""
        for path in find_files(self.files):
            table = read_npz(path)
            grains, contacts = (
                _pieces(table, name, counts, width, path)
                for name, counts, width in (("euler_size_nnb", "n_grains", 5), ("edge", "n_edges", 2))
            )
            if len(grains) != len(contacts):
                raise InputError(
                    f"{path}: n_grains counts {len(grains)} microstructures, n_edges {len(contacts)}; make them one"
                )
            labels: list[dict[str, float]] = [{} for _ in grains]
            if "magnetostriction" in table:
                owners, fields, strains = (
                    table_column(table, name, path) for name in ("graph_index", "field_kA_per_m", "magnetostriction")
                )
                names = [f"magnetostriction_{field:.0f}" for field in fields]
                labels = [dict.fromkeys(sorted({*names}), np.nan) for _ in grains]
                for owner, label, strain in zip(owners, names, strains, strict=True):
                    labels[owner][label] = 1e3 * strain
            for number, parts in enumerate(zip(grains, contacts, labels)):
                yield partial(microstructure, *parts, f"{path.name}, microstructure {number}")


def _pieces(table: Table, name: str, counts: str, width: int, path: Path) -> list[NDArray[Any]]:
    """Return the rows of every microstructure."""
    rows, numbers = table_column(table, name, path), table_column(table, counts, path)
    if rows.ndim != 2 or rows.shape[1] != width or (numbers < 0).any() or numbers.sum() != len(rows):
        raise InputError(
            f"{path}: {name} has shape {list(rows.shape)}, not [{numbers.sum()}, {width}] as {counts} says"
        )
    return np.split(rows, np.cumsum(numbers)[:-1])


def microstructure(rows: NDArray[Any], edges: NDArray[Any], labels: dict[str, float], name: str) -> GraphBatch:
    """Return one graph; InputError where a grain has no size or no angles."""
    rows, size = rows.astype(np.float64), rows[:, 3].astype(np.float64)
    if not (len(rows) and np.isfinite(rows).all() and (size > 0).all()):
        raise InputError(f"{name}: every grain needs finite angles and a positive size; leave it out")
    senders, receivers = np.concatenate([edges, edges[:, ::-1]]).T.astype(np.int64)
    sizes = np.stack([0.5 * np.log(size), np.cbrt(size) / 20, rows[:, 4] / 20], axis=1)
    return graph_from_arrays(
        np.zeros((len(rows), 0)),
        senders,
        receivers,
        fields=[*INPUTS, *(Field(name=name, on="graph", unit="1e-3", role="target") for name in labels)],
        nodes={"orientation": orientation_of(rows[:, :3]), "size": sizes},
        edges={"contact": np.zeros(len(senders), dtype=np.int64)},
        graphs={key: np.array([value]) for key, value in {"log_grains": np.log(len(rows) / 180), **labels}.items()},
        optional=labels,
        name=name,
    )


def orientation_of(euler: NDArray[Any]) -> NDArray[Any]:
    """Return features [grains, 13] of crystals along x, equal for equivalent orientations.

    Cosines to the cube axes (squared) and the easy axes, sorted, and both cubic invariants.
    """
    (c1, c, c2), (s1, s, s2) = np.cos(euler).T, np.sin(euler).T  # Bunge's angles, rad
    along = np.stack([c1 * c2 - s1 * c * s2, -c1 * s2 - s1 * c * c2, s1 * s], axis=1)
    easy = np.sort(np.abs(along @ EASY.T), axis=1)
    x, y, z = (along**2).T
    invariants = np.stack([3 * (x * y + y * z + z * x), 27 * x * y * z], axis=1)
    return np.concatenate([np.sort(along**2, axis=1), easy, easy**2, invariants], axis=1)
