"""Usage in records: time by phase, busy share, joules."""

import math
import time
from collections import Counter as Sums
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from hydragnn.base.clock import Clock
from hydragnn.distributed.ranks import CPU, Ranks
from hydragnn.record import Cost, RunRecord, Usage, read_record, write_record
from hydragnn.runs import callback
from hydragnn.runs.callback import Stopwatch
from hydragnn.runs.energy import Counter, Meter
from hydragnn.training import loop, parameters
from hydragnn.training.data import DevicePlacement
from hydragnn.training.executor import EagerSteps
from tests.hydragnn.training.conftest import CHARGE, Trained, finish, launch, make_config, start_ranks, wait_for

PHASES = {"data", "forward", "backward", "collectives", "optimizer", "validation", "saving", "other"}


def assert_whole(record: RunRecord) -> None:
    """Check that the phases add up to the wall time."""
    phases, seconds = record.usage.phases, record.cost.seconds
    assert sum(phases.values()) == pytest.approx(seconds, rel=0.02)
    assert min(phases.values()) > 0.0
    assert phases.keys() == PHASES - ({"collectives"} if record.cost.ranks == 1 else set())
    assert record.usage.busy is not None and 0.0 < record.usage.busy <= 1.0
    assert (record.usage.joules is None) == (record.usage.energy_source == "not measured")


def slow(function: Any) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        time.sleep(0.02)
        return function(*arguments, **options)

    return call


SLOW: list[tuple[str, Any, str]] = [
    ("data", DevicePlacement, "parts"),
    ("forward", EagerSteps, "loss"),
    ("backward", torch.autograd, "grad"),
    ("optimizer", parameters.Optimizer, "step"),
    ("validation", loop, "flat_metrics"),
    ("saving", callback, "save_checkpoint"),
    ("other", loop, "label_counts"),
]


@pytest.mark.parametrize(("name", "owner", "function"), SLOW, ids=[one[0] for one in SLOW])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_time_counts_for_the_phase_in_which_it_passes(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, name: str, owner: Any, function: str, micro_batches: int
) -> None:
    settings: dict[str, Any] = {"heads": [CHARGE], "train__epochs": 1, "micro_batches": micro_batches}
    before = trained("before", **settings).usage.phases
    calls = 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += Clock.running.phase in (("other", "step") if name == "other" else PHASES - {"other"})
        return original(*arguments, **options)

    original = getattr(owner, function)
    monkeypatch.setattr(owner, function, slow(counted))
    record = trained("run", **settings)
    assert_whole(record)
    assert calls and record.usage.phases[name] >= 0.02 * calls
    others = {one: value for one, value in record.usage.phases.items() if one not in (name, "other")}
    assert sum(others.values()) < sum(before.values()) + 0.5 * 0.02 * calls + 0.5, "not for the others"


def test_a_resumed_run_goes_on_with_its_sums_and_a_killed_one_with_those_of_its_last_record(
    trained: Trained, tmp_path: Path
) -> None:
    first = trained(until=2)
    assert_whole(first)
    before = first.usage.phases
    second = trained(resume=True)
    assert_whole(second)
    assert all(second.usage.phases[name] > before[name] for name in before)
    config, run = make_config(train__epochs=2000), tmp_path / "killed"
    process = launch({run: config})
    wait_for(run / "checkpoints" / "latest.json", process)
    while process.poll() is None and read_record(run).cost.seconds < 0.5:  # both clocks are read one after the other
        time.sleep(0.02)
    process.kill()
    process.communicate()
    killed = read_record(run)
    assert sum(killed.usage.phases.values()) == pytest.approx(killed.cost.seconds, rel=0.04)
    third = trained("killed", config, resume=True, until=max(4, killed.epochs + 1))
    assert third.cost.seconds > killed.cost.seconds
    assert_whole(third)


@pytest.mark.parametrize("parts", ["1", "3"])
def test_two_ranks_add_up_and_wait_for_each_other(tmp_path: Path, parts: str) -> None:
    finish(*start_ranks({tmp_path / "run": make_config()}, 2, "--micro-batches", parts))
    assert_whole(read_record(tmp_path / "run"))


class Peers(Ranks):
    """Two ranks, of which the other used three times as much."""

    def gather(self, values: Tensor) -> Tensor:
        return torch.stack([values, 3.0 * values])


def meter_of(joules: float | None, source: str = "RAPL") -> Meter:
    """Return a meter with so many joules."""
    meter = Meter(CPU)
    meter.counter = None if joules is None else Counter(source, lambda: [1.0])
    meter.values = lambda: [math.nan if joules is None else joules, 0.2]  # type: ignore[method-assign]
    return meter


BEFORE = {"forward": 3.0, "other": 1.0}
"""Phases of an earlier segment, in seconds."""

SUMS: list[tuple[str, Usage, float | None, Ranks, float | None, str]] = [
    ("one segment", Usage(), 5.0, Ranks(), 5.0, "RAPL"),
    ("two", Usage(phases=BEFORE, busy=0.6, joules=7.0, energy_source="RAPL", flops=2.0), 5.0, Ranks(), 12.0, "RAPL"),
    ("on two machines", Usage(phases=BEFORE, busy=0.6, joules=7.0, energy_source="NVML"), 5.0, Ranks(), 12.0, "NVML; RAPL"),
    ("again on one of them", Usage(phases=BEFORE, busy=0.6, joules=7.0, energy_source="NVML; RAPL"), 5.0, Ranks(), 12.0, "NVML; RAPL"),
    ("two ranks", Usage(), 5.0, Peers(size=2), 20.0, "RAPL"),
    ("no counter", Usage(), None, Ranks(), None, "not measured"),
    ("no counter before", Usage(phases=BEFORE, busy=0.6), 5.0, Ranks(), None, "not measured"),
    ("an earlier version before", Usage(flops=1.0), 5.0, Ranks(), None, "not measured"),
    ("no counter now", Usage(phases=BEFORE, busy=0.6, joules=7.0, energy_source="RAPL"), None, Ranks(), None, "not measured"),
]  # fmt: skip


@pytest.mark.parametrize(("used", "own", "ranks", "joules", "source"), [one[1:] for one in SUMS], ids=[one[0] for one in SUMS])  # fmt: skip
def test_joules_are_sums_over_segments_and_ranks_or_nothing(
    used: Usage, own: float | None, ranks: Ranks, joules: float | None, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopwatch = Stopwatch(Cost(seconds=4.0 * (used != Usage())), used, ranks, meter_of(own))
    work = stopwatch.work
    work.rates = {0: (4.5, 1.0)}
    work.costs, work.seen, Clock.running.steps = Sums({0: 1}), 2, 4
    stopwatch.share_usage()
    stopwatch.start -= 4.0
    usage = stopwatch.usage({"forward": 1.0})
    assert (usage.joules, usage.energy_source, usage.flops) == (joules, source, used.flops + ranks.size**2 * 9.0)
    mean = 0.2 if ranks.size == 1 else 0.4
    assert usage.busy == pytest.approx(mean if not used.phases else (mean + 0.6) / 2, rel=1e-3)
    assert usage.phases["forward"] == used.phases.get("forward", 0.0) + 1.0
    assert usage.phases["other"] == pytest.approx(used.phases.get("other", 0.0) + 3.0, rel=1e-3)


def test_until_ranks_meet_they_count_as_alike_so_that_no_earlier_sum_is_lost() -> None:
    used = Usage(phases=BEFORE, busy=0.6, joules=7.0, energy_source="RAPL")
    usage = Stopwatch(Cost(seconds=4.0), used, Peers(size=2), meter_of(5.0)).usage({})
    assert usage.joules == 17.0
    assert usage.busy == pytest.approx(0.6, rel=1e-2), "of a moment after four seconds"


def test_a_segment_of_which_nothing_tells_the_busy_share_keeps_that_of_the_earlier() -> None:
    meter = meter_of(None)
    meter.values = lambda: [math.nan, math.nan]  # type: ignore[method-assign]
    used = Usage(phases=BEFORE, busy=0.6)
    assert Stopwatch(Cost(seconds=4.0), used, Ranks(), meter).usage({}).busy == pytest.approx(0.6)
    assert Stopwatch(Cost(), Usage(), Ranks(), meter).usage({}).busy is None


def test_counters_change_no_bit(trained: Trained, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain = trained("plain")
    reads = Mock(side_effect=[[float(number)] for number in range(10_000)])
    monkeypatch.setattr("hydragnn.runs.energy.counters", lambda *_: [Counter("RAPL", reads, 1.0)])
    measured = trained("measured")
    assert plain.curves == measured.curves
    assert measured.usage.joules is not None and measured.usage.joules > reads.call_count - 5.0
    assert measured.usage.energy_source == "RAPL"


def test_records_without_usage_are_read_and_go_on(trained: Trained, tmp_path: Path) -> None:
    record = trained(until=1)
    write_record(replace(record, usage=Usage()), tmp_path / "run")
    later = trained(resume=True)
    assert 0.0 < sum(later.usage.phases.values()) < later.cost.seconds


TOOL = '#!/bin/sh\necho "$@" >> "$(dirname "$0")/calls"\nexit {code}\n'


@pytest.mark.parametrize("code", [0, 3])
def test_omnistat_marks_every_segment_and_its_failure_ends_none(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    tool = tmp_path / "omnistat-annotate"
    tool.write_text(TOOL.format(code=code))
    tool.chmod(0o755)
    trained("before")
    monkeypatch.setenv("OMNISTAT_DIR", str(tmp_path))
    assert trained(until=1).status == "paused" and trained(resume=True).status == "finished"
    one = f"--mode start --text hydragnn train {tmp_path / 'run'}\n--mode stop\n"
    assert (tmp_path / "calls").read_text() == 2 * one
    assert capsys.readouterr().err.count("note: omnistat-annotate: ") == (4 if code else 0)
