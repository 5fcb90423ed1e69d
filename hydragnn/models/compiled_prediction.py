"""Compiled predictions: values, derivatives and states, without gradient in weights.

Models of one description share the function, since it takes weights as arguments. It serves batches of all sizes: what is
alone in its batch is given an empty graph for company, as compilers take a size of 1 for a constant.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Location
from hydragnn.models.compiled import (
    LEAST,
    SIZES,
    Function,
    NotCompiled,
    Traced,
    compiled_function,
    first_line,
    of_known_sizes,
    ordered_weights,
    traced_model,
)
from hydragnn.models.compiler import mended_compiler
from hydragnn.models.distributions import Distribution, Point
from hydragnn.models.flat_batch import FlatTensor, flat_tensors, random_batch
from hydragnn.models.graph_model import GraphModel

ALONE: Mapping[Location, int] = {"node": 29, "edge": 397, "graph": 1}
"""Of the batch of one graph that is compared as well."""

Predicted = tuple[dict[str, Distribution], Float[Tensor, "nodes channels"]]
"""Predictions by field name, and the invariant states that heads read."""


@runtime_checkable
class Prediction(Protocol):
    """Function that predicts in place of a model."""

    on_host: ClassVar[bool]
    """Batches come as they lie, and not on the device of the model."""

    def __call__(self, batch: GraphBatch) -> Predicted:
        """Predictions by field name and states, without gradients."""


class WithStates(nn.Module):
    """A model whose final states are one more prediction."""

    NAME: ClassVar = ""
    """That no field has."""

    def __init__(self, model: GraphModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: GraphBatch) -> dict[str, Distribution]:
        """Predictions by field name, and states ``[nodes, channels]``."""
        predictions, states = self.model.with_states(batch)
        return {**predictions, self.NAME: Point(mean=states[0])}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CompiledPrediction:
    """Compiled predictions of ``model``; tiny batches use the model itself."""

    on_host: ClassVar = False

    model: GraphModel
    weights: tuple[Tensor, ...]
    """Of the model, in the order of ``ordered_weights``, which takes long for one batch."""
    traced: Traced
    function: Function

    def __call__(self, batch: GraphBatch) -> Predicted:
        """Predictions by field name and states, without gradients."""
        if min(batch.num_nodes, batch.num_edges) < LEAST:
            return eager_prediction(self.model, batch)
        flat = flat_tensors(self.model.description.input_fields)
        pad = batch.num_graphs < LEAST
        tensors = [
            _with_empty_graph(flat[name], batch) if pad else flat[name].read(batch) for name in self.traced.tensors
        ]
        with torch.no_grad(), torch.compiler.set_stance("eager_on_recompile"):
            values = iter(self.function(*self.weights, *tensors))
        predictions = {name: kind(**dict(zip(parts, values))) for name, kind, parts in self.traced.outputs}
        states = predictions.pop(WithStates.NAME).tensors()["mean"]
        if pad:
            own = slice(batch.num_graphs)
            of_graphs = {target.name for target in self.model.description.targets if target.field.on == "graph"}
            predictions |= {name: predictions[name].rows(own) for name in of_graphs}
        return predictions, states

    def of(self, model: GraphModel) -> "CompiledPrediction":
        """Return the function with the weights of an equal model."""
        assert model.description == self.model.description
        return replace(self, model=model, weights=tuple(ordered_weights(model)))


def eager_prediction(model: GraphModel, batch: GraphBatch) -> Predicted:
    """Predictions by field name and states, as the model computes them."""
    if model.training:  # asked first, since telling all layers takes as long as some of them
        model.eval()
    with torch.no_grad():
        predictions, states = model.with_states(batch)
    return predictions, states[0]


def compiled_prediction(model: GraphModel) -> CompiledPrediction:
    """Return a compiled prediction that was compared with the model."""
    description, parameter = model.description, next(model.parameters())
    of_known_sizes(description)
    extent = getattr(description.model, "cutoff", None) or 1.0
    batches = [
        random_batch(
            description.input_fields, description.dim, extent, sizes, parameter.dtype, description.close_range
        ).to(parameter.device)
        for sizes in (SIZES, ALONE)
    ]
    try:
        with mended_compiler():
            traced = traced_model(
                WithStates(model.eval()), description.input_fields, batches[0], nullcontext, recording=False
            )
            compiled = CompiledPrediction(
                model=model,
                weights=tuple(ordered_weights(model)),
                traced=traced,
                function=compiled_function(traced.module),
            )
            flat = flat_tensors(description.input_fields)
            with torch.no_grad():  # compiles; a call like any other would not
                compiled.function(*compiled.weights, *(flat[name].read(batches[0]) for name in traced.tensors))
            for batch in batches:
                check_same(compiled, batch)
    except NotCompiled:
        raise
    except Exception as error:  # whatever a compiler and a user's architecture may raise
        raise NotCompiled(first_line(error)) from error
    return compiled


def check_same(compiled: CompiledPrediction, batch: GraphBatch) -> None:
    """Raise NotCompiled unless both predictions agree to rounding."""
    ours, theirs = (
        {**predictions, "states": Point(mean=states)}
        for predictions, states in (compiled(batch), eager_prediction(compiled.model, batch))
    )
    for name, prediction in theirs.items():
        others = ours[name].tensors()
        for part, value in prediction.tensors().items():
            error = float((others[part] - value).norm() / value.norm().clamp_min(1e-30))
            if not error <= torch.finfo(value.dtype).eps ** 0.5:
                raise NotCompiled(f"its {name} ({part}) would be wrong by {error:.1e}")


def _with_empty_graph(tensor: FlatTensor, batch: GraphBatch) -> Tensor:
    """Return a tensor of the batch with an empty graph appended."""
    values = tensor.read(batch)
    return torch.cat([values, torch.zeros_like(values[:1])]) if tensor.on == "graph" else values
