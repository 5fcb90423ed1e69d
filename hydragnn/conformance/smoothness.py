"""Conformance of energies without cusps and jumps.

Force constants exist only where forces are differentiable, and dynamics keep their energy only where forces are continuous. An
architecture that cannot promise it says so (``ArchitectureSettings.kinks``), and training of forces warns about it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.build import bulk, molecule
from jaxtyping import Float
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.conformance.cases import gives_forces, small_settings
from hydragnn.conformance.law import DoesNotApply, Figures, derivative, jumps
from hydragnn.conformance.network import Network, promise
from hydragnn.graphs.atomic import ATOMIC_NUMBERS_FIELD, from_ase
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.joining import concatenate
from hydragnn.models import GraphModel, build_model, degree_statistics, parse_head

CUTOFF = 3.4
"""Angstrom; between the shells of all crystals below."""
STEP = 1e-3
"""Displacement of finite differences, Angstrom; an energy that varies over .1 Angstrom has truncation errors of 1e-8."""
AGREEMENT = 1e-3
"""Distance of finite differences from second derivatives, over the largest force constant; energies with cusps are off by .1 and more."""
SYMMETRY = 1e-9
"""Difference of second derivatives in another order, over the largest."""

LOAD = Field(name="load", on="graph", dtype="float64")

CRYSTALS: dict[str, Callable[[], Atoms]] = {
    "fcc": lambda: bulk("Cu", "fcc", a=3.61, cubic=True),
    "bcc": lambda: bulk("Fe", "bcc", a=2.87, cubic=True),
    "hcp": lambda: bulk("Mg", "hcp", a=3.2, c=5.2),
    "diamond": lambda: bulk("Si", "diamond", a=5.43, cubic=True),
    "rock salt": lambda: bulk("NaCl", "rocksalt", a=5.64, cubic=True),
    "ethene": lambda: molecule("C2H4"),
    "methane": lambda: molecule("CH4"),
}


def _moved(atoms: Atoms, *ways: tuple[float, float, float], begin: float = 0.0) -> Callable[[float], Atoms]:
    def at(share: float) -> Atoms:
        copy = atoms.copy()
        copy.positions[: len(ways)] += (begin + share) * np.asarray(ways)
        return copy

    return at


PATHS: dict[str, Callable[[float], Atoms]] = {
    "a neighbour crosses the cutoff": _moved(
        Atoms("NaCl2H", [[0, 0, 0], [2, 0.3, 0], [-0.4, 2.1, 0.5], [0.2, 0.6, -2]]), (-2.0, -0.3, 0.2)
    ),
    "the last neighbour leaves": _moved(Atoms("NaCl", [[0, 0, 0], [3, 0, 0]]), (-0.8, 0.0, 0.0)),
    "two atoms meet head on": _moved(
        Atoms("NaClH2", [[0, 0, 0], [2, 0, 0], [0.5, 1.5, 0], [0.7, -0.9, 1]]), (1.9, 0.0, 0.0)
    ),
    "an atom passes a symmetric site": _moved(CRYSTALS["rock salt"](), (0.2, 0.4, 0.6), begin=-0.51),
    "an atom passes a mirror plane": _moved(CRYSTALS["ethene"](), (0.6, 0.0, 0.0), begin=-0.49),
    "atoms move anyhow": _moved(
        CRYSTALS["methane"](), (0.5, 0.2, 0.0), (0.0, 0.6, -0.3), (0.4, -0.5, 0.2), (0.9, 0.0, 0.1), (-0.3, 0.2, 0.7)
    ),
}
"""Atoms on their way from 0 to 1; those that meet end 0.1 Angstrom apart."""


@cache
def crystals() -> GraphBatch:
    """Return perfect crystals and molecules in one batch; made once."""
    return concatenate([atoms_graph(make(), CUTOFF + 0.3) for make in CRYSTALS.values()])


@cache
def points(path: str, shares: tuple[float, ...]) -> GraphBatch:
    return concatenate([atoms_graph(PATHS[path](share), CUTOFF) for share in shares])


def atoms_graph(atoms: Atoms, cutoff: float) -> GraphBatch:
    """The atoms under a load, which conditioning needs."""
    atoms.info["load"] = 0.3
    return from_ase(atoms, cutoff, fields=[LOAD])


def energy_model(kind: str, **changes: Any) -> GraphModel:
    """Return a tiny random network for energies, in double precision."""
    settings = small_settings(kind, **{"cutoff": CUTOFF, **changes})
    head = parse_head({"kind": "energy", "field": "energy", "hidden_dims": [6]})
    energy = Field(name="energy", on="graph", role="target")
    inputs, statistics = [ATOMIC_NUMBERS_FIELD, LOAD], degree_statistics([crystals()])
    names = [field.name for field in inputs]
    try:
        model = build_model(settings, [head], [*inputs, energy], inputs=names, dim=3, seed=0, statistics=statistics)
    except InputError as refusal:
        raise DoesNotApply(f"refused: {refusal}") from refusal
    return model.double().eval()


def energies_and_forces(
    model: GraphModel, batch: GraphBatch, *, differentiable: bool = False
) -> tuple[Float[Tensor, " graphs"], Float[Tensor, "nodes 3"], Float[Tensor, "nodes 3"]]:
    """Energies, forces, and the positions that both can be differentiated by."""
    positions = batch.positions.clone().requires_grad_()
    energies = model(replace(batch, positions=positions))["energy"].mean
    gradient = torch.zeros_like(positions)
    if energies.requires_grad:
        (gradient,) = torch.autograd.grad(
            energies.sum(), positions, create_graph=differentiable, materialize_grads=True
        )
    return energies, -gradient, positions


def second_derivatives(model: GraphModel) -> Float[Tensor, "atoms 3 nodes 3"]:
    """Return d2E / dx dx of all crystals, zero-padded rows of atoms."""
    batch = crystals()
    _, forces, positions = energies_and_forces(model, batch, differentiable=True)
    counts = batch.counts("node")
    hessian = torch.zeros(int(counts.max()), 3, batch.num_nodes, 3, dtype=positions.dtype)
    for atom in range(len(hessian)):
        rows = batch.node_offsets[:-1][counts > atom] + atom
        for axis in range(3):
            if forces.requires_grad:
                (row,) = torch.autograd.grad(
                    -forces[rows, axis].sum(), positions, retain_graph=True, materialize_grads=True
                )
                hessian[atom, axis] = row
    return hessian


def force_constant_gaps(model: GraphModel) -> Figures:
    """Yield differences of second derivatives from finite ones, and from each other in another order."""
    batch, exact = crystals(), second_derivatives(model)
    first, owner = batch.node_offsets[:-1], batch.owner("node")

    def forces(steps: Sequence[float]) -> Sequence[Tensor]:
        moved = []
        for step, axis in product(steps, range(3)):
            moved.append(batch.positions.clone())
            moved[-1][first, axis] += step
        every = concatenate([replace(batch, positions=positions) for positions in moved])
        return energies_and_forces(model, every)[1].detach().view(len(steps), 3, -1, 3).unbind(0)

    numeric = -derivative(forces, STEP)  # [axes, nodes, 3], of the first atom of each crystal
    for number, name in enumerate(CRYSTALS):
        own = owner == number
        constants = exact[: int(own.sum()), :, own]  # [atoms, 3, atoms, 3]
        scale = max(float(constants.abs().max()), 1e-9)  # there are networks that no distance matters to
        square = constants.flatten(0, 1).flatten(1)
        asymmetry = float((square - square.T).abs().max()) / scale
        yield asymmetry / SYMMETRY * AGREEMENT, f"{name}: force constants are not symmetric{ADVICE}"
        change = float((numeric[:, own] - constants[0]).abs().max()) / scale
        yield change, f"{name}: force constants do not converge{ADVICE}"


def jumps_on_paths(model: GraphModel) -> Figures:
    """Yield 1 for energies or forces that jump on a path, else 0."""

    def along(path: str, shares: tuple[float, ...]) -> dict[str, Tensor]:
        energies, forces, _ = energies_and_forces(model, points(path, shares))
        return {"the energy jumps": energies.detach().unsqueeze(1), "forces jump": forces.view(len(shares), -1)}

    for path, what, place, _ in jumps({path: partial(along, path) for path in PATHS}):
        yield float(place is not None), f"{path}: {what} at {place or 0:.4f} of the way{ADVICE}"


ADVICE = "; make it smooth, or let kinks of its settings say so"


@promise({"force constants": force_constant_gaps, "paths": jumps_on_paths}, AGREEMENT)
def energies_are_smooth_or_the_architecture_says_where_they_are_not(
    network: Network, gaps_of: Callable[[GraphModel], Figures]
) -> Figures:
    if not gives_forces(network.architecture, network.settings):
        raise DoesNotApply(f"{network.architecture} gives no forces with these settings")
    model = energy_model(network.architecture, **network.settings)
    return [(0.0, "kinks")] if model.description.model.kinks else gaps_of(model)
