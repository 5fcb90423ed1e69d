"""One full matrix per kind of edge: relational convolution (Schlichtkrull et al. 2017, arXiv:1703.06103, equation 2)."""

from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.kernels import Topology, gather_multiply_sum


class RelationalLayer(nn.Module):
    """Sums over the neighbours of each kind, a matrix for every kind, and a network per node."""

    def __init__(self, channels: int, relations: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.own = nn.Linear(channels, channels)
        self.told = nn.Linear(relations * channels, channels, bias=False)
        self.out = nn.Linear(channels, channels)

    def forward(self, states: Float[Tensor, "nodes channels"], keyed: Topology) -> Float[Tensor, "nodes channels"]:
        """Increment of the states; ``keyed`` has one row per (receiver, relation)."""
        states = self.norm(states)
        sums = gather_multiply_sum(states, None, keyed).reshape(states.shape[0], self.told.in_features)
        return self.out(nn.functional.silu(self.own(states) + self.told(sums)))
