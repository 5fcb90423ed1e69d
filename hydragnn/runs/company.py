"""One process that trains the runs of several attempts together.

Each trains as if alone; steps are stacked where that is faster.

    python -m hydragnn.runs.company PLACE --members N

Attempts are processes of their own, guests that have nothing to do but to wait: they connect to the socket at PLACE and send
the arguments of ``hydragnn.runs.run``, a line of JSON; ``term`` later asks their run to save itself. The answer is the exit
code. A guest that dies takes its run with it and leaves the others; where this process dies, guests train their runs
alone. It ends by itself when nobody is there and nobody has come for a while, or its socket is gone.
"""

import argparse
import gc
import io
import json
import os
import select
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch

from hydragnn.base.allocator import keep_memory
from hydragnn.base.files import open_log
from hydragnn.base.terminal import PlainConsole
from hydragnn.distributed.ranks import join_ranks
from hydragnn.record import RunRecord
from hydragnn.runs.attempt import Attempt, Fenced, Heartbeat
from hydragnn.runs.callback import RunCallback
from hydragnn.runs.progress import console_progress
from hydragnn.runs.run import FENCED, code_of, ended_by, parse, what_to_train
from hydragnn.runs.session import ready_run, select_device, steps_to_end
from hydragnn.runs.signals import STOPPING, Signals, handled_by
from hydragnn.runs.together import advance
from hydragnn.training.loop import StepRequest, Steps
from hydragnn.training.together import Member, Outcome, Together

IDLE = 30.0
"""Seconds without guests after which it ends."""

REQUEST = 10.0
"""Seconds that a guest may take to say what it wants."""


@dataclass(kw_only=True, slots=True, eq=False)
class Guest:
    """An attempt, its connection and its run."""

    connection: socket.socket
    attempt: Attempt
    log: IO[str]
    signals: Signals
    heart: Heartbeat | None = None
    member: Member | None = None
    steps: Steps[RunRecord] | None = None
    outcome: Outcome | None = None

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Send what is printed in the block to the run's log."""
        with redirect_stdout(self.log), redirect_stderr(self.log):
            yield
            self.log.flush()

    def heed(self) -> bool:
        """Take in what the guest says; False where it is gone."""
        if not select.select([self.connection], [], [], 0.0)[0]:
            return True
        try:
            words = self.connection.recv(4096)
        except OSError:
            return False
        self.signals.received |= b"term" in words
        return words != b""

    def dismiss(self, code: int | None) -> None:
        """Report the exit code, if any, and forget the run."""
        with suppress(OSError):
            if code is not None:
                self.connection.sendall(f"{code}\n".encode())
        self.connection.close()
        self.log.close()
        if self.steps is not None:
            self.steps.close()


class Company:
    """Clients of a shared process; each round takes one step of all."""

    def __init__(self, listener: socket.socket, device: torch.device, members: int) -> None:
        """``members``: so many share the memory, however many are present."""
        self.listener, self.device, self.members = listener, device, members
        self.guests: list[Guest] = []
        self.together = Together()

    def look(self) -> None:
        """One step of every run that is present."""
        for guest in [guest for guest in self.guests if not guest.heed()]:
            self.remove(guest, None)
        while select.select([self.listener], [], [], 0.0 if self.guests else 1.0)[0]:
            self.welcome(self.listener.accept()[0])
        requests: dict[Member, StepRequest] = {}
        for guest in list(self.guests):
            request = self.next_step(guest)
            if request is not None and guest.member is not None:
                requests[guest.member] = request
        outcomes = self.together.take(requests) if requests else {}
        for guest in self.guests:
            guest.outcome = outcomes.get(guest.member) if guest.member is not None else None

    def welcome(self, connection: socket.socket) -> None:
        """Prepare the run of a new client, or write why not."""
        try:
            line, _, more = line_from(connection).partition(b"\n")
            request = json.loads(line)
            options = parse(request["arguments"])
            log = io.TextIOWrapper(open_log(Path(request["log"])), encoding="utf-8", line_buffering=True)
        except (OSError, ValueError, KeyError, TypeError, SystemExit):
            connection.close()  # the guest is gone, or trains alone
            return
        torch.set_num_threads(options.threads)
        attempt = Attempt(folder=options.folder, number=options.attempt, beats=options.beats)
        guest = Guest(connection=connection, attempt=attempt, log=log, signals=Signals())
        guest.signals.received = b"term" in more
        self.guests.append(guest)
        with guest.speaking():
            try:
                self.make_ready(guest, options)
            except Exception as error:
                self.remove(guest, code_after(error, attempt))

    def make_ready(self, guest: Guest, options: argparse.Namespace) -> None:
        """Return a client's run, new or from its last checkpoint."""
        attempt = guest.attempt
        attempt.check()
        config, store = what_to_train(options, attempt)
        with join_ranks(options.folder, self.device) as ranks:
            run, guest.heart, stopwatch = ready_run(
                config,
                attempt,
                ranks,
                self.device,
                resume=True,
                store=store,
                parts=options.micro_batches,
                memory=options.memory,
                members=self.members,
                siblings=self.hearts,
            )
            progress = console_progress(PlainConsole(file=guest.log))
            callback = RunCallback(run, ranks, stopwatch, guest.signals, guest.heart, progress)
        guest.member = Member(state=run.state, context=run.context, note=callback.add_note)
        guest.steps = steps_to_end(run, callback, options.until)

    def hearts(self) -> list[Heartbeat]:
        """The hearts of all runs, which beat while one of them works."""
        return [guest.heart for guest in self.guests if guest.heart is not None]

    def next_step(self, guest: Guest) -> StepRequest | None:
        """Return the next step of a run; None at its end."""
        assert guest.steps is not None
        with guest.speaking():
            try:
                return advance(guest.steps, guest.outcome)
            except StopIteration as end:
                code = code_of(end.value)
            except Exception as error:
                code = code_after(error, guest.attempt)
        self.remove(guest, code)
        return None

    def remove(self, guest: Guest, code: int | None) -> None:
        """Let a guest go."""
        self.guests.remove(guest)
        guest.dismiss(code)
        gc.collect()  # the run and its store, whose memory others need


def line_from(connection: socket.socket) -> bytes:
    """Return a client's first line and what follows; OSError on time-out."""
    connection.settimeout(REQUEST)
    received = b""
    while b"\n" not in received:
        received += (more := connection.recv(4096))
        if not more:
            raise ConnectionError("the guest is gone")
    return received


def code_after(error: Exception, attempt: Attempt) -> int:
    """Record how a run ended; return its exit code."""
    try:
        return ended_by(error, attempt)
    except Fenced as note:
        print(note, file=sys.stderr)
        return FENCED


@contextmanager
def listening(place: Path) -> Iterator[socket.socket]:
    """Open a socket at ``place`` that accepts connections at once."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        early = place.with_name(f"{place.name}.{os.getpid()}")
        listener.bind(str(early))
        listener.listen(64)
        early.rename(place)
        yield listener


def main(arguments: list[str] | None = None) -> None:
    """Train whoever comes, until nobody does."""
    parser = argparse.ArgumentParser(prog="python -m hydragnn.runs.company", description=__doc__)
    parser.add_argument("place", type=Path, help="socket")
    parser.add_argument("--members", type=int, required=True, help="runs that share the memory")
    parser.add_argument("--device", default=None, help="cpu, cuda or cuda:N (default: a GPU where there is one)")
    options = parser.parse_args(arguments)
    keep_memory()
    # guests are asked to leave themselves, and say so
    with listening(options.place) as listener, handled_by(lambda number, frame: None, STOPPING):
        company = Company(listener, select_device(options.device), options.members)
        present_at = time.monotonic()
        while company.guests or (time.monotonic() - present_at < IDLE and options.place.exists()):
            company.look()
            present_at = time.monotonic() if company.guests else present_at


if __name__ == "__main__":
    main()
