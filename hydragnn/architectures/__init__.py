"""Architectures: one file each, with settings, layers, and what it sees, gives and needs."""

from hydragnn.architectures.base import (
    Architecture,
    ArchitectureSettings,
    CompileGain,
    GeometricSettings,
    GlobalAttentionSettings,
    GraphSpec,
    GraphStatistics,
    ModelSettings,
    Sight,
    Statistic,
    radial_basis,
)
from hydragnn.architectures.registry import architecture_of, architectures

__all__ = [
    "Architecture",
    "ArchitectureSettings",
    "CompileGain",
    "GeometricSettings",
    "GlobalAttentionSettings",
    "GraphSpec",
    "GraphStatistics",
    "ModelSettings",
    "Sight",
    "Statistic",
    "architecture_of",
    "architectures",
    "radial_basis",
]
