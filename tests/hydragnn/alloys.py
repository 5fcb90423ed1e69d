"""Alloys, and networks for their energies, forces and stress."""

from typing import Any

import ase.build
import numpy as np

from hydragnn.architectures import architecture_of
from hydragnn.graphs import ATOMIC_NUMBERS_FIELD, Field, GraphBatch
from hydragnn.graphs.atomic import from_ase
from hydragnn.graphs.joining import concatenate
from hydragnn.models import GraphModel, build_model, degree_statistics, parse_head

CUTOFF = 4.5
FIELDS = [
    ATOMIC_NUMBERS_FIELD,
    Field(name="energy", on="graph", role="target"),
    Field(name="forces", on="node", shape=(3,), parity="vector", role="target"),
    Field(name="stress", on="graph", shape=(3, 3), parity="tensor", role="target"),
]


def alloys(**options: int) -> GraphBatch:
    """A rattled cell with images of every atom as neighbours of itself, a skew one, a cluster and a lone atom."""
    random = np.random.default_rng(0)
    structures = [
        ase.build.bulk("Cu", "fcc", a=3.6, cubic=True),
        ase.build.bulk("Ni", "fcc", a=3.5).repeat((2, 1, 1)),
        ase.build.molecule("C6H6"),
        ase.Atoms("Au"),
    ]
    for atoms in structures:
        atoms.rattle(0.05, rng=random)
    return concatenate([from_ase(atoms, cutoff=CUTOFF, **options) for atoms in structures])


def network_for(batch: GraphBatch, **settings: Any) -> GraphModel:
    """An energy with forces and stress, or without where which of two equal messages is the largest is a matter of rounding."""
    own = architecture_of(settings["kind"]).Settings.parse({"cutoff": CUTOFF, **settings})
    derivatives = {} if own.kinks else {"forces": "forces", "stress": "stress"}
    head = parse_head({"kind": "energy", "field": "energy", **derivatives})
    statistics = degree_statistics([batch])
    return build_model(own, [head], FIELDS, inputs=["atomic_numbers"], dim=3, seed=0, statistics=statistics)  # type: ignore[arg-type]
