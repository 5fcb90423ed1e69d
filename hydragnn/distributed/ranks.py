"""Ranks: this process among its peers, and the sums they share.

Ranks are started by torchrun, mpirun or srun; without any of them there is one rank. Everything else sees a ``Ranks`` value.
"""

import gc
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from hydragnn.base.errors import InputError, SaidByFirst
from hydragnn.distributed.launch import Launch, LaunchError, host_name, machine_name, on_interfaces, this_launch
from hydragnn.distributed.meeting import PATIENCE, meet
from hydragnn.distributed.neighbours import OnStopped, next_on_machine, process_namespace, watch_neighbour
from hydragnn.distributed.windows import windows_closed

SECONDS_FOR_ERRORS = timedelta(seconds=2)
"""How long ranks with an input error wait for those of others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """This process among its peers; rank 0 of 1 when alone."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    nodes: int = 1

    @property
    def first(self) -> bool:
        """Return True where this rank writes the files."""
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


@contextmanager
def join_ranks(
    folder: Path, device: torch.device | None = None, on_stopped: OnStopped = lambda rank, sentence: None
) -> Iterator[Ranks]:
    """Connect the ranks of the launcher for the length of the block.

    A process group that the caller has made already is used as it is. Ranks of one ``folder`` meet. A rank that
    stays stopped is ended by another one on its machine, which calls ``on_stopped`` before.
    LaunchError where ranks do not find each other, or where the launcher's count and MPI's disagree, because the ranks
    would train N copies in silence.
    """
    launch = this_launch()
    if dist.is_initialized():
        yield _ranks_of(Launch(by="torchrun", rank=dist.get_rank(), size=dist.get_world_size()))
        return
    if launch.size == 1:
        yield Ranks()
        return
    backend = "nccl" if device is not None and device.type == "cuda" else "gloo"
    met = meet(launch, folder)
    with on_interfaces(met.gloo, met.nccl):
        if backend == "nccl":
            check_gpus(met.store, met.launch)
        dist.init_process_group(
            backend, store=met.store, rank=met.launch.rank, world_size=met.launch.size, timeout=PATIENCE
        )
        try:
            ranks = _ranks_of(met.launch)
            watched = _watching(ranks, _device(met.launch), on_stopped)
            with watched, windows_closed(_meet), said_once(met.store, ranks):
                yield ranks
            _meet()  # whoever is here has ended the block; a peer that dies now takes nothing away
        finally:
            # gloo's worker threads must not outlive the interpreter's references: collect first, then destroy
            gc.collect()
            dist.destroy_process_group()


@contextmanager
def said_once(store: dist.Store, ranks: Ranks) -> Iterator[None]:
    """Raise SaidByFirst on ranks with the input error of the first.

    Subclasses of InputError pass, since callers tell them apart.
    """
    try:
        yield
    except InputError as error:
        if type(error) is not InputError:
            raise
        with suppress(RuntimeError, OSError):  # ranks with other errors, or with none, do not answer
            if ranks.first:
                store.set("input error", str(error))
                store.wait([f"input error {rank}" for rank in range(1, ranks.size)], SECONDS_FOR_ERRORS)
            else:
                store.wait(["input error"], SECONDS_FOR_ERRORS)
                same = store.get("input error").decode() == str(error)
                store.set(f"input error {ranks.rank}", "")
                if same:
                    raise SaidByFirst(str(error)) from error
        raise


def _meet() -> bool:
    """Wait for all ranks; return False where one has gone."""
    try:
        dist.barrier()
    except RuntimeError:
        return False
    return True


@contextmanager
def _watching(ranks: Ranks, device: torch.device, on_stopped: OnStopped) -> Iterator[None]:
    """Watch the next rank of this machine in the block."""
    machine = number_of(f"{machine_name()} {process_namespace()}")
    machines, pids = ranks.gather(torch.tensor([machine, os.getpid()], dtype=torch.int64, device=device)).T.tolist()
    neighbour = next_on_machine(ranks.rank, machines)
    with nullcontext() if neighbour is None else watch_neighbour(neighbour, pids[neighbour], on_stopped):
        yield


def number_of(text: str) -> int:
    """Return a number for a text, the same on all machines."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2


def _ranks_of(launch: Launch) -> Ranks:
    """The ranks with the number of machines they run on."""
    if launch.size == 1:
        return Ranks()
    ranks = Ranks(rank=launch.rank, size=launch.size, local_rank=launch.local_rank)
    hosts = ranks.gather(torch.tensor(number_of(host_name()), dtype=torch.int64, device=_device(launch)))
    return Ranks(rank=launch.rank, size=launch.size, local_rank=launch.local_rank, nodes=len(torch.unique(hosts)))


def own_gpu(local_rank: int) -> torch.device:
    """Return the GPU of a rank among those it sees."""
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def check_gpus(store: dist.Store, launch: Launch) -> None:
    """Raise LaunchError on every rank where two share a GPU.

    Ranks on AMD are left to RCCL: whether dies of one card have different identities was never seen.
    """
    gpu = own_gpu(launch.local_rank)
    identity = getattr(torch.cuda.get_device_properties(gpu), "uuid", None)
    if torch.version.hip is None and identity is not None and store.add(f"gpu {identity}", 1) > 1:
        store.set(
            "shared gpu",
            f"two of {launch.size} ranks have GPU {gpu.index} of {host_name()}, and a GPU takes one; start as many ranks on a node "
            f"as it has GPUs (each sees {torch.cuda.device_count()}), or train on its cores with CUDA_VISIBLE_DEVICES=",
        )
    if store.add("ranks with a gpu", 1) == launch.size:
        store.set("all gpus", "")
    store.wait(["all gpus"], PATIENCE)
    if store.check(["shared gpu"]):
        sentence = store.get("shared gpu").decode()
        raise LaunchError(sentence) if launch.rank == 0 else SaidByFirst(sentence)


def _device(launch: Launch) -> torch.device:
    """Return the device of tensors for this group's collectives."""
    if dist.get_backend() != "nccl":
        return torch.device("cpu")
    return own_gpu(launch.local_rank)
