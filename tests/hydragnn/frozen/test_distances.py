"""Arithmetic of kinds with distances for which no folder of the public HydraGNN is at hand."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from hydragnn.frozen import FrozenGraph, FrozenSettings
from hydragnn.frozen.distances import EGNN, DimeNet, SchNet, near_nodes
from hydragnn.frozen.model import FrozenModel
from hydragnn.frozen.settings import Networks

LINE = torch.tensor([[0.0], [1.0], [2.0], [2.5]]) * torch.tensor([1.0, 0.0, 0.0])


def model_of(kind: type[FrozenModel], generation: str, **more: Any) -> FrozenModel:
    """Model whose weights are all a half."""
    sizes = {"hidden_dim": 3, "num_conv_layers": 2, "input_dim": 1, "num_gaussians": 4, "num_filters": 5}
    names = {"kind": kind.__name__, "generation": generation, "heads": ()}
    model = kind(FrozenSettings(**sizes, **names, radius=3.0, max_neighbours=9, **more))  # type: ignore[arg-type]
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.5)
    return model


@pytest.mark.parametrize(
    ("radius", "most", "owners", "edges"),
    [
        (1.0, 9, (0, 0, 0, 0), {(2, 3), (3, 2)}),  # not those at the radius
        (1.01, 9, (0, 0, 0, 0), {(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)}),
        (1.01, 1, (0, 0, 0, 0), {(0, 1), (1, 0), (1, 2), (2, 3)}),
        (1.01, 9, (0, 0, 1, 1), {(0, 1), (1, 0), (2, 3), (3, 2)}),
        (0.1, 9, (0, 1, 2, 3), set()),
    ],
)
def test_schnet_finds_the_first_neighbours_within_the_radius(
    radius: float, most: int, owners: tuple[int, ...], edges: set[tuple[int, int]]
) -> None:
    assert {*zip(*near_nodes(LINE, torch.tensor(owners), radius, most).tolist())} == edges


@pytest.mark.parametrize("kind", [EGNN, SchNet])
@pytest.mark.parametrize(("generation", "sign"), [("v3.0", -1), ("2024", -1), ("v4.0", 1), ("v5.0", 1), ("main", 1)])
def test_nodes_of_old_models_move_the_other_way(kind: type[FrozenModel], generation: str, sign: int) -> None:
    model = model_of(kind, generation, equivariance=True)
    graph = FrozenGraph(torch.ones(2, 1), LINE[:2], torch.tensor([[0, 1], [1, 0]]), torch.zeros(2).long(), 1)
    _, positions = model.graph_convs[0](*model._start(graph))
    assert (positions - graph.pos)[:, 0].sign().tolist() == [sign, -sign]


@pytest.mark.parametrize(("generation", "error"), [("v5.0", 1e-8), ("main", 1e-15)])
def test_constants_of_schnet_are_rounded_as_by_its_version(generation: str, error: float) -> None:
    model = model_of(SchNet, generation)
    width, shift = model.distance_expansion.coeff, model.graph_convs[0].module_2.nn[1].shift
    assert (width, shift) == (pytest.approx(-0.5, abs=error), pytest.approx(math.log(2), abs=error))
    assert (shift == math.log(2)) == (generation == "main")


@pytest.mark.parametrize("generation", ["v4.0", "main"])
def test_schnet_with_edge_features_reads_lengths_without_images(generation: str) -> None:
    model = model_of(SchNet, generation, edge_dim=1)
    edges = torch.tensor([[0, 1], [1, 0]])
    graph = FrozenGraph(torch.ones(2, 1), LINE[:2], edges, torch.zeros(2).long(), 1, edge_shifts=torch.ones(2, 3))
    outputs = []
    for features, scale in ((1.0, 1.0), (2.0, 1.0), (1.0, 2.0)):
        other = FrozenGraph(**{**vars(graph), "pos": graph.pos * scale, "edge_attr": torch.full((2, 1), features)})
        *states, extended = model._start(other)
        assert extended.extra["lengths"].tolist() == [[scale]] * 2
        outputs.append(model.graph_convs[0](*states, extended)[0].sum().item())
    assert len({*outputs}) == 3


def test_convolutional_heads_of_dimenet_leave_edge_features_out() -> None:
    names = "int_emb_size", "basis_emb_size", "out_emb_size", "num_radial", "envelope_exponent"
    sizes: dict[str, Any] = dict.fromkeys(names, 2) | {"num_spherical": 2, "num_before_skip": 1, "num_after_skip": 1}
    head = Networks(type="conv", num_headlayers=1, dim_headlayers=(4,))
    settings = {"kind": "DimeNet", "generation": "v5.0", "hidden_dim": 3, "num_conv_layers": 1, "input_dim": 1}
    options = {**settings, **sizes, "heads": [{"level": "node", "dim": 1}], "node_heads": {"branch-0": head}}
    model = DimeNet(FrozenSettings.model_validate({**options, "edge_dim": 1, "radius": 3.0}))
    assert {name.split(".")[0] for name, _ in model.named_parameters() if "edge_lin" in name} == {"graph_convs"}


def test_equivariant_schnet_of_v3_is_what_its_formulas_give() -> None:
    """Pairs in plain loops: its nodes move from their receivers, as far as filters say, in all layers but the last."""
    torch.manual_seed(0)
    model = model_of(SchNet, "v3.0", equivariance=True).double()
    weights = {name: nn.init.normal_(value).data for name, value in model.named_parameters()}
    x, pos = torch.rand(5, 1).double(), 2 * torch.rand(5, 3).double()
    graph = FrozenGraph(x, pos, torch.zeros(2, 0).long(), torch.zeros(5).long(), 1)
    states = list[Any]()
    model.graph_convs[-1].register_forward_hook(lambda module, inputs, outputs: states.append(outputs[0]))
    model(graph)
    for layer in range(2):
        own = {name[23:]: one for name, one in weights.items() if name.startswith(f"graph_convs.{layer}.module_2.")}
        received, steps = torch.zeros(5, 5).double(), torch.zeros(5, 5, 3).double()
        near = (pos[:, None] - pos).norm(dim=2) < 3
        for i, j in (near & ~torch.eye(5).bool()).nonzero().tolist():
            length = (pos[i] - pos[j]).norm()
            filters = own["nn.0.weight"] @ torch.exp(-0.5 * (length - torch.arange(4)) ** 2) + own["nn.0.bias"]
            filters = own["nn.2.weight"] @ (nn.functional.softplus(filters) - math.log(2)) + own["nn.2.bias"]
            filters = filters * (0.5 * (torch.cos(math.pi * length / 3) + 1))
            received[i] += (own["lin1.weight"] @ x[j]) * filters
            if layer == 0:
                middle = (own["coord_mlp.0.weight"] @ filters + own["coord_mlp.0.bias"]).relu()
                steps[j, i] = (pos[j] - pos[i]) / (length + 1) * (own["coord_mlp.2.weight"] @ middle)
        last = received @ own["lin2.weight"].T + own["lin2.bias"]
        x, pos = last.relu(), pos + steps.sum(1) / (near.sum(1) - 1).clamp_min(1)[:, None]
    torch.testing.assert_close(states[-1], last, rtol=1e-7, atol=1e-7)  # there log 2 is of single precision
