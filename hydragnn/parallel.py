"""Layout of a run: how ranks share batches, weights, layers and graphs."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field as Setting
from pydantic import model_validator

from hydragnn.base.settings import Settings

Axis = Literal["replicate", "shard", "pipeline", "graph", "tensor"]

AXES: tuple[Axis, ...] = ("replicate", "shard", "pipeline", "graph", "tensor")
"""Axes of the mesh of ranks, from the outermost to the innermost, whose ranks are neighbours on a node."""


class ParallelSettings(Settings):
    """Layout of a run's ranks; every layout takes the same steps."""

    seldom: ClassVar = frozenset({"chunks"})

    replicate: Annotated[int, Setting(ge=1)] | Literal["auto"] = "auto"
    """Groups of ranks that hold all weights and share batches; auto: all ranks that the other axes leave."""

    shard: int = Setting(default=1, ge=1)
    """Ranks that share batches, and of which each holds a share of the weights, gradients and optimizer states."""

    pipeline: int = Setting(default=1, ge=1)
    """Stages of consecutive layers."""

    chunks: int = Setting(default=1, ge=1, exclude_if=lambda chunks: chunks == 1)
    """Chunks of consecutive layers of every stage: the interleaved schedule, which waits 1 / chunks as long as 1F1B and sends chunks times as much."""

    graph: int = Setting(default=1, ge=1)
    """Ranks that share every graph: each holds some of its nodes."""

    tensor: int = Setting(default=1, ge=1)
    """Ranks, on one node, that share the channels of every layer."""

    states: Literal["auto", "whole", "shared"] = "auto"
    """Optimizer states, average and best weights of copies: shared (ZeRO-1), or whole on every copy. auto: shared on GPUs, for more than 4 MiB
    of weights; on CPUs the exchange takes longer than it saves."""

    micro_batches: int = Setting(default=1, ge=1)
    """Parts of a batch that are computed one after the other, with one sum over ranks."""

    @model_validator(mode="after")
    def _chunks_are_of_stages(self) -> "ParallelSettings":
        if self.chunks > 1 and self.pipeline == 1:
            raise ValueError(
                f"chunks = {self.chunks} divides the layers of stages, and there is one stage; set pipeline to 2 or more, or leave chunks out"
            )
        return self

    @property
    def ranks_per_replica(self) -> int:
        """Return the ranks that hold the weights once."""
        return self.shard * self.pipeline * self.graph * self.tensor
