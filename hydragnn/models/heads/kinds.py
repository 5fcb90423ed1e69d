"""Head kinds: keys, targets, and the fields they can predict."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, field_validator, model_validator
from pydantic import Field as Setting
from torch import nn

from hydragnn.architectures.base import Use
from hydragnn.base.errors import InputError, nearest
from hydragnn.base.imports import REFERENCE, announced_classes
from hydragnn.base.settings import ActsWith, Finite
from hydragnn.datasets.isolated_atoms import by_atomic_number
from hydragnn.graphs.field import Field, Location
from hydragnn.models.distributions import Categorical, Distribution, Normal, Point
from hydragnn.models.heads import modules
from hydragnn.models.heads.base import HeadContext, HeadSettings
from hydragnn.models.target import Target

WITH_DERIVATIVES: Mapping[str, ActsWith] = {
    "forces_weight": ActsWith(
        words="in a head with forces", remedy="name their field in forces", holds=lambda head: bool(head.forces)
    ),
    "stress_weight": ActsWith(
        words="in a head with stress", remedy="name its field in stress", holds=lambda head: bool(head.stress)
    ),
    "stage_two_factor": ActsWith(
        words="in a head with forces or stress",
        remedy="name their fields in forces and stress",
        holds=lambda head: bool(head.derivatives),
    ),
}
"""Settings of energy heads that act on what derives from the energy."""

LOSSES = ("mse", "mae", "huber", "nll", "relative")
LOSS_GROUP = "hydragnn.losses"
"""Entry-point group in which packages announce losses."""


def _known_loss(name: str) -> str:
    if name not in LOSSES and not REFERENCE.fullmatch(name) and name not in (others := announced_classes(LOSS_GROUP)):
        hint = nearest(name, [*LOSSES, *others])
        raise ValueError(f"unknown loss {name!r}; {hint} (a function of your own is named package.module:name)")
    return name


NumberLoss = Annotated[str, AfterValidator(_known_loss)]
"""A loss by name, or ``package.module:function`` of your own: elementwise, of normalised errors."""


class _NumberHead(HeadSettings):
    """Base of heads of numbers."""

    distribution: Literal["point", "gaussian"] = "point"
    """point: a value; gaussian: mean and variance, trained with ``loss = "nll"``."""
    loss: NumberLoss = "mse"
    """Loss on normalised values; relative: norm of a graph's error over the norm of its label, for fields whose size varies."""
    per_node: bool = False
    """Divide the error of a graph field by the number of nodes in the loss (energies: loss per atom)."""

    @model_validator(mode="after")
    def _check_loss(self) -> "_NumberHead":
        if (self.distribution == "gaussian") != (self.loss == "nll"):
            raise ValueError(f'head {self.field}: distribution = "gaussian" and loss = "nll" go together')
        return self

    @property
    def predicts(self) -> type[Distribution]:
        """Class of the predicted distribution."""
        return Normal if self.distribution == "gaussian" else Point


class _ItemHead(HeadSettings):
    """Base of heads whose values do not turn with the graph."""

    pool: Literal["sum", "mean", "max", "attention"] | None = None
    symmetry: Literal["symmetric", "antisymmetric"] | None = None

    per_index: Annotated[int, Setting(ge=1)] | None = None
    """Number of nodes, where all graphs have so many in the same order (the sites of one cell, the sensors of one part): every node index then
    has a network of its own (node fields only). Absent: one network for all nodes."""

    conv_layers: int = Setting(default=0, ge=0, le=16)
    """Message-passing layers of the head's own, of the model's architecture, before its network (node fields only)."""

    @property
    def own_layers(self) -> int:
        """Message-passing layers of the head's own."""
        return self.conv_layers

    def limit(self, use: Use) -> str:
        """Ranks lack numbers of nodes, and reverses of edges."""
        if use == "graph" and self.per_index is not None:
            return "has a network for every node by its number (per_index)"
        if use == "graph" and self.symmetry is not None:
            return "compares an edge with its reverse, which may be another rank's (symmetry)"
        return super().limit(use)

    def network(self, output: modules.DistributionHead[Any], field: Field, context: HeadContext) -> nn.Module:
        """Return the network of a field on graphs, edges or nodes."""
        hidden, channels = self.hidden_dims, context.channels
        if field.on == "graph":
            if self.pool == "attention":
                return modules.AttentionHead(output, hidden, channels)
            return modules.GraphHead(output, hidden, channels, self.pool or "mean")
        if field.on == "edge":
            return modules.EdgeHead(output, hidden, context, self.symmetry, 0 if field.classes else field.width)
        if not self.conv_layers:
            return self.node_network(output, channels)
        head = self.node_network(output, context.model.hidden_dim)
        return modules.ConvolvedHead(head, context, self.conv_layers)

    def node_network(self, output: modules.DistributionHead[Any], channels: int) -> nn.Module:
        """Return one network for all nodes, or one per index."""
        if self.per_index is not None:
            return modules.IndexedNodeHead(output, self.hidden_dims, channels, self.per_index)
        return modules.NodeHead(output, self.hidden_dims, channels, self.corrected_input or None)

    @model_validator(mode="after")
    def _check_own_parts(self) -> "_ItemHead":
        if self.per_index is not None and self.corrected_input:
            raise ValueError(
                f"head {self.field}: correction_of is for one network for all nodes; leave it or per_index out"
            )
        return self


class _PooledHead(_NumberHead):
    """Base of heads of numbers on nodes or graphs."""

    extensive: bool = False
    """The value of a graph grows with its number of nodes (energies, dipoles): it is normalised without a mean, its
    errors are stated per node, too, and the loss counts them per node unless ``per_node = false``: else large graphs outweigh small ones."""

    @model_validator(mode="before")
    @classmethod
    def _count_per_node(cls, value: Any) -> Any:
        """Set the default of ``per_node`` for extensive fields."""
        return {"per_node": True, **value} if isinstance(value, dict) and value.get("extensive") is True else value

    @model_validator(mode="after")
    def _check_extensive(self) -> "_PooledHead":
        if self.per_node and not self.extensive:
            raise ValueError(f"head {self.field}: per_node is for extensive fields; add extensive = true")
        return self

    @property
    def traits(self) -> dict[str, Any]:
        """Loss, distribution and scaling with size."""
        own = {"loss": self.loss, "distribution": self.predicts, "extensive": self.extensive, "per_node": self.per_node}
        return {**own, "odd": getattr(self, "symmetry", None) == "antisymmetric"}


class ScalarHeadSettings(_ItemHead, _PooledHead):
    """Numbers on nodes, edges or graphs that do not turn."""

    removed: ClassVar = {"graph_scale": False}

    kind: Literal["scalar"] = "scalar"
    cuttable: ClassVar[bool] = True

    pool: Literal["sum", "mean", "max", "attention"] | None = None
    """Pooling of nodes into a graph field (only there): sum adds up a network on every node, attention takes its mean with learned weights that sum to
    one (grains and cells of different size), mean (the default) and max pool states."""

    correction_of: str | None = None
    """Node input of the field's shape that the network corrects (node fields only): the answer of a cheaper method, as a coarse solve or a
    simpler model. It is added to what the network says, times a learned number per component."""

    total: Finite | str | None = None
    """Sum of a node field over each graph (node fields only): 0, or the name of a graph input with its value, in the unit of the field. The charges of a molecule
    are an example. All values of a graph are shifted alike so that they add up to it. Absent: nothing holds for the sum."""

    symmetry: Literal["symmetric", "antisymmetric"] | None = None
    """Value of an edge in the other direction (edge fields only): the same (a misorientation) or minus it (a flux from
    sender to receiver). Absent: anything. With a symmetry every edge needs its reverse in the graph."""

    @field_validator("total")
    @classmethod
    def _is_zero_or_input(cls, value: float | str | None) -> float | str | None:
        if value == "" or (isinstance(value, float) and value):
            raise ValueError(f"{value!r} is no total; write 0, or the name of a graph input that holds it")
        return value

    @property
    def corrected_input(self) -> str:
        """Name of the node input that the network corrects; empty for none."""
        return self.correction_of or ""

    @property
    def conserved(self) -> str | None:
        """Graph input that values add up to; empty for 0, None for no total."""
        return self.total if self.total is None or isinstance(self.total, str) else ""

    @property
    def traits(self) -> dict[str, Any]:
        """Entries of numbers, with the total."""
        return {**super().traits, "total": self.conserved}

    def build(self, field: Field, context: HeadContext) -> nn.Module:
        """Return the network of numbers."""
        return self.network(modules.NUMBER_OUTPUTS[self.distribution](field), field, context)

    def node_network(self, output: modules.DistributionHead[Any], channels: int) -> nn.Module:
        """Return the network of nodes, with the requested total."""
        head = super().node_network(output, channels)
        return head if self.conserved is None else modules.ConservedHead(head, self.conserved)

    def check(self, field: Field) -> None:
        """Numbers with parity scalar, on nodes, edges or graphs."""
        _refuse_classes(field)
        if field.parity != "scalar":
            raise InputError(
                f'head {field.name}: it is a {field.parity}, and kind scalar does not turn; use kind = "{field.parity}"'
            )
        if self.conserved is not None and field.on != "node":
            raise InputError(
                f"head {field.name}: total is for node fields, and {field.name} lies on {field.on}s; remove it"
            )
        _refuse_keys_of_other_places(self, field)


class EnergyHeadSettings(_NumberHead):
    """Extensive number of a graph, with derivatives and reference values."""

    acts_with: ClassVar = WITH_DERIVATIVES
    removed: ClassVar = {"stress_per_node": True}

    kind: Literal["energy"] = "energy"
    cuttable: ClassVar[bool] = True

    loss: NumberLoss = "mae"
    """Loss on normalised values; absolute errors (mae) do not fade as energies get better, as squares do beside those of forces."""

    per_node: bool = True
    """Divide the error of the energy by the number of nodes in the loss: energy per atom beside single components of forces."""

    references: bool | dict[str, Finite] = False
    """Subtract reference values per element (needs the field ``atomic_numbers``): true fits them on the training part; a table gives the energy of each
    isolated atom in the field's unit (``{H = -13.6, O = -2042.0}``), and so does a file of isolated atoms, whose path counts from the configuration file."""

    forces: str | None = None
    """Node field of forces, predicted as minus the gradient of this head."""

    forces_weight: float = Setting(default=1.0, ge=0)
    """Weight of the forces' mean loss in the total."""

    stress: str | None = None
    """Graph field (3 x 3) of stress, predicted as the virial of this head divided by the volume."""

    stress_weight: float = Setting(default=1.0, ge=0)
    """Weight of the stress' mean loss in the total. Its error is multiplied by the volume per node: a virial per atom, in the unit of energies per atom."""

    stage_two_factor: float = Setting(default=10.0, gt=0)
    """Factor by which the energy weighs more in the second stage of training (``train.stage_two``), in heads with forces or stress;
    1: there is no second stage. The validation loss has the weights of the second stage from the first epoch on."""

    @field_validator("references", mode="before")
    @classmethod
    def _are_of_elements(cls, value: Any) -> Any:
        if isinstance(value, str):
            problem = f"{value!r} was read by no configuration file, from whose folder paths count"
            raise ValueError(f"{problem}; give a table of one energy per element")
        if not isinstance(value, dict):
            return value
        are_numbers = [isinstance(one, int | float) and not isinstance(one, bool) for one in value.values()]
        if not are_numbers or not all(are_numbers):
            raise ValueError("write true, the path of a file of isolated atoms, or a table of one energy per element")
        by_atomic_number({str(name): float(energy) for name, energy in value.items()})
        return value

    @model_validator(mode="after")
    def _check_derivatives(self) -> "EnergyHeadSettings":
        if self.distribution == "gaussian" and self.derivatives:
            raise ValueError(f"head {self.field}: forces and stress come from a point energy; use distribution = point")
        return self

    @property
    def derivatives(self) -> dict[str, str]:
        """Return the fields of ``forces`` and ``stress``, where predicted."""
        return {what: name for what, name in (("forces", self.forces), ("stress", self.stress)) if name}

    @property
    def weights(self) -> dict[str, float]:
        """Loss weight of the energy, the forces and the stress."""
        loss_weights = {"forces": self.forces_weight, "stress": self.stress_weight}
        return {self.field: self.weight, **{name: loss_weights[what] for what, name in self.derivatives.items()}}

    def targets(self, fields: Mapping[str, Field]) -> tuple[Target, ...]:
        """The energy and what derives from it; all share the loss."""
        energy = Target(
            field=fields[self.field],
            loss=self.loss,
            weight=self.weight,
            distribution=self.predicts,
            extensive=True,
            per_node=self.per_node,
            references=bool(self.references),
            given_references=by_atomic_number(self.references) if isinstance(self.references, dict) else (),
            stage_two_factor=self.stage_two_factor if self.derivatives else 1.0,
        )
        derived = [
            Target(
                field=fields[name],
                loss=self.loss,
                weight=self.weights[name],
                per_node=what == "stress",
                derivative=what,  # type: ignore[arg-type]
                source=self.field,
            )
            for what, name in self.derivatives.items()
        ]
        return (energy, *derived)

    def build(self, field: Field, context: HeadContext) -> nn.Module:
        """Return the network of every node, whose numbers add up."""
        output = modules.NUMBER_OUTPUTS[self.distribution](field)
        unit = None if context.close_range is None else context.close_range.energies.get(self.field)
        return modules.EnergyHead(output, self.hidden_dims, context.channels, unit)

    def check(self, field: Field) -> None:
        """One number per graph."""
        _refuse_classes(field)
        if field.on != "graph" or field.width != 1 or field.parity != "scalar":
            raise InputError(
                f"head {field.name}: forces and stress are derivatives of one scalar per graph; use an energy"
            )


class _TurningHead(_PooledHead):
    """Base of heads whose values turn with the graph."""

    pool: Literal["sum", "mean"] | None = None
    """Pooling of values of nodes into one of the graph (only there): sum or mean (the default)."""
    network: ClassVar[type[modules.VectorHead] | type[modules.TensorHead]]
    """Network of this kind."""

    def build(self, field: Field, context: HeadContext) -> nn.Module:
        """Return the network of nodes, pooled for fields of graphs."""
        pool, gaussian = (self.pool or "mean") if field.on == "graph" else None, self.distribution == "gaussian"
        return self.network(field, context, hidden_dims=self.hidden_dims, pool=pool, gaussian=gaussian)

    def check(self, field: Field) -> None:
        """Numbers with the parity of the kind, on nodes or graphs."""
        _refuse_classes(field)
        if field.parity != self.kind:
            raise InputError(
                f'head {field.name}: it is a {field.parity}, not a {self.kind}; use kind = "{field.parity}"'
            )
        if field.on == "edge":
            problem = f"head {field.name}: it lies on edges, where heads predict classes and numbers that do not turn"
            raise InputError(f"{problem}; declare its components with parity scalar if the axes are fixed")
        _refuse_keys_of_other_places(self, field)


class VectorHeadSettings(_TurningHead):
    """Vectors on nodes or graphs that turn with the graph."""

    kind: Literal["vector"] = "vector"
    cuttable: ClassVar[bool] = True
    network: ClassVar = modules.VectorHead


class TensorHeadSettings(_TurningHead):
    """Symmetric tensors on nodes or graphs: polarisability, conductivity, stress."""

    kind: Literal["tensor"] = "tensor"
    cuttable: ClassVar[bool] = True
    network: ClassVar = modules.TensorHead


class ClassesHeadSettings(_ItemHead):
    """Classes of nodes, edges or graphs, as probabilities."""

    kind: Literal["classes"] = "classes"
    cuttable: ClassVar[bool] = True

    pool: Literal["mean", "max"] | None = None
    """Pooling of states of nodes into that of a graph (graph fields only): mean (the default) or max."""

    loss: Literal["cross_entropy"] = "cross_entropy"
    """Minus the logarithm of the probability of the label."""

    class_weights: Literal["balanced"] | list[Annotated[float, Setting(ge=0)]] | None = None
    """Weight of each class in the loss: a list, or balanced for the inverse of each class' share of the training labels
    (divided by the number of classes, so that the mean weight of a training label is 1)."""

    symmetry: Literal["symmetric"] | None = None
    """Both directions of an edge have the same class (edge fields only); every edge then needs its reverse in the graph."""

    @property
    def traits(self) -> dict[str, Any]:
        """Loss, distribution and weights of classes."""
        weights = tuple(self.class_weights) if isinstance(self.class_weights, list) else self.class_weights
        return {"loss": self.loss, "distribution": Categorical, "class_weights": weights}

    def build(self, field: Field, context: HeadContext) -> nn.Module:
        """Return the network of logits."""
        return self.network(modules.ClassOutput(field), field, context)

    def check(self, field: Field) -> None:
        """A categorical field of nodes, edges or graphs."""
        if not field.classes:
            raise InputError(
                f"head {field.name}: it holds numbers, not classes; declare it with classes and dtype int64, or use "
                f'kind = "scalar"'
            )
        if isinstance(self.class_weights, list) and len(self.class_weights) != field.classes:
            problem = f"head {field.name}: {len(self.class_weights)} class_weights for {field.classes} classes"
            raise InputError(f"{problem}; give one per class")
        _refuse_keys_of_other_places(self, field)


def _refuse_classes(field: Field) -> None:
    if field.classes:
        raise InputError(f'head {field.name}: it is categorical, and this head predicts numbers; use kind = "classes"')


_PLACES: Mapping[Location, tuple[str, ...]] = {
    "graph": ("pool", "extensive", "per_node"),
    "node": ("correction_of", "per_index", "conv_layers"),
    "edge": ("symmetry",),
}
"""The keys that only fields of one place use."""


def _refuse_keys_of_other_places(head: HeadSettings, field: Field) -> None:
    """Raise InputError for keys of another location than the field's."""
    for place, keys in _PLACES.items():
        misplaced = [key for key in keys if place != field.on and getattr(head, key, None)]
        if misplaced:
            problem = f"head {field.name}: {misplaced[0]} is for {place} fields, and {field.name} lies on {field.on}s"
            raise InputError(f"{problem}; remove it")
