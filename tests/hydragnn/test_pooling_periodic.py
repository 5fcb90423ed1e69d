"""Layers on coarser levels of crystals."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from torch import Tensor

from hydragnn.architectures import GraphStatistics
from hydragnn.conformance.cases import small_settings
from hydragnn.graphs import (
    CLUSTERS,
    Field,
    clusters_field,
    from_ase,
    with_contracted_levels,
)
from hydragnn.models import build_model, parse_head

ENERGY = Field(name="energy", on="graph", role="target")


FORCES = Field(name="forces", on="node", shape=(3,), parity="vector", role="target")


@pytest.mark.parametrize("kind", ["painn", "mace", "dimenet"])
def test_what_is_predicted_of_a_crystal_is_predicted_of_it_turned_moved_and_repeated(kind: str) -> None:
    """The vector field of the turned crystal is turned; atoms that left the cell came back at its other side."""
    atoms = bulk("Cu", cubic=True).repeat(2)
    atoms.rattle(0.15, seed=3)
    heads: list[dict[str, Any]] = [{"kind": "energy", "field": "energy"}]
    vectors = kind in ("painn", "mace")
    heads += [{"kind": "vector", "field": "forces"}] if vectors else []
    number = Field(name="species", on="node", classes=5, dtype="int64")
    model = build_model(
        small_settings(kind, num_layers=3, pooling={"levels": 2}, cutoff=3.2),
        [parse_head(head) for head in heads],
        [ENERGY, FORCES, number, clusters_field(2)],
        inputs=["species", CLUSTERS],
        dim=3,
        statistics=GraphStatistics(mean_log_degree=2.4, mean_degree=11.0),
        seed=0,
    ).double()

    def predicted(structure: Atoms) -> tuple[Tensor, Tensor]:
        graph = with_contracted_levels(from_ase(structure, cutoff=3.2), 2)
        kinds = torch.from_numpy(np.arange(len(structure)) % 32 % 5)
        with torch.no_grad():
            output = model(graph.with_fields({"species": kinds}, fields=[number]))
        return output["energy"].mean / len(structure), output["forces" if vectors else "energy"].mean

    energy, field = predicted(atoms)
    close = partial(torch.testing.assert_close, expected=energy, rtol=1e-9, atol=0)
    turned = atoms.copy()
    turned.rotate(40, (1, 2, 3), rotate_cell=True)
    turn = torch.from_numpy(np.linalg.lstsq(atoms.cell.array, turned.cell.array, rcond=None)[0])
    close(predicted(turned)[0])
    if vectors:
        torch.testing.assert_close(predicted(turned)[1], field @ turn, rtol=0, atol=1e-11)
        assert float(field.norm(dim=1).max()) > 1e-5
    moved = atoms.copy()
    moved.translate([2.0, 3.1, -1.3])
    moved.wrap()
    assert not np.allclose(moved.positions - atoms.positions, [2.0, 3.1, -1.3])
    close(predicted(moved)[0])
    close(predicted(atoms.repeat((1, 1, 2)))[0])
    other = predicted(bulk("Cu", cubic=True).repeat(2))[0]
    assert abs(float(other / energy - 1)) > 1e-6
