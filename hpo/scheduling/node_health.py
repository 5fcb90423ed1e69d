"""What speaks against nodes, as one value: who is out and who failed together is counted once, not at every decision."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from immutables import Map
from msgspec import Struct

Key = TypeVar("Key", bound=str)
NodeStatus = Literal["pool", "probing", "quarantined"]
Fault = tuple[int, int]
"""A trial and its attempt."""


class Strike(Struct, frozen=True, kw_only=True):
    """An attempt that a fault of the machine ended, or that was slow, while it used the node."""

    trial: int
    attempt: int
    slots: tuple[str, ...]
    """The node's slots that it used."""
    slow: bool = False
    """True where it did not fail, but was slow."""

    @property
    def fault(self) -> Fault:
        """The attempt that it is about."""
        return self.trial, self.attempt


class Node(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What speaks against a node; a node without an entry is in good health."""

    status: NodeStatus = "pool"
    """pool: in use, on probation; probing: waits for its probe; quarantined: out until its next probe."""
    strikes: tuple[Strike, ...] = ()
    held: tuple[str, ...] = ()
    """Its slots that are kept back."""
    until: float = 0.0
    """When the quarantine ends, or a probe counts as failed."""
    spells: int = 0
    """Quarantines so far; each is twice as long as the one before."""
    message: str = ""
    seconds: float = 0.0
    """How long its last probe took for a fixed piece of work; 0: nobody says."""
    reference: float = 0.0
    """How long that of another node took, beside which it is slow."""


@dataclass(frozen=True, slots=True)
class NodeHealth(Mapping[str, Node]):
    """Nodes with something against them, by name, with what is known of all of them."""

    nodes: Map[str, Node] = field(default_factory=Map)
    counts: Map[NodeStatus, int] = field(default_factory=Map)
    """How many of them have a status."""
    held: int = 0
    """Slots that are kept back."""
    together: Map[Fault, Map[str, None]] = field(default_factory=Map)
    """Nodes that have a strike from an attempt."""

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[str]:
        return iter(self.nodes)

    @property
    def out(self) -> int:
        """Nodes that are probed or in quarantine."""
        return len(self.nodes) - self.counts.get("pool", 0)

    def with_node(self, name: str, node: Node) -> "NodeHealth":
        """The value in which this is what speaks against a node.

        >>> strike = Strike(trial=1, attempt=2, slots=("a/0",))
        >>> health = NodeHealth().with_node("a", Node(status="probing", strikes=(strike,), held=("a/0",)))
        >>> health.out, health.held, list(health.partners("b", (1, 2)))
        (1, 1, ['a'])
        """
        before = self.nodes.get(name)
        counts = self.counts
        if before is None or before.status != node.status:
            if before is not None:
                counts = with_count(counts, before.status, -1)
            counts = with_count(counts, node.status, 1)
        return NodeHealth(
            self.nodes.set(name, node),
            counts,
            self.held + len(node.held) - (0 if before is None else len(before.held)),
            _indexed(self.together, name, () if before is None else before.strikes, node.strikes),
        )

    def without(self, name: str) -> "NodeHealth":
        """The value in which nothing speaks against a node that was in it."""
        before = self.nodes[name]
        return NodeHealth(
            self.nodes.delete(name),
            with_count(self.counts, before.status, -1),
            self.held - len(before.held),
            _indexed(self.together, name, before.strikes, ()),
        )

    def partners(self, name: str, fault: Fault) -> Iterator[str]:
        """The other nodes that have a strike from an attempt."""
        return (other for other in self.together.get(fault, ()) if other != name)


def with_count(counts: Map[Key, int], key: Key, more: int) -> Map[Key, int]:
    """Counts with one of them changed; what is counted no more is left out.

    >>> dict(with_count(Map({"a": 1}), "a", -1))
    {}
    """
    count = counts.get(key, 0) + more
    return counts.set(key, count) if count else counts.delete(key)


def _indexed(
    together: Map[Fault, Map[str, None]], name: str, before: tuple[Strike, ...], after: tuple[Strike, ...]
) -> Map[Fault, Map[str, None]]:
    """Who failed together, where a node's strikes are others than before."""
    if before is after:
        return together
    old, new = {strike.fault for strike in before}, {strike.fault for strike in after}
    for fault in old - new:
        rest = together[fault].delete(name)
        together = together.set(fault, rest) if rest else together.delete(fault)
    for fault in new - old:
        together = together.set(fault, together.get(fault, Map()).set(name, None))
    return together
