"""Typed settings of encoders and heads: each encoder has its own model, so a foreign key is an error."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hydragnn.settings import Settings


class _Encoder(Settings):
    """What every encoder has."""

    hidden_dim: int = Field(default=64, ge=1, le=4096)
    """Channels of the node states."""

    num_layers: int = Field(default=3, ge=1, le=64)
    """Message-passing layers."""

    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on node states between layers; off at prediction."""


class _Geometric(_Encoder):
    """What encoders that see edge lengths have."""

    cutoff: float = Field(default=5.0, gt=0)
    """Length at which the radial basis ends, in the store's unit of length (Angstrom for atoms)."""

    num_radial: int = Field(default=20, ge=1, le=512)
    """Radial basis functions per edge."""

    radial: Literal["bessel", "gaussian"] = "bessel"
    """Radial basis: bessel (sin(n pi r / cutoff) / r) or gaussian."""

    envelope: Literal["polynomial", "cosine", "none"] = "polynomial"
    """Smooth end of messages at the cutoff; none for meshes and grains, whose edges do not come from a cutoff."""


class SchNetSettings(_Geometric):
    """Continuous-filter convolutions (Schuett et al. 2017, arXiv:1706.08566)."""

    kind: Literal["schnet"] = "schnet"


class PaiNNSettings(_Geometric):
    """Scalar and vector states, rotation-equivariant (Schuett et al. 2021, arXiv:2102.03150)."""

    kind: Literal["painn"] = "painn"


class EGNNSettings(_Geometric):
    """Messages from states and lengths, E(n)-equivariant, positions at rest (Satorras et al. 2021, arXiv:2102.09844)."""

    kind: Literal["egnn"] = "egnn"

    attention: bool = False
    """Weigh each message by a learned gate."""


class PNASettings(_Geometric):
    """Principal neighbourhood aggregation (Corso et al. 2020, arXiv:2004.05718) with edge lengths and features."""

    kind: Literal["pna"] = "pna"


class RelationalSettings(_Encoder):
    """One full matrix per kind of edge (Schlichtkrull et al. 2017, arXiv:1703.06103): lattices, meshes, image grids."""

    kind: Literal["relational"] = "relational"

    relation: str = "relation"
    """Categorical edge field that names the kind of each edge."""

    reduce: Literal["sum", "mean", "sqrt"] = "sqrt"
    """How a node's neighbours of one kind are joined: summed, averaged, or summed and divided by the square root of their
    number, which keeps the spread of what arrives whatever the number."""

    level: str = "level"
    """Categorical edge field that names the level of each edge; read only where ``schedule`` is given."""

    schedule: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    """Level whose edges each layer uses, one entry per layer: coarse levels carry news far (a V-cycle is 0, 1, 2, 1, 0).
    A layer changes only the nodes that its edges touch. Empty: every layer uses all edges."""

    @model_validator(mode="after")
    def _check(self) -> "RelationalSettings":
        if self.schedule and len(self.schedule) != self.num_layers:
            raise ValueError(
                f"schedule has {len(self.schedule)} entries for num_layers = {self.num_layers}; give one per layer"
            )
        return self


ModelSettings = Annotated[
    SchNetSettings | PaiNNSettings | EGNNSettings | PNASettings | RelationalSettings,
    Field(discriminator="kind"),
]


class HeadSettings(Settings):
    """One target field and how it is predicted and weighed."""

    field: str
    """Name of the target field in the store; its place (node or graph), width and parity come from there."""

    pool: Literal["sum", "mean", "max"] = "mean"
    """How node outputs become a graph output (graph fields only); sum for extensive quantities such as energies."""

    hidden_dims: list[Annotated[int, Field(ge=1, le=4096)]] = Field(default_factory=lambda: [64])
    """Widths of the head's hidden layers."""

    distribution: Literal["point", "gaussian"] = "point"
    """point: a value; gaussian: mean and variance, trained with ``loss = "nll"``."""

    loss: Literal["mse", "mae", "huber", "nll", "relative"] = "mse"
    """Loss on normalised values; relative: norm of a graph's error over the norm of its label, for fields whose size varies."""

    graph_scale: bool = False
    """Multiply a node field by a positive factor per graph, learned from the mean state: for targets whose size varies
    from graph to graph more than their pattern does (displacements under different stiffness)."""

    weight: float = Field(default=1.0, ge=0)
    """Weight of this field's mean loss in the total."""

    per_node: bool = False
    """Divide the error of a graph field by the number of nodes in the loss (energies: loss per atom)."""

    references: bool = False
    """Subtract per-species reference values, fitted on the training part (needs the field ``atomic_numbers``, pool sum)."""

    forces: str | None = None
    """Node field of forces, predicted as minus the gradient of this head."""

    forces_weight: float = Field(default=1.0, ge=0)
    """Weight of the forces' mean loss in the total."""

    stress: str | None = None
    """Graph field (3 x 3) of stress, predicted as the virial of this head divided by the volume."""

    stress_weight: float = Field(default=1.0, ge=0)
    """Weight of the stress' mean loss in the total."""

    @model_validator(mode="after")
    def _check(self) -> "HeadSettings":
        if (self.distribution == "gaussian") != (self.loss == "nll"):
            raise ValueError(f'head {self.field}: distribution = "gaussian" and loss = "nll" go together')
        if (self.references or self.forces or self.stress) and self.pool != "sum":
            raise ValueError(f'head {self.field}: references, forces and stress need pool = "sum"')
        if self.distribution == "gaussian" and (self.forces or self.stress):
            raise ValueError(f"head {self.field}: forces and stress come from a point energy; use distribution = point")
        return self

    @property
    def outputs(self) -> list[str]:
        """All fields that this head predicts."""
        return [self.field, *(name for name in (self.forces, self.stress) if name)]
