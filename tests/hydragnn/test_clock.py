"""Time of a run by phase, on hosts and devices."""

from collections.abc import Iterator
from contextlib import suppress

import pytest

from hydragnn.base import clock
from hydragnn.base.clock import EVERY, FIRST, Clock, phase, steps_of


class Machine:
    """Host whose time passes by hand, and device with a queue."""

    def __init__(self) -> None:
        self.now, self.free = 0.0, 0.0

    def compute(self, seconds: float) -> None:
        """Let the host compute."""
        self.now += seconds

    def launch(self, seconds: float) -> None:
        """Queue work of the device, which costs the host a hundredth."""
        self.now += 0.01 * seconds
        self.free = max(self.free, self.now) + seconds

    def wait(self) -> None:
        """Wait for the device."""
        self.now = max(self.now, self.free)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    one = Machine()
    monkeypatch.setattr(Clock, "running", Clock(now=lambda: one.now))
    yield one


def test_a_phase_suspends_the_one_around_it_and_nothing_but_steps_is_divided(machine: Machine) -> None:
    machine.compute(0.5)
    with phase("forward"), phase("collectives"):
        machine.compute(0.5)
    with phase("step"), phase("backward"):
        machine.compute(2.0)
        with phase("collectives"):
            machine.compute(4.0)
        machine.compute(8.0)
    with phase("validation"), phase("forward"), phase("collectives"):
        machine.compute(16.0)
    with suppress(KeyError), phase("saving"):
        machine.compute(32.0)
        raise KeyError
    machine.compute(64.0)
    assert Clock.running.phases() == {"backward": 10.0, "collectives": 4.0, "validation": 16.0, "saving": 32.0}
    assert Clock.running.seconds["other"] == 65.0


def waiting_for(machine: Machine, count: int, seconds: float) -> Iterator[int]:
    for number in range(count):
        machine.compute(seconds)
        yield number


def test_waits_for_items_are_data_and_gaps_in_steps_are_other(machine: Machine) -> None:
    for number in steps_of(waiting_for(machine, 5, 0.5)):
        machine.compute(0.25)
        with phase("forward"):
            machine.compute(1.0)
        if number == 3:
            break
    machine.compute(2.0)
    assert Clock.running.phases() == {"data": 2.0, "forward": 4.0}
    assert machine.now == 9.0 and Clock.running.phase == "other"


@pytest.mark.parametrize("ends", [FIRST, FIRST + 1, 3 * EVERY], ids=["in a measured step", "after it", "later"])
def test_all_steps_of_a_device_are_divided_as_the_few_that_wait_for_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, ends: int
) -> None:
    monkeypatch.setattr(Clock, "running", Clock(machine.wait, lambda: machine.now))
    waits = 0

    def counted() -> None:
        nonlocal waits
        waits += 1
        machine.wait()

    Clock.running.wait = counted
    for number in steps_of(range(4 * EVERY)):
        with phase("forward"):
            machine.launch(1.0)
        with phase("backward"):
            machine.launch(2.0)
        if number > 0 and machine.free - machine.now > 6.0:  # what the loop reads is a step behind
            machine.now = machine.free - 3.0
        if number == ends:
            break
    steps = machine.now
    with phase("saving"):
        machine.compute(100.0)
    machine.wait()
    phases = Clock.running.phases()
    assert phases["saving"] == 100.0
    assert phases["backward"] / phases["forward"] == pytest.approx(2.0, rel=0.02)
    assert phases["forward"] + phases["backward"] + phases.get("data", 0.0) <= steps * 1.0001
    assert phases["forward"] + phases["backward"] > 0.95 * steps
    assert 3 <= waits <= 10 * (1 + ends // EVERY), "all other steps wait for nothing"
    assert not Clock.running.weight


def test_a_host_divides_few_later_steps_and_all_time_counts(machine: Machine) -> None:
    looks = 0

    def look() -> float:
        nonlocal looks
        looks += 1
        return machine.now

    Clock.running.now = look
    for _ in range(2):
        for number in steps_of(waiting_for(machine, 1000, 0.5)):
            with phase("forward"):
                machine.compute(1.0)
                phase("backward")(machine.compute)(2.0 + number % 2)
            machine.compute(0.5)
    assert looks < 2000, "four of every step that is divided, and a phase more where one ends"
    phases = Clock.running.phases()
    assert sum(phases.values()) == pytest.approx(8000.0, rel=0.02)
    assert phases == pytest.approx({"data": 1000.0, "forward": 2000.0, "backward": 5000.0}, rel=0.03)


def test_replays_are_divided_as_the_host_computed_before_they_were_recorded(machine: Machine) -> None:
    for number in steps_of(range(3)):
        with phase("replay"):
            if number == 0:
                with phase("forward"):
                    machine.compute(1.0)
                    with phase("backward"):
                        machine.compute(3.0)
            else:
                machine.compute(10.0)
    assert Clock.running.phases() == {"data": 0.0, "forward": 6.0, "backward": 18.0}
    monkeyed = Clock(now=lambda: machine.now)
    Clock.running = monkeyed
    with phase("step"), phase("replay"):
        machine.compute(2.0)
    assert monkeyed.phases() == {"forward": 1.0, "backward": 1.0}, "nothing says more"


def test_a_phase_costs_a_few_microseconds() -> None:
    with phase("step"):
        begin = clock.time.perf_counter()
        for _ in range(10_000):
            with phase("collectives"):
                pass
        assert (clock.time.perf_counter() - begin) / 10_000 < 5e-5
