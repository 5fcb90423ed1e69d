"""Products of equivariant states: MACE (Batatia et al. 2022, arXiv:2206.07697)."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field as Setting
from pydantic import field_validator, model_validator
from torch import Tensor, nn

from hydragnn.architectures.base import Architecture, GeometricSettings, GraphSpec, Searched, Use, radial_basis, steps
from hydragnn.base.errors import InputError
from hydragnn.kernels import Topology, gather_outer_sum, joined, silu, spread
from hydragnn.layers.harmonics import SphericalHarmonics, coupling
from hydragnn.layers.message_graph import MessageGraph, States
from hydragnn.layers.radial import DISTANCE_TRANSFORMS, ELEMENTS_WITH_RADIUS
from hydragnn.layers.radial_tables import RadialFilters
from hydragnn.layers.split_plan import LayerSplit, Plan
from hydragnn.layers.symmetric_contraction import SymmetricContraction

Path = tuple[int, int, int]
"""Degree of the sender's state, of the edge's harmonics, and of the message."""
SILU_GAIN = 1.676532470331092
"""1 / sqrt(mean of silu(x)^2) for a normal x."""


Factors = Annotated[int, Setting(ge=1, le=4)]


class MACESettings(GeometricSettings):
    """Many-body messages, rotation-equivariant (Batatia et al. 2022, arXiv:2206.07697)."""

    kind: str = "mace"

    searched: ClassVar[Searched] = {
        "hidden_dim": steps(8, 64, 8),
        "num_layers": steps(1, 2),
        "num_radial": steps(6, 12, 2),
        "max_ell": steps(1, 3),
        "correlation": steps(2, 3),
    }

    num_layers: int = Setting(default=2, ge=1, le=64)
    """Message-passing layers (interactions)."""

    num_radial: int = Setting(default=8, ge=1, le=512)
    """Radial basis functions per edge."""

    max_ell: int = Setting(default=3, ge=1, le=4)
    """Largest degree of the spherical harmonics of edges, and of what is multiplied."""

    hidden_l: int = Setting(default=1, ge=0, le=4)
    """Largest degree of the states between layers (hidden irreps); at most max_ell, and at least 1 where a head predicts vectors or tensors."""

    correlation: Factors | list[Factors] = 3
    """Factors of the products, 1 to 4; messages have one body more. One number for all layers, or a list with one for each. Not 4 together with max_ell = 4."""

    distance_transform: Literal["agnesi", "soft"] | None = None
    """Transform of lengths for radial functions, measured by the covalent radii of both ends of an edge (Angstrom; needs species): agnesi, numbers
    from 1 to 0 that are finest around bonds (Witt et al. 2023, doi:10.1063/5.0158783), or soft, lengths that do not get much shorter than bonds. Absent: lengths."""

    removed: ClassVar = {"node_filters": False}

    @field_validator("correlation", mode="before")
    @classmethod
    def _is_one_or_a_list(cls, value: Any) -> Any:
        each = value if isinstance(value, list) else [value]
        if not all(isinstance(one, int) and not isinstance(one, bool) and 1 <= one <= 4 for one in each):
            raise ValueError(f"{value!r}: write a whole number from 1 to 4, or a list with one for each layer")
        return value

    @model_validator(mode="after")
    def _one_for_every_layer(self) -> "MACESettings":
        if isinstance(self.correlation, list) and len(self.correlation) != self.num_layers:
            problem = f"correlation has {len(self.correlation)} numbers for num_layers = {self.num_layers}"
            raise ValueError(f"{problem}; give one number for each layer, or one for all")
        return self

    def of_own_layers(self, layers: int) -> dict[str, Any]:
        """Return changes for a head's layers: factors of the last layer."""
        return {**super().of_own_layers(layers), "correlation": self.correlations[-1]}

    @property
    def correlations(self) -> list[int]:
        """Factors of the products of every layer."""
        return self.correlation if isinstance(self.correlation, list) else [self.correlation] * self.num_layers


class Radial(RadialFilters):
    """Filters of length, one per path.

    R_p(r) = W_p s(W_3 s(W_2 s(W_1 e(r)))) for every path p, with s = silu, no biases, and e(r) that ends at the cutoff (eq. 8).
    """

    def __init__(self, inputs: int, channels: int, paths: int) -> None:
        super().__init__()
        self.hidden = nn.ModuleList([scaled(inputs, WIDTH), *(scaled(WIDTH, WIDTH, SILU_GAIN) for _ in range(2))])
        self.paths = nn.ModuleList(scaled(WIDTH, channels, SILU_GAIN) for _ in range(paths))

    def computed_filters(self, graph: MessageGraph) -> list[Float[Tensor, "items channels"]]:
        """Return the filters of all paths, once per pair of edges."""
        values = graph.ended_inputs  # [items, width]
        for linear in self.hidden:
            values = silu(linear(values))
        return [linear(values) for linear in self.paths]


WIDTH = 64
"""Width of the hidden layers of the radial network, as the paper's."""


def scaled(inputs: int, outputs: int, gain: float = 1.0) -> nn.Linear:
    """Return a linear map that scales the variance by gain^2."""
    linear = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(linear.weight, std=gain / math.sqrt(inputs))
    return linear


def paths_between(inputs: Sequence[int], max_ell: int) -> list[Path]:
    """Return the couplings of states with harmonics, by degree.

    Messages have degrees up to ``max_ell`` and natural parity.

    >>> paths_between([0, 1], 1)
    [(0, 0, 0), (1, 1, 0), (0, 1, 1), (1, 0, 1)]
    """
    return [
        (state, edge, message)
        for message in range(max_ell + 1)
        for state in inputs
        for edge in range(max_ell + 1)
        if abs(state - edge) <= message <= state + edge and (state + edge + message) % 2 == 0
    ]


class MACEMessage(nn.Module):
    """Messages: sums of coupled states and harmonics.

    A_i = mean degree^-1 sum over paths p of W_p sum_j R_p(r_ij) C (W h_j x Y(r_ij)) (eqs. 8 and 9).

    The coupling C acts on the harmonics, which have no channels, before the sum over neighbours, so that no array of edges and channels is made but R.
    Initial weights W_p are larger than those of the paper's code by the root of the mean degree.
    """

    def __init__(self, settings: MACESettings, edge_width: int, inputs: Sequence[int], mean_degree: float) -> None:
        super().__init__()
        channels, max_ell = settings.hidden_dim, settings.max_ell
        self.mean_degree = mean_degree if mean_degree > 0 else 1.0
        self.paths = paths_between(inputs, max_ell)
        self.harmonics = SphericalHarmonics(max_ell)
        self.up = nn.ModuleList(scaled(channels, channels) for _ in inputs)
        self.radial = Radial(edge_width, channels, len(self.paths))
        counts = [self.paths_to(degree) for degree in range(max_ell + 1)]
        # what neighbours send differs in sign, so that the sum over them grows as the root of their number
        gain = math.sqrt(self.mean_degree)
        self.mix = nn.ModuleList(scaled(count * channels, channels, gain) for count in counts)
        for state, edge, message in self.paths:
            if state:
                table = torch.from_numpy(coupling(state, edge, message))  # [2 state + 1, 2 edge + 1, 2 message + 1]
                self.register_buffer(f"coupling{state}{edge}{message}", table, persistent=False)

    def forward(self, states: States, graph: MessageGraph) -> Float[Tensor, "components nodes channels"]:
        """A of all degrees, component by component."""
        sent = [linear(with_axis(states, degree)) for degree, linear in enumerate(self.up)]
        received: list[list[Tensor]] = [[] for _ in self.mix]
        for path, filters in zip(self.paths, self.radial.filters_of(graph)):
            own = sent[path[0]]
            components = partial(edges_of_components, graph.sharing, own.shape[1])
            edges = graph.once(("edges of components", path[0]), components)
            # [nodes, 2 message + 1, channels]
            received[path[2]].append(gather_outer_sum(own.flatten(0, 1), filters, self.axes(path, graph), edges))
        mixed = [linear(joined(parts, -1)) for linear, parts in zip(self.mix, received)]
        return joined(mixed, 1).transpose(0, 1) / self.mean_degree

    def paths_to(self, degree: int) -> int:
        """Return the number of paths to messages of a degree."""
        return sum(path[2] == degree for path in self.paths)

    def axes(self, path: Path, graph: MessageGraph) -> Float[Tensor, "edges axes"]:
        """Return coupled harmonics per path and sender's component, which layers share."""
        state, edge, message = path
        harmonics = graph.once("harmonics", lambda: self.harmonics(graph.directions))
        if not state:
            return harmonics[edge]

        def make() -> Tensor:
            table = self.get_buffer(f"coupling{state}{edge}{message}").transpose(0, 1)  # [axes, components, axes]
            return (harmonics[edge] @ table.flatten(1).to(harmonics[edge].dtype)).view(-1, table.shape[-1])

        return graph.once(("axes", path), make)


def edges_of_components(topology: Topology, components: int) -> Topology:
    """Return edges from every component of a sender, one after the other."""
    if components == 1:
        return topology
    numbers = torch.arange(components, device=topology.senders.device)
    pair = topology.edge_numbers if topology.pair is None else topology.pair
    edges = Topology(
        senders=(topology.senders.unsqueeze(1) * components + numbers).flatten(),
        receivers=topology.receivers.repeat_interleave(components),
        num_columns=topology.num_columns * components,
        num_rows=topology.num_rows,
    )
    return edges.sharing(pair.repeat_interleave(components), topology.num_weights)


class MACELayer(nn.Module):
    """Layer of MACE: message, products, residual.

    h_i <- W B(A_i) + W_z h_i, with B all products of up to ``correlation`` factors of A_i (eqs. 10 and 11).

    The weights in B and W_z belong to the species of the node. Dropout on what is added to h of degree 0 is ours.
    """

    def __init__(
        self,
        settings: MACESettings,
        message: MACEMessage,
        kinds: "SpeciesRows",
        inputs: Sequence[int],
        outputs: Sequence[int],
        correlation: int,
    ) -> None:
        super().__init__()
        channels = settings.hidden_dim
        self.message = message
        self.kinds = kinds
        self.products = SymmetricContraction(channels, kinds.count, settings.max_ell, outputs, correlation)
        self.mix = nn.ModuleDict({str(degree): scaled(channels, channels) for degree in outputs})
        retained = [degree for degree in outputs if degree in inputs]
        self.skip = nn.ModuleDict({str(degree): scaled(channels, kinds.count * channels) for degree in retained})
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, states: States, graph: MessageGraph) -> States:
        """New states of all degrees that the layer gives."""
        kinds = graph.once("kinds", lambda: self.kinds(graph))
        products = self.products(self.message(states, graph), kinds)  # eq. 10; [nodes, axes, channels] by degree
        new = {}
        for degree, product in products.items():
            update = self.mix[str(degree)](product)  # eq. 11
            update = self.dropout(update) if degree == 0 else update
            if str(degree) in self.skip:
                update = update + self.of_kind(self.skip[str(degree)](with_axis(states, degree)), kinds, graph)
            new[degree] = update if degree else update.squeeze(1)
        return new

    def split_plan(self) -> Plan:
        """Return channels of messages and products; increments are added up."""
        return {
            "": LayerSplit(takes=(("copy",), ("copy",)), gives=("reduce",)),
            **dict.fromkeys(("message.up.*", "message.radial.paths.*"), LayerSplit(weights="columns")),
            **dict.fromkeys(("message.radial.hidden.*", "message.radial.from_*"), LayerSplit(weights="shared")),
            **{
                f"message.mix.{degree}": LayerSplit(weights="last", blocks=self.message.paths_to(degree))
                for degree in range(len(self.message.mix))
            },
            "message": LayerSplit(gives=("reduce", "own")),
            "products": LayerSplit(counts=("channels",)),
            **{
                f"products.weights.{degree}": LayerSplit(weights="last", blocks=count)
                for degree, count in self.products.paths.items()
            },
            "mix.*": LayerSplit(weights="last"),
            "skip.*": LayerSplit(weights="last", takes=(("cut",),)),
        }

    def of_kind(
        self, values: Float[Tensor, "nodes axes columns"], kinds: Int[Tensor, " nodes"], graph: MessageGraph
    ) -> Float[Tensor, "nodes axes channels"]:
        """The columns of every node's kind."""
        (nodes, axes), count = values.shape[:2], self.kinds.count
        if count == 1:
            return values

        def rows_of_kinds() -> Int[Tensor, " items"]:
            first = torch.arange(0, nodes * axes * count, count, device=kinds.device)
            return (first.view(-1, axes) + kinds.unsqueeze(1)).flatten()

        rows = graph.once(("rows of kinds", axes), rows_of_kinds)
        return spread(values.reshape(nodes * axes * count, values.shape[2] // count), rows).unflatten(0, (nodes, axes))


def with_axis(states: States, degree: int) -> Float[Tensor, "nodes axes channels"]:
    """Return states of a degree, with an axis for degree 0."""
    return states[degree] if degree else states[0].unsqueeze(1)


class SpeciesRows(nn.Module):
    """Row of every node in tables by species.

    There is one for each species of the training part and one for all others.

    Where the data have no species, all nodes are of one kind.
    """

    rows: Tensor

    def __init__(self, species: Sequence[int]) -> None:
        super().__init__()
        self.count = len(species) + 1 if species else 1
        rows = torch.full((max(species, default=0) + 2,), self.count - 1)
        rows[list(species)] = torch.arange(len(species))
        self.register_buffer("rows", rows, persistent=False)

    def forward(self, graph: MessageGraph) -> Int[Tensor, " nodes"]:
        """The rows."""
        if graph.species is None:
            return torch.full_like(graph.owner, self.count - 1)
        return self.rows.index_select(0, graph.species.clamp_max(len(self.rows) - 1))


class MACE(Architecture):
    """MACE.

    Layers of messages and products (equations 8 to 11), from h = the inputs of every node; heads read the scalars of all layers.

    The paper's read-out, a linear map of every layer but the last and a network of the last (eqs. 12 and 13), is one that an energy head can be: for
    silu(x) - silu(-x) = x. Deviates from the paper: the envelope has p = 6, the radial network sees edge features and a constant, and the last layer gives
    vectors beside scalars where a head reads them.
    """

    kind = "mace"
    Settings = MACESettings
    sees = frozenset({"lengths", "directions", "edge_features", "species"})
    requires = frozenset({"lengths", "directions"})
    gives = frozenset({0, 1})
    needs = frozenset({"degrees", "species"})
    readout = "every layer"
    cuttable = True

    def __init__(self, settings: MACESettings, spec: GraphSpec) -> None:
        super().__init__(settings, spec)
        assert spec.statistics is not None
        kind = settings.distance_transform
        self.basis = radial_basis(settings, spec, None if kind is None else DISTANCE_TRANSFORMS[kind]())
        between = list(range(max(settings.hidden_l, *spec.degrees) + 1))
        last, statistics, layers = sorted(spec.degrees), spec.statistics, []
        for number, correlation in enumerate(settings.correlations):
            inputs, outputs = between if number else [0], last if number == settings.num_layers - 1 else between
            message = MACEMessage(settings, self.basis.width, inputs, statistics.mean_degree)
            layers.append(MACELayer(settings, message, SpeciesRows(statistics.species), inputs, outputs, correlation))
        self.layers = nn.ModuleList(layers)
        self.carried = [frozenset({0}), *[frozenset(between)] * (settings.num_layers - 1), spec.degrees]

    @classmethod
    def limit(cls, settings: MACESettings, use: Use) -> str:
        """Transformed lengths need species of both ends."""
        if use == "pooling" and settings.distance_transform is not None:
            return "measures lengths by the species of its nodes (distance_transform), and a cluster has none"
        return super().limit(settings, use)

    @classmethod
    def check(cls, settings: MACESettings, spec: GraphSpec) -> None:
        """Refuse graphs outside of space, too high degrees, and endless products."""
        if spec.dim != 3:
            problem = f"model {cls.kind} needs graphs in 3 dimensions, and these have {spec.dim}"
            raise InputError(f"{problem}; choose an architecture that works in any")
        if max(settings.correlations) == 4 and settings.max_ell == 4:
            problem = "model.correlation = 4 with model.max_ell = 4 are thousands of products at every node and channel"
            raise InputError(f"{problem}; lower one of them to 3")
        if settings.distance_transform is not None and spec.statistics is not None:
            if not (species := spec.statistics.species):
                raise InputError(
                    "model.distance_transform measures distances by the radii of atoms, and these nodes have no atomic_numbers among their inputs; leave it out"
                )
            unknown = [z for z in species if not 1 <= z <= ELEMENTS_WITH_RADIUS]
            if unknown:
                problem = f"model.distance_transform needs covalent radii, and atomic number {unknown[0]} has none"
                raise InputError(f"{problem}; leave it out")
        if settings.hidden_l > settings.max_ell:
            problem = f"model.hidden_l = {settings.hidden_l} is above model.max_ell = {settings.max_ell}"
            raise InputError(f"{problem}; lower it, or raise max_ell")
