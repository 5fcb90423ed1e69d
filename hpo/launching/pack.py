"""A node's part of a pack: keeps one worker per share of the node, and carries lines between them and the controller.

    python pack.py --nodes N1,N2,... --shares S --gpus G MODULE

Input: lines ``SLOT REQUEST``, the same for all nodes of the pack, of which each takes its own; output: lines
``SLOT REPORT``. Requests and reports are those of ``worker.py``; beside them a node obeys ``NODE probe`` and ``NODE leave``,
and says from time to time that it is alive, and which of its attempts are, from files on the node: thousands of runs burden no
file system that others share. The end of the input means that the controller is gone. Run by its path, with
nothing but the standard library, because it starts on every node at once.
"""

import argparse
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).parent
ALIVE = 5.0  # seconds between signs of life
BEATS_IN_PATIENCE = 20  # so often at most an attempt's sign of life is passed on before it would count as hung
NEAR = Path("/dev/shm")  # files of this node's memory, where the system has them
LAST_WAIT = 5.0  # seconds that a worker may take to leave
RANK_NUMBERS = ("PALS_RANKID", "PMI_RANK", "FLUX_TASK_RANK", "PMIX_RANK", "SLURM_PROCID")
OF_THE_PACK = ("PMI", "PALS_", "OMPI_", "MPI_LOCAL", "SLURM_STEP_", "SLURM_PROCID", "SLURM_LOCALID", "FLUX_TASK_")
"""Variables that describe this step; trials must not take each other for their peers."""


@dataclass(kw_only=True, slots=True)
class Share:
    """One worker of this node, and whether it is making an attempt."""

    slot: str
    command: list[str]
    environment: dict[str, str]
    beats: Path
    """The attempt writes here every second, as long as it gets on."""
    seen: str = ""
    process: subprocess.Popen[bytes] | None = None
    unread: bytes = b""
    busy: bool = False
    kills_before: int = 0

    def send(self, words: bytes) -> None:
        """Pass on a request or a word; a request to a worker that is stuck with an attempt goes to a new worker."""
        if words.startswith(b"{"):
            if self.busy:
                self.stop()
            self.busy, self.kills_before, self.seen = True, kills_for_memory(), ""
            with suppress(OSError):
                self.beats.write_text("")
        if self.process is None:
            if not self.busy:
                return
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, bufsize=0, env=self.environment)
        with suppress(BrokenPipeError):
            pipe_of(self.process.stdin).write(words + b"\n")

    def read_reports(self) -> list[dict[str, Any]]:
        """What the worker says, as far as it has said it; ``lost`` where it is gone."""
        assert self.process is not None
        received = os.read(pipe_of(self.process.stdout).fileno(), 65536)
        if not received:
            self.process.kill()
            code = self.process.wait()
            self.process, self.unread = None, b""
            was_busy, self.busy = self.busy, False
            return [{"lost": code, "oom": self.starved()}] if was_busy else []
        *lines, self.unread = (self.unread + received).split(b"\n")
        reports = [json.loads(line) for line in lines]
        for report in reports:
            if "code" in report:
                self.busy, report["oom"] = False, report["code"] == -9 and self.starved()
        return reports

    def beats_on(self) -> bool:
        """Return True where the attempt has shown since the last look that it lives."""
        shown = self.seen
        with suppress(OSError):
            shown = self.beats.read_text(encoding="ascii", errors="replace")
        fresh, self.seen = shown not in ("", self.seen), shown
        return self.busy and fresh

    def starved(self) -> bool:
        """Return True where the system has killed a process for want of memory since the attempt began."""
        return kills_for_memory() > self.kills_before

    def stop(self) -> None:
        """End the worker, and with it its attempt."""
        if self.process is not None:
            pipe_of(self.process.stdin).close()
            try:
                self.process.wait(LAST_WAIT)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            pipe_of(self.process.stdout).close()
            self.process, self.unread, self.busy = None, b"", False


def main(arguments: Sequence[str]) -> None:
    """Serve the node until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", required=True)
    parser.add_argument("--shares", type=int, required=True)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--together", type=int, default=1, help="shares whose trials are trained by one process")
    parser.add_argument("--hang-seconds", type=float, default=600.0)
    parser.add_argument("module")
    options = parser.parse_args(arguments)
    node = own_name(options.nodes.split(","), os.environ)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OF_THE_PACK)}
    parts = options.shares // options.together
    place = Path(tempfile.mkdtemp(prefix="hydragnn-", dir=NEAR if os.access(NEAR, os.W_OK) else None))
    shares = {}
    for number in range(options.shares):
        slot = node if options.shares == 1 else f"{node}/{number}"
        part = number // options.together
        command = [sys.executable, "-P", str(HERE / "rank.py"), "--part", str(part), "--parts", str(parts)]
        command += ["--gpus", str(options.gpus), sys.executable, "-P", str(HERE / "worker.py"), options.module]
        if options.together > 1:
            command += ["--company", str(place / str(part)), "--members", str(options.together)]
            command += ["--patience", str(options.hang_seconds / 2)]
        shares[slot] = Share(slot=slot, command=command, environment=environment, beats=place / f"beats-{number}")
    threads = max(1, len(os.sched_getaffinity(0)) // parts) if hasattr(os, "sched_getaffinity") else 1
    say(node, {"alive": True})
    try:
        serve(node, shares, str(threads), options.hang_seconds / BEATS_IN_PATIENCE)
    finally:
        for share in shares.values():
            share.stop()
        shutil.rmtree(place, ignore_errors=True)  # what trains together ends where its place is gone


def serve(node: str, shares: dict[str, Share], threads: str, every: float) -> None:
    """Carry lines until the input ends, or until the node is told to leave; looks at the beats ``every`` so many seconds."""
    pending, alive_at, probe = b"", time.monotonic() + ALIVE, None
    beats_at = time.monotonic() + every
    while True:
        outputs = {pipe_of(s.process.stdout).fileno(): s for s in shares.values() if s.process is not None}
        ready = select.select([0, *outputs], [], [], max(0.0, min(alive_at, beats_at) - time.monotonic()))[0]
        for descriptor in ready:
            if descriptor:
                for report in outputs[descriptor].read_reports():
                    say(outputs[descriptor].slot, report)
        if 0 in ready:
            received = os.read(0, 65536)
            *lines, pending = (pending + received).split(b"\n")
            for line in lines:
                slot, _, words = line.partition(b" ")
                if slot.decode() in shares and words not in (b"probe", b"leave"):
                    share = shares[slot.decode()]
                    words = words.replace(b"{threads}", threads.encode())
                    share.send(words.replace(b"{beats}", os.fsencode(share.beats)))
                elif slot.decode() == node and words == b"probe":
                    probe = probe or start_probe(threads)
                elif slot.decode() == node and words == b"leave":
                    return
            if not received:
                return
        if probe is not None and probe.poll() is not None:
            say(node, probe_report(probe))
            probe = None
        if time.monotonic() >= alive_at:
            alive_at = time.monotonic() + (ALIVE if probe is None else 0.2)
            say(node, {"alive": True})
        if time.monotonic() >= beats_at:
            beats_at = time.monotonic() + every
            for share in shares.values():
                if share.beats_on():
                    say(share.slot, {"beat": True})


def start_probe(threads: str) -> subprocess.Popen[bytes]:
    """The probe of this node, beside its workers."""
    command = [sys.executable, "-P", str(HERE / "probe.py"), "--threads", threads]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def probe_report(probe: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What a probe that has ended found."""
    printed = probe.communicate()[0].decode(errors="replace").strip()
    healthy = "healthy" in printed.splitlines()
    return {"healthy": healthy, "message": "" if healthy else f"the probe failed; it said: {printed[-300:]}"}


def own_name(nodes: Sequence[str], environment: Mapping[str, str]) -> str:
    """Which of the pack's nodes this is: Slurm says it, elsewhere ranks are in the order of the nodes.

    >>> own_name(["n1", "n2"], {"PMI_RANK": "1"})
    'n2'
    """
    if environment.get("SLURMD_NODENAME") in nodes:
        return environment["SLURMD_NODENAME"]
    return nodes[next((int(environment[name]) for name in RANK_NUMBERS if name in environment), 0)]


def say(slot: str, report: dict[str, Any]) -> None:
    """One line to the controller, in one piece; it may have gone."""
    with suppress(BrokenPipeError):
        os.write(1, f"{slot} {json.dumps(report)}\n".encode())


def kills_for_memory() -> int:
    """How many processes this machine has killed for want of memory so far; 0 where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def pipe_of(pipe: IO[bytes] | None) -> IO[bytes]:
    """A pipe that was asked for."""
    assert pipe is not None
    return pipe


if __name__ == "__main__":
    main(sys.argv[1:])
