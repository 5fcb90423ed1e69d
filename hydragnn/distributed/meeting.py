"""Meeting of the ranks of one run.

Ranks of one node share a file of torch that only their user can open; gloo and NCCL use the loopback. Ranks of several nodes
share torch's ``TCPStore``, which rank 0 or torchrun serves. MPI tells them where, or the variables of the launcher. The
network of a job is trusted, as torchrun trusts it.
"""

import hashlib
import ipaddress
import os
import secrets
import shutil
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import torch.distributed as dist

from hydragnn.base.errors import MissingPackageError
from hydragnn.distributed.launch import Launch, LaunchError, host_name, machine_name

PATIENCE = timedelta(minutes=10)
"""Time that a rank waits for a silent peer; a peer that died is noticed at once."""
NOTE_AFTER = 2.0
"""Seconds after which a rank that waits for others says so."""
MANY = 64
"""Beyond so many ranks, and where MPI tells them, only the first two say that they wait."""
DESCRIPTORS = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
"""Folder in which the system names the open files of this process."""

_PAUSE = 0.05
_NAMED = 8  # of many missing ranks
_ANY_PORT = 9  # no packet is sent: connecting a datagram socket only asks the kernel for its route
_meetings = count()  # of this process; its peers count the same


@dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """Launch, store and network interfaces for joining a process group."""

    launch: Launch
    store: dist.Store
    gloo: str
    """The interface for gloo; empty where gloo's own choice, the address of the node's name, is right."""
    nccl: str
    """The interface for NCCL; empty where NCCL chooses, as on several nodes, whose fast network it knows best."""


class ServedStore(dist.PrefixStore):
    """Keys of one meeting in a server that outlasts it."""

    def __init__(self, name: str, server: dist.TCPStore) -> None:
        """Keep the keys of the meeting apart from those of others."""
        super().__init__(name, server)
        self._name, self._server = name, server

    def another(self) -> dist.Store:
        """Return a second connection; one answers one question at a time."""
        return dist.PrefixStore(self._name, dist.TCPStore(self._server.host, self._server.port, None, False))


def meet(launch: Launch, folder: Path, patience: timedelta = PATIENCE) -> Meeting:
    """Meet all ranks of the launch; collective.

    Ranks of different ``folder`` do not meet. LaunchError that names who did not come within ``patience``, or where the
    launcher's count and MPI's disagree.
    """
    if launch.by == "mpi":
        return _met_by_mpi(launch, folder, patience)
    deadline = time.monotonic() + patience.total_seconds()
    if not launch.address:
        return _meeting(launch, _met_by_file(launch, folder.resolve(), deadline), "")
    where = f"{launch.address} port {launch.port}"
    with note_of_waiting(launch, lambda: f"rank 0, who serves a store at {where}"):
        server = _server(launch.address, launch.port, launch.rank == 0 and not launch.by_agent, patience)
    store = ServedStore(f"{launch.step} {next(_meetings)}", server)
    if launch.rank == 0:
        _wait_for_all(launch, store, where, deadline)
    else:
        store.set(f"rank {launch.rank}", "")
    return _meeting(launch, store, launch.address)


def _meeting(launch: Launch, store: dist.Store, address: str) -> Meeting:
    """Return a meeting at an address; on one node without."""
    if address:
        return Meeting(launch=launch, store=store, gloo=interface_towards(address), nccl="")
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "")
    return Meeting(launch=launch, store=store, gloo=loopback, nccl=loopback)


@cache
def _server(address: str, port: int, serves: bool, patience: timedelta) -> dist.TCPStore:
    """Return torch's store at an address, also for later meetings."""
    try:
        if serves:
            socket.getaddrinfo(address, port)  # torch tries an unknown name for as long as its patience lasts
        return dist.TCPStore(address, port, None, serves, timeout=patience, wait_for_workers=False)
    except (dist.DistError, OSError) as error:
        fault = "cannot be served" if serves else "does not answer"
        raise LaunchError(
            f"the store of rank 0 at {address} port {port} {fault} ({str(error).partition(chr(10))[0]}); MASTER_ADDR and MASTER_PORT "
            "state another address, on the network that joins the nodes"
        ) from error


def file_store(file: str, ranks: int = -1) -> dist.FileStore:
    """Return torch's store in a file, which its maker may remove.

    Torch opens the file by name for every key, and once more when the store is destroyed. Where it is gone, that waits for minutes or
    aborts the process. A descriptor, which stays open, names the file for as long as the process lives.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    return dist.FileStore(f"{DESCRIPTORS}/{descriptor}", ranks)


def meeting_place(launch: Launch, folder: Path) -> Path:
    """Return the folder in which ranks of one node meet."""
    name = hashlib.sha256(f"{folder}\n{launch.step}".encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"hydragnn-ranks-{os.geteuid()}-{name}"


def _met_by_file(launch: Launch, folder: Path, deadline: float) -> dist.Store:
    """Return the store in a file, once all ranks have opened it.

    Every rank leaves a fresh word there, and goes on once rank 0 repeats it: a file of a dead start misleads nobody.
    """
    place = meeting_place(launch, folder)
    file = place / "store"
    if launch.rank == 0:
        try:
            place.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            words = f"ranks cannot meet in {place}: {error.strerror or error}; remove it and start again"
            raise LaunchError(words) from error
        check_private(place)
        file.unlink(missing_ok=True)
        try:
            store = file_store(str(file), launch.size)
            _wait_for_all(launch, store, str(place), deadline)
        finally:
            shutil.rmtree(place, ignore_errors=True)  # all have it open
        return store
    word, inode, opened = secrets.token_hex(16), 0, None
    with note_of_waiting(launch, lambda: "" if file.exists() else f"rank 0, who has not come to {place}"):
        while opened is None or not opened.check(["all"]) or word not in opened.get("all").decode().split():
            with suppress(FileNotFoundError):
                if (number := file.stat().st_ino) != inode:
                    check_private(place)
                    opened, inode = file_store(str(file), launch.size), number
                    opened.set(f"rank {launch.rank}", word)
            if time.monotonic() > deadline:
                problem = f"rank {launch.rank} waited at {place} in vain for rank 0"
                raise LaunchError(f"{problem}; do all ranks of the node see this folder (TMPDIR)? {launch.evidence}")
            time.sleep(_PAUSE)
    return opened


def _wait_for_all(launch: Launch, store: dist.Store, where: str, deadline: float) -> None:
    """Repeat the words of all ranks; LaunchError names the missing."""
    missing = [*range(1, launch.size)]
    with note_of_waiting(launch, lambda: f"{_named(missing)}, which did not come to {where} yet" if missing else ""):
        while missing:
            missing = [rank for rank in missing if not store.check([f"rank {rank}"])]
            if missing and time.monotonic() > deadline:
                problem = f"{len(missing)} of {launch.size} ranks did not come to {where} ({_named(missing)})"
                raise LaunchError(f"{problem}; do all of them see it? {launch.evidence}")
            time.sleep(_PAUSE if missing else 0)
    store.set("all", " ".join(store.get(f"rank {rank}").decode() for rank in range(1, launch.size)))


def _named(ranks: Collection[int]) -> str:
    """Return words for these ranks."""
    return f"rank {', '.join(map(str, [*ranks][:_NAMED]))}{', ...' if len(ranks) > _NAMED else ''}"


@contextmanager
def note_of_waiting(launch: Launch, missing: Callable[[], str]) -> Iterator[None]:
    """Print once for which ranks a long block waits, and why."""

    def say() -> None:
        says = launch.rank < 2 or (launch.by != "mpi" and launch.size <= MANY)
        if says and (names := missing()):
            print(f"rank {launch.rank} waits for {names}; {launch.evidence}", file=sys.stderr, flush=True)

    timer = threading.Timer(NOTE_AFTER, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def world_of(launch: Launch) -> Any:
    """Return MPI's communicator; LaunchError for another number of ranks."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise MissingPackageError("mpich", "mpi", f"starting {launch.size} ranks by mpirun ({error})") from error
    world: Any = MPI.COMM_WORLD
    if world.size != launch.size:
        raise LaunchError(
            f"the launcher started {launch.size} ranks, but MPI sees {world.size}: mpirun and the MPI library of mpi4py "
            f"differ; use the mpirun beside this Python, or srun --mpi=pmi2 ({launch.evidence})"
        )
    return world


def _met_by_mpi(launch: Launch, folder: Path, patience: timedelta) -> Meeting:
    """Meet as ranks of a job step, where MPI broadcasts."""
    with note_of_waiting(launch, lambda: "all other ranks, which have not come to MPI yet"):
        world = world_of(launch)
        one_node = len(set(world.allgather(machine_name()))) == 1
    launch = replace(launch, rank=world.rank, size=world.size, step=world.bcast(secrets.token_hex(8)))
    if one_node:
        deadline = time.monotonic() + patience.total_seconds()
        return _meeting(launch, _met_by_file(launch, folder.resolve(), deadline), "")
    address, port = launch.address or launch.node or host_name(), launch.port
    server, problem = None, ""
    for serves in (True, False):  # rank 0 serves before the others connect
        try:
            if serves == (launch.rank == 0):
                server = _server(address, port, serves, patience)
        except LaunchError as error:
            problem = str(error)
        if problems := [*filter(None, world.allgather(problem))]:
            raise LaunchError(problems[0])
        address, port = world.bcast((address, server.port if server else port))
    assert server is not None
    return _meeting(launch, ServedStore(str(next(_meetings)), server), address)


def interface_towards(host: str) -> str:
    """Return the interface that leads to a host, or "".

    The loopback is none.

    >>> interface_towards("127.0.0.1")
    ''
    """
    with suppress(OSError):
        family, kind, _, _, target = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            own = ipaddress.ip_address(str(probe.getsockname()[0]).partition("%")[0])
        table = psutil.net_if_addrs().items()
        of = {entry.address.partition("%")[0]: name for name, entries in table for entry in entries}
        return "" if own.is_loopback else of.get(str(own), "")
    return ""


def check_private(place: Path) -> None:
    """Raise LaunchError unless a folder is private to this user."""
    status = place.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077:
        return
    raise LaunchError(
        f"ranks do not meet in {place}, where others than this user could tell them where to connect (mode "
        f"{stat.filemode(status.st_mode)}, owner {status.st_uid}); remove it and start again"
    )
