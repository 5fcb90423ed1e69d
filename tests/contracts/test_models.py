"""Every architecture of the house keeps the promises that ship in ``hydragnn.conformance``; a new file is under them by being there.

What can stand around any layer keeps them too, around an equivariant architecture and a blind one.
"""

from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule

from hydragnn.architectures import architectures
from hydragnn.conformance import ArchitectureConformance
from hydragnn.conformance.cases import AROUND
from hydragnn.conformance.smoothness import AGREEMENT, CUTOFF, LOAD, energy_model, force_constant_gaps, jumps_on_paths
from hydragnn.graphs.atomic import from_ase

OF_DEGREE_TWO = {"hidden_l": 2, "max_ell": 2, "num_layers": 3, "correlation": 2}
SUITES: list[tuple[str, dict[str, Any]]] = [
    *((kind, {}) for kind in architectures()),
    *((kind, {**AROUND["multihead"], **AROUND["film"]}) for kind in ("painn", "gin")),
    *((kind, {**AROUND["linear"], **AROUND["pooled"]}) for kind in ("painn", "gin")),
    *((kind, AROUND["equivariant"]) for kind in ("painn", "tensornet")),
    ("mace", {**OF_DEGREE_TWO, **AROUND["equivariant"]}),
    ("egnn", {**AROUND["checkpointing"], **AROUND["equivariant"]}),
    *((kind, AROUND["clusters"]) for kind in ("relational", "mace")),
    ("pna", {**AROUND["clusters"], **AROUND["linear"], **AROUND["film"]}),
    ("painn", {**AROUND["clusters"], **AROUND["checkpointing"]}),
    *((kind, {"statistics": "smooth"}) for kind in ("pna", "pnaplus", "pnaeq")),
    ("schnet", {"envelope_exponent": 3}),
    ("field_tokens", {"angles": 3}),
    ("mace", {"hidden_l": 0, "max_ell": 1, "num_layers": 1, "correlation": 3}),
    ("mace", {"max_ell": 1, "num_layers": 2, "correlation": [3, 2], "radial": "chebyshev"}),
]
"""Architectures and keys of [model]; what stands around layers is tried around an equivariant architecture and a blind one."""

for number, (kind, settings) in enumerate(SUITES):
    name = "_".join([f"Test{number}", kind, *settings])
    members = {"architecture": kind, "settings": settings, "__module__": __name__}
    globals()[name] = type(name, (ArchitectureConformance,), members)


@pytest.mark.parametrize(
    "kind, settings, sentence",
    [
        ("painn", {"norm": "paper"}, "fcc: force constants do not converge"),
        ("pna", {}, "the last neighbour leaves: the energy jumps"),
        ("pnaplus", {}, "the last neighbour leaves: the energy jumps"),
        ("pnaeq", {}, "the last neighbour leaves: the energy jumps"),
        ("gatv2", {}, "atoms move anyhow: forces jump"),
    ],
)
def test_those_that_say_they_are_not_smooth_are_not(kind: str, settings: dict[str, Any], sentence: str) -> None:
    model = energy_model(kind, **settings)
    assert model.description.model.kinks
    figures = [*force_constant_gaps(model), *jumps_on_paths(model)]
    problems = [where for figure, where in figures if figure > AGREEMENT]
    assert any(problem.startswith(sentence) for problem in problems), problems


@pytest.mark.parametrize("kind", ["pna", "pnaplus", "pnaeq"])
def test_smooth_statistics_promise_energies_without_a_kink(kind: str) -> None:
    assert not energy_model(kind, statistics="smooth").description.model.kinks


def energy_of(atoms: Atoms, attention: str | None) -> float:
    """With random weights; the load is zero, so that energies may add up."""
    around = {} if attention is None else {"global_attention": {"kind": attention, "heads": 2}}
    graph = from_ase(atoms, CUTOFF).with_fields({"load": torch.zeros(1, dtype=torch.float64)}, fields=[LOAD])
    return float(energy_model("schnet", **around)(graph)["energy"].mean.detach())


@pytest.mark.parametrize("attention", ["multihead", "linear"])
def test_attention_gives_a_repeated_crystal_so_many_times_the_energy(attention: str) -> None:
    """Shares of attention sum to one, so images of an atom share what that atom alone would get."""
    cell = bulk("NaCl", "rocksalt", a=5.64, cubic=True)
    cell.positions += 0.1 * np.random.default_rng(0).standard_normal(cell.positions.shape)
    # relative to the energy; lengths are made from float32 or float64 positions moved by whole cells
    assert energy_of(cell.repeat((2, 1, 2)), attention) == pytest.approx(4 * energy_of(cell, attention), rel=1e-6)


@pytest.mark.parametrize("attention", [None, "multihead", "linear"])
def test_energies_of_molecules_far_apart_add_up_only_without_attention(attention: str | None) -> None:
    water, methane = molecule("H2O"), molecule("CH4")
    methane.positions += 100.0
    apart = energy_of(water, attention) + energy_of(methane, attention)
    # 1e-6: rounding of positions 100 Angstrom away
    assert (energy_of(water + methane, attention) == pytest.approx(apart, rel=1e-6)) == (attention is None)
