"""Continuous-filter convolution: SchNet (Schuett et al. 2017, arXiv:1706.08566, figure 2)."""

from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.kernels import Topology, gather_multiply_sum
from hydragnn.layers.mlp import mlp


class SchNetInteraction(nn.Module):
    """Atom-wise linear, sum over neighbours weighted by a filter of the distance, atom-wise network."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.before = nn.Linear(channels, channels, bias=False)
        self.after = mlp([channels, channels, channels])

    def forward(
        self,
        scalars: Float[Tensor, "nodes channels"],
        filters: Float[Tensor, "edges channels"],
        topology: Topology,
    ) -> Float[Tensor, "nodes channels"]:
        """Increment of the states."""
        return self.after(gather_multiply_sum(self.before(scalars), filters, topology))
