"""How many job steps a scheduler is asked to carry, and to start in a second."""

STEPS_AT_ONCE = 90
"""Frontier's Slurm carries about 100 concurrent steps of a job; the rest is for probes and what ends."""
STEP_RATE = 5.0
"""Steps per second: a tenth of what a small slurmctld starts, because it serves the whole machine."""
OWN_AT_ONCE, OWN_RATE = 500, 20.0
"""The same where the allocation manages its own steps (Flux, Slurm's ``--stepmgr``); every step costs this node a process."""
BURST = 10


class TokenBucket:
    """At most ``rate`` per second in the long run, and ``burst`` at once."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst, self._tokens = rate, burst, float(burst)
        self._at: float | None = None

    def take(self, now: float) -> bool:
        """Return True where one may start now; if so it counts.

        >>> bucket = TokenBucket(rate=2.0, burst=1)
        >>> [bucket.take(now) for now in (0.0, 0.1, 0.5)]
        [True, False, True]
        """
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._tokens, self._at = min(self._burst, self._tokens + passed * self._rate), now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
