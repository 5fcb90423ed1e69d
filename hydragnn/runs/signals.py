"""Signals that stop a run, between steps or at once."""

import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from hydragnn.base.errors import Interrupted

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Ctrl-C, a polite kill, a closed terminal, and what schedulers send some time before an allocation ends."""

Handler = Callable[[int, FrameType | None], None]


@contextmanager
def trap_signals() -> Iterator[list[int]]:
    """Yield the signals received in the block; only in the main thread.

    A second SIGINT ends the process as usual. A second SIGTERM does not, because launchers send several while they wait for
    their ranks.
    """
    received, interrupt = list[int](), signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if number == signal.SIGINT:
            signal.signal(number, interrupt)

    with handled_by(note, STOPPING):
        yield received


@contextmanager
def raise_signals(
    numbers: Sequence[signal.Signals], error: Callable[[signal.Signals], BaseException]
) -> Iterator[Callable[[], None]]:
    """Raise ``error`` on signals in the block; yield a check.

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

    with handled_by(leave, numbers):
        yield check


@contextmanager
def interrupt_at_once() -> Iterator[Callable[[], None]]:
    """Raise Interrupted on signals in the block; yield a check."""
    with raise_signals(STOPPING, lambda kind: Interrupted(f"stopped by {kind.name} before the first step")) as check:
        yield check
        check()


@contextmanager
def handled_by(handler: Handler, numbers: Sequence[signal.Signals] = STOPPING) -> Iterator[None]:
    """Handle signals in the block; only in the main thread.

    SIGHUP stays ignored where it is (``nohup``). Else the terminal is gone once it comes, and what is printed goes nowhere.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            null = os.open(os.devnull, os.O_RDWR)
            for standard in range(3):
                with suppress(OSError):
                    if stat.S_ISCHR(os.fstat(standard).st_mode):
                        os.dup2(null, standard)
            os.close(null)
        handler(number, frame)

    previous = {number: signal.getsignal(number) for number in numbers}
    own = [number for number in numbers if number != signal.SIGHUP or previous[number] != signal.SIG_IGN]
    for number in own:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in own:
            signal.signal(number, previous[number])
