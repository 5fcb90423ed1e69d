"""Which nodes can be trusted: strikes, probes, quarantine and probation.

A node that was part of a machine fault is probed before it is used again. At the second strike, or after a failed probe, it
stays out for a time that doubles. What one bad node explains is not held against the others that worked with it.
"""

import math
from collections.abc import Iterable

from immutables import Map

from hydragnn.hpo.scheduling.events import Action, Probe, Probed, node_of
from hydragnn.hpo.scheduling.pool import Pool
from hydragnn.hpo.scheduling.state import Node, State, Strike, Trial
from hydragnn.hpo.scheduling.values import replace

STRIKES = 2
"""So many attempts that a node disturbs before it is out, however well it answers probes."""

BACK_OFF = 30.0
"""Seconds of the first quarantine."""

LONGEST = 3600.0
"""Seconds of the longest quarantine."""

FEW = 8
"""So many nodes that failed together come back one at a time; more of them would be missed."""

PATIENCE = 600.0
"""Seconds after which a probe without an answer counts as failed."""


def struck(state: State, trial: Trial, suspects: Iterable[str], now: float) -> tuple[State, list[Action]]:
    """Hold a machine fault of ``trial`` against the suspects, or against all of its nodes where there are none."""
    if state.simple:
        return state, []
    used: dict[str, tuple[str, ...]] = {}
    for place in trial.places:
        used[node_of(place)] = (*used.get(node_of(place), ()), place)
    named = [name for name in dict.fromkeys(suspects) if name in state.nodes]
    actions: list[Action] = []
    out: list[str] = []
    for name in named or used:
        node = state.health.get(name, Node())
        strike = Strike(trial=trial.number, attempt=trial.attempt, places=used.get(name, state.nodes[name]))
        node = replace(node, strikes=(*node.strikes, strike))
        state = _with(state, name, node)
        if len(node.strikes) >= STRIKES and node.status != "quarantined":
            out.append(name)
        elif node.status == "pool":
            state = _probing(state, name, now)
            actions.append(Probe(node=name))
    for name in out:
        asked = state.health[name].until if state.health[name].status == "probing" else now
        state = _quarantined(state, name, now, "attempts keep failing on it", asked)
        if (
            len(out) > 1 and not named
        ):  # one of them is bad, the others shall come back: the next fault tells them apart
            node = state.health[name]
            state = _with(state, name, replace(node, strikes=node.strikes[-1:]))
    for name in out if len(out) <= FEW or named else ():
        state = _explained(state, name)
    return state, actions


def released(state: State, places: tuple[str, ...]) -> State:
    """The state after an attempt gave its places back: to the pool, or to nodes that are held back."""
    if not state.health:
        return replace(state, free=state.free.with_places(places))
    good: list[str] = []
    for place in places:
        node = state.health.get(node_of(place))
        if node is None or node.status == "pool":
            good.append(place)
        else:
            state = _with(state, node_of(place), replace(node, held=(*node.held, place)))
    return replace(state, free=state.free.with_places(good))


def cleared(state: State, places: tuple[str, ...]) -> State:
    """The state after a success on these places: strikes that they brought are forgotten."""
    if not state.health:
        return state
    done = frozenset(places)
    for name in dict.fromkeys(node_of(place) for place in places):
        node = state.health.get(name)
        if node is not None and node.status == "pool":
            strikes = tuple(strike for strike in node.strikes if done.isdisjoint(strike.places))
            health = state.health.set(name, replace(node, strikes=strikes)) if strikes else state.health.delete(name)
            state = replace(state, health=health)
    return state


def probed(state: State, event: Probed, now: float) -> tuple[State, list[Action]]:
    """Take a node back, or take it out; an answer that changes nothing leaves the state as it is."""
    node = state.health.get(event.node, Node())
    if event.node not in state.nodes:
        return state, []
    if not event.healthy:
        if node.status == "quarantined":
            return state, []
        return _explained(_quarantined(state, event.node, now, event.message), event.node), []
    if node.status == "pool":
        return state, []
    struck_out = len(node.strikes) >= STRIKES
    if _starved(state) or not (struck_out or _has_to_wait(state, event.node)):
        return _readmitted(state, event.node), []
    if node.status == "quarantined":
        return state, []
    if struck_out:
        return _quarantined(state, event.node, now, "attempts keep failing on it"), []
    message = "it waits until a node that failed with it is in use"
    waits = replace(node, status="quarantined", until=now + BACK_OFF, message=message)
    return replace(_with(state, event.node, waits), due=min(state.due, waits.until)), []


def revisited(state: State, now: float) -> tuple[State, list[Action]]:
    """Probe the nodes whose quarantine is over, and give up probes that nobody answers."""
    actions: list[Action] = []
    for name in sorted(name for name, node in state.health.items() if node.status != "pool" and node.until <= now):
        if state.health[name].status == "quarantined":
            state = _probing(state, name, now)
            actions.append(Probe(node=name))
        else:
            state = _explained(_quarantined(state, name, now, "it does not answer its probe"), name)
    return state, actions


def reopened(state: State, now: float) -> tuple[State, list[Action]]:
    """The health of the nodes that a new controller has: strikes stay, and whatever was out is probed at once."""
    before = sorted((name, node) for name, node in state.health.items() if name in state.nodes)
    state = replace(state, health=Map(), free=Pool())
    actions: list[Action] = []
    for name, node in before:
        held = () if node.status == "pool" else state.nodes[name]
        state = _with(state, name, replace(node, held=held))
        if node.status != "pool":
            state = _probing(state, name, now)
            actions.append(Probe(node=name))
    good = [place for place in state.places if node_of(place) not in state.health]
    probation = [place for name, node in before if node.status == "pool" for place in state.nodes[name]]
    return replace(state, free=state.free.with_places([*good, *probation])), actions


def all_out(state: State) -> bool:
    """True where every node is in quarantine."""
    if not state.nodes or len(state.health) < len(state.nodes):
        return False
    return all(node.status == "quarantined" for node in state.health.values())


def next_visit(state: State) -> float:
    """When the clock alone changes a node next."""
    return min((node.until for node in state.health.values() if node.status != "pool"), default=math.inf)


def _probing(state: State, name: str, now: float) -> State:
    node = replace(state.health.get(name, Node()), status="probing", until=now + PATIENCE)
    return _held_back(state, name, node)


def _quarantined(state: State, name: str, now: float, message: str, earliest: float = 0.0) -> State:
    node = state.health.get(name, Node())
    until = max(earliest, now + min(LONGEST, BACK_OFF * 2.0 ** min(node.spells, 10)))
    node = replace(node, status="quarantined", until=until, spells=node.spells + 1, message=message)
    return _held_back(state, name, node)


def _held_back(state: State, name: str, node: Node) -> State:
    """The state in which a node's idle places wait with it; those in use follow when their attempts end."""
    idle = tuple(place for place in state.nodes[name] if place in state.free)
    state = replace(state, free=state.free.without(idle), due=min(state.due, node.until))
    return _with(state, name, replace(node, held=(*node.held, *idle)))


def _readmitted(state: State, name: str) -> State:
    node = state.health[name]
    state = replace(state, free=state.free.with_places(node.held))
    return _with(state, name, replace(node, status="pool", held=(), until=0.0, message=""))


def _explained(state: State, culprit: str) -> State:
    """Forget the strikes that other nodes have from attempts in which the culprit took part."""
    shared = {(strike.trial, strike.attempt) for strike in state.health[culprit].strikes}
    for name, node in sorted(state.health.items()) if shared else ():
        strikes = tuple(strike for strike in node.strikes if (strike.trial, strike.attempt) not in shared)
        if name != culprit and node.status != "quarantined" and len(strikes) < len(node.strikes):
            state = _with(state, name, replace(node, strikes=strikes))
    return state


def _has_to_wait(state: State, name: str) -> bool:
    """True while another node that failed with this one is idle: in one attempt again, a second fault would not tell which is bad."""
    faults = {(strike.trial, strike.attempt) for strike in state.health[name].strikes}
    partners = [
        partner
        for partner, other in state.health.items()
        if partner != name and any((strike.trial, strike.attempt) in faults for strike in other.strikes)
    ]
    if len(partners) >= FEW:
        return False
    return any(place in state.free for partner in partners for place in state.nodes[partner])


def _starved(state: State) -> bool:
    """True where so many nodes are out that no attempt could start, or more than half: then a good probe is believed."""
    out = sum(node.status != "pool" for node in state.health.values())
    return 2 * out > len(state.nodes) or state.healthy < state.least


def _with(state: State, name: str, node: Node) -> State:
    return replace(state, health=state.health.set(name, node))
