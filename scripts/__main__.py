"""Command ``hydragnn``: import the command line, which takes seconds, without tracebacks."""

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import hydragnn
from hydragnn.base.environment import environment
from hydragnn.base.errors import NO_MEMORY, wants_memory

STOPPING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals that ask a search to stop, beside Ctrl-C."""


def main() -> None:
    """Import the command line and run it.

    Exit with 130 on Ctrl-C, and with 2 where a package is missing or the files of another lie over this one's.
    """
    if "build_ensemble" not in getattr(hydragnn, "__all__", ()):
        _end(
            f"the files of another package that is called hydragnn, too (the public HydraGNN), were installed over those of hydragnn-ensemble in {sys.prefix}, "
            "or removed with some of these; give each an environment of its own"
        )
    _check_surroundings()
    try:
        if re.search(r"--workers[= ](?!1( |$))", " ".join(sys.argv)):
            from hydragnn.base.forked import load_early

            if sys.argv[1] == "predict":  # the modules that only local workers of a command need
                load_early("hydragnn.ensemble.prediction.predict")
            elif sys.argv[1:3] == ["data", "build"]:
                load_early("hydragnn.distributed.building", "ase.io.extxyz", "h5py", "vesin")
        with _interrupted_once(), _search_can_stop(sys.argv[1:]):
            from hydragnn.scripts.cli import main as command

            command()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "hydragnn"):
            raise
        _end(f"the package {package} is not installed in {sys.prefix}; `pip install {package}`")
    except (ImportError, MemoryError) as error:
        if not wants_memory(error):
            raise
        _end(NO_MEMORY)


@contextmanager
def _interrupted_once() -> Iterator[None]:
    """Exit with 130 after Ctrl-C, whatever error a library makes of it."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, note)
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception:
        if not received:
            raise
        sys.exit(130)


@contextmanager
def _search_can_stop(words: list[str]) -> Iterator[None]:
    """Let signals end a search that has not begun.

    The exit code is 75 in an allocation, which is over then, else 130.
    """
    if words[:1] != ["search"] and "--train" not in words:
        yield
        return

    from hydragnn.hpo.launching.sites import in_allocation

    ended = in_allocation(environment())

    def stop(number: int, frame: FrameType | None) -> None:
        where = " in a new allocation" if ended else ""
        print(
            f"interrupted: stopped by {signal.Signals(number).name} before the search began; start it again{where} with --resume",
            file=sys.stderr,
            flush=True,
        )
        sys.exit(75 if ended else 130)

    numbers = [number for number in STOPPING if signal.getsignal(number) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _check_surroundings() -> None:
    """Exit with a sentence where libraries could not be imported."""
    try:
        Path.cwd()
    except OSError:
        _end("the folder that this command was started in is gone; cd to another")
    try:
        Path.home()
    except RuntimeError:
        _end("the system knows no home folder of this user, and libraries look for their settings there; set HOME")


def _end(sentence: str) -> None:
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
