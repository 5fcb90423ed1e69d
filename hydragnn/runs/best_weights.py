"""Best weights as a whole, from ranks that have parts of them."""

import json
from collections.abc import Sequence
from math import prod

from torch import Tensor

from hydragnn.distributed.mesh import Mesh
from hydragnn.distributed.sharing import texts_of_all
from hydragnn.training.parameters import Span
from hydragnn.training.state import TrainState


def best_weights(state: TrainState, mesh: Mesh) -> dict[str, Tensor]:
    """Return the model's tensors with the best weights so far; collective.

    The first rank has all of them, the others none. Where ranks have parts, one parameter at a time is summed over all of them.
    """
    if state.parameters.is_whole and mesh.size("pipeline") == 1:
        with state.parameters.best():
            return _copies(state.model.state_dict()) if mesh.ranks.first else {}
    device, best = state.totals.device, state.tensors()["best"]
    spans = [span for span in state.parameters.spans if span.counted and state.parameters.is_written]
    shapes: dict[str, list[int]] = {}
    for text in texts_of_all(json.dumps(state.parameters.shapes), mesh.ranks, device):
        shapes.update(json.loads(text))
    weights: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        own = [span for span in spans if span.name == name]
        whole = mesh.ranks.sum_in_place(_own_part(best, own, shape))
        if mesh.ranks.first:
            weights[name] = whole.cpu()
    return _copies(state.model.state_dict()) | weights if mesh.ranks.first else {}


def _own_part(best: Tensor, spans: Sequence[Span], shape: list[int]) -> Tensor:
    """Return a parameter with the numbers of these spans, and zeros."""
    whole = best.new_zeros(shape)
    for span in spans:
        local = best.new_zeros(prod(span.piece.local_shape))
        local[span.first : span.last] = best[span.at : span.at + span.last - span.first]
        span.piece.put(local, whole)
    return whole


def _copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in tensors.items()}
