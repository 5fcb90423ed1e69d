"""Attention of the public HydraGNN turns with its graphs, and says what it cannot read."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.frozen import FrozenGraph, FrozenModel, FrozenSettings
from hydragnn.frozen.kinds import KINDS

HEADS = {"num_sharedlayers": 1, "dim_sharedlayers": 4, "num_headlayers": 1, "dim_headlayers": [4]}
SETTINGS: dict[str, Any] = {
    "generation": "main",
    "hidden_dim": 8,
    "num_conv_layers": 2,
    "input_dim": 1,
    "heads": [{"level": "graph", "dim": 1}, {"level": "node", "dim": 2}],
    "graph_heads": {"branch-0": HEADS},
    "node_heads": {"branch-0": {"type": "mlp", **HEADS}},
    "radius": 3.0,
    "num_radial": 4,
    "num_gaussians": 6,
    "num_filters": 8,
    "max_neighbours": 8,
    "activation_function": "silu",
    "max_ell": 1,
    "node_max_ell": 1,
    "avg_num_neighbors": 3.0,
    "pna_deg": (0, 1, 5, 3, 2),
    "pe_dim": 2,
    "global_attn_engine": "EquivariantTransformer",
    "global_attn_heads": 2,
}


def model_of(kind: str, **changes: Any) -> FrozenModel:
    torch.manual_seed(0)
    model = KINDS[kind](FrozenSettings.model_validate({**SETTINGS, "kind": kind, **changes})).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def graphs() -> FrozenGraph:
    """Four and three atoms, without images."""
    torch.manual_seed(1)
    pos, batch = 1.5 * torch.randn(7, 3, dtype=torch.float64), torch.tensor([0, 0, 0, 0, 1, 1, 1])
    edges = ((batch.unsqueeze(1) == batch) & ~torch.eye(7, dtype=torch.bool)).nonzero().T
    x = torch.tensor([1.0, 6, 8, 1, 7, 1, 1], dtype=torch.float64).unsqueeze(1)
    pe, rel_pe = torch.randn(7, 2, dtype=torch.float64), torch.rand(edges.shape[1], 2, dtype=torch.float64)
    return FrozenGraph(x, pos, edges, batch, 2, pe=pe, rel_pe=rel_pe)


def outputs(model: FrozenModel, graph: FrozenGraph) -> list[Tensor]:
    return [mean.detach() for mean, _ in model(graph)]


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
@pytest.mark.parametrize("kind", ["PAINN", "PNAEq", "SchNet"])
def test_outputs_do_not_turn_and_graphs_do_not_mix(kind: str, mode: str) -> None:
    model, graph = model_of(kind, equivariant_attn_coupling_mode=mode), graphs()
    turn, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))
    moved = replace(graph, pos=graph.pos @ turn.T + torch.where(graph.batch == 0, 5.0, -2.0).unsqueeze(1))
    torch.testing.assert_close(outputs(model, moved), outputs(model, graph))
    near = replace(graph, pos=torch.where((graph.batch == 0).unsqueeze(1), 0.5 * graph.pos, graph.pos))
    torch.testing.assert_close(of_last(outputs(model, near)), of_last(outputs(model, graph)))


def of_last(values: list[Tensor]) -> list[Tensor]:
    """Outputs of the second graph and of its nodes."""
    return [values[0][1:], values[1][4:]]


def test_gps_mixes_the_graphs_of_a_batch_as_its_code_did() -> None:
    model, graph = model_of("GIN", global_attn_engine="GPS", global_attn_type="performer"), graphs()
    other = replace(graph, x=torch.where((graph.batch == 0).unsqueeze(1), graph.x + 1, graph.x))
    assert not torch.allclose(of_last(outputs(model, other))[1], of_last(outputs(model, graph))[1])


GPS: dict[str, Any] = {"global_attn_engine": "GPS", "global_attn_type": "multihead"}


@pytest.mark.parametrize(
    ("kind", "changes", "graph", "words"),
    [
        ("GIN", {}, {}, "global_attn_engine = EquivariantTransformer of GIN is not read"),
        ("GIN", {"global_attn_engine": "Graphormer"}, {}, "global_attn_engine = Graphormer of GIN is not read"),
        ("MACE", GPS, {}, "global_attn_engine = GPS of MACE is not read"),
        ("GIN", {**GPS, "global_attn_heads": 3}, {}, "no multihead attention with 3 heads in 8 channels"),
        ("GIN", {**GPS, "global_attn_type": "linear"}, {}, "no linear attention with 2 heads"),
        ("PAINN", {"global_attn_heads": 0}, {}, "no function with 0 heads and lmax = 1"),
        ("PAINN", {"equivariant_attn_lmax": 99}, {}, "no function with 2 heads and lmax = 99"),
        ("PAINN", {}, {"edge_shifts": torch.ones(18, 3)}, "no function for periodic graphs"),
        ("MACE", {"max_ell": 12}, {}, "max_ell = 12, where MACE has 11 at most"),
        ("MACE", {"correlation": (5, 2)}, {}, "correlation = 5; 1 to 4 have one"),
        ("MACE", {"avg_num_neighbors": None}, {}, "avg_num_neighbors is missing, which MACE needs"),
        ("MACE", {"distance_transform": "agnesi"}, {}, "no radial_type = bessel with distance_transform = agnesi"),
        ("MACE", {"variance": True}, {}, "GaussianNLLLoss, which failed there"),
    ],
)
def test_no_function_is_said_in_words(kind: str, changes: Any, graph: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as refusal:
        if kind == "MACE":
            changes = {"global_attn_engine": None, **changes}
        model_of(kind, **changes)(replace(graphs(), **graph))
    assert words in str(refusal.value)
