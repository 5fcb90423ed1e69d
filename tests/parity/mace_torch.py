"""The algebra of e3nn, and the whole network of MACE's authors, from species to energies and forces; weights and outputs of mace-torch 0.3.16 are kept in a file."""

import math
from dataclasses import replace
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hydragnn.graphs.batch import GraphBatch
from hydragnn.layers import SphericalHarmonics, coupling, symmetric_polynomials
from hydragnn.models import GraphModel, degree_statistics
from tests.parity.networks import Stored, compared, energy_head, network, table_of
from tests.parity.rows import Bench, Pairs, Row

CHANNELS, RADIAL, CUTOFF, ELL, CORRELATION, SPECIES, LAYERS, READOUT = 4, 5, 9.0, 2, 3, 5, 3, 3


def blocks(weight: Tensor, inputs: list[int], outputs: int) -> list[Tensor]:
    """A linear map of irreps, block by block, as weights of ``nn.Linear``."""
    parts = weight.split([count * outputs for count in inputs])
    return [part.view(count, outputs).T / count**0.5 for part, count in zip(parts, inputs)]


def coupled(path: tuple[int, int, int]) -> float:
    """The sign of their coupling beside ours."""
    theirs = pytest.importorskip("e3nn.o3").wigner_3j(*path, dtype=torch.float64)
    return float(torch.sign((torch.from_numpy(coupling(*path)) * theirs).sum()))


class Weights:
    """Their weights, as factors of ours."""

    def __init__(self) -> None:
        self.values = Stored.read("mace-torch")

    def weight(self, name: str) -> Tensor:
        return self.values[f"weights.{name}"]

    def matrices(self, name: str, counts: list[int], outputs: int) -> list[Tensor]:
        return blocks(self.weight(name), counts, outputs)

    def contraction(self, layer: int, degree: int, correlation: int, network: str) -> Tensor:
        """Weights of our polynomials, ``[species, polynomials x channels]``, of which theirs are combinations."""
        prefix, rows = f"{network}.products.{layer}.symmetric_contractions.contractions.{degree}", []
        for order in range(1, correlation + 1):
            theirs = self.values[f"polynomials.{degree}.{order}"]
            ours = dense(degree, order)
            shares = torch.linalg.lstsq(ours.flatten(1).T, theirs.flatten(1).T).solution  # [polynomials, paths]
            torch.testing.assert_close(torch.einsum("qp,qcm->pcm", shares, ours), theirs)  # ours span theirs
            name = "weights_max" if order == correlation else f"weights.{correlation - 1 - order}"
            rows.append(torch.einsum("qp,spc->sqc", shares, self.values[f"{prefix}.{name}"]))
        return torch.cat(rows, dim=1).flatten(1)


def dense(degree: int, order: int) -> Tensor:
    """Our polynomials with a column for every monomial."""
    polynomials = symmetric_polynomials(ELL, degree, order)
    every = list(combinations_with_replacement(range((ELL + 1) ** 2), order))
    result = np.zeros((*polynomials.coefficients.shape[:2], len(every)))
    result[:, :, [every.index(monomial) for monomial in polynomials.monomials]] = polynomials.coefficients
    return torch.from_numpy(result)


def ours(batch: GraphBatch, **changes: Any) -> GraphModel:
    """Our network of the same size, with weights to be replaced; the head has hidden units to carry linear read-outs through."""
    table = {"kind": "mace", "hidden_dim": CHANNELS, "num_layers": LAYERS, "num_radial": RADIAL, "cutoff": CUTOFF}
    table |= {"max_ell": ELL, "correlation": CORRELATION, **changes}
    statistics = replace(degree_statistics([batch]), species=tuple(range(1, SPECIES + 1)))
    assert statistics.mean_degree == 4.0
    return network(table, [energy_head(READOUT + 2, stress="stress")], statistics)


def take_layer(model: GraphModel, stored: Weights, number: int, correlation: int, network: str) -> None:
    layer, name = model.encoder.layers[number], f"interactions.{number}"
    message, radial = layer.message, layer.message.radial
    degrees = range(len(message.up))
    ups = stored.matrices(f"{name}.linear_up.weight", [CHANNELS for _ in degrees], CHANNELS)
    for linear, matrix in zip(message.up, ups):
        linear.weight.copy_(matrix)
    for place, linear in enumerate(radial.hidden):
        matrix = stored.weight(f"{name}.conv_tp_weights.layer{place}.weight")
        gain = stored.values["silu"] if place else 1.0
        linear.weight.zero_()[:, : len(matrix)] = (
            gain * matrix.T / len(matrix) ** 0.5
        )  # ours sees a constant beside the basis
    last = stored.weight(f"{name}.conv_tp_weights.layer3.weight")
    parts = last.split(CHANNELS, dim=1)
    for path, linear, part in zip(message.paths, radial.paths, parts, strict=True):
        linear.weight.copy_(coupled(path) * (-1) ** path[1] * stored.values["silu"] * part.T / len(part) ** 0.5)
    counts = [linear.in_features for linear in message.mix]
    for linear, matrix in zip(message.mix, stored.matrices(f"{name}.linear.weight", counts, CHANNELS)):
        linear.weight.copy_(matrix)
    skips = stored.weight(f"{name}.skip_tp.weight").view(-1, CHANNELS, SPECIES, CHANNELS) / (CHANNELS * SPECIES) ** 0.5
    for linear, table in zip(layer.skip.values(), skips, strict=True):
        linear.weight[: SPECIES * CHANNELS] = table.permute(1, 2, 0).flatten(0, 1)
    sizes = [CHANNELS for _ in layer.mix]
    for linear, matrix in zip(layer.mix.values(), stored.matrices(f"products.{number}.linear.weight", sizes, CHANNELS)):
        linear.weight.copy_(matrix)
    for degree, table in layer.products.weights.items():
        table.weight[:SPECIES] = stored.contraction(number, int(degree), correlation, network)


def take_readouts(head: nn.Sequential, stored: Weights) -> None:
    """Linear read-outs of all layers but the last go through silu(x) - silu(-x) = x, the last is a network of its own."""
    first, second = head[0], head[2]
    for one in (first.weight, first.bias, second.weight, second.bias):
        one.zero_()
    for number in range(LAYERS - 1):
        linear = stored.weight(f"readouts.{number}.linear.weight") / CHANNELS**0.5
        columns = slice(number * CHANNELS, (number + 1) * CHANNELS)
        first.weight[READOUT, columns], first.weight[READOUT + 1, columns] = linear, -linear
    second.weight[0, READOUT], second.weight[0, READOUT + 1] = 1, -1
    (hidden,) = stored.matrices(f"readouts.{LAYERS - 1}.linear_1.weight", [CHANNELS], READOUT)
    (output,) = stored.matrices(f"readouts.{LAYERS - 1}.linear_2.weight", [READOUT], 1)
    first.weight[:READOUT, -CHANNELS:] = hidden
    second.weight[:, :READOUT] = stored.values["silu"] * output


def take(
    model: GraphModel, stored: Weights, *, correlations: list[int] = [CORRELATION] * LAYERS, network: str = "weights"
) -> None:
    """Give our network all weights of theirs; those of products are of the one named ``network``."""
    rows = stored.weight("node_embedding.linear.weight").view(SPECIES, CHANNELS) / SPECIES**0.5
    table_of(model).weight[1 : SPECIES + 1] = rows
    for number, correlation in enumerate(correlations):
        take_layer(model, stored, number, correlation, network)
    take_readouts(model.heads[0].network, stored)


def mace(bench: Bench, suffix: str, names: tuple[str, ...], changes: dict[str, Any]) -> Pairs:
    """Three interactions with scalars and vectors between them, products of several factors, and read-outs of every layer.

    Of Chebyshev polynomials there is the energy alone: theirs have no derivative.
    """
    stored, model = Weights(), ours(bench.batch, **changes)
    if suffix == ".mixed":
        take(model, stored, correlations=changes["correlation"], network="mixed")
    else:
        take(model, stored)
    return compared(model, bench.batch, {name: stored.values[name + suffix] for name in names})


def harmonics(bench: Bench, degree: int) -> Pairs:
    o3, vectors = pytest.importorskip("e3nn.o3"), nn.functional.normalize(torch.randn(20, 3))
    theirs = o3.spherical_harmonics(degree, vectors, normalize=True, normalization="component")
    yield SphericalHarmonics(4)(vectors)[degree], theirs


def couplings(bench: Bench, first: int, second: int) -> Pairs:
    o3 = pytest.importorskip("e3nn.o3")
    for third in range(abs(first - second), min(first + second, 6) + 1):
        ours = torch.from_numpy(coupling(first, second, third))
        theirs = o3.wigner_3j(first, second, third, dtype=torch.float64) * math.sqrt(2 * third + 1)
        yield ours * torch.sign((ours * theirs).sum()), theirs


EVERY = ("energy", "forces", "stress")
RADIAL_PARTS: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    (f".{str(transform).lower()}.{radial}", names, {"distance_transform": transform, "radial": radial})
    for transform, radial, names in (
        ("agnesi", "bessel", EVERY),
        ("soft", "bessel", EVERY),
        (None, "gaussian", EVERY),
        ("agnesi", "chebyshev", EVERY[:1]),
    )
]
MIXED = [(".mixed", EVERY, {"correlation": [CORRELATION, 2, 1]})]
PAIRS = [*product(range(5), repeat=2)]
OTHERS = "network with distance transforms and other radial types: energies, forces, stress"
ROWS = [
    Row("mace", "mace-torch", "network: energies, forces, stress", mace, [("", EVERY, {})]),
    Row("mace", "mace-torch", "network with a correlation per layer: energies, forces, stress", mace, MIXED),
    Row("mace", "mace-torch", OTHERS, mace, RADIAL_PARTS),
    Row("mace", "e3nn", "spherical harmonics of degrees 0 to 4", harmonics, [(d,) for d in range(5)], 1e-12),
    Row("mace", "e3nn", "couplings of degrees 0 to 4, but for their sign", couplings, PAIRS, 1e-12),
]
