"""Wrappers that let ranks train a model, in their order."""

from collections.abc import Sequence

from torch import nn

from hydragnn.config import TrainSettings
from hydragnn.distributed.mesh import Mesh
from hydragnn.training.data import DevicePlacement
from hydragnn.training.parameters import FlatParameters, Parameters


def parallelize(
    model: nn.Module,
    mesh: Mesh,
    placement: DevicePlacement,
    settings: TrainSettings,
    rate_factors: Sequence[float] = (),
) -> Parameters:
    """Place the model and return the parameters that the loop updates.

    Every rank holds all weights and computes its share of every batch (replicated data parallelism).
    """
    # 1. device and numbers, before the vector is made, so that it lies there
    model.to(device=placement.device, dtype=placement.dtype)
    # 2. one vector of weights and one of gradients, with optimizer, best weights and average
    # 3. gradients are summed over ranks once per step, in buckets that begin while the backward pass of the last micro-batch
    # goes on; losses are divided by global counts
    return FlatParameters(model, settings, mesh.begin_sum if mesh.ranks.size > 1 else None, rate_factors)
