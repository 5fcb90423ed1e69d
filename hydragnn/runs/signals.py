"""Signals that ask a run to stop: noticed between steps, or at once while there is nothing to save yet."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from hydragnn.errors import Interrupted

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

Handler = Callable[[int, FrameType | None], None]


class Signals:
    """SIGINT, SIGTERM and SIGUSR1 as far as they were received."""

    def __init__(self) -> None:
        """Nothing was received yet."""
        self.received = False


@contextmanager
def trap_signals() -> Iterator[Signals]:
    """Note SIGINT, SIGTERM and SIGUSR1 for the length of the block, outside the main thread nothing.

    A second SIGINT ends the process as usual. A second SIGTERM does not, because launchers send several while they wait for
    their ranks. SIGUSR1 is what schedulers send some time before an allocation ends.
    """
    signals, interrupt = Signals(), signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        signals.received = True
        if number == signal.SIGINT:
            signal.signal(number, interrupt)

    with _handled_by(note, STOPPING):
        yield signals


@contextmanager
def interrupt_at_once() -> Iterator[None]:
    """Let SIGTERM and SIGUSR1 raise Interrupted for the length of the block, while there is nothing to save yet."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise Interrupted(f"stopped by {signal.Signals(number).name} before the first step")

    with _handled_by(leave, (signal.SIGTERM, signal.SIGUSR1)):
        yield


@contextmanager
def _handled_by(handler: Handler, numbers: Sequence[signal.Signals]) -> Iterator[None]:
    """Only the main thread may handle signals; in others the block runs as it is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
