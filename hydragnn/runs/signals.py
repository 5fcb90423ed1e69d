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
def raise_signals(
    numbers: Sequence[signal.Signals], error: Callable[[signal.Signals], BaseException]
) -> Iterator[Callable[[], None]]:
    """Let signals raise ``error`` for the length of the block; gives a check that raises it again.

    Python drops what a signal raises while it is inside ``__del__`` or a callback of a weak reference, and so do libraries
    inside their callbacks. So the signal is noted as well: whoever works in the block calls the check before every unit of work.
    """
    received: list[signal.Signals] = []

    def check() -> None:
        if received:
            raise error(received[0])

    def leave(number: int, frame: FrameType | None) -> None:
        received.append(signal.Signals(number))
        check()

    with _handled_by(leave, numbers):
        yield check


@contextmanager
def interrupt_at_once() -> Iterator[Callable[[], None]]:
    """Let SIGINT, SIGTERM and SIGUSR1 raise Interrupted for the length of the block, while there is nothing to save yet.

    Gives the check of ``raise_signals``, which is made once more at the end of the block.
    """
    with raise_signals(STOPPING, lambda kind: Interrupted(f"stopped by {kind.name} before the first step")) as check:
        yield check
        check()


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
