"""What stands around the layers of any architecture, applied in one visible order."""

from torch import nn

from hydragnn.architectures import Architecture, ArchitectureSettings
from hydragnn.layers import Checkpointed, FiLM, GPSLayer, GraphUNet, Residual


def wrap_layers(
    architecture: Architecture, settings: ArchitectureSettings, degrees: frozenset[int], *, conditioned: bool
) -> None:
    """Put around every layer, from the inside: residual, global attention, conditioning, activation checkpointing; and pooling around all.

    Every parameter is made here, at construction. ``degrees`` of states are read by heads. ``conditioned``: there are graph
    inputs to condition on.
    """
    wrapped = []
    for inner in architecture.layers:
        layer: nn.Module = inner
        if architecture.residual:
            layer = Residual(layer, settings.hidden_dim, settings.dropout)
        if settings.global_attention is not None:
            attention = settings.global_attention
            assert attention.kind != "none"  # settings of a model have no such section
            layer = GPSLayer(layer, settings.hidden_dim, attention.kind, attention.heads, settings.dropout)
        if conditioned and settings.conditioning == "film":
            layer = FiLM(layer, settings.hidden_dim)
        if settings.checkpoint_activations:
            layer = Checkpointed(layer)
        wrapped.append(layer)
    pooling = settings.pooling
    if pooling is not None:
        ratio = None if pooling.by == "clusters" else (pooling.ratio or 0.5)
        wrapped = [GraphUNet(wrapped, pooling.levels, settings.hidden_dim, degrees, ratio)]
    architecture.layers = nn.ModuleList(wrapped)
