"""A prediction by thousands of ranks on a virtual clock: the predictor's own plan and queues, ended as one rank was measured to."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from remote_counter import Clock, RemoteCounter

from hydragnn.ensemble.plan import makespan
from hydragnn.ensemble.prediction import work
from hydragnn.ensemble.prediction.looking import FILES
from hydragnn.ensemble.prediction.queues import POSTS, RELAY, Note, Queue, learned_rates, queue_for
from hydragnn.ensemble.prediction.schedule import PAUSES, SHARE, make_schedule

ARCHITECTURES = (48.2, 26.1, 173.3, 301.4, 526.5, 94.6, 120.3, 26.8)
"""Milliseconds per batch of 32 graphs, energy and forces: EGNN, SchNet, PaiNN, MACE, DimeNet, PNAPlus, PNAEq, PNA."""


LOOKS = ("listing", "looking", "knowing", "saying", "hearing", "finding")
"""What files of ranks are for: they are listed, looked into for all, known, told to all where what is, heard of, and pieces found in them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """Seconds of a processor beside those of units: ``batch`` per chunk to read it, and make what members share of it, for one rank more; after all units ``laying``, ``filling`` and ``combining`` per chunk,
    ``opening`` for the file, ``reading`` of what was laid out; per file of a rank those of ``LOOKS``; ``keeping`` is the part of their units' seconds that whole chunks take more, to become a piece."""

    keeping: float
    batch: float
    opening: float
    laying: float
    reading: float
    filling: float
    combining: float
    segment: float
    """Chunks of a segment of the file."""
    listing_files: float
    looking_files: float
    knowing_files: float
    saying_files: float
    hearing_files: float
    finding_files: float

    def seen(self, ranks: int) -> float:
        """Until one rank knows what is in a file of every rank, which look into them together."""
        return ranks * (self.listing_files + self.knowing_files) + min(ranks, FILES) * self.looking_files


def simulated(
    loads: Sequence[float],
    seconds: np.ndarray,
    expected: Sequence[float],
    ranks: int,
    latency: float,
    ending: Ending,
) -> dict[str, float]:
    """Makespan over bound on a virtual clock, and what is left of the ideal at the end; ``seconds[chunk, member]`` is what units really take."""
    ends, spread = work_done(loads, seconds, expected, ranks, latency, ending)
    ended = max(ends)
    ideal = float(seconds.sum()) * (1 + ending.keeping) / ranks
    bound = max(ideal, float(seconds.max()))
    foretold = np.outer(loads, seconds.sum(axis=0) / sum(loads))
    waits, combined, joining = ended_together(ended - min(ends), len(loads), spread, ranks, latency, ending)
    return {
        "ranks": ranks,
        "units_per_rank": seconds.size / ranks,
        "scatter": float((seconds / foretold).std()),
        "ratio": ended / bound,
        "bound_s": bound,
        "combining_s": combined,
        "waiting_s": waits,
        "joining_s": joining,
        "of_ideal": ideal / (ended + waits + combined + joining),
    }


def work_done(
    loads: Sequence[float],
    seconds: np.ndarray,
    expected: Sequence[float],
    ranks: int,
    latency: float,
    ending: Ending,
) -> tuple[list[float], int]:
    """When every rank has done its units, by the predictor's own plan and queues, and how many chunks have members on several ranks."""
    clock, members, weights = Clock(), len(expected), np.asarray(loads)
    every = np.ones((len(loads), members), dtype=np.bool_)
    schedule = make_schedule(weights, every, ~every, expected, held=members, ranks=ranks)
    (lane,) = schedule.lanes
    spent, load = np.zeros((ranks, members)), np.zeros((ranks, members))
    posts: dict[int, Note] = {}
    stages = [lane.first(weights, expected)]
    queues = [_queues(stages[0].bundles.costs, ranks, clock, latency)]
    turns = [(0.0, rank, 0) for rank in range(ranks)]
    ends, spread = list[float](), set[int]()
    while turns:
        clock.now, rank, stage = heapq.heappop(turns)
        if stage == lane.stages:
            ends.append(clock.now)
            continue
        if stage == len(stages):
            rates = learned_rates(expected, [posts[key] for key in sorted(posts)], clock.now)
            stages.append(lane.following(stage, stages[-1], weights, rates))
            queues.append(_queues(stages[-1].bundles.costs, ranks, clock, latency))
        position = queues[stage][rank // RELAY].take()
        if position is None:
            heapq.heappush(turns, (clock.now, rank, stage + 1))
            continue
        units = stages[stage].bundles[position]
        if rank % max(1, ranks // POSTS) == 0:
            running = [units[0].member, loads[units[0].chunk], clock.now] if len(units) == 1 else []
            posts[rank] = {"seconds": spent[rank].tolist(), "load": load[rank].tolist(), "running": running}
        if len(units) < members:
            spread.add(units[0].chunk)
            clock.now += ending.batch * (1 - len(units) / members)  # the rest of it is in the seconds of units
        else:
            clock.now += ending.keeping * float(seconds[units[0].chunk].sum())
        for unit in units:
            took = float(seconds[unit.chunk, unit.member])
            clock.now += took
            spent[rank, unit.member] += took
            load[rank, unit.member] += loads[unit.chunk]
        heapq.heappush(turns, (clock.now, rank, stage))
    return ends, len(spread)


def ended_together(
    idle: float, chunks: int, spread: int, ranks: int, latency: float, ending: Ending
) -> tuple[float, float, float]:
    """Seconds of waiting, of combining what was spread, and of laying out and filling the file, where the first rank was idle so long."""
    turns_of = np.array_split(np.arange(spread), min(spread, work.TURNS * ranks) or 1)
    combined = makespan([len(turn) * ending.combining for turn in turns_of], ranks)
    looking = ending.seen(ranks) + ranks * (ending.saying_files + ending.hearing_files)
    finding = ending.seen(ranks) + ranks * (ending.listing_files + 2 * ending.finding_files)  # twice as many files now
    laying = finding + ending.opening + ending.laying * chunks
    segments = -(-chunks // ending.segment)
    one = min(ending.segment, chunks) * (ending.filling + ending.looking_files)  # each chunk's piece is in another file
    filling = ending.reading + makespan([one] * int(segments), ranks)
    words = sum(map(asked_after, (idle, looking, combined, laying, filling)))
    return looking + words + 10 * latency, combined, laying + filling


def asked_after(waited: float) -> float:
    """Seconds after which a rank that has waited so long hears that all is there."""
    return min(max(SHARE * waited, PAUSES[0]), PAUSES[1])


def _queues(costs: np.ndarray, ranks: int, clock: Clock, latency: float) -> list[Queue]:
    """A queue per group of ranks."""
    root = RemoteCounter(clock, latency)
    relays = range(-(-ranks // RELAY))
    return [queue_for(costs, ranks, root, RemoteCounter(clock, latency)) for _ in relays]


def recorded(chunks: int, account: Sequence[Sequence[float]], members: int) -> np.ndarray:
    """Seconds of every unit of a measured run, ``[chunk, member]``."""
    seconds = np.full((chunks, members), np.nan)
    for chunk, member, took in account:
        seconds[int(chunk), int(member)] = took
    return seconds


def resampled(
    loads: Sequence[float], seconds: np.ndarray, units: int, generator: np.random.Generator
) -> tuple[list[float], np.ndarray]:
    """As many chunks as make so many units, drawn from the recorded ones with sizes a quarter up and down."""
    sample = generator.integers(0, len(loads), max(1, units // seconds.shape[1]))
    factor = generator.uniform(0.75, 1.25, len(sample))
    return (np.asarray(loads)[sample] * factor).tolist(), seconds[sample] * factor[:, None]


def architectures(
    units: int, error: float, generator: np.random.Generator
) -> tuple[list[float], np.ndarray, list[float]]:
    """Units of ten members of very different cost; batches vary by half, and units by 10 % around their member's rate.

    What is expected of a member before it is measured is off by ``error`` (the standard deviation of its logarithm).
    """
    rates = np.array([ARCHITECTURES[i % 8] for i in range(10)]) * 1e-3 * generator.uniform(1, 1.5, 10)
    loads = generator.uniform(0.7, 1.4, max(1, units // 10))
    seconds = np.outer(loads, rates) * generator.lognormal(0, 0.1, (len(loads), 10))
    return loads.tolist(), seconds, (rates * generator.lognormal(0, error, 10)).tolist()
