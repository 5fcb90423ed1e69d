"""Wrappers around the layers of any architecture, in their order."""

from collections.abc import Sequence

from torch import nn

from hydragnn.architectures import Architecture, ArchitectureSettings, GlobalAttentionSettings
from hydragnn.layers import (
    FAR,
    NUM_RADIAL,
    Checkpointed,
    EquivariantAttention,
    EquivariantAttentionLayer,
    FiLM,
    GPSLayer,
    GraphUNet,
    RadialFeatures,
    Residual,
)


def wrap_layers(
    architecture: Architecture, settings: ArchitectureSettings, degrees: frozenset[int], *, conditioned: bool
) -> None:
    """Wrap every layer: residual, attention, conditioning, checkpointing; pooling around all.

    Every parameter is made here, at construction. ``degrees`` of states are read by heads. ``conditioned``: there are graph
    inputs to condition on.
    """
    wrapped = []
    for number, inner in enumerate(architecture.layers):
        layer: nn.Module = inner
        if architecture.residual:
            layer = Residual(layer, settings.hidden_dim, settings.dropout)
        if settings.global_attention is not None:
            layer = _attending(layer, settings, architecture.carried[number : number + 2])
        if conditioned and settings.conditioning == "film":
            layer = FiLM(layer, settings.hidden_dim)
        if settings.checkpoint_activations:
            layer = Checkpointed(layer)
        wrapped.append(layer)
    pooling = settings.pooling
    if pooling is not None:
        wrapped = [GraphUNet(wrapped, pooling.levels, settings.hidden_dim, degrees)]
    architecture.layers = nn.ModuleList(wrapped)


def _attending(layer: nn.Module, settings: ArchitectureSettings, carried: Sequence[frozenset[int]]) -> nn.Module:
    """Return a layer with attention; ``carried`` are degrees before and after."""
    attention, channels = settings.global_attention, settings.hidden_dim
    assert attention is not None and attention.kind != "none"  # settings of a model have no such section
    if attention.kind != "equivariant":
        return GPSLayer(layer, channels, attention.kind, attention.heads, settings.dropout)
    width = (attention.num_radial or NUM_RADIAL) + 1
    pairs = EquivariantAttention(channels, attention.heads, width, inputs=carried[0], outputs=carried[1])
    return EquivariantAttentionLayer(layer, pairs, settings.dropout)


def basis_of_pairs(attention: GlobalAttentionSettings, basis: RadialFeatures | None) -> RadialFeatures:
    """Return radial functions and envelope of attention's pairs.

    Without a cutoff of attention there is no envelope, and lengths are told apart up to ``FAR`` cutoffs of the basis (15 where there is none).
    """
    cutoff, num_radial = attention.cutoff, attention.num_radial or NUM_RADIAL
    if cutoff is not None:
        return RadialFeatures(cutoff, num_radial, "exponential", "polynomial", inputs=0)
    return RadialFeatures(FAR * (5.0 if basis is None else basis.cutoff), num_radial, "exponential", "none", inputs=0)
