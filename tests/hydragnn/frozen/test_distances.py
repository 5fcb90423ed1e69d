"""Arithmetic of kinds with distances for which no folder of the public HydraGNN is at hand."""

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
