"""The timeline accounts for every second of every node, and says what faults cost."""

from itertools import pairwise
from typing import Any

import pytest
from clockwork import play, timeline_builder
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn.hpo.scheduling.events import Event, Failed, Launched, Opened, Plan, Proposed, Reached, Stopping, node_of
from hydragnn.hpo.scheduling.scheduler import MACHINE_FAULTS, decide
from hydragnn.hpo.status.timeline import Timeline, TimelineBuilder

PLAN = Plan(trials=12, rungs=(2, 6, 18), finalists=2)


def timeline_after(*events: tuple[float, Event]) -> Timeline:
    return timeline_builder(events).timeline()


OPENED = (100.0, Opened(plan=Plan(trials=1, rungs=(2, 4)), slots=("n1", "n2")))
PROPOSED = (100.0, Proposed(trial=0, values={"model.hidden_dim": 8}))


Spans = list[tuple[str, int, float, float, float]]
COURSES: dict[str, tuple[list[tuple[float, Event]], Spans, list[tuple[Any, ...]]]] = {
    "an attempt counts with what its record vouches for": (
        [(130.0, Reached(trial=0, attempt=1, epochs=2, value=1.0, seconds=24.0))],
        [("reached", 1, 100.0, 130.0, 24.0)],
        [],
    ),
    # the record says 40 s of training: what does not fit into the second attempt was done by the first
    "what survives a machine fault counts once the trial reaches its rung": (
        [
            (150.0, Failed(trial=0, attempt=1, kind="lost_node", message="", epochs=1, suspects=("n1",))),
            (175.0, Reached(trial=0, attempt=2, epochs=2, value=1.0, seconds=40.0)),
        ],
        [
            ("lost_node", 1, 100.0, 150.0, 15.0),
            ("reached", 2, 150.0, 175.0, 25.0),
        ],
        [("lost_node", 1, 1, 1, 0, 35.0)],
    ),
    "a failure of the configuration is an answer and nothing of it is lost": (
        [(160.0, Failed(trial=0, attempt=1, kind="diverged", message="loss is nan"))],
        [("diverged", 1, 100.0, 160.0, 60.0)],
        [("diverged", 1, 1, 0, 1, 0.0)],
    ),
    "an attempt that was asked to leave is no fault": (
        [
            (120.0, Stopping(reason="SIGTERM")),
            (121.0, Failed(trial=0, attempt=1, kind="preempted", message="saved")),
        ],
        [("saved", 1, 100.0, 121.0, 0.0)],
        [],
    ),
    "a killed controller cuts its attempts at its last sign of life": (
        [
            (110.0, Launched(trial=0, attempt=1, identity={"pid": 1})),
            (900.0, Opened(plan=PLAN, slots=("n1",))),
            (950.0, Stopping(reason="SIGTERM")),
        ],
        [("cut", 1, 100.0, 110.0, 0.0), ("running", 2, 900.0, 950.0, 50.0)],
        [("cut", 1, 1, 0, 0, 10.0)],
    ),
}


@pytest.mark.parametrize(("events", "spans", "faults"), COURSES.values(), ids=COURSES)
def test_attempts_and_faults_have_their_time(
    events: list[tuple[float, Event]], spans: Spans, faults: list[tuple[Any, ...]]
) -> None:
    timeline = timeline_after(OPENED, PROPOSED, *events)
    assert [(s.outcome, s.attempt, s.started, s.ended, s.useful) for s in timeline.spans] == spans
    rows = timeline.faults()
    assert [(row.kind, row.count, row.trials, row.nodes, row.to_sampler) for row in rows] == [row[:5] for row in faults]
    assert [3600 * row.node_hours for row in rows] == pytest.approx([row[5] for row in faults])


def test_node_hours_are_what_was_allocated_and_its_uses() -> None:
    reached = (130.0, Reached(trial=0, attempt=1, epochs=2, value=1.0, seconds=24.0))
    hours = timeline_after(OPENED, PROPOSED, reached).node_hours()
    assert hours.allocated == pytest.approx(60 / 3600)
    assert hours.overhead == pytest.approx(6 / 3600)
    assert hours.idle == pytest.approx(30 / 3600)
    assert hours.goodput == pytest.approx(24 / 60)


def test_sessions_may_divide_their_nodes_into_other_numbers_of_slots() -> None:
    """Four trials on a node, then one on another: both nodes are full, and no more than that."""
    plan = Plan(trials=5, rungs=(2, 4))

    def course(first: int, slots: tuple[str, ...], begin: float, seconds: float) -> list[tuple[float, Event]]:
        trials = range(first, first + len(slots))
        reached = [Reached(trial=n, attempt=1, epochs=2, value=1.0, seconds=seconds) for n in trials]
        return [
            (begin, Opened(plan=plan, slots=slots)),
            *((begin, Proposed(trial=n, values={"model.hidden_dim": 8 + n})) for n in trials),
            *((begin + seconds, one) for one in reached),
        ]

    both = [*course(0, ("a/0", "a/1", "a/2", "a/3"), 100.0, 100.0), *course(4, ("b",), 300.0, 10.0)]
    hours = timeline_after(*both).node_hours()
    assert hours.allocated == pytest.approx(110 / 3600)
    assert hours.goodput == pytest.approx(1.0)


def test_who_sees_a_resumed_controller_alone_counts_its_time_alone() -> None:
    state = timeline_builder([OPENED, PROPOSED, (110.0, Launched(trial=0, attempt=1, identity={"pid": 1}))]).state
    later = TimelineBuilder()
    for now, event in (
        (900.0, Opened(plan=PLAN, slots=("n1",))),
        (950.0, Reached(trial=0, attempt=2, epochs=2, value=1.0, seconds=90.0)),
    ):
        decide(state, event, now)
        later.observe(event, state, now)
    assert later.timeline().node_hours().goodput == pytest.approx(1.0)


def test_running_attempts_count_until_proven_otherwise() -> None:
    builder = timeline_builder([OPENED, PROPOSED])
    assert builder.timeline().node_hours().goodput is None
    hours = builder.timeline(now=200.0).node_hours()
    assert (hours.useful, hours.goodput) == (pytest.approx(100 / 3600), pytest.approx(0.5))


def test_nothing_is_known_before_the_first_event() -> None:
    assert TimelineBuilder().timeline() == Timeline()
    assert Timeline().node_hours().goodput is None


@given(
    seed=st.integers(0, 2**16),
    slots=st.integers(1, 6),
    own=st.sampled_from([0.0, 0.2]),
    machine=st.sampled_from([0.0, 0.3]),
    bad=st.booleans(),
    stop=st.sampled_from([None, 300.0]),
    kill=st.sampled_from([None, 500.0]),
)
@settings(max_examples=40, deadline=None)
def test_every_second_of_every_node_is_accounted_for(
    seed: int, slots: int, own: float, machine: float, bad: bool, stop: Any, kill: Any
) -> None:
    player = play(PLAN, slots, seed=seed, own=own, machine=machine, bad=("n1",) if bad else ())
    if kill:
        player.session(kill_after=kill)
    if stop:
        player.session(stop_after=stop)
    player.session()
    builder = timeline_builder(player.events)
    timeline = builder.timeline()
    hours = timeline.node_hours()
    parts = hours.useful + hours.faults + hours.overhead + hours.out + hours.idle
    assert parts == pytest.approx(hours.allocated)
    assert all(-1e-9 <= span.useful <= span.seconds + 1e-9 for span in timeline.spans)
    for slot in timeline.slots:
        mine = sorted((span.started, span.ended) for span in timeline.spans if slot in span.slots)
        assert all(before[1] <= after[0] for before, after in pairwise(mine))
        lost = [o for o in timeline.outages if o.node == node_of(slot)]
        assert not any(o.started < ended and began < o.ended for o in lost for began, ended in mine)
    rows = {row.kind: row for row in timeline.faults()}
    failed = [event for _, event in player.events if isinstance(event, Failed)]
    saved = sum(span.outcome == "saved" for span in timeline.spans)
    assert sum(row.count for kind, row in rows.items() if kind != "cut") + saved == len(failed)
    assert all(row.to_sampler == 0 for kind, row in rows.items() if kind in MACHINE_FAULTS)
