"""A small real store: rings of points whose energy is the sum of the node charges times the neighbours' distance."""

from pathlib import Path

import numpy as np

from hydragnn.datasets import StoreWriter
from hydragnn.graphs import Field, graph_from_arrays


def write_rings(path: Path, number: int) -> None:
    """Write a store of so many rings."""
    charge = Field(name="charge", on="node")
    energy = Field(name="energy", on="graph", unit="eV", role="target")
    generator = np.random.default_rng(0)
    with StoreWriter(path, [charge, energy], dim=3) as writer:
        for _ in range(number):
            count = int(generator.integers(4, 8))
            angle = np.linspace(0, 2 * np.pi, count, endpoint=False)
            positions = np.stack([np.cos(angle), np.sin(angle), generator.normal(size=count) / 5], axis=1)
            charges = generator.normal(size=count).astype(np.float32)
            nodes = np.arange(count)
            left, right = np.roll(nodes, 1), np.roll(nodes, -1)
            lengths = np.linalg.norm(positions - positions[left], axis=1)
            writer.write(
                graph_from_arrays(
                    positions,
                    np.concatenate([left, right]),
                    np.concatenate([nodes, nodes]),
                    fields=[charge, energy],
                    nodes={"charge": charges},
                    graphs={"energy": np.float32((charges * lengths).sum())},
                )
            )
