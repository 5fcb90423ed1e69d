"""Global attention around local layers: GPS and the equivariant transformer."""

from torch import nn

from hydragnn.base.errors import InputError
from hydragnn.frozen.graph import FrozenGraph
from hydragnn.frozen.settings import FrozenSettings


def embeddings(settings: FrozenSettings) -> dict[str, nn.Module]:
    """Return the modules that embed nodes and edges, by name."""
    if settings.global_attn_engine:
        raise InputError(f"global_attn_engine = {settings.global_attn_engine}: cannot be read yet")
    return {}


def edge_width(settings: FrozenSettings) -> int:
    """Return the number of edge features that layers of the encoder see."""
    return settings.edge_dim


def wrap(settings: FrozenSettings, layer: nn.Module, *, last: bool) -> nn.Module:
    """Return the layer with attention beside it."""
    return layer


def embed(model: nn.Module, graph: FrozenGraph) -> FrozenGraph:
    """Return the graph with embedded nodes and edges."""
    return graph
