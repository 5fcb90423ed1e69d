"""GATv2 as the public HydraGNN chains it, with the weights of a network that it trained (``public_hydragnn.py``)."""

from dataclasses import replace

import pytest
from public_hydragnn import (
    Checkpoint,
    Convolution,
    Graphs,
    compared,
    filled,
    message_graph,
    put,
)
from torch import Tensor, nn

from hydragnn.architectures import GraphSpec
from hydragnn.architectures.gatv2 import GATv2, GATv2Settings, WideLayer


def take_layer(layer: WideLayer, weights: dict[str, Tensor]) -> None:
    """Their weights; batch norm and activation come after it, from the checkpoint."""
    put(layer.from_sender, weights["lin_l.weight"], weights["lin_l.bias"])
    put(layer.from_receiver, weights["lin_r.weight"], weights["lin_r.bias"])
    put(layer.from_edge, weights["lin_edge.weight"])
    layer.attention.copy_(weights["att"].squeeze(0))
    layer.bias.copy_(weights["bias"])
    layer.after = nn.Sequential()


@pytest.mark.parity("gatv2", "public HydraGNN", "network with wide heads: predictions")
@pytest.mark.parametrize("checkpoint", ["GAT_lengths3"], indirect=True)
def test_gatv2_predicts_what_the_public_hydragnn_does(checkpoint: Checkpoint) -> None:
    """``wide_heads``, ``own_edge = "mean"``, 6 heads and a slope of .05; of images of a node itself, which it does not see, there are no edges."""
    settings = GATv2Settings(
        hidden_dim=checkpoint.settings["hidden_dim"],
        num_layers=checkpoint.settings["num_conv_layers"],
        heads=6,
        negative_slope=0.05,
        wide_heads=True,
        own_edge="mean",
    )
    network = GATv2(settings, GraphSpec(dim=0, edge_width=1)).requires_grad_(False)
    for number, layer in enumerate(network.layers):
        assert isinstance(layer, WideLayer)
        take_layer(layer, checkpoint.of_layer(number))

    def convolutions(graphs: Graphs) -> Convolution:
        others = graphs["edge_index"][0] != graphs["edge_index"][1]
        edges, features = graphs["edge_index"][:, others].long(), graphs["edge_attr"][others]
        order = edges[1].argsort(stable=True)
        graph = message_graph(graphs, receivers=1, edges=edges, edge_features=features[order])
        graph = replace(graph, vectors=None)

        def convolution(number: int, states: Tensor) -> Tensor:
            layer = network.layers[number]
            values: Tensor = layer({0: filled(states, layer.from_sender.in_features)}, graph)[0]  # type: ignore[union-attr]
            return values

        return convolution

    compared(checkpoint, convolutions)
