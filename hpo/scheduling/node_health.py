"""Strikes, probes and quarantines of nodes."""

from collections import Counter
from typing import Literal

from msgspec import Struct

NodeStatus = Literal["pool", "probing", "quarantined"]
Fault = tuple[int, int]  # a trial and its attempt


class Strike(Struct, frozen=True, kw_only=True):
    """An attempt that failed or was slow on a node."""

    trial: int
    attempt: int
    slots: tuple[str, ...]
    """Slots of the node that it used."""
    slow: bool = False
    """True where it was slow and did not fail."""

    @property
    def fault(self) -> Fault:
        """Return the attempt."""
        return self.trial, self.attempt


class NodeEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Health of a node; a node without an entry is healthy."""

    status: NodeStatus = "pool"
    """pool: in use, on probation; probing: waits for its probe; quarantined: out until its next probe."""
    strikes: tuple[Strike, ...] = ()
    held: tuple[str, ...] = ()
    """Slots that are kept back."""
    until: float = 0.0
    """End of the quarantine, or of the wait for a probe."""
    spells: int = 0
    """Quarantines so far."""
    message: str = ""
    seconds: float = 0.0
    """Duration of the fixed work of its last probe; 0: not reported."""
    reference: float = 0.0
    """Duration on the node that it was slow beside."""


class NodeHealth(dict[str, NodeEntry]):
    """Nodes with entries, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[NodeStatus] = Counter()
        self.held = 0
        """Slots that are kept back."""
        self.together: dict[Fault, dict[str, None]] = {}
        """Nodes that have a strike from an attempt."""
        self.version = 0
        """Number of changes so far."""

    @property
    def out(self) -> int:
        """Return how many nodes are probed or in quarantine."""
        return len(self) - self.counts["pool"]

    def put(self, name: str, node: NodeEntry | None) -> None:
        """Replace the entry of a node; None removes it.

        >>> health = NodeHealth()
        >>> health.put("a", NodeEntry(status="probing", strikes=(Strike(trial=1, attempt=2, slots=("a/0",)),), held=("a/0",)))
        >>> health.out, health.held, list(health.partners("b", (1, 2)))
        (1, 1, ['a'])
        """
        self.version += 1
        previous = self.pop(name) if node is None else self.get(name)
        if previous is not None:
            self.counts[previous.status] -= 1
            self.held -= len(previous.held)
            for strike in previous.strikes:
                names = self.together.get(strike.fault, {})
                names.pop(name, None)
                if not names:
                    self.together.pop(strike.fault, None)
        if node is not None:
            self[name] = node
            self.counts[node.status] += 1
            self.held += len(node.held)
            for strike in node.strikes:
                self.together.setdefault(strike.fault, {})[name] = None

    def partners(self, name: str, fault: Fault) -> list[str]:
        """Return the other nodes that have a strike from an attempt."""
        return [other for other in self.together.get(fault, ()) if other != name]
