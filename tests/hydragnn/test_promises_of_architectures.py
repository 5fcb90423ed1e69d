"""Laws of every architecture beside ``hydragnn.conformance``; numbers are those of ``tests/contracts/test_silent_failures.py``."""

from dataclasses import replace

import pytest
import torch

from hydragnn.architectures import architectures
from hydragnn.conformance.cases import make_graph, make_model
from hydragnn.graphs import graph_from_arrays
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.topology import Topology
from hydragnn.models import GraphModel
from tests.hydragnn.small import FIELDS, MOVED, small_model


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
    model, size = make_model(kind), graph.nodes["size"]

    def charges(*sizes: float) -> torch.Tensor:
        moved = size + torch.tensor(sizes).unsqueeze(1)
        return model(replace(graph, nodes={**graph.nodes, "size": moved}))["charge"].mean

    before = charges(0, 0)
    assert not torch.allclose(charges(1, 0)[1], before[1], rtol=0, atol=1e-9)
    assert torch.equal(charges(0, 1)[0], before[0])


@pytest.mark.parametrize("kind", architectures())
def test_dropout_acts_in_training_and_never_at_prediction(kind: str) -> None:
    """22."""
    graph, model = make_graph(0, 6), make_model(kind, dropout=0.5)
    for training in (True, False):
        model.train(training)
        first, second = (model(graph)["charge"].mean for _ in range(2))
        assert torch.allclose(first, second, rtol=0, atol=1e-9 if training else 0) != training


@pytest.mark.parametrize("kind", architectures())
def test_a_lone_node_knows_what_it_is(kind: str) -> None:
    """TensorNet has a node among its own neighbours: without that, a lone atom had the energy of any other element."""
    model, lone = make_model(kind), make_graph(0, 1, edges=0)
    graphs = [lone.with_fields({"species": torch.tensor([number])}) for number in (1, 2)]
    energies = [float(model(graph)["energy"].mean.detach()) for graph in graphs]
    assert abs(energies[0] - energies[1]) > 1e-4


def grid(spacing: float, cutoff: float) -> GraphBatch:
    """Five by five points joined up to and including the cutoff, one of them twice in one place, and a lone node."""
    square = torch.cartesian_prod(torch.arange(5), torch.arange(5)).float()
    points = torch.cat([square, square[:1], torch.tensor([[99.0, 99.0]])]) * spacing
    # its products of matrices are too coarse for points at the very cutoff
    exactly = "donot_use_mm_for_euclid_dist"
    apart = torch.cdist(points, points, compute_mode=exactly) <= cutoff * (1 + 1e-6)
    receivers, senders = (apart & ~torch.eye(len(points), dtype=torch.bool)).nonzero(as_tuple=True)
    sizes = {"size": torch.arange(len(points)) / len(points)}
    graph = graph_from_arrays(points, senders, receivers, fields=[FIELDS["size"]], nodes=sizes)
    return graph.to(dtype=torch.float32)


@pytest.mark.parametrize("spacing", [0.06, 0.1])
@pytest.mark.parametrize("kind", ["schnet", "painn", "egnn", "cgcnn", "gatv2", "pna", "pnaplus", "pnaeq", "dimenet"])
def test_with_sinc_the_first_gradient_is_the_same_on_a_grid_in_any_unit_of_length(kind: str, spacing: float) -> None:
    def first_gradient(unit: float) -> torch.Tensor:
        shape = {"radial": "sinc", "num_radial": 4, "envelope": "none", "hidden_dim": 16, "num_layers": 4}
        model = small_model(kind, MOVED, dim=2, cutoff=0.1 * unit, **shape)
        (value,) = model(grid(spacing * unit, 0.1 * unit)).values()
        value.mean.square().mean().backward()
        return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])

    small, large = first_gradient(1.0), first_gradient(50.0)
    assert small.isfinite().all()
    # fp32, in which positions, phases and sums over hundreds of edges round: relative to the gradient as a whole
    assert (small - large).norm() < 1e-5 * large.norm()
