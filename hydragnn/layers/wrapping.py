"""Wrappers of layers: residual with norm and dropout, checkpointing."""

import torch
from torch import Tensor, nn

from hydragnn.layers.message_graph import MessageGraph, States


class Residual(nn.Module):
    """Residual with norm and dropout.

    h <- h + dropout(layer(norm(h))) on degree 0 (norm first: Xiong et al. 2020, arXiv:2002.04745), for layers that give increments only.

    Higher degrees add up without a norm.
    """

    def __init__(self, layer: nn.Module, channels: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.layer = layer
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: States, graph: MessageGraph) -> States:
        """New states."""
        increments = self.layer({**states, 0: self.norm(states[0])}, graph)
        increments = {**increments, 0: self.dropout(increments[0])}
        new = {degree: states[degree] + value if degree in states else value for degree, value in increments.items()}
        return {**states, **new}


class Checkpointed(nn.Module):
    """Layer with activations computed again in the backward pass (arXiv:1604.06174)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, states: States, graph: MessageGraph) -> States:
        """Return the states; bits do not depend on a backward pass."""
        from torch.utils.checkpoint import checkpoint

        degrees, previous = list(states), graph.again()

        def compute(*values: Tensor) -> States:
            new: States = self.layer(dict(zip(degrees, values)), previous.again())
            return new

        if not any(value.requires_grad for value in states.values()) and not any(
            parameter.requires_grad for parameter in self.layer.parameters()
        ):
            return compute(*states.values())
        # which is set on the host; layers that draw are compared before they are recorded, and differ
        recorded = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        return checkpoint(compute, *states.values(), use_reentrant=False, preserve_rng_state=not recorded)
