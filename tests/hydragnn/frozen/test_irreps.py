"""Maps of irreps have the names, the scales and the values of e3nn's."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hydragnn.frozen import FrozenGraph, FrozenSettings
from hydragnn.frozen.attention import GlobalLayer
from hydragnn.frozen.kinds import translated
from hydragnn.frozen.mace import Interaction
from hydragnn.layers import SphericalHarmonics

NODES, EDGES, CHANNELS, HEADS, RADIAL = 5, 9, 3, 2, 4
SETTINGS: dict[str, Any] = {
    "generation": "main",
    "hidden_dim": CHANNELS,
    "num_conv_layers": 2,
    "input_dim": 1,
    "heads": [{"level": "graph", "dim": 1}],
    "graph_heads": {
        "branch-0": {"num_sharedlayers": 1, "dim_sharedlayers": 4, "num_headlayers": 1, "dim_headlayers": [4]}
    },
    "radius": 3.0,
    "num_radial": RADIAL,
    "max_ell": 2,
    "node_max_ell": 1,
    "avg_num_neighbors": 3.0,
    "global_attn_heads": HEADS,
    "pe_dim": 1,
}


def settings_of(kind: str, **changes: Any) -> FrozenSettings:
    return FrozenSettings.model_validate({**SETTINGS, "kind": kind, **changes})


def irreps_of(count: int) -> Any:
    """C x 0e + C x 1o + ... of e3nn."""
    return pytest.importorskip("e3nn.o3").Irreps([(CHANNELS, (degree, (-1) ** degree)) for degree in range(count)])


def blocks_of(count: int) -> list[Tensor]:
    return [torch.randn(NODES, CHANNELS, 2 * degree + 1, dtype=torch.float64) for degree in range(count)]


def flat(blocks: Sequence[Tensor], start: int = 1) -> Tensor:
    return torch.cat([block.flatten(start) for block in blocks], dim=start)


def load(module: nn.Module, theirs: Mapping[str, Any]) -> None:
    """Give weights of theirs to ours, and numbers to what is only ours."""
    tensors = {f"{name}.{key}": value for name, one in theirs.items() for key, value in one.state_dict().items()}
    own = {name: torch.randn_like(tensor) for name, tensor in module.state_dict().items()}
    tensors = translated(tensors, "main")
    assert tensors.keys() <= own.keys()
    module.load_state_dict({**own, **tensors})


@pytest.fixture(autouse=True)
def _in_double(monkeypatch: pytest.MonkeyPatch) -> Any:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("degrees", "lmax"), [(2, 1), (2, 2), (3, 2), (1, 1)])
def test_the_global_layer_is_made_of_e3nns_maps(degrees: int, lmax: int) -> None:
    o3, norm = pytest.importorskip("e3nn.o3"), pytest.importorskip("e3nn.nn").NormActivation
    irreps, states = irreps_of(degrees), blocks_of(degrees)
    wide, many = o3.Irreps([(2 * CHANNELS, ir) for _, ir in irreps]), o3.Irreps(" + ".join([str(irreps)] * HEADS))
    harmonics = o3.Irreps.spherical_harmonics(lmax)
    query, output = o3.Linear(irreps, many), o3.Linear(many, irreps)
    product = o3.FullyConnectedTensorProduct(irreps, harmonics, irreps, shared_weights=False)
    first, gate = o3.Linear(irreps, wide), norm(wide, nn.functional.silu)
    layer = GlobalLayer(
        settings_of("PAINN", equivariant_attn_lmax=lmax, equivariant_attn_num_radial=RADIAL),
        [(CHANNELS, degree) for degree in range(degrees)],
    )
    theirs = {"attention.query": query, "attention.output": output, "attention.value_tensor_product": product}
    load(layer, {**theirs, "feedforward.0": first, "feedforward.1": gate})
    attention, vectors, source = layer.attention, torch.randn(EDGES, 3), torch.randint(NODES, (EDGES,))
    length = vectors.norm(dim=1, keepdim=True)
    radial = torch.exp(-((RADIAL - 1) ** 2) * (length / (1 + length) - attention.radial_centers) ** 2)  # type: ignore[operator]
    weights = attention.radial_mlp(radial).view(EDGES, HEADS, -1)
    axes = o3.spherical_harmonics(harmonics, vectors, True, "component")
    values = torch.stack([product(flat(states)[source], axes, weights[:, head]) for head in range(HEADS)], dim=1)
    queries = attention.query(states)
    torch.testing.assert_close(flat(queries), query(flat(states)))
    torch.testing.assert_close(flat(attention.output(queries)), output(flat(queries)))
    torch.testing.assert_close(flat(attention.values(states, vectors, source), 2), values)
    torch.testing.assert_close(flat(layer.feedforward[1](layer.feedforward[0](states))), gate(first(flat(states))))


@pytest.mark.parametrize(("max_ell", "degrees", "features"), [(2, 2, 0), (3, 3, 0), (1, 2, 1), (2, 2, 3)])
def test_interactions_are_made_of_e3nns_maps(max_ell: int, degrees: int, features: int) -> None:
    o3, net = pytest.importorskip("e3nn.o3"), pytest.importorskip("e3nn.nn").FullyConnectedNet
    irreps, states, wide = irreps_of(degrees), blocks_of(degrees), irreps_of(max_ell + 1)
    axes = o3.Irreps.spherical_harmonics(max_ell)
    on_edges = (o3.Irreps(f"{features}x0e") + axes).simplify() if features else axes
    each = [(c, a, b) for a, (_, x) in enumerate(irreps) for b, (_, y) in enumerate(on_edges) for c in x * y]
    paths = sorted([path for path in each if path[0] in wide], key=lambda path: path[0].l)
    middle = o3.Irreps([(CHANNELS, c) for c, _, _ in paths])
    ways = [(a, b, number, "uvu", True) for number, (_, a, b) in enumerate(paths)]
    product = o3.TensorProduct(irreps, on_edges, middle, ways, shared_weights=False, internal_weights=False)
    network = net([RADIAL + 2 * CHANNELS, CHANNELS, CHANNELS, CHANNELS, product.weight_numel], nn.functional.silu)
    up, down, skip = (o3.Linear(irreps, ends) for ends in (irreps, f"{CHANNELS}x0e", irreps))
    last, theirs = (
        o3.Linear(middle.simplify(), wide),
        Interaction(settings_of("MACE", max_ell=max_ell, edge_dim=features), degrees, degrees),
    )
    names = {"linear_up": up, "linear_down": down, "skip_linear": skip, "linear": last}
    load(theirs, {**names, "conv_tp": product, "conv_tp_weights": network})
    vectors, features_of_edges = torch.randn(EDGES, 3), torch.randn(EDGES, features)
    extra = {"radial": torch.randn(EDGES, RADIAL)}
    for degree, one in enumerate(SphericalHarmonics(max_ell)(nn.functional.normalize(vectors, dim=1))):
        extra[f"harmonics{degree}"] = one.unsqueeze(1)
    extra["harmonics0"] = torch.cat([features_of_edges.unsqueeze(2), extra["harmonics0"]], dim=1)
    edges = torch.randint(NODES, (2, EDGES))
    owner = torch.zeros(NODES, dtype=torch.int64)
    graph = FrozenGraph(torch.zeros(NODES, 1), torch.zeros(NODES, 3), edges, owner, 1, extra=extra)
    messages, residual = theirs(states, graph)
    inputs = torch.cat([extra["radial"], *down(flat(states))[edges]], dim=1)
    sides = torch.cat([features_of_edges, o3.spherical_harmonics(axes, vectors, True, "component")], dim=1)
    sent = product(up(flat(states))[edges[0]], sides, network(inputs))
    expected = last(torch.zeros(NODES, sent.shape[1]).index_add(0, edges[1], sent)) / 3.0
    torch.testing.assert_close(flat(messages), expected)
    torch.testing.assert_close(flat(residual), skip(flat(states)))
