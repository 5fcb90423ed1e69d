"""Sums and statistics over the edges of every node."""

import torch
from torch import Tensor, nn

from hydragnn.frozen.settings import FrozenSettings
from hydragnn.graphs.pyg import torch_geometric

SCALERS = ["identity", "amplification", "attenuation", "linear"]


def summed(values: Tensor, nodes: Tensor, count: int) -> Tensor:
    """Sums over the edges of every node."""
    return values.new_zeros(count, *values.shape[1:]).index_add(0, nodes, values)


class Statistics(nn.Module):
    """Part that reads statistics of messages, scaled by degrees (arXiv:2004.05718)."""

    def __init__(self, settings: FrozenSettings, width: int, out_dim: int, inputs: int, *more: str) -> None:
        super().__init__()
        scalers, degrees = [*SCALERS, *more], torch.tensor(settings.required("pna_deg"), device="cpu")
        self.aggr_module = torch_geometric("nn.aggr").DegreeScalerAggregation(
            ["mean", "min", "max", "std"], scalers, degrees
        )
        post = nn.Linear((4 * len(scalers) + 1) * width, out_dim)
        self.pre_nns = nn.ModuleList([nn.Sequential(nn.Linear(inputs * width, width))])
        self.post_nns = nn.ModuleList([nn.Sequential(post)])

    def read(self, inv: Tensor, messages: Tensor, nodes: Tensor) -> Tensor:
        """Return what nodes make of themselves and of these messages."""
        return self.post_nns[0](torch.cat([inv, self.aggr_module(messages, nodes, dim_size=len(inv))], dim=1))
