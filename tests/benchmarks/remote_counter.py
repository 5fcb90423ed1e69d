"""A number in another rank's memory, on a virtual clock."""

from collections import Counter

from hydragnn.ensemble.prediction.queues import LocalCounter

SERVICE = 2e-6
"""Seconds for which a number that is counted up keeps others waiting."""

SLOT = 10
"""Requests among which the simulation keeps no order."""


class Clock:
    """The virtual time of the rank whose turn it is."""

    now = 0.0


class RemoteCounter(LocalCounter):
    """A number in another rank's window: a request takes a while, and requests wait for each other.

    Turns are not simulated in the order in which requests arrive, so a request is served in the first slot after its
    arrival that has room, whoever was simulated before it. One that arrives while a rank still fetches what it puts there
    is made again after that.
    """

    def __init__(self, clock: Clock, latency: float) -> None:
        """``latency`` in seconds."""
        super().__init__()
        self._clock, self._latency, self._served, self._filled = clock, latency, Counter[int](), 0.0

    def add(self, amount: int) -> int:
        """Count up after the request has arrived and its turn has come."""
        self._wait()
        if self._clock.now < self._filled:
            self._clock.now = self._filled
            self._wait()
        return super().add(amount)

    def put(self, value: int) -> None:
        """Replace the number after the request has arrived and its turn has come."""
        self._wait()
        self._filled = self._clock.now
        super().put(value)

    def _wait(self) -> None:
        arrived = self._clock.now + self._latency
        slot = int(arrived / (SLOT * SERVICE))
        while self._served[slot] == SLOT:
            slot += 1
        self._served[slot] += 1
        self._clock.now = max(arrived, slot * SLOT * SERVICE) + SERVICE
