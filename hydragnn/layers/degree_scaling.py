"""Statistics of what nodes receive, scaled by how many edges they receive (Corso et al. 2020, arXiv:2004.05718, equations 5 and 7)."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.kernels import Topology


def scaled_statistics(
    statistics: Sequence[Float[Tensor, "nodes channels"]],
    weights: nn.Linear,
    topology: Topology,
    mean_log_degree: float,
) -> Float[Tensor, "nodes channels"]:
    """W (S (x) A) with the statistics A and S = (1, s_i, 1 / s_i); a node without edges has S = (1, 0, 1).

    s_i = log(d_i + 1) / mean log(d + 1), with d_i the edges that node i receives and the mean over the training part. ``weights`` has the matrices of the three scalers under each other: a scaler is one number
    per node, so it acts after the linear map of the statistics, which is exact.
    """
    plain, amplified, attenuated = weights(torch.cat(list(statistics), dim=-1)).chunk(3, dim=-1)
    degrees = topology.degrees.to(weights.weight.dtype).unsqueeze(-1)  # [nodes, 1]
    size = torch.log1p(degrees) / (mean_log_degree if mean_log_degree > 0 else 1.0)  # eq. 5; [nodes, 1]
    scaled: Tensor = plain + size * amplified + attenuated / torch.where(degrees > 0, size, 1.0)  # eq. 7
    return scaled
