"""A worker's process: loads the training code once, then makes one attempt after another by fork.

    python worker.py MODULE [--company PLACE --members N --patience S]

Reads requests as JSON lines and writes reports as JSON lines; ``local.py`` is the other side. With a company, attempts have
their runs trained by the process that listens at PLACE (``guest.py``). An attempt waits for the word "go", so that the journal knows it before it works. Where the controller ends, however it ends, this process reads
the end of its input, and takes its attempt and all that the attempt started with it; where this process ends, the
attempt notices by its own pipe. Only the standard library is imported here, because forking needs a process without threads.
"""

import argparse
import gc
import importlib
import importlib.util
import json
import os
import runpy
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

PAUSE = 0.02  # seconds between looks at the attempt
LOG = (
    os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
)  # not to another file, nor waiting at a pipe
ACCELERATORS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))


Work = Callable[[dict[str, Any]], int]
"""What an attempt does for a request; gives the exit code."""


def main(arguments: Sequence[str]) -> None:
    """Serve requests until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("--company", default="", help="socket of the process that trains the runs of several attempts")
    parser.add_argument("--members", type=int, default=1, help="attempts that share it")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds without a heartbeat that it may take")
    options = parser.parse_args(arguments)
    requests, reports = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    work = partial(run_module, options.module)
    if not options.company:
        preload(options.module)
        return serve_all(work, requests, reports)
    company = guest()
    try:
        serve_all(
            partial(company.attend, options.company, options.members, options.patience, alone=work), requests, reports
        )
    finally:
        company.dissolve(options.company)


def serve_all(work: Work, requests: int, reports: int) -> None:
    """One attempt after another, until there are no more requests."""
    pending = b""
    while (received := os.read(requests, 65536)) != b"":
        pending += received
        while b"\n" in pending:
            line, _, pending = pending.partition(b"\n")
            # a late word to an attempt that has ended is no request
            if line.startswith(b"{") and not serve(work, json.loads(line), requests, reports):
                return


def guest() -> Any:
    """The module beside this file, whose folder is no place to import from."""
    spec = importlib.util.spec_from_file_location("guest", Path(__file__).with_name("guest.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_module(module: str, request: dict[str, Any]) -> int:
    """Do what ``python -m MODULE ARGUMENT ...`` does, in this process."""
    sys.argv = [module, *request["arguments"]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def preload(module: str) -> None:
    """Import the package of the module, so that attempts find it in memory.

    Not beside an accelerator, whose driver does not survive a fork, nor where forked libraries are not safe.
    """
    package = module.rpartition(".")[0]
    if package and sys.platform == "linux" and not any(path.exists() for path in ACCELERATORS):
        with suppress(Exception):  # the attempt imports it again, and then the error is in its log
            importlib.import_module(package)
        gc.freeze()


def serve(work: Work, request: dict[str, Any], requests: int, reports: int) -> bool:
    """One attempt from fork to end; False where the controller has gone."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        for descriptor in (requests, reports, writing):
            os.close(descriptor)
        attempt(work, request, reading)
    os.close(reading)
    report(reports, {"pid": pid})
    alive = True
    while alive and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if select.select([requests], [], [], PAUSE)[0]:
            words = os.read(requests, 65536).split()  # nothing where the controller has gone
            alive = bool(words)
            obey(words, pid, writing)
    # the attempt is a zombie or alive, so that its number cannot be another group's
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    os.close(writing)
    with suppress(KeyError, OSError):
        Path(request["beats"]).unlink()
    _, status = os.waitpid(pid, 0)
    if alive:
        report(reports, {"code": os.waitstatus_to_exitcode(status)})
    return alive


def obey(words: list[bytes], pid: int, writing: int) -> None:
    """go: let the attempt work; term: ask it to save itself; kill: end it with all it started."""
    with suppress(BrokenPipeError, ProcessLookupError):
        for word in words:
            if word == b"go":
                os.write(writing, b"g")
            elif word == b"term":
                os.kill(pid, signal.SIGTERM)
            elif word == b"kill":
                os.killpg(pid, signal.SIGKILL)


def attempt(work: Work, request: dict[str, Any], lifeline: int) -> None:
    """The attempt's own process: wait for the word, do the work, never return."""
    code = 1
    try:
        os.setsid()
        log = os.open(request["log"], LOG, 0o644)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if os.read(lifeline, 1):
            threading.Thread(target=_follow, args=(lifeline,), daemon=True).start()
            code = work(request)
        else:
            code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def report(descriptor: int, value: dict[str, Any]) -> None:
    """Tell the controller; it may have gone."""
    with suppress(BrokenPipeError):
        os.write(descriptor, json.dumps(value).encode() + b"\n")


def _follow(lifeline: int) -> None:
    """Kill the attempt and all it started as soon as the worker's process is gone."""
    while os.read(lifeline, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
