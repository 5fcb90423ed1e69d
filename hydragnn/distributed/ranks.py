"""Ranks: who started this process, how its peers are found, and how all of them leave together.

The only module that reads the process environment: it describes the allocation. Ranks are started by torchrun, mpirun or
srun; without any of them there is one rank. Everything else sees a ``Ranks`` value and two sums.
"""

import atexit
import gc
import hashlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from hydragnn.errors import InputError, MissingPackageError
from hydragnn.files import read_json, write_json

PATIENCE = timedelta(minutes=10)
"""How long a rank waits for a silent peer; a peer that died is noticed at once."""

SECONDS_FOR_THE_FIRST = 5.0
"""How long a failing rank stays, so that rank 0 can write down why before the launcher ends it."""

SECONDS_TO_BE_READ = 1.0
"""How long the launcher is given to pass on what was said; when a rank ends the job, it drops what it has not read."""

_abandoned = threading.Event()


class LaunchError(InputError):
    """Ranks were not started as they were asked for, or do not find each other."""


_MPI_SIZES = {
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK",
    "PMI_SIZE": "PMI_RANK",
    "PMIX_SIZE": "PMIX_RANK",
    "PALS_SIZE": "PALS_RANKID",
}
_MPI_LOCAL_RANKS = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "PALS_LOCAL_RANKID", "SLURM_LOCALID")


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """Who started this process, read from the environment."""

    by: Literal["alone", "torchrun", "mpi", "slurm"]
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    step: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """This process among its peers; a single process is rank 0 of 1."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    nodes: int = 1

    @property
    def first(self) -> bool:
        """Whether this rank writes the files."""
        return self.rank == 0

    def sum_in_place(self, values: Tensor) -> Tensor:
        """``values`` summed over all ranks, the same bits on each."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def gather(self, values: Tensor) -> Tensor:
        """``values`` of every rank, stacked in the order of ranks ``[ranks, ...]``."""
        stacked = values.new_zeros(self.size, *values.shape)
        stacked[self.rank] = values
        return self.sum_in_place(stacked)

    def wait(self) -> None:
        """Return when all ranks are here."""
        if self.size > 1:
            dist.barrier()


def launch_from(environment: Mapping[str, str]) -> Launch:
    """Who started this process; torchrun wins over MPI, MPI over Slurm, because that is how they nest.

    >>> launch_from({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}).size
    4
    >>> launch_from({}).by
    'alone'
    """
    if "WORLD_SIZE" in environment and "MASTER_ADDR" in environment and "RANK" in environment:
        size, rank = int(environment["WORLD_SIZE"]), int(environment["RANK"])
        return Launch(by="torchrun", rank=rank, size=size, local_rank=int(environment.get("LOCAL_RANK", rank)))
    local = next((int(environment[name]) for name in _MPI_LOCAL_RANKS if name in environment), 0)
    for count, number in _MPI_SIZES.items():
        if int(environment.get(count, 1)) > 1:
            rank = int(environment.get(number, 0))
            return Launch(by="mpi", rank=rank, size=int(environment[count]), local_rank=local)
    if int(environment.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
        return Launch(
            by="slurm",
            rank=int(environment["SLURM_PROCID"]),
            size=int(environment["SLURM_STEP_NUM_TASKS"]),
            local_rank=local,
            step=".".join(environment.get(name, "0") for name in names),
        )
    return Launch(by="alone")


def this_launch() -> Launch:
    """Who started this process."""
    return launch_from(os.environ)


@contextmanager
def joined_ranks(folder: Path, device: torch.device | None = None) -> Iterator[Ranks]:
    """The ranks that the launcher started, connected for the length of the block.

    A process group that the caller has made already is used as it is. ``folder`` is where ranks under srun without MPI
    meet. LaunchError where the launcher's count and MPI's disagree, because the ranks would train N copies in silence.
    """
    launch = this_launch()
    if dist.is_initialized():
        yield _described(Launch(by="torchrun", rank=dist.get_rank(), size=dist.get_world_size()))
        return
    if launch.size == 1:
        yield Ranks()
        return
    backend = "nccl" if device is not None and device.type == "cuda" else "gloo"
    if launch.by == "torchrun":
        dist.init_process_group(backend, timeout=PATIENCE)
    else:
        launch, store = _through_mpi(launch) if launch.by == "mpi" else _through_folder(launch, folder)
        dist.init_process_group(backend, store=store, rank=launch.rank, world_size=launch.size, timeout=PATIENCE)
        if launch.by == "slurm" and launch.rank == 0:
            _meeting_place(launch, folder).unlink(missing_ok=True)
    try:
        yield _described(launch)
        with suppress(RuntimeError):  # whoever is here has ended the block; a peer that dies now takes nothing away
            dist.barrier()
    finally:
        # gloo's worker threads must not outlive the interpreter's references: collect first, then destroy
        gc.collect()
        dist.destroy_process_group()


def leave(code: int, seconds: float = SECONDS_FOR_THE_FIRST) -> NoReturn:
    """End the process with ``code``; with several ranks past the interpreter's shutdown, which can abort under gloo.

    A failing rank other than the first stays for so many ``seconds``.
    """
    mpi: Any = sys.modules.get("mpi4py.MPI")
    lives, launch = mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized(), this_launch()
    if launch.size == 1 and (not lives or mpi.COMM_WORLD.size == 1):
        sys.exit(code)
    if code and launch.rank:
        time.sleep(seconds)
    if lives and code == 0 and not _abandoned.is_set():
        mpi.Finalize()
    elif lives:
        end_job(code)
    _flush()
    os._exit(code)


def abandon() -> None:
    """From now on this process does not wait for other ranks, which hang: its end, by ``leave`` or not, is that of the job."""
    _abandoned.set()
    atexit.register(lambda: end_job(1 if hasattr(sys, "last_value") else 0))


def end_job(code: int) -> None:
    """End all ranks of MPI with ``code``, after the launcher had time to pass on what this one said."""
    _flush()
    time.sleep(SECONDS_TO_BE_READ)
    mpi: Any = sys.modules["mpi4py.MPI"]
    mpi.COMM_WORLD.Abort(code)


def host_name() -> str:
    """The name of this machine."""
    return socket.gethostname()


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _described(launch: Launch) -> Ranks:
    """The ranks with the number of machines they run on."""
    if launch.size == 1:
        return Ranks()
    ranks = Ranks(rank=launch.rank, size=launch.size, local_rank=launch.local_rank)
    # a hash, because collectives carry numbers; 62 bits keep it positive
    host = int.from_bytes(hashlib.sha256(host_name().encode()).digest()[:8], "big") >> 2
    gpus = torch.cuda.device_count()  # one, where the launcher has bound every rank to its own
    place = torch.device("cuda", launch.local_rank % gpus) if dist.get_backend() == "nccl" else torch.device("cpu")
    hosts = ranks.gather(torch.tensor(host, dtype=torch.int64, device=place))
    return Ranks(rank=launch.rank, size=launch.size, local_rank=launch.local_rank, nodes=len(torch.unique(hosts)))


def _through_mpi(launch: Launch) -> tuple[Launch, dist.Store]:
    """Meet at a free port of rank 0, told by an MPI broadcast."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise MissingPackageError("mpich", "mpi", f"starting {launch.size} ranks by mpirun ({error})") from error
    world: Any = MPI.COMM_WORLD
    if world.size != launch.size:
        raise LaunchError(
            f"the launcher started {launch.size} ranks, but MPI sees {world.size}: mpirun and the MPI library of mpi4py "
            "differ; use the mpirun beside this Python, or srun --mpi=pmi2"
        )
    store = _listening(launch) if world.rank == 0 else None
    host, port = world.bcast((host_name(), store.port) if store else None)
    hosts = set(world.allgather(host_name()))
    address = "127.0.0.1" if len(hosts) == 1 else host
    joined = Launch(by="mpi", rank=world.rank, size=world.size, local_rank=launch.local_rank)
    return joined, store or dist.TCPStore(address, port, launch.size, False, timeout=PATIENCE)


def _through_folder(launch: Launch, folder: Path) -> tuple[Launch, dist.Store]:
    """Meet at a free port of rank 0, told by a file in the run's folder; the file carries the job step's number."""
    path = _meeting_place(launch, folder)
    if launch.rank == 0:
        store = _listening(launch)
        write_json(path, {"host": host_name(), "port": store.port})
        return launch, store
    deadline = time.monotonic() + PATIENCE.total_seconds()
    while not path.exists():
        if time.monotonic() > deadline:
            raise LaunchError(
                f"rank {launch.rank} waited for {path} in vain; is {folder} on a file system all nodes share?"
            )
        time.sleep(0.05)
    place = read_json(path)
    host = "127.0.0.1" if place["host"] == host_name() else place["host"]
    return launch, dist.TCPStore(host, place["port"], launch.size, False, timeout=PATIENCE)


def _meeting_place(launch: Launch, folder: Path) -> Path:
    return folder / f".ranks-{launch.step}.json"


def _listening(launch: Launch) -> Any:
    """A store at a port that the system chose, so that trials that share a host never collide."""
    return dist.TCPStore("0.0.0.0", 0, launch.size, True, timeout=PATIENCE, wait_for_workers=False)
