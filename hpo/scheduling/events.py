"""Events and actions of the scheduler: plain values."""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct

from hydragnn.base.errors import InputError
from hydragnn.hpo.fronts import Bounds
from hydragnn.record import FailureKind

Origin = Literal["sampler", "warm start", "stand-in"]
"""A stand-in is a random configuration that was tried while the sampler was thinking."""
Identity = dict[str, Any]
"""Identity of a started process, for example host, process id and start time."""
MACHINE_FAULTS: frozenset[FailureKind] = frozenset({"lost_node", "launch", "preempted"})
"""Faults that say nothing about the configuration: retried, never told to the sampler."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The scheduler's part of the settings."""

    trials: int
    rungs: tuple[int, ...]
    """Epochs at which segments end; the last is the full budget."""
    reduction: int = 3
    finalists: int = 0
    retries: int = 3
    """Further attempts that one trial gets after machine faults."""
    max_seconds: float | None = None
    """Budget in seconds of campaign, all controllers together."""
    max_node_seconds: float | None = None
    """Budget in seconds times slots, idle ones included, because that is what a site bills."""
    timeout: float | None = None
    """Longest segment in seconds."""
    min_slots: int = 1
    max_slots: int = 1
    """Slots that one trial can use."""
    sizes: dict[str, float] = field(default_factory=dict)
    """Speed of a slot of each node beside the fastest, from 0 to 1; empty where all are alike."""
    grace: float = 10.0
    """Seconds that attempts need to save themselves; the campaign leaves so long before the end of a budget."""
    bounds: Bounds = ()
    """Bounds of several objectives; empty where there is one."""
    moves: bool = False
    """Slow attempts go on elsewhere; there are nodes to go to."""


class Happening(Struct, frozen=True, kw_only=True, tag_field="event", tag=str.lower):
    """Base of events; JSON has the kind's name as a member."""


class Opened(Happening, frozen=True, kw_only=True):
    """A controller begins; attempts of an earlier one have ended."""

    plan: Plan
    slots: tuple[str, ...]
    deadline: float | None = None
    """End of the allocation on the clock of the events; None where there is none."""


class Proposed(Happening, frozen=True, kw_only=True):
    """A configuration for a trial that the scheduler asked for."""

    trial: int
    values: dict[str, Any]
    origin: Origin = "sampler"
    work: float | None = None
    """Expected seconds per epoch on one slot; None where nothing is known."""
    scaling: float | None = None
    """Slots at which half of the speed is lost: an epoch on p slots takes ``work / p * (1 + (p - 1) / scaling)``; None: no loss."""


class Exhausted(Happening, frozen=True, kw_only=True):
    """No untried configuration is left, for this trial and later ones."""

    trial: int


class Launched(Happening, frozen=True, kw_only=True):
    """A process exists for an attempt, and waits for this line."""

    trial: int
    attempt: int
    identity: Identity


class Progressed(Happening, frozen=True, kw_only=True):
    """A running attempt showed how far it has come."""

    trial: int
    attempt: int
    epochs: float
    """Epochs done, with a fraction."""


class Reached(Happening, frozen=True, kw_only=True):
    """An attempt ended its segment with a record.

    ``over``: training needs no further segment (early stop).
    """

    trial: int
    attempt: int
    epochs: int
    value: float
    others: tuple[float, ...] = ()
    """Further objectives, where there are several."""
    over: bool = False
    seconds: float = 0.0
    """Training time of the trial so far, all segments together."""
    memory_mb: float = 0.0
    """Peak memory of one rank; 0 where unknown."""
    speed: float = 0.0
    """Graphs of training per second, all ranks together; 0 where unknown."""


class Failed(Happening, frozen=True, kw_only=True):
    """An attempt ended without a result, for the stated reason."""

    trial: int
    attempt: int
    kind: FailureKind
    message: str
    epochs: int = 0
    """Finished epochs that the trial's checkpoint still holds."""
    suspects: tuple[str, ...] = ()
    """Nodes that are known to be at fault; empty where it can be any of the attempt's."""


class Probed(Happening, frozen=True, kw_only=True):
    """Result of a node's probe, requested or not."""

    node: str
    healthy: bool
    message: str = ""
    seconds: float = 0.0
    """Seconds of a fixed piece of work; 0 where unknown."""


class Stopping(Happening, frozen=True, kw_only=True):
    """The user or the allocation ends the campaign."""

    reason: str
    ending: Literal["stopped", "walltime"] = "stopped"


class Tick(Happening, frozen=True, kw_only=True):
    """Nothing but time passed."""


Event = Opened | Proposed | Exhausted | Launched | Progressed | Reached | Failed | Probed | Stopping | Tick


class Propose(Struct, frozen=True, kw_only=True):
    """Ask the sampler for the configuration of a new trial."""

    trial: int


class Start(Struct, frozen=True, kw_only=True):
    """Train a trial on these slots until so many epochs are done."""

    trial: int
    attempt: int
    until: int
    slots: tuple[str, ...]
    micro_batches: int = 1
    """Parts in which every batch is computed, so that it fits into memory; the step stays the same."""


class Probe(Struct, frozen=True, kw_only=True):
    """See whether a node computes and communicates, with something small and known."""

    node: str


class Cancel(Struct, frozen=True, kw_only=True):
    """Let an attempt save itself and end."""

    trial: int
    attempt: int
    reason: str


class Settle(Struct, frozen=True, kw_only=True):
    """A trial's outcome is final: tell whoever keeps statistics."""

    trial: int
    outcome: Literal["finished", "pruned", "failed", "lost"]


Ending = Literal["finished", "hours", "node_hours", "walltime", "stopped", "hopeless"]


Action = Propose | Start | Probe | Cancel | Settle

KINDS = frozenset(cls.__name__.lower() for cls in get_args(Event))

_DECODER = msgspec.json.Decoder(Event)


def node_of(slot: str) -> str:
    """Return the node of a slot.

    >>> node_of("n7"), node_of("n7/3")
    ('n7', 'n7')
    """
    return slot.partition("/")[0]


def decode_event(data: bytes) -> Event:
    """Return the event of a JSON object that may have other members.

    InputError for an unknown kind or missing members.

    >>> decode_event(b'{"event": "exhausted", "trial": 3, "time": 1.0}')
    Exhausted(trial=3)
    """
    try:
        return _DECODER.decode(data)
    except msgspec.ValidationError as error:
        kind = msgspec.json.decode(data).get("event")
        if kind not in KINDS:
            raise InputError(f"unknown event {kind!r}; it was written by a newer program, update this one") from error
        raise InputError(f"event {kind} is damaged ({error})") from error
