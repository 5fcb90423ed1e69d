"""Attempt whose run another process trains together with others (``hydragnn.runs.company``).

The first guest starts the company. Where it dies, or nothing beats any more, each of its guests trains its run alone, from the
last checkpoint: so a fault costs the others their last epochs at most, and shows whose it is. Only the standard library is
imported here, because many guests wait on every node.
"""

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

COMPANY = "hydragnn.runs.company"
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
START = 300.0  # seconds that a company may take to come up
LOOK = 5.0  # seconds between looks at the heartbeat
PAUSE = 0.05  # seconds between looks for the socket


def attend(
    place: str, members: int, patience: float, request: dict[str, Any], *, alone: Callable[[dict[str, Any]], int]
) -> int:
    """Have the run trained in company, else ``alone``; gives the exit code."""
    signals: list[int] = []
    connection: socket.socket | None = None

    def leave(number: int, frame: Any) -> None:
        signals.append(number)
        with suppress(OSError):
            if connection is not None:
                connection.sendall(b"term\n")

    handlers = {number: signal.signal(number, leave) for number in STOPPING}
    code = None
    with suppress(OSError, ValueError):
        connection = company_at(Path(place), members)
        if connection is not None and not signals:
            with connection:
                code = wait_for(connection, Path(place), patience, request)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    if code is not None:
        return code
    if signals:
        os.kill(os.getpid(), signals[0])  # it was to save itself, and there is nothing to save any more
    print("trained alone from here on: the process that trains several runs has ended or does not answer", flush=True)
    return alone(request)


def wait_for(connection: socket.socket, place: Path, patience: float, request: dict[str, Any]) -> int | None:
    """Return the run's exit code; None if the shared process ends."""
    connection.sendall(json.dumps(request).encode() + b"\n")
    heartbeat, begun = Path(request.get("beats") or f"{request['arguments'][0]}/heartbeat"), time.time()
    while True:
        if select.select([connection], [], [], LOOK)[0]:
            answer = connection.recv(64)
            return int(answer) if answer else None
        last = begun
        with suppress(OSError):
            last = max(begun, heartbeat.stat().st_mtime)
        if time.time() - last > patience:
            with suppress(OSError, ValueError):
                os.kill(int(beside(place, "pid").read_text(encoding="ascii")), signal.SIGKILL)
            return None


def company_at(place: Path, members: int) -> socket.socket | None:
    """Return a connection to the shared process; the first attempt starts it."""
    with beside(place, "lock").open("a", encoding="ascii") as lock:
        with suppress(OSError):  # no locks there: of two that start, the later one stays
            fcntl.flock(lock, fcntl.LOCK_EX)
        connection = connected(place)
        if connection is not None:
            return connection
        place.unlink(missing_ok=True)
        command = [sys.executable, "-P", "-m", COMPANY, str(place), "--members", str(members)]
        with beside(place, "log").open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        beside(place, "pid").write_text(str(process.pid), encoding="ascii")
        deadline = time.monotonic() + START
        while connection is None and process.poll() is None and time.monotonic() < deadline:
            time.sleep(PAUSE)
            connection = connected(place)
        return connection


def beside(place: Path, suffix: str) -> Path:
    """A file that belongs to the socket at a place."""
    return place.with_name(f"{place.name}.{suffix}")


def connected(place: Path) -> socket.socket | None:
    """A connection to whoever listens at a place; None where nobody does."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(place))
    except OSError:
        connection.close()
        return None
    return connection
