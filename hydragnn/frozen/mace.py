"""MACE of the public HydraGNN: equivariant products, and read-outs after every layer."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from hydragnn.base.errors import InputError
from hydragnn.frozen.graph import FrozenGraph
from hydragnn.frozen.irreps import Blocks, Buffers, Couplings, IrrepsLinear, ScalarLinear, num_products, paths_between
from hydragnn.frozen.model import FrozenModel, Output, pooled
from hydragnn.frozen.settings import FAILURE, FrozenSettings, Networks
from hydragnn.layers import SphericalHarmonics

ELEMENTS = 118
NODES_AT_ONCE = 512
"""Nodes whose products are in memory at the same time."""
SILU_SCALE = 1.6791767923989418
"""1 / sqrt(mean of silu(x)^2), as e3nn samples it."""

RADIAL = {"bessel": ("bessel_weights", "r_max", "prefactor"), "gaussian": ("gaussian_weights",), "chebyshev": ("n",)}
TRANSFORMS = {"None": (), "Agnesi": ("q", "p", "a"), "Soft": ("a", "b")}
"""Constants in files of radial functions and of transforms of lengths, in their order; the latter have covalent radii, too."""


class _Radial(nn.Module):
    """Radial functions of transformed lengths, times an envelope of lengths."""

    def __init__(self, settings: FrozenSettings) -> None:
        super().__init__()
        self.kind, self.transform = settings.radial_type or "bessel", settings.distance_transform or "None"
        if self.kind not in RADIAL or self.transform not in TRANSFORMS:
            raise InputError(
                f"config.json: MACE has no radial_type = {self.kind:.40} with distance_transform = {self.transform:.40}"
            )
        count = settings.required("num_radial")
        self.step = settings.required("radius") / max(count - 1, 1)
        first, *scalars = RADIAL[self.kind]
        self.bessel_fn = Buffers({first: (1, count) if self.kind == "chebyshev" else (count,)}, *scalars)
        self.cutoff_fn = Buffers({}, "p", "r_max")
        if self.transform != "None":
            self.distance_transform = Buffers({"covalent_radii": (ELEMENTS + 1,)}, *TRANSFORMS[self.transform])

    def forward(self, lengths: Tensor, species: Tensor, edges: Tensor) -> Tensor:
        p, x = self.cutoff_fn.get_buffer("p"), lengths / self.cutoff_fn.get_buffer("r_max")
        envelope = 1 - (p + 1) * (p + 2) / 2 * x**p + p * (p + 2) * x ** (p + 1) - p * (p + 1) / 2 * x ** (p + 2)
        lengths, of = self.transformed(lengths, species, edges), self.bessel_fn.get_buffer
        if self.kind == "bessel":
            functions = of("prefactor") * (torch.sin(of("bessel_weights") * lengths) / lengths)
        elif self.kind == "gaussian":
            functions = torch.exp(-0.5 / self.step**2 * (lengths - of("gaussian_weights")) ** 2)
        else:  # had no derivative there either
            functions = torch.special.chebyshev_polynomial_t(lengths.detach(), of("n"))
        return functions * (envelope * (x < 1))

    def transformed(self, lengths: Tensor, species: Tensor, edges: Tensor) -> Tensor:
        """Return lengths, or what becomes of them by covalent radii."""
        if self.transform == "None":
            return lengths
        of = self.distance_transform.get_buffer
        x = lengths / of("covalent_radii")[species[edges] + 1].sum(0).unsqueeze(1)
        if self.transform == "Agnesi":
            x = 2 * x
            return 1 / (1 + of("a") * x ** of("q") / (1 + x ** (of("q") - of("p"))))
        return lengths + 0.5 * torch.tanh(-4 * x - of("a") * (4 * x) ** of("b")) + 0.5


class Interaction(nn.Module):
    """Sums over neighbours of states coupled with harmonics.

    Filters depend on length and on scalars of both ends.
    """

    def __init__(self, settings: FrozenSettings, inputs: int, outputs: int) -> None:
        super().__init__()
        width, degrees = settings.hidden_dim, settings.required("max_ell") + 1
        sources, targets = ([(width, degree) for degree in range(count)] for count in (inputs, outputs))
        paths = sorted(paths_between(inputs, degrees, degrees), key=lambda path: path[2])
        self.harmonics = [1 + settings.edge_dim, *[1] * (degrees - 1)]
        self.sizes = [width * self.harmonics[b] for _, b, _ in paths]
        widths = [settings.required("num_radial") + 2 * width, width, width, width, sum(self.sizes)]
        counts = [sum(path[2] == degree for path in paths) for degree in range(degrees)]
        self.mean_degree = settings.required("avg_num_neighbors")
        self.linear_up, self.skip_linear = IrrepsLinear(sources, sources), IrrepsLinear(sources, targets)
        self.linear_down = ScalarLinear(width, width)
        self.conv_tp = Couplings(paths)
        layers = [nn.ParameterDict({"weight": torch.zeros(size)}) for size in itertools.pairwise(widths)]
        self.conv_tp_weights = nn.ModuleDict({f"layer{number}": layer for number, layer in enumerate(layers)})
        mixed = [(count * width, degree) for degree, count in enumerate(counts)]
        self.linear = IrrepsLinear(mixed, [(width, degree) for degree in range(degrees)])

    def forward(self, states: Blocks, graph: FrozenGraph) -> tuple[Blocks, Blocks]:
        """Messages of all degrees, and the residual."""
        sender, receiver = graph.edge_index
        harmonics = [graph.extra[f"harmonics{b}"] for b in range(len(self.harmonics))]
        up, down = self.linear_up(states), self.linear_down(states[0].squeeze(2))
        x = torch.cat([graph.extra["radial"], down[sender], down[receiver]], dim=1)
        for number, layer in enumerate(self.conv_tp_weights.values()):
            x = nn.functional.silu(x) * SILU_SCALE if number else x
            x = x @ layer.get_parameter("weight") / math.sqrt(x.shape[1])
        received: list[list[Tensor]] = [[] for _ in harmonics]
        for path, weight in zip(self.conv_tp.paths, x.split(self.sizes, dim=1)):
            a, b, c = path
            filters = weight.unflatten(1, (-1, self.harmonics[b])) / math.sqrt(self.harmonics[b])
            axes = torch.einsum("ecb,ebik->ecik", filters, self.conv_tp.coupled(path, harmonics[b]))
            sent = torch.einsum("eci,ecik->eck", up[a][sender], axes)
            received[c].append(sent.new_zeros(len(up[a]), *sent.shape[1:]).index_add(0, receiver, sent))
        messages = self.linear([torch.cat(parts, dim=1) for parts in received])
        return [message / self.mean_degree for message in messages], self.skip_linear(states)


class _Contraction(nn.Module):
    """Products of some states that turn as one degree, by element."""

    def __init__(self, settings: FrozenSettings, degree: int, correlation: int) -> None:
        super().__init__()
        max_ell, self.correlation = settings.required("max_ell"), correlation
        self.axes = (2 * degree + 1,) if degree else ()
        weights: list[nn.Parameter] = []
        for order in range(1, correlation + 1):
            paths = num_products(max_ell, degree, order)
            table = torch.full((*self.axes, *[(max_ell + 1) ** 2] * order, paths), torch.nan)
            self.register_buffer(f"U_matrix_{order}", table)
            weights.insert(0, nn.Parameter(torch.zeros(ELEMENTS, paths, settings.hidden_dim)))
        self.weights_max, *others = weights
        self.weights = nn.ParameterList(others)

    def forward(self, states: Tensor, species: Tensor) -> Tensor:
        total: Any = 0  # from the highest order, factor by factor
        for order in range(self.correlation, 0, -1):
            weights = self.weights_max if order == self.correlation else self.weights[self.correlation - 1 - order]
            table = self.get_buffer(f"U_matrix_{order}")
            table = table if self.axes else table.unsqueeze(0)
            total = total + torch.einsum("...p,npc->nc...", table, weights[species])
            total = torch.einsum("nc...i,nci->nc...", total, states)
        return total


class _Layer(nn.Module):
    """Interaction, products, a residual and linear maps."""

    def __init__(self, settings: FrozenSettings, inputs: int, outputs: int, correlation: int) -> None:
        super().__init__()
        irreps = [(settings.hidden_dim, degree) for degree in range(outputs)]
        products = nn.ModuleList(_Contraction(settings, degree, correlation) for degree in range(outputs))
        self.module_1 = Interaction(settings, inputs, outputs)
        contractions = nn.ModuleDict({"contractions": products})
        linear = IrrepsLinear(irreps, irreps)
        self.module_2 = nn.ModuleDict({"symmetric_contractions": contractions, "linear": linear})
        self.module_3 = IrrepsLinear(irreps, irreps)

    def forward(self, inv: Tensor, equiv: Blocks, graph: FrozenGraph) -> tuple[Tensor, Blocks]:
        messages, residual = self.module_1([inv.unsqueeze(2), *equiv], graph)
        states, species = torch.cat(messages, dim=2), graph.extra["species"]
        parts = list(zip(states.split(NODES_AT_ONCE), species.split(NODES_AT_ONCE)))
        contractions = self.module_2.get_submodule("symmetric_contractions.contractions").children()
        products = [torch.cat([contraction(*part) for part in parts]) for contraction in contractions]
        mixed = [new + old for new, old in zip(self.module_2["linear"](products), residual)]
        scalars, *others = self.module_3(mixed)
        return scalars.squeeze(2), others


class _Decoder(FrozenModel):
    """Heads on scalars: linear maps, or networks after the last layer.

    Heads of graphs read means, whatever graph_pooling is.
    """

    def __init__(self, settings: FrozenSettings, width: int, activation: nn.Module, *, linear: bool) -> None:
        nn.Module.__init__(self)
        self.settings = settings.model_copy(update={"hidden_dim": width, "graph_pooling": "mean", "conditioning": None})
        self.activation_function, self.linear = activation, linear
        self._add_heads()
        if linear:
            self.graph_shared = nn.ModuleDict({name: nn.Identity() for name in settings.graph_heads})

    def _graph_head(self, form: Networks, width: int) -> nn.Module:
        return self.network([self.settings.hidden_dim, width]) if self.linear else super()._graph_head(form, width)

    def _node_head(self, form: Networks, width: int) -> nn.Module:
        if form.type == "conv":
            raise InputError("config.json: MACE has no node heads of type conv")
        networks = super()._node_head(form.model_copy(update={"dim_headlayers": ()}) if self.linear else form, width)
        for network in cast(Iterable[nn.Sequential], networks.get_submodule("mlp")):
            first = cast(nn.Linear, network[0])
            network[0] = ScalarLinear(first.in_features, first.out_features)
        return networks

    def forward(self, graph: FrozenGraph, states: Any = None) -> list[Output]:
        return self._outputs(states, None, graph)


class MACE(FrozenModel):
    """Layers whose read-outs are summed with one of atomic numbers alone."""

    def _add_common(self) -> None:
        super()._add_common()
        settings = self.settings
        for name in ("max_ell", "node_max_ell"):
            if settings.required(name) > 11:
                raise InputError(f"config.json: {name} = {settings.required(name)}, where MACE has 11 at most")
        if settings.variance:
            raise InputError(
                f"config.json: MACE has no function with GaussianNLLLoss, which failed there ({FAILURE} 13)"
            )
        self.register_buffer("r_max", torch.zeros(()))
        for name, shape in (("num_interactions", ()), ("atomic_numbers", (ELEMENTS,))):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.int64))
        self.radial_embedding = _Radial(settings)
        self.node_embedding = nn.ModuleDict({"linear": ScalarLinear(ELEMENTS, settings.hidden_dim)})
        self.harmonics = SphericalHarmonics(settings.required("max_ell"))

    def _layer(self, in_dim: int, out_dim: int, *, number: int, last: bool, edge_dim: int) -> nn.Module:
        degrees, correlation = self.settings.required("node_max_ell") + 1, self.settings.correlation or 2
        factors = correlation if isinstance(correlation, int) else correlation[0]  # the others were not read
        if not 1 <= factors <= 4:
            raise InputError(f"config.json: MACE has no function with correlation = {factors}; 1 to 4 have one")
        return _Layer(self.settings, degrees if number else 1, 1 if last else degrees, factors)

    def _add_heads(self) -> None:
        layers = self.settings.num_conv_layers
        widths = [ELEMENTS] + [self.settings.hidden_dim] * layers
        self.multihead_decoders = nn.ModuleList(
            _Decoder(self.settings, width, self.activation_function, linear=number < layers and layers > 1)
            for number, width in enumerate(widths)
        )

    def _start(self, graph: FrozenGraph) -> Any:
        graph = replace(graph, pos=graph.pos - pooled(graph.pos, graph, "mean")[graph.batch])
        species = graph.x[:, 0].clamp(1, ELEMENTS).long() - 1
        extra = {"species": species, "hot": nn.functional.one_hot(species, ELEMENTS).to(graph.pos.dtype)}
        extra["radial"] = self.radial_embedding(graph.lengths(), species, graph.edge_index)
        for degree, values in enumerate(self.harmonics(nn.functional.normalize(graph.vectors(), dim=1))):
            extra[f"harmonics{degree}"] = values.unsqueeze(1)
        if self.settings.edge_dim and graph.edge_attr is not None:
            extra["harmonics0"] = torch.cat([graph.edge_attr.unsqueeze(2), extra["harmonics0"]], dim=1)
        return self.node_embedding["linear"](extra["hot"]), [], replace(graph, extra=extra)

    def forward(self, graph: FrozenGraph) -> list[Output]:
        """Mean of every head."""
        inv, equiv, graph = self._start(graph)
        read = [self.multihead_decoders[0](graph, graph.extra["hot"])]
        for layer, decoder in zip(self.graph_convs, self.multihead_decoders[1:]):
            inv, equiv = layer(inv, equiv, graph)
            inv = self._conditioned(inv, graph)  # fuse_pool did nothing
            read.append(decoder(graph, inv))
        return [(torch.stack([mean for mean, _ in outputs]).sum(0), None) for outputs in zip(*read)]
