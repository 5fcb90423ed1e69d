"""What a head knows of the model that it is built into."""

from dataclasses import dataclass

from hydragnn.architectures import Architecture
from hydragnn.layers import RadialFeatures
from hydragnn.models.description import ModelDescription


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadContext:
    """The description of the model, and what its encoder gives to heads."""

    description: ModelDescription
    channels: int
    """Channels of the states."""
    basis: RadialFeatures | None
    """The encoder's radial basis; None where it sees no lengths."""
    edge_width: int
    """Numbers of the edge features that the encoder sees."""
    conditioned: bool
    """Graph inputs act on states as a condition."""

    @property
    def dim(self) -> int:
        """Spatial dimension; 0 without geometry."""
        return self.description.dim

    @property
    def architecture(self) -> type[Architecture]:
        """The class of the encoder."""
        return self.description.architecture
