"""Wrappers around the layers of any architecture, in their order."""

from torch import nn

from hydragnn.architectures import Architecture, ArchitectureSettings, GlobalAttentionSettings
from hydragnn.layers.attention import GPSLayer
from hydragnn.layers.equivariant_attention import FAR, NUM_RADIAL, EquivariantAttention, EquivariantAttentionLayer
from hydragnn.layers.pooling import GraphUNet
from hydragnn.layers.radial import RadialFeatures
from hydragnn.layers.wrapping import Checkpointed, FiLM, Residual


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
        attention, channels = settings.global_attention, settings.hidden_dim
        if attention is not None and attention.kind == "equivariant":
            width, (before, after) = (attention.num_radial or NUM_RADIAL) + 1, architecture.carried[number : number + 2]
            pairs = EquivariantAttention(channels, attention.heads, width, inputs=before, outputs=after)
            layer = EquivariantAttentionLayer(layer, pairs, settings.dropout)
        elif attention is not None and attention.kind in ("multihead", "linear"):
            layer = GPSLayer(layer, channels, attention.kind, attention.heads, settings.dropout)
        if conditioned and settings.conditioning == "film":
            layer = FiLM(layer, settings.hidden_dim)
        if settings.checkpoint_activations:
            layer = Checkpointed(layer)
        wrapped.append(layer)
    pooling = settings.pooling
    if pooling is not None:
        wrapped = [GraphUNet(wrapped, pooling.levels, settings.hidden_dim, degrees)]
    architecture.layers = nn.ModuleList(wrapped)


def basis_of_pairs(attention: GlobalAttentionSettings, basis: RadialFeatures | None) -> RadialFeatures:
    """Return radial functions and envelope of attention's pairs.

    Without a cutoff of attention there is no envelope, and lengths are told apart up to ``FAR`` cutoffs of the basis (15 where there is none).
    """
    cutoff, num_radial = attention.cutoff, attention.num_radial or NUM_RADIAL
    if cutoff is not None:
        return RadialFeatures(cutoff, num_radial, "exponential", "polynomial", inputs=0)
    return RadialFeatures(FAR * (5.0 if basis is None else basis.cutoff), num_radial, "exponential", "none", inputs=0)
