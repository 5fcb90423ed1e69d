"""Base class and settings of architectures, and their registry."""

import pkgutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as member
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, get_args

from jaxtyping import Float
from pydantic import Field as Setting
from pydantic import SerializeAsAny, field_validator, model_validator
from torch import Tensor, nn

from hydragnn.base.errors import InputError
from hydragnn.base.imports import class_of_kind, classes_of
from hydragnn.base.settings import Settings, by_kind
from hydragnn.graphs.field import Field
from hydragnn.layers import DistanceTransform, MessageGraph, NodeInputs, RadialFeatures, States

Sight = Literal["lengths", "directions", "triplets", "edge_features", "edge_kinds", "species"]
"""Inputs that a layer can use; positions are used as lengths or directions only."""
Statistic = Literal["degrees", "species"]
"""Statistics of the training part: ``degrees`` are mean log(degree + 1) and mean degree of its nodes, ``species`` their atomic numbers."""
Use = Literal["graph", "stages", "pooling"]
"""Use of a model that a part may not allow: ranks that share a graph, stages of layers, coarser levels."""

Readout = Literal["last", "every layer"]

ActsOn = Literal["lengths", "inputs", "close atoms"]
"""Data of edges: ``lengths`` where nodes have positions, ``inputs`` where there are lengths or edge features."""


class GlobalAttentionSettings(Settings):
    """Attention among all nodes beside every layer (arXiv:2205.12454)."""

    kind: Literal["multihead", "linear", "equivariant", "none"] = "multihead"
    """multihead: softmax over all nodes of the graph, quadratic in their number; linear: kernel attention, linear in it; equivariant: by states of all
    degrees and distances, and states of all degrees are read, along directions too, in periodic images as well; none: the model without attention, so that
    a search may leave it out."""

    heads: int = Setting(default=4, ge=1, le=64)
    """Attention heads; they divide hidden_dim."""

    cutoff: float | None = Setting(default=None, gt=0)
    """Reach of equivariant attention, in the store's unit of length, whatever edges the store has: it ends smoothly there. Absent: all pairs of nodes of a
    graph, which may not be periodic then."""

    num_radial: int | None = Setting(default=None, ge=1, le=512)
    """Radial basis functions of a pair in equivariant attention; absent: 16."""

    @property
    def has_pairs(self) -> bool:
        """Return True if attention uses pairs with lengths and directions."""
        return self.kind == "equivariant"

    @model_validator(mode="after")
    def _sees_lengths(self) -> "GlobalAttentionSettings":
        extra = next((key for key in ("cutoff", "num_radial") if getattr(self, key) is not None), None)
        if extra is not None and not self.has_pairs and self.kind != "none":
            raise ValueError(f'{extra} is that of equivariant attention; leave it out, or set kind = "equivariant"')
        return self


class PoolingSettings(Settings):
    """Layers on coarser levels and the way back (arXiv:1905.05178)."""

    levels: int = Setting(default=1, ge=0, le=16)
    """Coarser levels. Layers go down to the coarsest and back: of five layers and two levels the first and the last work on the graph
    itself, the third on the coarsest level. 0: the model without pooling, so that a search may leave it out."""


Searched = Mapping[str, Mapping[str, Any]]
"""Settings that a search varies by itself, with their ranges as they stand in ``[search.space]``."""


def steps(low: int, high: int, step: int = 1) -> dict[str, Any]:
    """Return the range of ``low + k * step`` up to ``high``."""
    return {"type": "int", "low": low, "high": high, "step": step}


def one_of(*values: bool | int | float | str) -> dict[str, Any]:
    """Return the range of a few values."""
    return {"type": "categorical", "choices": list(values)}


class ArchitectureSettings(Settings):
    """Settings of every architecture."""

    searched: ClassVar[Searched] = {"hidden_dim": steps(16, 128, 16), "num_layers": steps(2, 4)}
    """Settings that ``search.space = "default"`` varies; ranges in which a model trains on two cores, and that are worth a GPU."""

    acts_on: ClassVar[Mapping[str, ActsOn]] = {"repulsion": "close atoms"}
    """Settings that act on what not all data have; given where the data have no such thing, they are refused."""

    own_of_run: ClassVar[tuple[str, ...]] = ("dropout",)
    """Settings that a run which begins with a trained model may choose anew: no shape of a weight depends on them."""

    kind: str
    """Name of the architecture, or ``package.module:Name`` of a class of yours."""

    hidden_dim: int = Setting(default=64, ge=1, le=4096)
    """Channels of the node states."""

    num_layers: int = Setting(default=3, ge=1, le=64)
    """Message-passing layers."""

    dropout: float = Setting(default=0.0, ge=0, lt=1)
    """Dropout on node states between layers; off at prediction."""

    conditioning: Literal["concat", "film", "pooled"] = "concat"
    """Use of graph inputs: concat gives them to every node before the first layer, film scales and shifts the states after
    every layer (Perez et al. 2018, arXiv:1709.07871), pooled joins them to the states after the last layer, where they are read out."""

    global_attention: GlobalAttentionSettings | None = None
    """Attention among all nodes of a graph beside every layer; absent: none."""

    pooling: PoolingSettings | None = None
    """Layers on coarser levels of the graph; absent: none."""

    repulsion: Literal["zbl", "none"] = "zbl"
    """Repulsion of atoms that are nearer than any in training, in models of energies with forces: zbl (screened nuclei, Ziegler, Biersack and Littmark, not
    trained; zero on the training part), or none. It acts where positions and atomic numbers are inputs; else learned energies may attract without end."""

    checkpoint_activations: bool = False
    """Compute every layer a second time in the backward pass instead of keeping its activations: less memory, a third more time."""

    @field_validator("global_attention", "pooling")
    @classmethod
    def _left_out(cls, value: Any) -> Any:
        """Return None for attention of kind none and for no levels."""
        match value:
            case GlobalAttentionSettings(kind="none") | PoolingSettings(levels=0):
                return None
        return value

    @model_validator(mode="after")
    def _is_of_its_kind(self) -> "ArchitectureSettings":
        if architecture_of(self.kind).Settings is not type(self):
            raise ValueError(f"kind = {self.kind!r} has other settings than {type(self).__name__}")
        if self.pooling is not None and self.num_layers < 2:
            raise ValueError(
                "pooling needs a layer on the graph and one on a coarser level; set num_layers to 2 or more"
            )
        return self

    @property
    def kinks(self) -> str:
        """Description of where energies are not smooth; empty if they are."""
        return ""

    def on_stores(self, cutoffs: Sequence[float | None]) -> "ArchitectureSettings":
        """Return the settings completed from the stores' cutoffs (None: no cutoff)."""
        return self

    def of_own_layers(self, layers: int) -> dict[str, Any]:
        """Return changes of settings for a head's own layers."""
        return {"num_layers": layers, "pooling": None}

    @classmethod
    def class_for(cls, value: Any) -> "type[ArchitectureSettings]":
        """Return the settings class of the architecture that ``value`` names."""
        if cls is ArchitectureSettings and isinstance(value, Mapping) and isinstance(value.get("kind"), str):
            return architecture_of(value["kind"]).Settings
        return cls


CUTOFF: float = 5.0
ENVELOPE: Literal["polynomial"] = "polynomial"
"""Settings of models whose stores decide neither."""


class GeometricSettings(ArchitectureSettings):
    """Settings of architectures that see edge lengths."""

    acts_on: ClassVar = {
        **ArchitectureSettings.acts_on,
        **dict.fromkeys(("cutoff", "num_radial", "radial", "envelope", "envelope_exponent"), "lengths"),
    }

    searched: ClassVar[Searched] = {
        **ArchitectureSettings.searched,
        "num_radial": steps(8, 32, 8),
        "radial": one_of("sinc", "gaussian"),
    }

    cutoff: float | None = Setting(default=None, gt=0)
    """Length at which the radial basis and the envelope end, in the store's unit of length (Angstrom for atoms), at most the cutoff
    of the store; absent: that cutoff, or 5 where the edges of the store do not come from one."""

    num_radial: int = Setting(default=20, ge=1, le=512)
    """Radial basis functions per edge."""

    radial: Literal["bessel", "sinc", "gaussian", "exponential", "chebyshev"] = "bessel"
    """Radial basis: bessel (sqrt(2 / cutoff) sin(n pi r / cutoff) / r, as published, for Angstrom; it overflows for small
    cutoffs), sinc (sin(n pi x) / x with x = r / cutoff: the same at a cutoff of 5, of one size in every unit of length), gaussian,
    exponential (Gaussians of exp(-5 x), dense at short lengths), or chebyshev (Chebyshev polynomials of x)."""

    envelope: Literal["polynomial", "cosine", "none"] | None = None
    """Smooth end of messages at the cutoff; absent: polynomial, or none for meshes, grains and others whose edges do not come from a
    cutoff."""

    envelope_exponent: int = Setting(default=6, ge=2, le=32)
    """p of the polynomial envelope 1 - (p + 1)(p + 2)/2 x^p + p (p + 2) x^(p + 1) - p (p + 1)/2 x^(p + 2) with x = r / cutoff: the larger, the
    longer messages stay what they are (arXiv:2003.03123, eq. 8)."""

    @model_validator(mode="after")
    def _check_exponent(self) -> "GeometricSettings":
        if self.envelope_exponent != 6 and self.envelope in ("cosine", "none"):
            raise ValueError(
                'envelope_exponent is that of the polynomial; leave it out, or set envelope = "polynomial"'
            )
        return self

    def on_stores(self, cutoffs: Sequence[float | None]) -> "GeometricSettings":
        """Return the settings with the smallest cutoff of the stores.

        There is an envelope if the edges of all stores come from a cutoff.
        """
        present = [cutoff for cutoff in cutoffs if cutoff is not None]
        cutoff = min(present) if present else CUTOFF
        envelope = ENVELOPE if len(present) == len(cutoffs) else "none"
        return self.model_copy(update={"cutoff": self.cutoff or cutoff, "envelope": self.envelope or envelope})


def _class_of(value: Mapping[str, Any]) -> type[ArchitectureSettings]:
    if not isinstance(value.get("kind"), str):
        raise InputError(f"model.kind is missing; name an architecture, one of {', '.join(architectures())}")
    return ArchitectureSettings.class_for(value)


ModelSettings = Annotated[SerializeAsAny[ArchitectureSettings], by_kind(ArchitectureSettings, _class_of)]
"""The ``[model]`` section: the settings of whichever architecture its ``kind`` names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphStatistics:
    """Degrees and species of the nodes of the training part."""

    mean_log_degree: float
    """Mean of log(degree + 1) over nodes."""
    mean_degree: float = 0.0
    """Mean number of incoming edges over nodes."""
    species: tuple[int, ...] = ()
    """Atomic numbers, ascending; empty where nodes have none, or the architecture does not ask for them."""
    ranges: Mapping[str, tuple[float, float]] = member(default_factory=dict)
    """Least and largest value of each graph input whose range bounds predictions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphSpec:
    """Properties of data and heads that an architecture needs."""

    dim: int
    """Spatial dimension; 0 without geometry."""
    edge_width: int = 0
    """Numbers of the edge features."""
    edge_kinds: Mapping[str, int] = member(default_factory=dict)
    """Number of kinds of each categorical edge field that the architecture reads as it is."""
    degrees: frozenset[int] = frozenset({0})
    """Degrees of the states that heads read: 0 for numbers, 1 for vectors and symmetric tensors; none that the architecture
    does not give."""
    statistics: GraphStatistics | None = None
    """Statistics of the training part, if the architecture needs any."""


class Architecture(nn.Module):
    """First states and layers, with capabilities as class attributes.

    A layer maps ``(States, MessageGraph)`` to new states with the same channels. It must not let nodes of different graphs
    exchange data (``graph.owner`` is the graph of each), and creates all parameters when it is constructed.
    ``hydragnn.conformance`` is the suite that every architecture passes, yours included.
    """

    kind: ClassVar[str]
    Settings: ClassVar[type[ArchitectureSettings]]
    sees: ClassVar[frozenset[Sight]] = frozenset()
    """Inputs that its layers use if the data have them."""
    requires: ClassVar[frozenset[Sight]] = frozenset()
    """Inputs of ``sees`` that it requires."""
    gives: ClassVar[frozenset[int]] = frozenset({0})
    """Degrees of its final states."""
    needs: ClassVar[frozenset[Statistic]] = frozenset()
    """Statistics of the training part."""
    readout: ClassVar[Readout] = "last"
    """``every layer``: heads read the channels of all layers side by side."""
    residual: bool = False
    """True for layers that give increments: each is run as h + dropout(layer(norm(h))). False where layers give new states,
    with whatever residual, norm and dropout the paper has."""

    node_cost: ClassVar[int] = 8
    """Edges that take a training step as long as a node does, by which ranks share a batch; measured by ``tests/benchmarks/bench_planning.py`` at 64 channels."""

    attends: ClassVar[bool] = False
    """True for layers that read all nodes of a graph at once, whose numbers are not known before a step."""

    takes_new_inputs: ClassVar[bool] = False
    """True if fine-tuning may add inputs to those of the start."""

    stacked: ClassVar[Mapping[type[nn.Module], type[nn.Module]]] = {}
    """Forms of its own layers with weights of several members ``[members, ...]``."""

    cuttable: ClassVar[bool] = False
    """True if a layer computes new states of a node from its own and those of nodes that send to it, and nothing else: then ranks may share
    one graph. A class says so itself, and does not inherit it."""

    embeds: ClassVar[frozenset[str]] = frozenset()
    """Attributes with weights that ``embed`` uses; other ones, but for layers, belong to ``finish``."""

    layers: nn.ModuleList
    """Layers made in ``__init__``; conditioning, attention and the like are put around each."""
    carried: Sequence[frozenset[int]]
    """Degrees of the states before each layer and after the last, those that a layer or a head reads: degree 0 alone unless ``__init__`` says more.
    Equivariant attention reads and writes them."""
    basis: RadialFeatures | None
    """Basis that ``graph.edge_inputs`` makes of lengths and edge features, as a rule ``radial_basis(settings, spec)``; None: edge
    features come as they are."""

    def __init__(self, settings: Any, spec: GraphSpec) -> None:
        """Create all parameters; ``settings`` is an instance of ``Settings``."""
        super().__init__()
        self.basis = None
        self.carried = [frozenset({0})] * (settings.num_layers + 1)

    def embed(self, inputs: Float[Tensor, "nodes channels"], graph: MessageGraph) -> States:
        """Return the states before the first layer, from the inputs."""
        return {0: inputs}

    def finish(self, states: States, graph: MessageGraph) -> States:
        """Return the states for heads, from the last layer or all layers."""
        return states

    @classmethod
    def kind_fields(cls, settings: Any) -> tuple[str, ...]:
        """Return the edge fields that layers read as kinds of edges."""
        return ()

    @classmethod
    def node_inputs(cls, settings: Any, fields: Sequence[Field]) -> NodeInputs:
        """Return what makes the first states of nodes from input fields."""
        return NodeInputs(fields, settings.hidden_dim)

    @classmethod
    def optional_inputs(cls, settings: Any) -> Sequence[str]:
        """Return the inputs that graphs may lack."""
        return ()

    @classmethod
    def bounded_inputs(cls, settings: Any) -> Sequence[str]:
        """Return the graph inputs that may not leave the range of training."""
        return ()

    @classmethod
    def check_inputs(cls, settings: Any, fields: Sequence[Field]) -> None:
        """Raise InputError if these settings do not fit the input fields."""

    @classmethod
    def reads(cls, settings: Any, field: Field) -> bool:
        """Return True if an input field like this reaches the network.

        Fields of nodes and graphs do; fields of edges if the architecture sees them.
        """
        return field.on != "edge" or "edge_features" in cls.sees or field.name in cls.kind_fields(settings)

    @classmethod
    def limit(cls, settings: Any, use: Use) -> str:
        """Return the reason, after "model ...", against a use, or ""."""
        if use == "pooling" and "species" in cls.requires:
            return "needs the species of its nodes, and a cluster has none"
        if use == "graph" and not vars(cls).get("cuttable", False):
            return "does not say that its layers read no more than neighbours (cuttable = True in its class)"
        return ""

    @classmethod
    def check(cls, settings: Any, spec: GraphSpec) -> None:
        """Raise InputError if these settings cannot work on such graphs.

        Attention ``heads``, if there are any, divide the channels.
        """
        if settings.hidden_dim % (heads := getattr(settings, "heads", 1)):
            problem = f"model.hidden_dim = {settings.hidden_dim} does not divide into model.heads = {heads}"
            raise InputError(f"{problem}; choose a multiple")

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for sight in cls.sees | cls.requires:
            if sight not in get_args(Sight):
                raise TypeError(f"{cls.__name__} sees {sight!r}; use some of {', '.join(get_args(Sight))}")
        if not cls.requires <= cls.sees:
            raise TypeError(f"{cls.__name__} requires {set(cls.requires - cls.sees)} without seeing it; add it to sees")

    @classmethod
    def sees_positions(cls) -> bool:
        """Return True if states depend on positions, so that energies have forces."""
        return bool(cls.sees & {"lengths", "directions", "triplets"})


def radial_basis(
    settings: GeometricSettings, spec: GraphSpec, transform: DistanceTransform | None = None
) -> RadialFeatures:
    """Return the radial basis that the settings describe.

    Lengths are transformed by ``transform``; edge features are appended. Runs complete the settings from the store; elsewhere the
    cutoff defaults to 5 with a polynomial envelope.
    """
    cutoff, envelope = settings.cutoff or CUTOFF, settings.envelope or ENVELOPE
    exponent = settings.envelope_exponent
    return RadialFeatures(cutoff, settings.num_radial, settings.radial, envelope, spec.edge_width, transform, exponent)


GROUP = "hydragnn.architectures"
"""Entry-point group in which packages announce architectures; the name of an entry is its kind."""


@cache
def architectures() -> Mapping[str, type[Architecture]]:
    """The architectures of this room by kind, one file each."""
    candidates = [_defined_in(name) for name in _names()]
    return MappingProxyType({architecture.kind: architecture for architecture in candidates})


def _names() -> list[str]:
    return sorted(one.name for one in pkgutil.iter_modules(sys.modules[__package__].__path__) if one.name != "base")


def _defined_in(name: str) -> type[Architecture]:
    """Return the one architecture of a module; TypeError otherwise."""
    module = import_module(f"hydragnn.architectures.{name}")
    candidates = classes_of(module, Architecture)
    if len(candidates) != 1:
        names = ", ".join(architecture.__name__ for architecture in candidates) or "none"
        raise TypeError(f"{module.__name__} defines {names}; a file of this room defines one Architecture")
    return candidates[0]


@cache
def architecture_of(kind: str) -> type[Architecture]:
    """Return the architecture of a kind.

    Kinds are those of this room, of entry points, or ``package.module:Name``.
    InputError names the nearest kind, or says why a class cannot be used.
    """
    if kind in _names() and (own := _defined_in(kind)).kind == kind:
        return own  # whatever the other files hold
    words = {"where": "model.kind", "noun": "architecture", "parent": "hydragnn.architectures.Architecture"}
    architecture = class_of_kind(kind, architectures(), Architecture, group=GROUP, **words)
    if not issubclass(getattr(architecture, "Settings", type), ArchitectureSettings):
        raise InputError(
            f"model.kind = {kind!r}: {architecture.__name__} has no Settings; derive them from ArchitectureSettings"
        )
    return architecture
