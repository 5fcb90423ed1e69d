"""Settings of a run's data: store, split and batches."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from hydragnn.base.machine import bytes_of
from hydragnn.base.places import StorePlace
from hydragnn.base.settings import ActsWith, Settings
from hydragnn.datasets.packing import Budget

TIME_SPAN, OBSERVED, LAST = "time_span", "_observed", "_last"
"""Graph field with the first and last time of a window of readings; suffixes of inputs with their observed values and the last ones."""


class DataSettings(Settings):
    """Store of a run, and the fields that the model sees."""

    store: Path | tuple[Path, ...]
    """A store made by ``hydragnn data build``, or a list of stores whose graphs follow each other, without a copy; relative paths
    count from the configuration file's folder."""

    inputs: list[str] | None = None
    """Names of the input fields; all fields with role ``input`` if absent."""

    edges: bool = True
    """False takes every edge away: the ablation that shows what the neighbours are worth."""

    memory: Literal["auto", "ranks"] = "auto"
    """auto: the memory of each process, or the system's file cache where several processes of a node read a large store; ranks: the
    memory of groups of ranks, each of which keeps one copy of the training part. Results do not depend on it."""

    group: int = Field(default=0, ge=0)
    """Ranks that keep a copy together; 0: those of a node. More than a node has needs ranks of MPI."""

    window: int = Field(default=0, ge=0)
    """Graphs in memory at once, for stores larger than memory; 0 keeps all of them. It decides the order of training."""

    acts_with: ClassVar = {
        "group": ActsWith(words='with memory = "ranks"', remedy="set it", holds=lambda data: data.memory == "ranks"),
        "window": ActsWith(
            words='with memory = "auto"', remedy='leave out memory = "ranks"', holds=lambda data: data.memory == "auto"
        ),
    }

    @field_validator("store")
    @classmethod
    def _several(cls, store: StorePlace) -> StorePlace:
        if isinstance(store, Path):
            return store
        if not store or len({*store}) < len(store):
            raise ValueError("a list of stores names each of them once; give at least one")
        return store[0] if len(store) == 1 else store


class SplitSettings(Settings):
    """Split of the graphs into training, validation, calibration and test."""

    acts_with: ClassVar = dict.fromkeys(
        ("train", "valid", "seed"),
        ActsWith(
            words="where graphs are drawn, and a given split names them itself",
            remedy='set kind to "random", "composition" or "group"',
            holds=lambda split: split.kind != "given",
        ),
    )

    kind: Literal["random", "composition", "group", "given"] = "random"
    """random: by graph, and windows of readings (``sensors``) in blocks of time, of which none share a time; composition: graphs of one composition stay together; group: by the values of ``field``;
    given: ``field`` holds 0 (train), 1 (validation), 2 (test), 3 (calibration) for every graph. ``group = "KEY"`` is short for
    ``kind = "group"`` and ``field = "KEY"``."""

    field: str | None = None
    """Graph field with the given parts, or what groups graphs: a graph field, a text of the store (``name``, ``config_type``), or
    ``duplicates`` for exact copies; only for ``group`` and ``given``."""

    train: float = Field(default=0.8, gt=0, lt=1)
    """Fraction of graphs (or of groups) for training."""

    valid: float = Field(default=0.1, gt=0, lt=1)
    """Fraction for validation; what remains is for calibration and test (may be nothing where train + valid = 1)."""

    calibration: float | None = Field(default=None, ge=0, lt=1)
    """Fraction for the intervals of ensembles, taken from what training and validation leave; the rest is the test part.
    Without it half of what they leave, where that is 40 graphs or more. 0 calibrates on the validation part. Training does
    not depend on it. A ``given`` split names these graphs itself and takes no fraction."""

    seed: int = Field(default=0, ge=0)
    """Seed of the split; independent of the training seed, so that ensemble members share their held-out data."""

    @model_validator(mode="before")
    @classmethod
    def _in_full(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or "group" not in value:
            return value
        if {"kind", "field"} & value.keys():
            raise ValueError("group stands for kind and field; remove it, or both of them")
        others = {key: setting for key, setting in value.items() if key != "group"}
        return {**others, "kind": "group", "field": value["group"]}

    @model_validator(mode="after")
    def _check(self) -> "SplitSettings":
        if self.train + self.valid > 1 + 1e-9:
            raise ValueError(f"train + valid = {self.train + self.valid:g} exceeds 1; lower one of them")
        together = self.train + self.valid + (self.calibration or 0.0)
        if together > 1 + 1e-9:
            raise ValueError(f"train + valid + calibration = {together:g} exceeds 1; lower one of them")
        if (self.kind in ("group", "given")) != (self.field is not None):
            raise ValueError(f"split kind {self.kind} {'needs a' if self.field is None else 'takes no'} field")
        return self


class BatchSettings(Settings):
    """Budget of one optimisation step over all ranks; 0: no limit."""

    removed: ClassVar = {"budget": ...}

    memory: str = ""
    """Memory of a rank for weights, optimizer and the tensors of a step, such as ``"4 GB"``: a batch that takes more is computed
    in parts, with the same result. Absent: no limit."""

    max_graphs: int = Field(default=32, ge=0, le=2**53)
    """Graphs per step."""

    max_nodes: int = Field(default=0, ge=0, le=2**53)
    """Nodes per step."""

    max_edges: int = Field(default=0, ge=0, le=2**53)
    """Edges per step."""

    @model_validator(mode="after")
    def _check(self) -> "BatchSettings":
        if self.memory:
            bytes_of(self.memory)
        if not (self.max_graphs or self.max_nodes or self.max_edges):
            raise ValueError("a batch without any limit is the whole data set; set max_graphs, max_nodes or max_edges")
        return self

    @property
    def limits(self) -> Budget:
        """Limits of a batch; InputError where ``memory`` is no amount."""
        return Budget(
            max_graphs=self.max_graphs,
            max_nodes=self.max_nodes,
            max_edges=self.max_edges,
            max_bytes=bytes_of(self.memory) if self.memory else 0,
        )
