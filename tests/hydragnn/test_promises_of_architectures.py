"""What every architecture owes beside ``hydragnn.conformance``; numbers are those of ``tests/contracts/test_silent_failures.py``."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from hydragnn.architectures import architectures
from hydragnn.base.errors import InputError
from hydragnn.conformance.cases import make_graph, make_model, small_settings
from hydragnn.graphs.topology import Topology
from hydragnn.models import GraphModel


def test_a_list_in_the_place_of_a_number_is_refused() -> None:
    """13."""
    with pytest.raises(InputError, match=r"hidden_dim.*valid integer"):
        small_settings("mace", hidden_dim=[3, 2])


@pytest.mark.parametrize("correlation", [[3, 2, 1], [], [2, 5], [2, True], "32", 2.5, 0])
def test_a_correlation_is_one_number_or_one_for_every_layer(correlation: Any) -> None:
    """13."""
    with pytest.raises(InputError, match=r"correlation.*(one number for each layer|one for each layer)"):
        small_settings("mace", num_layers=2, correlation=correlation)


def test_every_layer_multiplies_as_many_factors_as_its_own_number_says() -> None:
    """13."""
    mixed, three, one = (make_model("mace", num_layers=2, correlation=value) for value in ([3, 1], 3, 1))

    def shapes(model: GraphModel, layer: int) -> dict[str, torch.Size]:
        return {name: value.shape for name, value in model.encoder.layers[layer].products.named_parameters()}

    assert shapes(mixed, 0) == shapes(three, 0) != shapes(one, 0)
    assert shapes(mixed, 1) == shapes(one, 1) != shapes(three, 1)


@pytest.mark.parametrize("kind", [kind for kind, one in architectures().items() if not one.attends])
def test_messages_flow_from_senders_to_receivers(kind: str) -> None:
    """17. One edge, from node 0 to node 1: node 1 hears of node 0, and node 0 of nobody, unless all nodes attend to each other."""
    graph = replace(
        make_graph(7, 2, edges=1),
        topology=Topology.square(torch.tensor([0]), torch.tensor([1]), 2),
        edge_shifts=torch.zeros(1, 3, dtype=torch.float64),
    )
    model = make_model(kind)
    size = graph.nodes["size"]

    def charges(changed: int | None) -> torch.Tensor:
        moved = (
            size.clone() if changed is None else size.index_add(0, torch.tensor([changed]), torch.ones_like(size[:1]))
        )
        return model(replace(graph, nodes={**graph.nodes, "size": moved}))["charge"].mean

    before = charges(None)
    assert not torch.allclose(charges(0)[1], before[1], rtol=0, atol=1e-9)
    assert torch.equal(charges(1)[0], before[0])


@pytest.mark.parametrize("kind", architectures())
def test_dropout_acts_in_training_and_never_at_prediction(kind: str) -> None:
    """22."""
    graph, model = make_graph(0, 6), make_model(kind, dropout=0.5)
    model.train()
    first, second = (model(graph)["charge"].mean for _ in range(2))
    assert not torch.allclose(first, second, rtol=0, atol=1e-9)
    model.eval()
    first, second = (model(graph)["charge"].mean for _ in range(2))
    assert torch.equal(first, second)
