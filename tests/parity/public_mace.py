"""MACE of the public HydraGNN, with the weights of networks that it trained (``public_hydragnn.py``).

It keeps couplings, polynomials and radial constants in single precision, with its weights; the test puts these in the place of ours.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from hydragnn.architectures import GraphSpec
from hydragnn.architectures.base import GraphStatistics
from hydragnn.architectures.mace import MACE, MACELayer, MACESettings, NodeFilters
from hydragnn.layers import RadialFeatures
from tests.parity.mace_torch import blocks, coupled
from tests.parity.networks import Stored
from tests.parity.public_hydragnn import Checkpoint, Graphs, agree, message_graph, put, row_of, under
from tests.parity.rows import Bench, Pairs

SILU = float(Stored.read("mace-torch")["silu"])
ELEMENTS = 118


class TheirProducts(nn.Module):
    """Sums over polynomials with their coefficients, which ours equal but for their rounding."""

    def __init__(self, weights: dict[str, Tensor], degrees: range, correlation: int) -> None:
        super().__init__()
        self.weights, self.degrees, self.correlation = weights, degrees, correlation

    def forward(self, states: Tensor, kinds: Tensor) -> dict[int, Tensor]:
        return {degree: self.of_degree(degree, states, kinds) for degree in self.degrees}

    def of_degree(self, degree: int, states: Tensor, kinds: Tensor) -> Tensor:
        """``[nodes, axes, channels]`` of states ``[components, nodes, channels]``."""
        prefix, total = f"symmetric_contractions.contractions.{degree}", torch.zeros(())
        for order in range(1, self.correlation + 1):
            values = self.weights[f"{prefix}.U_matrix_{order}"]  # [axes if any, factor, factor, ..., paths]
            values = values if degree else values.unsqueeze(0)
            name = "weights_max" if order == self.correlation else f"weights.{self.correlation - 1 - order}"
            values = torch.einsum("...p,npc->nc...", values, self.weights[f"{prefix}.{name}"][kinds])
            for _ in range(order):
                values = torch.einsum("nc...i,inc->nc...", values, states)
            total = total + values
        return total.transpose(1, 2)


def network_of(checkpoint: Checkpoint) -> MACE:
    given = checkpoint.settings
    names = {
        "hidden_dim": "hidden_dim",
        "num_layers": "num_conv_layers",
        "num_radial": "num_radial",
        "max_ell": "max_ell",
    }
    names |= {"hidden_l": "node_max_ell", "cutoff": "radius", "envelope_exponent": "envelope_exponent"}
    table: dict[str, Any] = {ours: given[theirs] for ours, theirs in names.items()}
    table |= {"correlation": given.get("correlation") or 2, "radial": given.get("radial_type") or "bessel"}
    table |= {"distance_transform": "agnesi"} if given.get("distance_transform") == "Agnesi" else {}
    settings = MACESettings(**table, node_filters=True)
    degree, species = given["avg_num_neighbors"], tuple(range(1, ELEMENTS + 1))
    statistics = GraphStatistics(mean_log_degree=1.0, mean_degree=degree, species=species)
    mace = MACE(settings, GraphSpec(dim=3, statistics=statistics)).requires_grad_(False)
    assert isinstance(mace.basis, RadialFeatures)
    amplitude = take_basis(mace.basis, checkpoint)
    for number, layer in enumerate(mace.layers):
        assert isinstance(layer, MACELayer)
        take_layer(layer, checkpoint, number, amplitude)
    return mace


def take_basis(basis: RadialFeatures, checkpoint: Checkpoint) -> float:
    """Their constants; their radial functions over ours."""
    values = under(checkpoint.weights, "radial_embedding.")
    if basis.transform is not None:
        for name in "apq":
            setattr(basis.transform, name, float(values[f"distance_transform.{name}"]))
        basis.transform.radii = values["distance_transform.covalent_radii"]
    if "bessel_fn.bessel_weights" not in values:
        return 1.0
    basis.basis.orders = values["bessel_fn.bessel_weights"] / basis.basis.step  # type: ignore[assignment,operator]
    return float(values["bessel_fn.prefactor"]) / math.sqrt(2 / basis.cutoff)


def take_layer(layer: MACELayer, checkpoint: Checkpoint, number: int, amplitude: float) -> None:
    """Their weights; what comes after products and residual is one with both."""
    interaction, product, after = (checkpoint.of_layer(number, module) for module in (1, 2, 3))
    message, channels = layer.message, len(layer.mix["0"].weight)
    degrees = [channels for _ in message.up]
    for linear, matrix in zip(message.up, blocks(interaction["linear_up.weight"], degrees, channels)):
        put(linear, matrix)  # type: ignore[arg-type]
    take_filters(layer, interaction, amplitude)
    counts = [linear.in_features for linear in message.mix]
    for linear, matrix in zip(message.mix, blocks(interaction["linear.weight"], counts, channels)):
        put(linear, matrix)  # type: ignore[arg-type]
    sizes = [channels for _ in layer.mix]
    sizing = blocks(after["weight"], sizes, channels)
    for linear, matrix, last in zip(layer.mix.values(), blocks(product["linear.weight"], sizes, channels), sizing):
        put(linear, last @ matrix)  # type: ignore[arg-type]
    skips = blocks(interaction["skip_linear.weight"], [channels for _ in layer.skip], channels)
    for linear, matrix, last in zip(layer.skip.values(), skips, sizing):
        linear.weight.copy_((last @ matrix).repeat(ELEMENTS + 1, 1))  # the same for all species
    correlation = checkpoint.settings.get("correlation") or 2
    layer.products = TheirProducts(product, range(len(layer.mix)), correlation)  # type: ignore[assignment]


def take_filters(layer: MACELayer, weights: dict[str, Tensor], amplitude: float) -> None:
    message, filters = layer.message, layer.message.radial
    assert isinstance(filters, NodeFilters)
    channels = len(layer.mix["0"].weight)
    (down,) = blocks(weights["linear_down.weight"], [channels], channels)
    first, *hidden, last = (weights[f"conv_tp_weights.layer{place}.weight"] for place in range(4))
    edge, sender, receiver = (first.T / len(first) ** 0.5).split([len(first) - 2 * channels, channels, channels], dim=1)
    put(filters.from_edge, amplitude * edge)
    put(filters.from_sender, sender @ down)
    put(filters.from_receiver, receiver @ down)
    for linear, weight in zip(filters.hidden, hidden, strict=True):
        put(linear, SILU * weight.T / len(weight) ** 0.5)  # type: ignore[arg-type]
    parts = last.split(channels, dim=1)
    for path, linear, part in zip(message.paths, filters.paths, parts, strict=True):
        sign = coupled(path) * (-1) ** path[1]  # their edges point the other way
        put(linear, sign * SILU * part.T / len(part) ** 0.5)  # type: ignore[arg-type]
        name = f"conv_tp._compiled_main_left_right._w3j_{'_'.join(map(str, path))}"
        if name in weights:
            table = coupled(path) * math.sqrt(2 * path[2] + 1) * weights[name]
            setattr(message, f"coupling{path[0]}{path[1]}{path[2]}", table)


def read_out(checkpoint: Checkpoint, number: int, graphs: Graphs, states: Tensor) -> dict[str, Tensor]:
    """What the heads say of the states before the first layer (0) or after one, linear but for the last."""
    weights = under(checkpoint.weights, f"multihead_decoders.{number}.")
    decoder = Checkpoint(checkpoint.folder)
    flat = {name: value for name, value in weights.items() if name.endswith("mlp.0.0.weight")}
    for name, value in flat.items():
        (weights[name],) = blocks(value, [states.shape[1]], len(value) // states.shape[1])
    decoder.__dict__["weights"] = {name: one for name, one in weights.items() if one.numel() and "mask" not in name}
    decoder.__dict__["settings"] = {**checkpoint.settings, "graph_pooling": "mean"}
    return decoder.outputs(graphs, states)


class Detached(nn.Module):
    """Radial functions without a derivative, as torch's Chebyshev polynomials."""

    def __init__(self, basis: nn.Module) -> None:
        super().__init__()
        self.basis = basis

    def forward(self, lengths: Tensor) -> Tensor:
        values: Tensor = self.basis(lengths.detach())
        return values


def mace_networks(bench: Bench, name: str) -> Pairs:
    """``node_filters = true``; read-outs before the first layer are put beside ours."""
    checkpoint = Checkpoint.of(bench, name)
    mace = network_of(checkpoint)
    assert mace.basis is not None
    if checkpoint.settings.get("radial_type") == "chebyshev":
        mace.basis.basis = Detached(mace.basis.basis)  # type: ignore[assignment]
    rows = checkpoint.weights["node_embedding.linear.weight"].view(ELEMENTS, -1) / ELEMENTS**0.5
    for graphs, expected in checkpoint.batches():
        species = graphs["x"].flatten().clamp(1, ELEMENTS).long()
        graph = message_graph(graphs, receivers=1, basis=mace.basis, species=species)
        hot = nn.functional.one_hot(species - 1, ELEMENTS).double()
        outputs, states = read_out(checkpoint, 0, graphs, hot), {0: rows[species - 1]}
        for number, layer in enumerate(mace.layers, 1):
            states = layer(states, graph)
            read = read_out(checkpoint, number, graphs, states[0])
            outputs = {name: value + read[name] for name, value in outputs.items()}
        yield from agree(outputs, graphs, expected)


LINE = "networks with filters of nodes: predictions, energies, forces"
ROWS = [row_of("mace", LINE, mace_networks, "MACE", "mlip multihead opt_cheb_agnesi")]
