"""Predictions of a model: values by field name, and final states."""

from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from hydragnn.graphs.batch import GraphBatch
from hydragnn.models.distributions import Distribution
from hydragnn.models.graph_model import GraphModel

Predicted = tuple[dict[str, Distribution], Float[Tensor, "nodes channels"]]
"""Predictions by field name, and the invariant states that heads read."""


@runtime_checkable
class Prediction(Protocol):
    """Function that predicts in place of a model."""

    on_host: ClassVar[bool]
    """Batches come as they lie, and not on the device of the model."""

    def __call__(self, batch: GraphBatch) -> Predicted:
        """Predictions by field name and states, without gradients."""


def eager_prediction(model: GraphModel, batch: GraphBatch) -> Predicted:
    """Predictions by field name and states, as the model computes them."""
    if model.training:  # asked first, since setting the mode of all layers takes as long as computing some
        model.eval()
    with torch.no_grad():
        predictions, states = model.with_states(batch)
    return predictions, states[0]
