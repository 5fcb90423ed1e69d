"""Every architecture of the house keeps the promises that ship in ``hydragnn.conformance``; a new file is under them by being there.

What can stand around any layer keeps them too, around an equivariant architecture and a blind one.
"""

from typing import Any

from hydragnn.architectures import architectures
from hydragnn.conformance import ArchitectureConformance

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
