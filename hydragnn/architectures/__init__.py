"""Architectures, one file each."""

from hydragnn.architectures.base import (
    Architecture,
    ArchitectureSettings,
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
