"""Executors: ways in which a model computes predictions."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from hydragnn.base.errors import print_note
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.field import Location
from hydragnn.graphs.joining import repeated
from hydragnn.graphs.padding import PADDED, is_padded
from hydragnn.graphs.topology import tiled
from hydragnn.kernels import Pairs, pairs_of
from hydragnn.models.graph_model import PAIRS, GraphModel, Predicted
from hydragnn.models.replay import NotRecordable, Replays


@dataclass(frozen=True, kw_only=True, eq=False)
class Eager:
    """Executor that computes every batch anew."""

    from_host: ClassVar[bool] = False
    """Batches lie on the host, and it brings them to the device."""
    model: GraphModel
    copies: int = 1
    """Models that ``model`` stacks. Each sees a copy of the batch, and their rows follow each other."""

    @property
    def device(self) -> torch.device:
        """Return the device of the weights."""
        return next(self.model.parameters()).device

    def predict(self, batch: GraphBatch) -> Predicted:
        """Return predictions of a normalised batch in the model's mode, without gradients."""
        with torch.no_grad():
            predictions, states = self.model.with_states(copies_of(batch, self.copies))
        return predictions, states[0]


@dataclass(frozen=True, kw_only=True, eq=False)
class Recorded(Eager):
    """Executor that replays what it recorded as graphs of the device."""

    from_host: ClassVar[bool] = True
    replays: Replays

    def predict(self, batch: GraphBatch) -> Predicted:
        """Return predictions without padding, which no later replay overwrites."""
        if self.replays.ended:
            return super().predict(batch.to(self.device))
        try:
            predictions, states = self.replays(("prediction", self.model.training), super().predict, batch)
        except NotRecordable as error:
            if not self.replays.lenient:
                raise
            print_note(f"batches are not replayed: {error}")  # of any size
            self.replays.ended = True
            return self.predict(batch)

        def own(values: Tensor, location: Location) -> Tensor:
            return values.unflatten(0, (self.copies, -1))[:, : batch.num_items(location)].flatten(0, 1).clone()

        locations = {target.name: target.field.on for target in self.model.description.targets}
        results = {name: one.mapped(partial(own, location=locations[name])) for name, one in predictions.items()}
        return results, own(states, "node")


def copies_of(batch: GraphBatch, copies: int) -> GraphBatch:
    """Return copies of a batch, one per member, with their pairs."""
    if copies == 1:
        return batch
    whole = repeated(batch, copies)
    if is_padded(batch):
        whole._derived[PADDED] = True
    pairs = pairs_of(edge_vectors(batch), batch.topology) if batch.dim else None
    if pairs is not None:
        first, pair = tiled(pairs.first, copies, batch.num_edges), tiled(pairs.pair, copies, len(pairs.first))
        pairs = Pairs(first=first, pair=pair)
    whole._derived[PAIRS] = pairs  # of one member; among the edges of all, reverses would be sought in vain
    return whole
