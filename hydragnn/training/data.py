"""What the loop takes: batches in parts, normalised, cast and on the device; and what a run knows of its data."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from hydragnn.datasets import GraphStore, Loader, Normalisation, Split, normalise
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.models import Target
from hydragnn.training.metrics import RunningMoments
from hydragnn.training.micro_batches import micro_batches


@dataclass(frozen=True, kw_only=True, slots=True)
class DevicePlacement:
    """Where batches are computed, with which numbers and in how many parts."""

    device: torch.device
    dtype: torch.dtype
    micro_batches: int = 1
    """Parts in which a batch is computed, one after the other, so that only one needs memory."""

    def parts(self, batch: GraphBatch) -> tuple[GraphBatch, ...]:
        """The batch in parts, in place; cut where it is, so that nobody waits for the device. Without graphs, no part."""
        return tuple(part.to(self.device, self.dtype) for part in micro_batches(batch, self.micro_batches))


class Feed:
    """This rank's share of every batch of one part of a store, as the model takes it.

    The store is normalised already, or this happens batch by batch.
    """

    def __init__(self, loader: Loader, normalisation: Normalisation | None, placement: DevicePlacement) -> None:
        """Batches of ``loader``; without ``normalisation`` its store is normalised already."""
        self.loader = loader
        self.normalisation = normalisation
        self.placement = placement

    def steps(self, epoch: int) -> int:
        """Batches of an epoch, over all ranks."""
        settings = self.loader.settings
        by_count = not (settings.max_nodes or settings.max_edges)
        return len(self.loader) if by_count else len(self.loader.batches(epoch))

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[GraphBatch, ...]]:
        """The batches of an epoch from step ``start`` on, each in its parts; a share without graphs has no part."""
        for _, batch in self.loader.epoch(number, start):
            if self.normalisation is not None:
                batch = normalise(batch, self.normalisation)
            yield self.placement.parts(batch)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RunData:
    """The parts of a store as one run sees them."""

    store: GraphStore
    fields: Mapping[str, Field]
    inputs: tuple[str, ...]
    targets: tuple[Target, ...]
    split: Split
    normalisation: Normalisation
    train: Feed
    valid: tuple[GraphBatch, ...]
    """This rank's shares of the validation part, in the parts in which they are computed."""
    valid_moments: Mapping[str, RunningMoments]
    """Moments of the whole validation part's labels, in the fields' units."""
    trivial: Mapping[str, float]
    """Errors of the trivial predictor on the whole validation part, by their names in a run record."""
