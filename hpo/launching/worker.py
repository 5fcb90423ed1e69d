"""Worker: loads the training code once, then makes attempts by fork.

    python worker.py OPTIONS MODULE

OPTIONS are JSON. A pack has ``nodes``, of which a variable names this one, or numbers the ranks. Variables of its step that match
``forget`` are removed, since trials are no peers of each other.

Input: lines ``SLOT REQUEST`` and ``SLOT WORD``; in a pack the same for all nodes, of which each takes its own. Output: lines
``SLOT REPORT``. Requests and reports are JSON; ``packs.py`` is the other side. An attempt waits for the word
"go", so that the journal knows it before it works. A node obeys ``NODE probe`` and ``NODE leave`` besides, and says from time to
time that it is alive, and which of its attempts are, from files on the node: thousands of runs burden no file system that
others share.

Where the controller ends, however it ends, this process reads the end of its input, and takes its attempts and all that they
started with it; where this process ends, attempts notice by their own pipes. With ``ranks``, an attempt is so many forks, which meet by a file, so that no port is taken. With ``gpus`` each takes its part of the node (``rank.py``); else somebody has seen to
that. Only the standard library is imported here, because forking needs a process without threads, and packs start on every
node at once.
"""

import gc
import importlib
import json
import os
import re
import runpy
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAUSE = 0.02  # seconds between looks at attempts
ALIVE = 5.0  # seconds between signs of life
ALIVE_IN_PROBE = 0.2  # the same while a probe runs, whose end is looked for as often
BEATS_IN_PATIENCE = 20  # so often at most an attempt's sign of life is passed on before it would count as hung
LAST_WAIT = 5.0  # seconds that killed attempts may take to vanish
RANKS_PATIENCE = 15.0
"""Seconds that ranks of an attempt get after the first failure.

The first waits 5 for what its peers say, others 5 for what it records.
"""
NEAR = Path("/dev/shm")  # files of this node's memory, where the system has them
LOG = (
    os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
)  # not to another file, nor waiting at a pipe
ACCELERATORS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))

Work = Callable[[list[str]], None]  # work of an attempt with these arguments


def main(words: str, module: str) -> None:
    """Serve requests until the input ends."""
    options = json.loads(words)
    shares, ranks, gpus = options["shares"], options.get("ranks", 1), options.get("gpus")
    requests, reports = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    node, in_pack = own_name(options, os.environ), gpus is not None
    near = NEAR if in_pack and os.access(NEAR, os.W_OK) else None
    place = Path(tempfile.mkdtemp(prefix="hydragnn-", dir=near)) if in_pack else None
    if in_pack:
        for name in [name for name in os.environ if re.fullmatch(options["forget"], name)]:
            del os.environ[name]
        os.environ.update(of_rank("threads_of")(shares))
    preload(module)
    slots = {}
    for number, name in enumerate([node] if shares == 1 else [f"{node}/{number}" for number in range(shares)]):
        beats = place / f"beats-{number}" if place else None
        slots[name] = WorkerSlot(work=work_of(module, number, shares, gpus), node_beats=beats, ranks=ranks)
    worker = Worker(node, slots, requests, reports)
    try:
        worker.serve(options["hang_seconds"] / BEATS_IN_PATIENCE)
    finally:
        worker.end()
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)


def work_of(module: str, number: int, shares: int, gpus: int | None) -> Work:
    """Return what ``python -m MODULE ARGUMENT ...`` does, in slot ``number``."""

    def work(arguments: list[str]) -> None:
        if gpus is not None:
            threads = of_rank("bind")(number, shares, gpus)
            arguments = [word.replace("{threads}", str(threads)) for word in arguments]
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)

    return work


def preload(module: str) -> None:
    """Import a module's package and what its ``preload`` names.

    Not beside an accelerator, whose driver does not survive a fork, nor where forked libraries are not safe.
    """
    package = module.rpartition(".")[0]
    if package and sys.platform == "linux" and not any(path.exists() for path in ACCELERATORS):
        with suppress(Exception):  # the attempt imports it again, and then the error is in its log
            importlib.import_module(package)
            importlib.import_module(f"{package}.preload")
        gc.freeze()


@cache
def of_rank(function: str) -> Any:
    """Return a function of ``rank.py`` beside this file."""
    return runpy.run_path(str(HERE / "rank.py"))[function]


@dataclass(kw_only=True, slots=True)
class WorkerSlot:
    """A place for one attempt at a time."""

    work: Work
    node_beats: Path | None
    """File of the node's memory, in a pack."""
    ranks: int = 1
    """Processes of an attempt."""
    beats: Path = Path("heartbeat")
    """Heartbeat of the attempt: that file, or one in the run's folder."""
    stamp: tuple[int, int] | None = None
    pid: int | None = None
    """The attempt's process; None while there is none."""
    lifeline: int = -1
    kills_before: int = 0

    def begin(self, request: dict[str, Any], foreign: Iterable[int]) -> None:
        """Fork an attempt, which keeps none of the ``foreign`` descriptors."""
        reading, self.lifeline = os.pipe()
        self.kills_before = kills_for_memory()
        if self.node_beats is not None:
            with suppress(OSError):
                self.node_beats.write_text("", encoding="ascii")
        self.beats = self.node_beats or Path(*request["arguments"][:1], "heartbeat")
        self.stamp = stamp_of(self.beats)
        self.pid = os.fork()
        if self.pid == 0:
            for descriptor in (*foreign, self.lifeline):
                os.close(descriptor)
            attempt(self.work, request, reading, self.ranks)
        os.close(reading)

    def obey(self, word: bytes) -> None:
        """Let the attempt work (go), save itself (term), or end it (kill)."""
        with suppress(BrokenPipeError, ProcessLookupError):
            if word == b"go":
                os.write(self.lifeline, b"g")
            elif word == b"term" and self.pid is not None:
                os.kill(self.pid, signal.SIGTERM)
            elif word == b"kill" and self.pid is not None:
                os.killpg(self.pid, signal.SIGKILL)

    def give_up(self) -> int:
        """Kill the attempt with all it started; return its process number."""
        assert self.pid is not None
        pid, self.pid = self.pid, None
        # it is a zombie or alive, so that its number cannot be another group's
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        os.close(self.lifeline)
        if self.node_beats is not None:
            self.node_beats.unlink(missing_ok=True)
        return pid

    def report(self) -> dict[str, Any] | None:
        """Return how the attempt ended; None while it has not."""
        if self.pid is None or os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        _, status = os.waitpid(self.give_up(), 0)
        code = os.waitstatus_to_exitcode(status)
        code = 128 - code if code > 128 else code  # of a rank that was killed
        return {"code": code, "oom": code == -signal.SIGKILL and kills_for_memory() > self.kills_before}

    def beats_on(self) -> bool:
        """Return True where the heartbeat changed since the last call."""
        earlier = self.stamp
        if self.pid is not None:
            self.stamp = stamp_of(self.beats) or earlier
        return self.stamp != earlier


@dataclass(slots=True)
class Worker:
    """All slots of a node, and what goes in and out."""

    node: str
    slots: dict[str, WorkerSlot]
    requests: int
    reports: int
    _stuck: list[int] = field(default_factory=list)
    """Killed attempts that do not vanish."""
    _probe: subprocess.Popen[bytes] | None = None

    def serve(self, every: float) -> None:
        """Make attempts until the input ends or the node has to leave.

        Heartbeats are read ``every`` so many seconds.
        """
        unread, alive_at, beats_at = b"", time.monotonic(), time.monotonic() + every
        while True:
            if time.monotonic() >= alive_at:
                alive_at = time.monotonic() + (ALIVE if self._probe is None else ALIVE_IN_PROBE)
                self.say(self.node, {"alive": True})
            busy = any(slot.pid is not None for slot in self.slots.values())
            wait = PAUSE if busy else max(0.0, min(alive_at, beats_at) - time.monotonic())
            if select.select([self.requests], [], [], wait)[0]:
                received = os.read(self.requests, 65536)
                *lines, unread = (unread + received).split(b"\n")
                words = (line.partition(b" ") for line in lines)
                if not all(self.obey(name.decode(), word) for name, _, word in words) or not received:
                    return  # told to leave, or the controller has gone
            for name, slot in self.slots.items():
                if (report := slot.report()) is not None:
                    self.say(name, report)
            self._stuck = [pid for pid in self._stuck if os.waitpid(pid, os.WNOHANG)[0] == 0]
            if self._probe is not None and self._probe.poll() is not None:
                self.say(self.node, probe_report(self._probe.communicate()[0].decode(errors="replace")))
                self._probe = None
            if time.monotonic() >= beats_at:
                beats_at = time.monotonic() + every
                for name, slot in self.slots.items():
                    if slot.beats_on():
                        self.say(name, {"beat": True})

    def obey(self, name: str, words: bytes) -> bool:
        """Obey a line; return False where the node has to leave."""
        slot = self.slots.get(name)
        if name == self.node and words == b"leave":
            return False
        if name == self.node and words == b"probe":
            self._probe = self._probe or start_probe(len(self.slots))
        elif slot is not None and words.startswith(b"{"):
            if slot.pid is not None:
                self._stuck.append(slot.give_up())
            request = json.loads(words.replace(b"{beats}", os.fsencode(slot.node_beats or "")))
            others = [other.lifeline for other in self.slots.values() if other.pid is not None]
            slot.begin(request, (self.requests, self.reports, *others))
            self.say(name, {"pid": slot.pid})
        elif slot is not None:
            slot.obey(words)
        return True

    def say(self, name: str, report: dict[str, Any]) -> None:
        """One line to the controller, in one piece; it may have gone."""
        with suppress(BrokenPipeError):
            os.write(self.reports, f"{name} {json.dumps(report)}\n".encode())

    def end(self) -> None:
        """Kill what is left, and wait some seconds for its end."""
        self._stuck += [slot.give_up() for slot in self.slots.values() if slot.pid is not None]
        deadline = time.monotonic() + LAST_WAIT
        while self._stuck and time.monotonic() < deadline:
            self._stuck = [pid for pid in self._stuck if os.waitpid(pid, os.WNOHANG)[0] == 0]
            time.sleep(PAUSE if self._stuck else 0.0)


def stamp_of(file: Path) -> tuple[int, int] | None:
    """Return the stamp of a file, which every write changes."""
    with suppress(OSError):
        status = file.stat()
        return status.st_mtime_ns, status.st_ino
    return None


def attempt(work: Work, request: dict[str, Any], lifeline: int, ranks: int) -> None:
    """Run the attempt's own process, or its ranks; never return."""
    code = 1
    try:
        os.setsid()
        log = os.open(request["log"], LOG, 0o644)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if os.read(lifeline, 1):
            pids = fork_ranks(ranks) if ranks > 1 else []  # before there is a thread
            threading.Thread(target=_follow, args=(lifeline,), daemon=True).start()
            if pids:
                sys.exit(first_end(pids))
            work(request["arguments"])
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


def _follow(lifeline: int) -> None:
    while os.read(lifeline, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


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
    running, first, deadline = dict(enumerate(pids)), (0, 0), float("inf")

    def pass_on(number: int, _: object) -> None:
        for pid in running.values():
            os.kill(pid, number)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, pass_on)
    while running:
        ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
        for rank in [rank for rank, pid in running.items() if os.waitid(os.P_PID, pid, ended)]:
            code = os.waitstatus_to_exitcode(os.waitpid(running.pop(rank), 0)[1])
            if code and not first[1]:
                first, deadline = (rank, code), time.monotonic() + RANKS_PATIENCE
        if time.monotonic() > deadline:
            pass_on(signal.SIGKILL, None)
        time.sleep(PAUSE)
    rank, code = first
    if code:
        how = f"ended with exit code {code}" if code > 0 else f"was killed by {signal.Signals(-code).name}"
        print(f"rank {rank} of {len(pids)} was the first to fail: it {how}", flush=True)
    return code if code >= 0 else 128 - code


def start_probe(parts: int) -> subprocess.Popen[bytes]:
    """The probe of this node, beside its attempts."""
    threads = of_rank("threads_of")(parts)["OMP_NUM_THREADS"]
    command = [sys.executable, "-P", str(HERE / "probe.py"), "--threads", threads]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def probe_report(printed: str) -> dict[str, Any]:
    """Return the report of a probe that has ended, from its output.

    >>> probe_report("a warning\\nseconds 0.25\\nhealthy\\n")
    {'healthy': True, 'seconds': 0.25, 'message': ''}
    """
    lines = printed.strip().splitlines()
    if "healthy" not in lines:
        output = "\n".join(lines)[-300:] or "nothing"
        return {"healthy": False, "seconds": 0.0, "message": f"the probe failed; it said: {output}"}
    seconds = re.search(r"^seconds (\d+\.\d+)$", printed, re.MULTILINE)
    return {"healthy": True, "seconds": float(seconds[1]) if seconds else 0.0, "message": ""}


def own_name(options: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """Return the name of this node of the pack.

    >>> own_name({"nodes": ["n1", "n2"], "rank_variables": ["PMI_RANK"]}, {"PMI_RANK": "1"})
    'n2'
    """
    nodes: list[str] = options["nodes"]
    if (name := environment.get(options.get("node_variable", ""))) in nodes:
        return name
    numbers = (int(environment[name]) for name in options.get("rank_variables", ()) if name in environment)
    return nodes[next(numbers, 0)] if len(nodes) > 1 else nodes[0]


def kills_for_memory() -> int:
    """Return the number of processes killed for memory; 0 if unknown."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
