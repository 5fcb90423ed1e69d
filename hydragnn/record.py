"""Run records: what search and ensembles read of a run."""

from dataclasses import asdict, dataclass, replace
from dataclasses import field as member
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from hydragnn.base.errors import InputError, nearest
from hydragnn.base.files import Check, check_version, read_sealed, write_sealed
from hydragnn.base.settings import first_problem
from hydragnn.base.shown import Shown

VERSION = 1

Status = Literal["running", "paused", "finished", "stopped", "failed"]
FINISHED: tuple[Status, ...] = ("finished", "stopped")
"""Ends of runs that have a result: after all epochs, or early."""
OUTSIDE = "trained outside"
"""Key under ``start`` in the record of a run whose weights came from a loop of a user's own, with their checksum."""
Seconds = Annotated[float, pydantic.Field(ge=-1, le=1e12)]
"""Measured time; of differences of clocks a little below zero, too."""

FailureKind = Literal[
    "lost_node", "launch", "out_of_memory", "diverged", "timeout", "configuration", "preempted", "defect"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why a run ended without a result, decided from evidence."""

    kind: FailureKind
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Cost of a run so far, over all segments."""

    seconds: Seconds = 0.0
    """Wall time."""
    cpu_seconds: Seconds = 0.0
    """Time of all cores together."""
    peak_memory_mb: float = 0.0
    """The most memory that one process held, in MB."""
    graphs_per_second: float = 0.0
    """Graphs of training per second of wall time, all ranks together."""
    ms_per_graph: float = 0.0
    """Milliseconds that one rank takes to predict a graph, in the fastest validation; 0 where unknown."""
    ranks: int = 1
    nodes: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Use of the machine by all segments and ranks so far."""

    phases: dict[str, Seconds] = member(default_factory=dict)
    """Seconds of the first rank by phase; they add up to the wall time."""
    busy: float | None = None
    """Share of time in which a device computed, from 0 to 1; None where nothing tells."""
    flops: float = 0.0
    """Arithmetic operations of training, counted in one step and scaled by the work of all; 0 where unknown."""
    bytes: float = 0.0
    """Bytes that these operations read and write, counted likewise."""
    peak_flops: float = 0.0
    """Operations per second that a device can do; 0 where unknown."""
    peak_bytes: float = 0.0
    """Bytes per second that its memory can move; 0 where unknown."""
    joules: float | None = None
    """Energy of nodes or devices; None where nothing measures it."""
    energy_source: str = "not measured"
    """Counter that gave the joules, such as RAPL or NVML."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BranchRecord:
    """Record of one data set among several."""

    data_hash: str
    parts: dict[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord(Shown):
    """Configuration, data, curves, cost and end of a run.

    ``record.json`` in its folder.

    ``curves`` has one value per finished epoch under names such as ``train/loss``, ``valid/loss``, ``learning_rate`` and
    ``valid/<field>/mae|rmse|r2`` in the field's unit. ``best`` holds the values of the epoch with the lowest
    ``valid/loss``, plus ``epoch`` (counted from 1). ``trivial`` holds the same metrics for the mean of the training part (names
    ``valid/<field>/mae`` and so on; forces: zero). ``test`` is filled only by an explicit evaluation. Status ``paused`` is the end of a segment.
    ``attempt`` is the attempt that wrote the record, as its starter counts; 0 where nobody counts. ``unseen_inputs`` are fields
    of the store with role input that the architecture does not see, and that were left out therefore. ``labels`` counts the graphs
    of each part that have a label, by target. ``notes`` are sentences
    on what else limits the result, such as forces that are not smooth and edges that an envelope silences. ``compiled`` says that steps
    were replayed as graphs of the device. ``branches`` says what
    belongs to each data set where there are several; ``data_hash`` is then the hash of all theirs, ``parts`` are their sums, and
    curves have names such as ``valid/energy@metals/mae``.
    """

    version: int = VERSION
    config: dict[str, Any]
    config_hash: str
    data_hash: str
    seed: int
    status: Status = "running"
    epochs: int = 0
    parameters: int = 0
    graphs: bool = False
    parts: dict[str, int] = member(default_factory=dict)
    labels: dict[str, dict[str, int]] = member(default_factory=dict)
    curves: dict[str, list[float | None]] = member(default_factory=dict)
    best: dict[str, float] = member(default_factory=dict)
    trivial: dict[str, float] = member(default_factory=dict)
    unseen_inputs: list[str] = member(default_factory=list)
    notes: list[str] = member(default_factory=list)
    continued: list[str] = member(default_factory=list)
    """Settings that a resumption changed."""
    start: dict[str, Any] = member(default_factory=dict)
    """The model that the run began with: what was kept, and errors on its data before and after (``forgetting``)."""
    cost: Cost = Cost()
    usage: Usage = Usage()
    failure: Failure | None = None
    versions: dict[str, str] = member(default_factory=dict)
    hardware: dict[str, Any] = member(default_factory=dict)
    attempt: int = 0
    branches: dict[str, BranchRecord] = member(default_factory=dict)

    def __str__(self) -> str:
        """Describe the run's end and its best validation loss."""
        why = "" if self.failure is None else f" ({self.failure.kind}: {self.failure.message})"
        best = f"; best valid/loss {self.best['valid/loss']:.6g}" if "valid/loss" in self.best else ""
        at = f" in epoch {self.best['epoch']:.0f}" if best and "epoch" in self.best else ""
        return f"{self.status}{why} after {self.epochs} epochs, {self.parameters} parameters{best}{at}"

    def shown(self) -> dict[str, Any]:
        """Return how the run ended, beside its trivial predictor."""
        keys = ("status", "epochs", "parameters", "parts", "best", "trivial", "notes", "continued", "start", "cost")
        table = asdict(self)
        return {key: table[key] for key in keys if table[key]}

    def of_branch(self, name: str) -> "RunRecord":
        """Return the record of a branch; itself for no name."""
        if not name:
            return self
        if name not in self.branches:
            raise InputError(f"the record has no branch {name}; {nearest(name, list(self.branches))}")
        own = self.branches[name]
        return replace(self, data_hash=own.data_hash, parts=own.parts)


_RECORD = pydantic.TypeAdapter(RunRecord)
"""Checks every member of a record that is read; what a later version adds is left out."""


def write_record(record: RunRecord, folder: Path, check: Check | None = None) -> None:
    """Write ``record.json`` atomically, unless ``check`` raises."""
    write_sealed(folder / "record.json", asdict(record), check)


def read_record(folder: Path | str) -> RunRecord:
    """Return a run's record; InputError if missing, damaged or newer."""
    folder = Path(folder)
    path = folder / "record.json"
    value = read_sealed(path)
    if not isinstance(value, dict) or not isinstance(value.get("version"), int):
        raise InputError(f"{path} is not a run record; was {folder} made by hydragnn train?")
    check_version(value["version"], path, oldest=VERSION, newest=VERSION)
    try:
        record: RunRecord = _RECORD.validate_python(value)
    except pydantic.ValidationError as error:
        raise InputError(f"{path} is damaged ({first_problem(error)}); resume or repeat the run") from error
    return record
