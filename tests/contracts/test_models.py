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
from hydragnn.conformance.smoothness import CUTOFF, LOAD, energy_model, problems_of_force_constants, problems_on_paths
from hydragnn.graphs.atomic import from_ase

TOGETHER = {**AROUND, "linear": {**AROUND["linear"], **AROUND["film"]}}
"""What stands around layers; linear attention and conditioning at once."""


def suite(name: str, kind: str, settings: dict[str, Any]) -> type:
    members = {"architecture": kind, "settings": settings, "__module__": __name__}
    return type(name, (ArchitectureConformance,), members)


for kind, architecture in architectures().items():
    globals()[f"Test{architecture.__name__}"] = suite(f"Test{architecture.__name__}", kind, {})

for kind in ("painn", "gin"):
    for name in [name for name in TOGETHER if (kind, name) != ("gin", "equivariant")]:
        settings = TOGETHER[name]
        globals()[f"Test{name}Around{kind}"] = suite(f"Test{name}Around{kind}", kind, settings)

for kind in ("schnet", "pna"):
    for name in ("multihead", "linear"):
        globals()[f"Test{name}Around{kind}"] = suite(f"Test{name}Around{kind}", kind, TOGETHER[name])

for kind in ("schnet", "mace", "tensornet"):
    globals()[f"TestequivariantAround{kind}"] = suite(f"TestequivariantAround{kind}", kind, AROUND["equivariant"])
for name, kind, settings in (
    ("TestEquivariantAttentionOfDegreeTwo", "mace", {"hidden_l": 2, "max_ell": 2, "num_layers": 3, "correlation": 2}),
    ("TestEquivariantAttentionMoving", "egnn", {"moving_coordinates": True, **AROUND["checkpointing"]}),
):
    globals()[name] = suite(name, kind, {**settings, **AROUND["equivariant"]})

for kind in ("egnn", "schnet", "pna", "tensornet", "gatv2", "relational", "mace"):
    globals()[f"TestclustersAround{kind}"] = suite(f"TestclustersAround{kind}", kind, AROUND["clusters"])
globals()["TestPoolingOfTwoLayers"] = suite("TestPoolingOfTwoLayers", "painn", {"pooling": {"levels": 2}})
globals()["TestPoolingCheckpointed"] = suite(
    "TestPoolingCheckpointed", "painn", {**AROUND["clusters"], **AROUND["checkpointing"]}
)

for kind in ("egnn", "schnet"):
    moving = {"moving_coordinates": True}
    globals()[f"TestMoving{kind}"] = suite(f"TestMoving{kind}", kind, moving)
    globals()[f"TestMovingByMeans{kind}"] = suite(f"TestMovingByMeans{kind}", kind, {**moving, "movement": "mean"})
for kind in ("pna", "pnaplus", "pnaeq"):
    globals()[f"TestSmooth{kind}"] = suite(f"TestSmooth{kind}", kind, {"statistics": "smooth"})
for kind in ("painn", "pnaeq"):
    globals()[f"TestOverLength{kind}"] = suite(f"TestOverLength{kind}", kind, {"directions": "over_length"})
CHAINED = {"messages": "anew", "angle": "at_receiver", "output_layers": 1}
"""DimeNet as the public HydraGNN has it."""
globals()["TestChainedDimeNet"] = suite("TestChainedDimeNet", "dimenet", CHAINED)
globals()["TestAngleAtReceiver"] = suite("TestAngleAtReceiver", "dimenet", {"angle": "at_receiver"})
WIDE = {"wide_heads": True, "own_edge": "mean", "negative_slope": 0.05}
"""GATv2 as the public HydraGNN has it."""
globals()["TestWideHeads"] = suite("TestWideHeads", "gatv2", WIDE)
globals()["TestOwnEdge"] = suite("TestOwnEdge", "gatv2", {"own_edge": "mean"})
for kind in ("painn", "pnaeq"):
    globals()[f"TestTanhNetworks{kind}"] = suite(f"TestTanhNetworks{kind}", kind, {"tanh_networks": True})
globals()["TestEdgeNetwork"] = suite("TestEdgeNetwork", "painn", {"tanh_networks": True, "edge_network": True})
globals()["TestEquation6"] = suite("TestEquation6", "egnn", {"residual": False})
globals()["TestSteepEnvelope"] = suite("TestSteepEnvelope", "schnet", {"envelope_exponent": 3})
globals()["TestMovingCheckpointed"] = suite("TestMovingCheckpointed", "egnn", {**moving, **AROUND["checkpointing"]})

globals()["TestNodeFilters"] = suite("TestNodeFilters", "mace", {"node_filters": True})

DEGREES: dict[str, dict[str, Any]] = {
    "MACEWithDegreeTwo": {"hidden_l": 2, "max_ell": 2, "num_layers": 3, "correlation": 2},
    "MACEWithScalars": {"hidden_l": 0, "max_ell": 1, "num_layers": 1, "correlation": 3},
    "MACEWithLayersOfTheirOwn": {"max_ell": 1, "num_layers": 2, "correlation": [3, 2], "radial": "chebyshev"},
}
for name, settings in DEGREES.items():
    globals()[f"Test{name}"] = suite(f"Test{name}", "mace", settings)


@pytest.mark.parametrize(
    "kind, settings, sentence",
    [
        ("painn", {"norm": "paper"}, "fcc: force constants do not converge"),
        ("pna", {}, "the last neighbour leaves: the energy jumps"),
        ("pnaplus", {}, "the last neighbour leaves: the energy jumps"),
        ("pnaeq", {}, "the last neighbour leaves: the energy jumps"),
        ("gatv2", {}, "atoms move anyhow: forces jump"),
        ("mace", {"node_filters": True}, "the last neighbour leaves: the energy jumps"),
    ],
)
def test_those_that_say_they_are_not_smooth_are_not(kind: str, settings: dict[str, Any], sentence: str) -> None:
    model = energy_model(kind, **settings)
    assert model.description.model.kinks
    problems = problems_of_force_constants(model) + problems_on_paths(model)
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
