"""Small graphs for the tests of stores."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydragnn.base.errors import InputError
from hydragnn.datasets import MemoryStore, StoreWriter, build_store, check_store, open_store, read_build_settings
from hydragnn.graphs import Field, GraphBatch
from hydragnn.graphs.validate import graph_from_arrays

NUMBERS = Field(name="atomic_numbers", on="node", classes=119, dtype="int64")
ENERGY = Field(name="energy", on="graph", dtype="float64", unit="eV", role="target")
FORCES = Field(name="forces", on="node", shape=(3,), parity="vector", unit="eV/Angstrom", role="target")
CHARGE = Field(name="charge", on="node", shape=(2,), unit="e")
LABEL = Field(name="label", on="graph", classes=10, dtype="int64", role="auxiliary")


@pytest.fixture(scope="session")
def graph() -> Callable[..., GraphBatch]:
    """A maker of graphs: ``graph(nodes, edges, seed)``, energy = 2 per node plus the sum of atomic numbers."""

    def make(nodes: int = 4, edges: int = 6, seed: int = 0, label: int = 0, species: Any = (1, 6, 8)) -> GraphBatch:
        rng = np.random.default_rng(seed)
        numbers = rng.choice(species, nodes)
        return graph_from_arrays(
            rng.standard_normal((nodes, 3)) + 5.0 * np.arange(nodes)[:, None] * [1, 0, 0],
            rng.integers(0, nodes, edges),
            rng.integers(0, nodes, edges),
            fields=[NUMBERS, ENERGY, FORCES, CHARGE, LABEL],
            nodes={
                "atomic_numbers": numbers,
                "forces": rng.standard_normal((nodes, 3)),
                "charge": 5 + 3 * rng.standard_normal((nodes, 2)),
            },
            graphs={"energy": 2.0 * nodes + numbers.sum(), "label": label},
        )

    return make


@pytest.fixture(scope="session")
def store(graph: Callable[..., GraphBatch]) -> MemoryStore:
    """Sixty graphs of 2 to 8 nodes with labels 0 to 9."""
    return MemoryStore([graph(2 + k % 7, (5 * k) % 17, seed=k, label=k // 6) for k in range(60)])


@pytest.fixture(params=[".h5", ".bp"], ids=["HDF5", "ADIOS2"])
def path(request: pytest.FixtureRequest, store: MemoryStore, tmp_path: Path) -> Path:
    """A healthy store of sixty graphs on disk, in two blocks."""
    place = tmp_path / f"store{request.param}"
    with StoreWriter(place, store.fields(), dim=3, attributes={"cutoff": 50.0}) as writer:
        writer.write(store.read(range(30)))
        writer._flush()
        writer.write(store.read(range(30, 60)))
    return place


def edit_manifest(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest on purpose: it loses its checksum."""
    file = path / "manifest.json"
    table = json.loads(file.read_text())
    del table["checksum"]
    change(table)
    file.write_text(json.dumps(table))


def built(folder: Path, out: str = "", **table: Any) -> GraphBatch:
    """Return all graphs of a new store, built from a table whose paths count from ``folder``."""
    path = folder / (out or f"store-{len([*folder.iterdir()])}.h5")
    build_store(read_build_settings(table, folder / "BUILD.toml"), path)
    assert check_store(path) == []
    return open_store(path)[:]


def refused(folder: Path, words: str, **table: Any) -> None:
    """Assert that a build is refused in one sentence with these words, and leaves no store."""
    with pytest.raises(InputError, match=re.escape(words)) as caught:
        built(folder, "refused.h5", **table)
    assert "\n" not in str(caught.value) and not (folder / "refused.h5").exists()
