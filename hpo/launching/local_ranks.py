"""Ranks of one local attempt: forks of its process.

Ranks meet by a file, so that no port is taken. They are of the attempt's process group, which ends as a whole. Only
the standard library is imported here, as in ``worker.py``.
"""

import os
import secrets
import signal
import time

PATIENCE = 15.0
"""Seconds that ranks get after the first failure.

The first waits 5 for what its peers say, others 5 for what it records.
"""
PAUSE = 0.02  # seconds between looks at ranks


def fork_ranks(count: int) -> list[int]:
    """Fork so many ranks; return their numbers, and none in a rank."""
    start, pids = {"MASTER_ADDR": "localhost", "TORCHELASTIC_RUN_ID": secrets.token_hex(8)}, list[int]()
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
            os.environ.update({**start, **{name: str(number) for name, number in numbers.items()}})
            return []
        pids.append(pid)
    return pids


def first_end(pids: list[int]) -> int:
    """Return the first failed rank's exit code, once all ended.

    128 and the number of a signal for a rank that was killed. SIGTERM is passed on. Ranks that outlive a failure are killed.
    """
    left, first, deadline = dict(enumerate(pids)), (0, 0), float("inf")

    def pass_on(number: int, _: object) -> None:
        for pid in left.values():
            os.kill(pid, number)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, pass_on)
    while left:
        for rank in [
            rank for rank, pid in left.items() if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        ]:
            code = os.waitstatus_to_exitcode(os.waitpid(left.pop(rank), 0)[1])
            if code and not first[1]:
                first, deadline = (rank, code), time.monotonic() + PATIENCE
        if time.monotonic() > deadline:
            pass_on(signal.SIGKILL, None)
        time.sleep(PAUSE)
    rank, code = first
    if code:
        how = f"ended with exit code {code}" if code > 0 else f"was killed by {signal.Signals(-code).name}"
        print(f"rank {rank} of {len(pids)} was the first to fail: it {how}", flush=True)
    return code if code >= 0 else 128 - code
