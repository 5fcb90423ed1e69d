"""Message passing of a head's own, before its network."""

from dataclasses import replace

from torch import nn

from hydragnn.architectures import Architecture, ArchitectureSettings
from hydragnn.graphs.batch import GraphBatch
from hydragnn.layers import MessageGraph, States
from hydragnn.models.distributions import Distribution
from hydragnn.models.head_context import HeadContext
from hydragnn.models.wrapping import wrap_layers


class ConvolvedHead(nn.Module):
    """y = head(layers(narrow(h))): a head behind message-passing layers of the model's architecture that are its own.

    The layers start from the encoder's scalars.

    Where heads read the channels of all layers, a linear map brings them back to the architecture's width first.
    """

    def __init__(self, head: nn.Module, context: HeadContext, layers: int) -> None:
        super().__init__()
        description = context.description
        settings = with_layers(description.model, layers)
        self.narrow = (
            nn.Linear(context.channels, settings.hidden_dim)
            if context.channels != settings.hidden_dim
            else nn.Identity()
        )
        spec = replace(description.spec(context.edge_width), degrees=frozenset({0}))
        self.layers: Architecture = description.architecture(settings, spec)
        wrap_layers(self.layers, settings, spec.degrees, conditioned=context.conditioned)
        self.head = head

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Distribution:
        """What the head says of the new states."""
        states = self.layers.embed(self.narrow(states[0]), graph)  # degree 0: [nodes, hidden_dim]
        for layer in self.layers.layers:
            states = layer(states, graph)
        prediction: Distribution = self.head(self.layers.finish(states, graph), graph, batch)
        return prediction


def with_layers(model: ArchitectureSettings, layers: int) -> ArchitectureSettings:
    """The settings with another number of layers, all on the graph itself; InputError where the architecture's other keys forbid it."""
    settings: ArchitectureSettings = type(model).parse(
        {**model.to_json(), **model.of_own_layers(layers)}, f"conv_layers = {layers}"
    )
    return settings
