"""Layout of a run: how ranks share batches, weights, layers and graphs."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field as Setting
from pydantic import model_validator

from hydragnn.base.errors import InputError
from hydragnn.base.settings import Settings
from hydragnn.models.checks import check_cuttable, check_use
from hydragnn.models.description import ModelDescription

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
            problem = f"chunks = {self.chunks} divides the layers of stages, and there is one stage"
            raise ValueError(f"{problem}; set pipeline to 2 or more, or leave chunks out")
        return self

    @property
    def ranks_per_replica(self) -> int:
        """Return the ranks that hold the weights once."""
        return self.shard * self.pipeline * self.graph * self.tensor


GLOBAL_HEADS = "model.global_attention.heads"


def heads_of(description: ModelDescription) -> dict[str, int]:
    """Return the numbers of attention heads by key."""
    model = description.model
    counts = {
        "model.heads": getattr(model, "heads", None),
        GLOBAL_HEADS: model.global_attention and model.global_attention.heads,
    }
    return {key: count for key, count in counts.items() if count}


WHOLE_WEIGHTS = ("lamb", "lars")
"""Optimizers that take norms of whole weights."""


def check_divisible(layout: ParallelSettings, description: ModelDescription, optimizer: str) -> None:
    """Raise InputError where ranks cannot divide a model like this."""
    model, stages, size = description.model, layout.pipeline, layout.tensor
    shared = [f"{key} = {getattr(layout, key)}" for key in ("shard", "tensor") if getattr(layout, key) > 1]
    shared += ['states = "shared"'] if layout.states == "shared" else []
    if shared and optimizer in WHOLE_WEIGHTS:
        raise InputError(
            f"train.optimizer = {optimizer} takes norms of whole weights, of which ranks have a part with parallel.{shared[0]}; leave that out, or take adamw"
        )
    attention = model.global_attention
    for key, count in {"model.hidden_dim": model.hidden_dim, **heads_of(description)}.items():
        whole = key == "model.hidden_dim" or (key in GLOBAL_HEADS and attention is not None and attention.has_pairs)
        if count % size and (whole or size % count):
            multiple, more = ("", "") if whole else (", and is no multiple of it", " or a multiple")
            problem = f"parallel.tensor = {size} does not divide {key} = {count}, which its ranks would share{multiple}"
            raise InputError(f"{problem}; set a divisor{more} of it, or change {key}")
    if stages > 1:
        check_use(description, "stages", f"leave parallel.pipeline = {stages} out, or use shard or tensor")
        if model.num_layers < (parts := stages * layout.chunks):
            each = "stage" if layout.chunks == 1 else f"chunk, {parts} with chunks = {layout.chunks}"
            fault = f"parallel.pipeline = {stages} takes a layer per {each}, and model.num_layers is {model.num_layers}"
            raise InputError(f"{fault}; lower one or raise the other")
    if layout.graph > 1:
        check_cuttable(description)
