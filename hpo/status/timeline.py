"""Timeline of a campaign: attempts, outages, sessions, and useful time.

*Useful* is training that ends in a result, start-up and saving left out. What ended in a failure of the configuration, what a machine fault
destroyed, what was done twice and what stood idle is not useful.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from hydragnn.hpo.scheduling.events import Event, Failed, Opened, Reached, node_of
from hydragnn.hpo.scheduling.node_health import NodeStatus
from hydragnn.hpo.scheduling.scheduler import MACHINE_FAULTS, State, Trial
from hydragnn.hpo.scheduling.sizing import Load
from hydragnn.record import FailureKind

Outcome = Literal["running", "reached", "finished", "saved", "cut"] | FailureKind
"""Outcome of an attempt. reached: a rung; saved: asked to leave; cut: the controller was gone before it ended."""

FAULTS: dict[str, str] = {
    "lost_node": "a node was lost",
    "launch": "it did not start",
    "preempted": "ended from outside",
    "cut": "the controller was gone",
    "out_of_memory": "out of memory",
}
"""Outcomes in words, where these are not their names."""

USES = {
    "useful": "training that counts",
    "overhead": "start-up, saving, repeated epochs",
    "failed": "trials that failed by themselves",
    "faults": "lost in faults",
    "out": "out of service",
    "idle": "idle",
}
"""Uses of the nodes' time, in words."""

WELL: frozenset[Outcome] = frozenset({"running", "reached", "finished", "saved"})


class Stretch(Struct, frozen=True, kw_only=True):
    """Time of slots with one use; ``ended`` moves while it lasts."""

    slots: tuple[str, ...]
    started: float
    ended: float

    @property
    def seconds(self) -> float:
        """Duration."""
        return self.ended - self.started

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the slots."""
        return tuple(dict.fromkeys(node_of(slot) for slot in self.slots))


class Span(Stretch, frozen=True, kw_only=True):
    """Attempt at a segment."""

    trial: int
    attempt: int
    outcome: Outcome
    epochs: int = 0
    """Epochs gained."""
    useful: float = 0.0
    """Seconds of it that count, or that were an answer where its failure ended the trial."""
    last: bool = False
    """True where its failure ended the trial."""
    suspects: tuple[str, ...] = ()
    message: str = ""


class Outage(Stretch, frozen=True, kw_only=True):
    """Time in which slots of a node were held back."""

    node: str
    kind: NodeStatus
    """probing or quarantined."""


class Session(Stretch, frozen=True, kw_only=True):
    """Time of a controller."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultRow:
    """All failures of one kind."""

    kind: Outcome
    count: int
    trials: int
    nodes: int
    """Nodes at fault; 0 where the fault is not a machine's."""
    node_hours: float
    """Time of nodes that they destroyed."""
    to_sampler: int
    """Number of failures that the sampler got."""
    reasons: dict[str, list[int]]
    """Trials that it ended, by reason."""

    @property
    def what(self) -> str:
        """The kind in words."""
        return FAULTS.get(self.kind, self.kind.replace("_", " "))


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeHours:
    """Uses of the nodes' time; the parts add up to ``allocated``."""

    allocated: float
    useful: float
    overhead: float
    """Start-up and saving."""
    failed: float
    """Attempts whose failure is an answer about the configuration."""
    faults: float
    """Work lost to faults of the machine and ends of controllers."""
    out: float
    """Nodes that were probed or in quarantine."""
    idle: float

    @property
    def goodput(self) -> float | None:
        """The useful share of what was allocated; None before any time passed."""
        return self.useful / self.allocated if self.allocated > 0 else None

    @property
    def uses(self) -> dict[str, float]:
        """Hours by use in words, from a twentieth of a percent."""
        hours = {words: getattr(self, use) for use, words in USES.items()}
        return {words: value for words, value in hours.items() if self.allocated > 0 and value >= 5e-4 * self.allocated}


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """Course of a campaign; running attempts count as useful."""

    spans: tuple[Span, ...] = ()
    outages: tuple[Outage, ...] = ()
    sessions: tuple[Session, ...] = ()

    @property
    def slots(self) -> tuple[str, ...]:
        """Every slot that was ever there, in order."""
        return tuple(dict.fromkeys(slot for session in self.sessions for slot in session.slots))

    @property
    def noun(self) -> str:
        """Noun for a node of the campaign."""
        return "worker" if local_nodes(map(node_of, self.slots)) else "node"

    def node_hours(self) -> NodeHours:
        """The sums over all sessions."""
        nodes = _nodes_of(self.sessions)
        allocated = sum(len(session.nodes) * session.seconds for session in self.sessions)
        uses = dict.fromkeys(USES, 0.0) | {"out": sum(nodes(outage) * outage.seconds for outage in self.outages)}
        for span in self.spans:
            time, share = nodes(span) * span.seconds, min(1.0, span.useful / (span.seconds or 1.0))
            uses["failed" if span.last else "useful"] += time * share
            uses["overhead" if span.outcome in WELL else "faults"] += time * (1 - share)
        uses["idle"] = max(0.0, allocated - sum(uses.values()))
        return NodeHours(allocated=allocated / 3600, **{use: value / 3600 for use, value in uses.items()})

    def faults(self) -> tuple[FaultRow, ...]:
        """Failures by kind, the costliest first."""
        nodes = _nodes_of(self.sessions)
        by_kind: dict[Outcome, list[Span]] = {}
        for span in self.spans:
            if span.outcome not in WELL:
                by_kind.setdefault(span.outcome, []).append(span)
        rows = [_fault_row(kind, spans, nodes) for kind, spans in by_kind.items()]
        return tuple(sorted(rows, key=lambda row: (-row.node_hours, row.kind)))


class TimelineBuilder:
    """Builder of a timeline, event by event."""

    def __init__(self) -> None:
        self.state = State()
        """The campaign after the latest event."""
        self.sessions: list[Session] = []
        self._spans: list[Span] = []
        self._outages: list[Outage] = []
        self._open: dict[str, Outage] = {}
        self._unconfirmed: dict[int, list[int]] = {}
        self._ended = -math.inf
        self._health = 0  # version of the nodes' health that was looked at

    def observe(self, event: Event, after: State, now: float) -> None:
        """Note what an event changed."""
        if isinstance(event, Opened):
            self._on_opened(after.ended, event, now)
        elif after.ended and isinstance(event, Reached | Failed):
            trial, became = after.ended[0], after.trials[event.trial]
            if isinstance(event, Reached):
                self._on_reached(trial, became.status == "finished", event, now)
            else:
                self._on_failed(trial, became, event, now)
        self.state = after
        if after.health.version != self._health:
            self._health = after.health.version
            self._compare_health(now)
        if now > self._ended:
            self._ended = now

    def timeline(self, now: float | None = None) -> Timeline:
        """Return the timeline up to ``now``, or to the latest event."""
        if not self.sessions:
            return Timeline()
        last = replace(self.sessions[-1], ended=self._ended)
        state = self.state
        now = last.ended if now is None or state.closed else max(now, last.ended)
        running = [_span(trial, now, "running", useful=max(0.0, now - trial.started)) for trial in state.running]
        lasting = [replace(outage, ended=now) for outage in self._open.values()]
        return Timeline(
            spans=(*self._spans, *running),
            outages=(*self._outages, *lasting),
            sessions=(*self.sessions[:-1], replace(last, ended=now)),
        )

    def _on_opened(self, before: Sequence[Trial], event: Opened, now: float) -> None:
        """End what ran under the earlier controller, at its last event."""
        if self.sessions:  # else this builder has not seen what was cut
            self.sessions[-1] = replace(self.sessions[-1], ended=self._ended)
            for trial in before:
                self._add(_span(trial, self._ended, "cut"))
            for node in list(self._open):
                self._close(node, self._ended)
        self.sessions.append(Session(slots=event.slots, started=now, ended=now))
        self._ended = now

    def _on_failed(self, trial: Trial, became: Trial, event: Failed, now: float) -> None:
        kind: Outcome = became.failure.kind if became.failure else event.kind
        saved = bool(trial.cancelled) and kind in MACHINE_FAULTS
        span = _span(trial, now, "saved" if saved else kind, epochs=max(0, event.epochs - trial.epochs))
        span = replace(span, suspects=event.suspects, message=event.message)
        if became.status == "failed":  # an answer: nothing of it has to be repeated
            self._spans.append(replace(span, useful=span.seconds, last=True))
            self._unconfirmed.pop(trial.number, None)
        elif became.status == "lost":
            self._spans.append(replace(span, last=True))
            for index in self._unconfirmed.pop(trial.number, ()):
                self._spans[index] = replace(self._spans[index], useful=0.0)
        elif not span.epochs:
            self._add(span)
        elif trial.work is None:
            self._add(replace(span, useful=span.seconds))
        else:
            survived = span.epochs * Load(trial.work, trial.scaling).on(len(span.slots))
            self._add(replace(span, useful=min(span.seconds, survived)))

    def _on_reached(self, trial: Trial, finished: bool, event: Reached, now: float) -> None:
        """Count training time of a record: this attempt's, then earlier ones'."""
        gained = max(0, event.epochs - trial.epochs)
        lasted = max(0.0, now - trial.started)
        trained = event.seconds - trial.seconds if event.seconds > trial.seconds else lasted
        earlier = self._unconfirmed.pop(trial.number, ())
        outcome: Outcome = "finished" if finished else "reached"
        self._spans.append(_span(trial, now, outcome, epochs=gained, useful=min(trained, lasted)))
        rest = max(0.0, trained - lasted)
        for index in reversed(earlier):
            span = self._spans[index]
            self._spans[index] = replace(span, useful=min(rest, span.seconds))
            rest -= self._spans[index].useful

    def _add(self, span: Span) -> None:
        """Add a span whose epochs count once its trial reaches a rung."""
        self._unconfirmed.setdefault(span.trial, []).append(len(self._spans))
        self._spans.append(span)

    def _compare_health(self, now: float) -> None:
        """Begin and end outages where the slots held back change."""
        for name in [*self._open, *(name for name in self.state.health if name not in self._open)]:
            node, outage = self.state.health.get(name), self._open.get(name)
            kind = node.status if node is not None and node.held else "pool"
            if outage is not None and node is not None and (outage.kind, outage.slots) == (kind, node.held):
                continue
            self._close(name, now)
            if node is not None and kind != "pool":
                self._open[name] = Outage(node=name, kind=kind, slots=node.held, started=now, ended=now)

    def _close(self, name: str, now: float) -> None:
        outage = self._open.pop(name, None)
        if outage is not None and now > outage.started:
            self._outages.append(replace(outage, ended=now))


def local_nodes(names: Iterable[str]) -> bool:
    """Return True where nodes are worker processes of one machine.

    >>> local_nodes(["worker-0", "worker-1"]), local_nodes(["n1"])
    (True, False)
    """
    return all(name.startswith("worker-") for name in names)


def _span(trial: Trial, ended: float, outcome: Outcome, *, epochs: int = 0, useful: float = 0.0) -> Span:
    return Span(
        trial=trial.number,
        attempt=trial.attempt,
        slots=trial.slots,
        started=trial.started,
        ended=max(ended, trial.started),
        outcome=outcome,
        epochs=epochs,
        useful=useful,
    )


def _nodes_of(sessions: Sequence[Session]) -> Callable[[Stretch], float]:
    """Return the nodes of a stretch, with slots as shares of one."""
    starts = [session.started for session in sessions]
    tables = [Counter(map(node_of, session.slots)) for session in sessions]

    def nodes(stretch: Stretch) -> float:
        slots = tables[max(0, bisect_right(starts, stretch.started) - 1)]
        return sum(1.0 / max(1, slots[node_of(slot)]) for slot in stretch.slots)

    return nodes


def _fault_row(kind: Outcome, spans: list[Span], nodes_of: Callable[[Stretch], float]) -> FaultRow:
    blamed = kind in MACHINE_FAULTS and kind != "preempted"
    nodes = {node for span in spans for node in span.suspects or span.nodes} if blamed else set()
    lost, reasons = 0.0, dict[str, list[int]]()
    for span in spans:
        lost += (span.seconds - span.useful) * nodes_of(span)
        if span.last:
            reasons.setdefault(short(span.message), []).append(span.trial)
    return FaultRow(
        kind=kind,
        count=len(spans),
        trials=len({span.trial for span in spans}),
        nodes=len(nodes),
        node_hours=max(0.0, lost) / 3600,
        to_sampler=0 if kind in MACHINE_FAULTS else sum(span.last for span in spans),
        reasons=reasons,
    )


def short(message: str) -> str:
    """Return the first and the last line of a message.

    >>> short("exit code 1 without a result\\nTraceback ...\\nImportError: no torch")
    'exit code 1 without a result: ImportError: no torch'
    """
    lines = message.splitlines()
    return ": ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))
