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
    architecture_of,
    architectures,
    radial_basis,
)

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
