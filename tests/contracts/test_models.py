"""Every architecture of the house keeps the promises that ship in ``hydragnn.conformance``; a new file is under them by being there.

What can stand around any layer keeps them too, around an equivariant architecture and a blind one.
"""

from typing import Any

import pytest

from hydragnn.architectures import architectures
from hydragnn.conformance import ArchitectureConformance
from hydragnn.conformance_smoothness import energy_model, problems_of_force_constants, problems_on_paths

AROUND: dict[str, dict[str, Any]] = {
    "FiLM": {"conditioning": "film"},
    "Pooled": {"conditioning": "pooled"},
    "MultiheadAttention": {"global_attention": {"kind": "multihead", "heads": 2}},
    "LinearAttention": {"global_attention": {"kind": "linear", "heads": 2}, "conditioning": "film"},
    "Checkpointed": {"checkpoint_activations": True},
}


def suite(name: str, kind: str, settings: dict[str, Any]) -> type:
    members = {"architecture": kind, "settings": settings, "__module__": __name__}
    return type(name, (ArchitectureConformance,), members)


for kind, architecture in architectures().items():
    globals()[f"Test{architecture.__name__}"] = suite(f"Test{architecture.__name__}", kind, {})

for kind in ("painn", "gin"):
    for name, settings in AROUND.items():
        globals()[f"Test{name}Around{kind}"] = suite(f"Test{name}Around{kind}", kind, settings)

DEGREES: dict[str, dict[str, Any]] = {
    "MACEWithDegreeTwo": {"hidden_l": 2, "max_ell": 2, "num_layers": 3, "correlation": 2},
    "MACEWithScalars": {"hidden_l": 0, "max_ell": 1, "num_layers": 1, "correlation": 3},
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
    ],
)
def test_those_that_say_they_are_not_smooth_are_not(kind: str, settings: dict[str, Any], sentence: str) -> None:
    model = energy_model(kind, **settings)
    assert model.description.model.kinks
    problems = problems_of_force_constants(model) + problems_on_paths(model)
    assert any(problem.startswith(sentence) for problem in problems), problems
