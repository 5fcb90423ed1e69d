"""Laws of architectures and of trained models, and tests to inherit."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hydragnn.conformance.suite import ArchitectureConformance

__all__ = ["ArchitectureConformance"]


def __getattr__(name: str) -> Any:
    """Import the suite on first use, since it needs pytest."""
    if name == "ArchitectureConformance":
        return import_module("hydragnn.conformance.suite").ArchitectureConformance
    raise AttributeError(f"module 'hydragnn.conformance' has no attribute {name!r}")
