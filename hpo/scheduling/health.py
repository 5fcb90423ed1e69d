"""Health of nodes: strikes, probes, quarantine and probation.

A node that was part of a machine fault is probed before it is used again. At the second strike, or after a failed probe, it
stays out for ``QUARANTINE``. What one bad node explains is not held against the others that worked with it.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from hydragnn.hpo.scheduling.events import Action, Probe, Probed, node_of
from hydragnn.hpo.scheduling.node_health import NodeEntry, Strike
from hydragnn.hpo.scheduling.slowness import SLOW
from hydragnn.hpo.scheduling.state import State, Trial, nodes_of

STRIKES = 2  # attempts that a node disturbs before it is out, however well it answers probes
QUARANTINE = 120.0  # seconds until a node that is out is probed again
WAIT = 30.0  # seconds for which a node lets another one of the same fault go first
FEW = 8  # most nodes that failed together and come back one at a time; more of them would be missed
PATIENCE = 600.0  # seconds after which a probe without an answer counts as failed


def add_strikes(state: State, trial: Trial, suspects: Iterable[str], now: float, *, slow: bool = False) -> list[Action]:
    """Count a fault or slowness against suspects, or all nodes used."""
    used = nodes_of(trial.slots)
    named = [name for name in dict.fromkeys(suspects) if name in state.nodes]
    actions: list[Action] = []
    out: list[str] = []
    for name in named or used:
        node = state.health.get(name, NodeEntry())
        strike = Strike(trial=trial.number, attempt=trial.attempt, slots=used.get(name, state.nodes[name]), slow=slow)
        node = replace(node, strikes=(*node.strikes, strike))
        state.put_node(name, node)
        if len(node.strikes) >= STRIKES and node.status != "quarantined":
            out.append(name)
        elif node.status == "pool":
            actions.append(_start_probe(state, name, now))
    for name in out:
        earliest_end = state.health[name].until if state.health[name].status == "probing" else now
        _quarantine(state, name, now, "attempts keep failing on it", earliest_end)
        if len(out) > 1 and not named:  # one of them is bad, the others shall come back: the next fault decides
            node = state.health[name]
            state.put_node(name, replace(node, strikes=node.strikes[-1:]))
    for name in out if len(out) <= FEW or named else ():
        _clear_partners(state, name)
    return actions


def release_slots(state: State, slots: tuple[str, ...]) -> None:
    """Return the slots of an attempt to the pool or their nodes."""
    good: list[str] = []
    for slot in slots:
        node = state.health.get(node_of(slot))
        if node is None or node.status == "pool":
            good.append(slot)
        else:
            state.put_node(node_of(slot), replace(node, held=(*node.held, slot)))
    state.free.add(good)


def clear_strikes(state: State, slots: tuple[str, ...]) -> None:
    """Forget the strikes of slots on which an attempt succeeded."""
    if not state.health:
        return
    used = frozenset(slots)
    for name in dict.fromkeys(node_of(slot) for slot in slots):
        node = state.health.get(name)
        if node is not None and node.status == "pool":
            strikes = tuple(strike for strike in node.strikes if used.isdisjoint(strike.slots))
            state.put_node(name, replace(node, strikes=strikes) if strikes else None)


def apply_probe(state: State, event: Probed, now: float) -> None:
    """Take a node back, or take it out."""
    if event.node not in state.nodes:
        return
    if not event.healthy:
        if state.health.get(event.node, NodeEntry()).status != "quarantined":
            _quarantine(state, event.node, now, event.message)
            _clear_partners(state, event.node)
    elif event.seconds and event.node in state.health:
        _compare_speed(state, event.node, event.seconds, now)
    else:
        _take_back(state, event.node, now)


def _take_back(state: State, name: str, now: float) -> None:
    """Readmit a node that passed its probe, unless it struck out."""
    node = state.health.get(name, NodeEntry())
    if node.status == "pool":
        return
    struck_out = len(node.strikes) >= STRIKES
    starved = 2 * state.health.out > len(state.nodes) or state.healthy < state.least  # too many are out to be choosy
    if starved or not (struck_out or _has_to_wait(state, name)):
        state.free.add(node.held)
        state.put_node(name, replace(node, status="pool", held=(), until=0.0, message=""))
    elif node.status != "quarantined" and struck_out:
        _quarantine(state, name, now, "attempts keep failing on it")
    elif node.status != "quarantined":
        message = "it waits until a node that failed with it is in use"
        state.put_node(name, replace(node, status="quarantined", until=now + WAIT, message=message))
        state.set(due=min(state.due, now + WAIT))


def _compare_speed(state: State, name: str, seconds: float, now: float) -> None:
    """Note a probe's duration, and compare nodes once all have answered."""
    node = replace(state.health[name], seconds=seconds)
    state.put_node(name, node)
    faults = {strike.fault for strike in node.strikes if strike.slow}
    group = {name, *(partner for fault in faults for partner in state.health.partners(name, fault))}
    if any(state.health[one].status == "probing" and not state.health[one].seconds for one in group):
        return
    times = {one: state.health[one].seconds for one in sorted(group) if state.health[one].seconds}
    reference = node.reference or min(times.values())
    for one, own in times.items():
        strikes = tuple(strike for strike in state.health[one].strikes if strike.fault not in faults or len(times) == 1)
        is_slow = own > SLOW * reference
        changed = replace(state.health[one], strikes=strikes, reference=reference if is_slow else 0.0)
        state.put_node(one, changed)
        if is_slow and changed.status != "quarantined":
            message = f"it is slow: its probe took {own / reference:.1f} times as long as that of another node"
            _quarantine(state, one, now, message)
        elif not is_slow:
            _take_back(state, one, now)


def revisit_nodes(state: State, now: float) -> list[Action]:
    """Probe nodes whose quarantine is over; give up unanswered probes."""
    actions: list[Action] = []
    for name in sorted(name for name, node in state.health.items() if node.status != "pool" and node.until <= now):
        if state.health[name].status == "quarantined":
            actions.append(_start_probe(state, name, now))
        elif state.health[name].seconds:  # it waited for those that were slow with it
            _take_back(state, name, now)
        else:
            _quarantine(state, name, now, "it does not answer its probe")
            _clear_partners(state, name)
    return actions


def reopen_nodes(state: State, now: float) -> list[Action]:
    """Take over nodes: strikes stay, quarantined nodes are probed at once."""
    entries = sorted(state.health.items())
    state.free.clear()
    for name, _ in entries:
        state.put_node(name, None)
    entries = [(name, node) for name, node in entries if name in state.nodes]
    actions: list[Action] = []
    for name, node in entries:
        state.put_node(name, replace(node, held=() if node.status == "pool" else state.nodes[name]))
        if node.status != "pool":
            actions.append(_start_probe(state, name, now))
    good = [slot for slot in state.slots if node_of(slot) not in state.health]
    probation = [slot for name, node in entries if node.status == "pool" for slot in state.nodes[name]]
    state.free.add([*good, *probation])
    return actions


def all_out(state: State) -> bool:
    """True where every node is in quarantine."""
    return bool(state.nodes) and state.health.counts["quarantined"] == len(state.nodes)


def _start_probe(state: State, name: str, now: float) -> Probe:
    """Hold a node back until its probe has answered."""
    node = replace(state.health.get(name, NodeEntry()), status="probing", until=now + PATIENCE, seconds=0.0)
    _hold_back(state, name, node)
    return Probe(node=name)


def _quarantine(state: State, name: str, now: float, message: str, earliest: float = 0.0) -> None:
    node = state.health.get(name, NodeEntry())
    until = max(earliest, now + QUARANTINE)
    _hold_back(state, name, replace(node, status="quarantined", until=until, spells=node.spells + 1, message=message))


def _hold_back(state: State, name: str, node: NodeEntry) -> None:
    """Hold a node's idle slots back."""
    idle = tuple(slot for slot in state.nodes[name] if slot in state.free)
    state.free.remove(idle)
    state.put_node(name, replace(node, held=(*node.held, *idle)))
    state.set(due=min(state.due, node.until))


def _clear_partners(state: State, culprit: str) -> None:
    """Clear the strikes that others share with the culprit."""
    shared = {strike.fault for strike in state.health[culprit].strikes}
    for name in sorted({name for fault in shared for name in state.health.partners(culprit, fault)}):
        node = state.health[name]
        if node.status != "quarantined":
            strikes = tuple(strike for strike in node.strikes if strike.fault not in shared)
            state.put_node(name, replace(node, strikes=strikes))


def _has_to_wait(state: State, name: str) -> bool:
    """Return True while another node of the same fault is idle.

    In one attempt again, a second fault would not tell which is bad.
    """
    partners: set[str] = set()
    for strike in (strike for strike in state.health[name].strikes if not strike.slow):
        for partner in state.health.partners(name, strike.fault):
            partners.add(partner)
            if len(partners) >= FEW:
                return False
    return any(slot in state.free for partner in partners for slot in state.nodes[partner])
