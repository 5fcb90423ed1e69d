"""Typed settings of heads; those of encoders stand with their architectures."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hydragnn.settings import Settings


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
