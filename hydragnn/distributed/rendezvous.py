"""Meeting of the ranks of one run.

Ranks of MPI tell each other by MPI. All others, also torchrun's, meet in a folder of their own inside the run's folder: it
has mode 0700, and one that is a link, belongs to another user or is open to others is refused. Every rank leaves a fresh
number there and takes only an invitation that repeats it, so that what a dead attempt left behind misleads nobody.
On one node the store of ``torch.distributed`` is a file in a private temporary folder, and gloo and NCCL use the loopback: no
other machine can connect at all, and no other user can read or write keys. On several nodes the first rank serves torch's
``TCPStore``, and the network of the job is trusted, as torchrun trusts it.
"""

import os
import secrets
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from hydragnn.base.errors import InputError, MissingPackageError
from hydragnn.base.files import read_json, write_json
from hydragnn.distributed.addresses import LOOPBACK, address_of_job, interface_of, route_to
from hydragnn.distributed.launch import Launch, LaunchError, host_name, machine_name

PATIENCE = timedelta(minutes=10)
"""How long a rank waits for a silent peer; a peer that died is noticed at once."""

NOTE_AFTER = 2.0
"""Seconds after which a rank that waits for others says so."""

MANY = 64
"""Beyond so many ranks, and where MPI tells them, only the first two say that they wait."""

CALL, INVITATION = "call.json", "invitation.json"

DESCRIPTORS = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
"""Where the system names the open files of this process."""

_PAUSE = 0.05
_NAMED = 8  # of many missing ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """A rank as it presents itself."""

    host: str
    machine: str
    number: str = ""
    """Fresh and random: an invitation that repeats it was written for this start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Invitation:
    """Address of a run's store: a file, or host and port."""

    file: str = ""
    address: str = LOOPBACK
    port: int = 0

    @classmethod
    def parse(cls, value: Any, where: Path) -> "Invitation":
        """The invitation in a JSON value; LaunchError where it is none."""
        kinds = {"file": str, "address": str, "port": int}
        if (
            not isinstance(value, dict)
            or value.keys() != kinds.keys()
            or any(type(value[name]) is not kind for name, kind in kinds.items())
            or not (value["file"] or 0 < value["port"] < 2**16)
        ):
            raise LaunchError(f"{where} is no invitation of the first rank; remove {where.parent} and start again")
        return cls(**value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """Launch, store and network interfaces for joining a process group."""

    launch: Launch
    store: dist.Store
    gloo: str
    """The interface for gloo; empty where gloo's own choice, the address of the node's name, is right."""
    nccl: str
    """The interface for NCCL; empty where NCCL chooses, as on several nodes, whose fast network it knows best."""
    place: Path | None = None
    """The folder where ranks met by files."""

    def clear(self) -> None:
        """Remove the files of the meeting after all ranks have joined.

        The store stays for groups of ranks that are made later.
        """
        if self.place is not None:
            shutil.rmtree(self.place, ignore_errors=True)


@contextmanager
def rendezvous(launch: Launch, folder: Path, patience: timedelta = PATIENCE) -> Iterator[Meeting]:
    """Meet all ranks of the launch; the store lasts for the block.

    ``folder`` is seen by all nodes; ranks of MPI do not need it. LaunchError that says who did not come within
    ``patience``, where the launcher's count and MPI's disagree, or where the meeting place is not this user's alone.
    """
    meet = _through_mpi if launch.by == "mpi" else _through_folder
    with meet(launch, folder, patience) as (counted, invitation):
        joined = _join(counted, invitation, patience)
        yield joined if launch.by == "mpi" else replace(joined, place=meeting_place(launch, folder))


def _join(launch: Launch, invitation: Invitation, patience: timedelta) -> Meeting:
    """Connect to the store of the invitation."""
    if not invitation.file:
        try:
            store = dist.TCPStore(invitation.address, invitation.port, None, False, timeout=patience)
        except dist.DistError as error:
            raise LaunchError(
                f"the first rank's store at {invitation.address} port {invitation.port} does not answer ({error}); name the "
                "interface that joins the nodes in GLOO_SOCKET_IFNAME"
            ) from error
        own = invitation.address if launch.rank == 0 else route_to(invitation.address)
        return Meeting(launch=launch, store=store, gloo=launch.interface or interface_of(own), nccl="")
    file = Path(invitation.file)
    if not file.parent.is_dir():
        raise LaunchError(
            f"rank {launch.rank} does not see {file.parent} of rank 0, though both run on {host_name()}; set TMPDIR to a "
            "folder that all ranks of the node see"
        )
    check_private(file.parent)
    loopback = interface_of(LOOPBACK)
    return Meeting(launch=launch, store=file_store(str(file), launch.size), gloo=loopback, nccl=loopback)


def file_store(file: str, ranks: int = -1) -> dist.FileStore:
    """Return torch's store in a file, which its maker may remove.

    Torch opens the file by name for every key, and once more when the store is destroyed. Where it is gone, that waits for minutes or
    aborts the process. A descriptor, which stays open, names the file for as long as the process lives.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    return dist.FileStore(f"{DESCRIPTORS}/{descriptor}", ranks)


@contextmanager
def _host(launch: Launch, peers: Sequence[Peer]) -> Iterator[Invitation]:
    """Serve rank 0's store for the length of the block."""
    if len({peer.machine for peer in peers}) == 1:
        place = Path(tempfile.mkdtemp(prefix="hydragnn-ranks-"))  # mode 0700
        try:
            yield Invitation(file=str(place / "store"))
        finally:
            shutil.rmtree(place, ignore_errors=True)
    else:
        others = [peer.host for peer in peers if peer.machine != peers[0].machine]
        address = address_of_job(launch, others[:1])
        served = dist.TCPStore(address, 0, None, True, timeout=PATIENCE, wait_for_workers=False)
        yield Invitation(address=address, port=served.port)


@contextmanager
def note_of_waiting(launch: Launch, missing: Callable[[], str]) -> Iterator[None]:
    """Print once for which ranks a long block waits, and why.

    ``missing`` names them when it is said; nothing is said where it is empty.
    """

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


@contextmanager
def _through_mpi(launch: Launch, folder: Path, patience: timedelta) -> Iterator[tuple[Launch, Invitation]]:
    """Tell all ranks by MPI broadcasts."""
    with note_of_waiting(launch, lambda: "all other ranks, which have not come to MPI yet"):
        world = world_of(launch)
        launch = replace(launch, rank=world.rank, size=world.size)
        peers = world.allgather(Peer(host=launch.node or host_name(), machine=machine_name()))
    if launch.rank:
        answer = world.bcast(None)
        if isinstance(answer, str):
            raise LaunchError(answer)
        yield launch, answer
        return
    answer = ""
    try:
        with _host(launch, peers) as invitation:
            answer = world.bcast(invitation)
            yield launch, invitation
    except (InputError, OSError) as error:
        if not answer:  # the others are waiting to hear something
            world.bcast(f"rank 0 cannot keep a store for its peers: {error}")
        raise


@contextmanager
def _through_folder(launch: Launch, folder: Path, patience: timedelta) -> Iterator[tuple[Launch, Invitation]]:
    """Meet through files in the user's private folder."""
    place = meeting_place(launch, folder)
    _make_private(place)
    deadline = time.monotonic() + patience.total_seconds()
    own = Peer(host=launch.node or host_name(), machine=machine_name(), number=secrets.token_hex(16))
    if launch.rank:
        with note_of_waiting(launch, lambda: "" if (place / CALL).exists() else f"rank 0, who has not come to {place}"):
            invitation = _invitation(launch, place, own, deadline)
        yield launch, invitation
        return
    try:
        write_json(place / CALL, {"number": own.number})
        with note_of_waiting(launch, lambda: _missing(launch, place)):
            peers = _peers(launch, place, own, deadline)
        with _host(launch, peers) as invitation:
            write_json(place / INVITATION, {"to": [peer.number for peer in peers], "store": asdict(invitation)})
            yield launch, invitation
    finally:
        shutil.rmtree(place, ignore_errors=True)


def meeting_place(launch: Launch, folder: Path) -> Path:
    """Return the folder in which ranks without MPI meet."""
    return folder / f".ranks-{launch.step}"


def _peers(launch: Launch, place: Path, own: Peer, deadline: float) -> tuple[Peer, ...]:
    """Return all ranks after each answered; LaunchError names the missing."""
    peers = {0: own}
    while len(peers) < launch.size:
        present = {path.name for path in place.iterdir()}
        for rank in set(range(launch.size)) - peers.keys():
            if _answer(rank) in present:
                value = _table(place / _answer(rank), {"call", "host", "machine", "number"})
                if value.pop("call") == own.number:
                    peers[rank] = Peer(**value)
        if time.monotonic() > deadline:
            raise LaunchError(
                f"{launch.size - len(peers)} of {launch.size} ranks did not come to {place} ({_named(launch, peers)}); is "
                f"{place.parent} on a file system that all nodes share? {launch.evidence}"
            )
        time.sleep(_PAUSE)
    return tuple(peers[rank] for rank in range(launch.size))


def _missing(launch: Launch, place: Path) -> str:
    """Return words for the ranks that have not answered."""
    present = {path.name for path in place.iterdir()}
    answered = [0, *(rank for rank in range(1, launch.size) if _answer(rank) in present)]
    return f"{_named(launch, answered)}, which did not come to {place} yet" if len(answered) < launch.size else ""


def _named(launch: Launch, present: Collection[int]) -> str:
    """Return the words for the ranks that are not present."""
    missing = sorted(set(range(launch.size)) - set(present))
    return f"rank {', '.join(map(str, missing[:_NAMED]))}{', ...' if len(missing) > _NAMED else ''}"


def _invitation(launch: Launch, place: Path, own: Peer, deadline: float) -> Invitation:
    """Answer rank 0's calls until an invitation names this rank."""
    answered = ""
    while True:
        if not place.is_dir():
            raise LaunchError(f"rank 0 gave up the meeting in {place}; what it says is why")
        if (place / CALL).exists() and (call := str(_table(place / CALL, {"number"})["number"])) != answered:
            write_json(place / _answer(launch.rank), {**asdict(own), "call": call})
            answered = call
        if (place / INVITATION).exists():
            value = _table(place / INVITATION, {"to", "store"})
            if isinstance(value["to"], list) and own.number in value["to"]:
                return Invitation.parse(value["store"], place / INVITATION)
        if time.monotonic() > deadline:
            raise LaunchError(
                f"rank {launch.rank} waited at {place} in vain for rank 0; is {place.parent} on a file system that all "
                f"nodes share? {launch.evidence}"
            )
        time.sleep(_PAUSE)


def _answer(rank: int) -> str:
    return f"rank-{rank}.json"


def _table(path: Path, keys: set[str]) -> dict[str, Any]:
    """Return a file of the meeting; LaunchError if not written by ranks."""
    try:
        value = read_json(path)
    except InputError as error:
        raise LaunchError(str(error)) from error
    if not isinstance(value, dict) or value.keys() != keys:
        raise LaunchError(f"{path} was not written by a rank; remove {path.parent} and start again")
    return value


def _make_private(place: Path) -> None:
    """Make a private folder; LaunchError where something else is there."""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(
            f"ranks cannot meet in {place}: {error.strerror or error}; remove it and start again"
        ) from error
    check_private(place)


def check_private(place: Path) -> None:
    """Raise LaunchError unless a folder is private to this user."""
    status = place.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077:
        return
    raise LaunchError(
        f"ranks do not meet in {place}, where others than this user could tell them where to connect (mode "
        f"{stat.filemode(status.st_mode)}, owner {status.st_uid}); remove it and start again, and if the file system keeps no "
        "modes, start the ranks by MPI"
    )
