"""Rattled alloys, models on them and a training step: what several measurements share."""

from collections.abc import Callable, Sequence

import ase
import ase.build
import numpy as np
import torch
from torch import Tensor

from hydragnn.architectures import architecture_of
from hydragnn.conformance.cases import FORCES, STRESS
from hydragnn.graphs import Field
from hydragnn.graphs.atomic import from_ase
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.joining import concatenate
from hydragnn.models import GraphModel, build_model, degree_statistics, parse_head
from hydragnn.models.distributions import Distribution

ENERGY = Field(name="energy", on="graph", role="target")
CUTOFF = 5.0
WITH_FORCES = ("painn", "schnet", "egnn", "mace", "pnaplus", "pnaeq", "dimenet", "tensornet", "equivariant_transformer")
"""Architectures that are measured with forces; the others with energies alone."""
Predict = Callable[[GraphBatch], dict[str, Distribution]]


def structures(count: int, seed: int = 0) -> list[ase.Atoms]:
    """Rattled fcc supercells of two or three metals, seven of ten periodic."""
    random = np.random.default_rng(seed)
    cells = []
    for number in range(count):
        repeats = random.choice(
            [(2, 2, 2), (3, 2, 2), (3, 3, 2), (3, 3, 3), (4, 4, 4)], p=[0.35, 0.25, 0.2, 0.15, 0.05]
        )
        atoms = ase.build.bulk("Au", "fcc", a=4.0).repeat(tuple(repeats))
        atoms.numbers = random.choice([13, 28, 29, 46, 47, 78, 79], len(atoms))
        atoms.rattle(0.05, rng=random)
        atoms.pbc = number % 10 < 7
        cells.append(atoms)
    return cells


def alloys(count: int, seed: int = 0) -> GraphBatch:
    """``structures`` as a batch, all neighbours within 5 Angstrom."""
    graphs = [from_ase(atoms, cutoff=CUTOFF) for atoms in structures(count, seed)]
    return concatenate(graphs).to(dtype=torch.float32)


def random_structure(nodes: int, degree: float, random: np.random.Generator) -> GraphBatch:
    """So many atoms anywhere in a periodic box in which a sphere of 5 Angstrom holds ``degree`` others on average."""
    volume = nodes * 4 / 3 * np.pi * CUTOFF**3 / max(degree, 1.0)
    positions = random.random((nodes, 3)) * volume ** (1 / 3)
    atoms = ase.Atoms(["Cu"] * nodes, positions, cell=[volume ** (1 / 3)] * 3, pbc=True)
    return from_ase(atoms, cutoff=CUTOFF).to(dtype=torch.float32)


def model_of(
    kind: str, batch: GraphBatch, cutoff: float, channels: int, layers: int, derivatives: Sequence[str]
) -> GraphModel:
    """The architecture with an energy head."""
    form = architecture_of(kind).Settings
    wanted = {"hidden_dim": channels, "num_layers": layers, "num_radial": 20, "cutoff": cutoff}
    settings = form.parse(
        {"kind": kind, **{name: value for name, value in wanted.items() if name in form.model_fields}}
    )
    head = parse_head({"kind": "energy", "field": "energy", **{name: name for name in derivatives}})
    fields = [ENERGY, FORCES, STRESS, *batch.fields.values()]
    statistics = degree_statistics([batch])
    return build_model(settings, [head], fields, inputs=["atomic_numbers"], dim=3, seed=0, statistics=statistics)


def step(predict: Predict, model: GraphModel, batch: GraphBatch) -> tuple[Tensor, Tensor]:
    """Values, and the gradient of the sum of their squares in all weights."""
    predictions = predict(batch)
    values = torch.cat([part.flatten() for one in predictions.values() for part in one.tensors().values()])
    gradients = torch.autograd.grad(values.square().sum(), list(model.parameters()), allow_unused=True)
    return values.detach(), torch.cat([one.flatten() for one in gradients if one is not None])
