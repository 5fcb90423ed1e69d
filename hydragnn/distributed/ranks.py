"""Ranks: this process among its peers, and the sums they share.

Ranks are started by torchrun, mpirun or srun; without any of them there is one rank. Everything else sees a ``Ranks`` value.
"""

import gc
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor

from hydragnn.base.clock import phase
from hydragnn.base.errors import InputError, SaidByFirst
from hydragnn.base.machine import numbers_in
from hydragnn.distributed.launch import Launch, LaunchError, host_name, machine_name, on_interfaces, this_launch
from hydragnn.distributed.meeting import PATIENCE, Meeting, meet
from hydragnn.distributed.windows import windows_closed

LOOK_EVERY = 5.0
"""Seconds between two looks at a neighbour."""
LOOKS = 9
"""Looks in a row that must find it stopped. Looks are counted, because a whole job may be suspended and resumed."""
OnStopped = Callable[[int, str], None]
"""Called with the number of a stopped rank, and a sentence, before it is ended."""


@contextmanager
def watch_neighbour(rank: int, pid: int, on_stopped: OnStopped) -> Iterator[None]:
    """Watch another rank's process from a thread in the block, and end it where it stays stopped.

    A stopped process (SIGSTOP) holds up all others in the next collective, and they cannot tell it from one that takes a long step. The system can. Once it
    is ended its connections break, and all others leave. A rank that is alone on its machine has no neighbour.
    """
    over = threading.Event()
    with suppress(psutil.Error):  # it has died; the next collective says so
        neighbour = psutil.Process(pid)
        threading.Thread(target=_watch, args=(neighbour, rank, on_stopped, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _watch(neighbour: psutil.Process, rank: int, on_stopped: OnStopped, over: threading.Event) -> None:
    stopped = 0
    with suppress(psutil.Error):
        while not over.wait(LOOK_EVERY):
            stopped = stopped + 1 if neighbour.status() == psutil.STATUS_STOPPED else 0
            if stopped == LOOKS:
                sentence = (
                    f"rank {rank} on {host_name()} (process {neighbour.pid}) was stopped for {LOOKS * LOOK_EVERY:.0f} s, while all others "
                    "waited for it; it is ended, and the run with it"
                )
                print(sentence, file=sys.stderr, flush=True)
                on_stopped(rank, sentence)
                neighbour.kill()  # the very process: psutil knows when it began
                return


def machine_number() -> int:
    """Return a number that processes share which see each other."""
    namespace = Path("/proc/self/ns/pid")
    return number_of(f"{machine_name()} {namespace.stat().st_ino if namespace.exists() else 0}")


SECONDS_FOR_ERRORS = timedelta(seconds=2)
"""Time that ranks with an input error wait for those of others."""


CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """This process among its peers; rank 0 of 1 when alone."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    nodes: int = 1
    device: torch.device = CPU
    """Device of the tensors that they exchange."""

    @property
    def first(self) -> bool:
        """Return True where this rank writes the files."""
        return self.rank == 0

    def sum_in_place(self, values: Tensor) -> Tensor:
        """``values`` summed over all ranks, the same bits on each."""
        if self.size > 1:
            with phase("collectives"):
                dist.all_reduce(values)
        return values

    def gather(self, values: Tensor) -> Tensor:
        """``values`` of every rank, stacked in the order of ranks ``[ranks, ...]``."""
        stacked = values.new_zeros(self.size, *values.shape)
        stacked[self.rank] = values
        return self.sum_in_place(stacked)

    def numbers(self, *own: int) -> list[list[int]]:
        """Return whole numbers of every rank; collective."""
        rows: list[list[int]] = self.gather(torch.tensor(own, dtype=torch.int64, device=self.device)).tolist()
        return rows

    def largest(self, *own: int | float) -> list[float]:
        """Return the largest of each number; collective."""
        largest: list[float] = self.gather(torch.tensor(own, dtype=torch.float64, device=self.device)).amax(0).tolist()
        return largest

    def any(self, flag: bool) -> bool:
        """Return True where the flag is set on some rank; collective."""
        return bool(self.sum_in_place(torch.tensor(float(flag), device=self.device)))

    def wait(self) -> None:
        """Return when all ranks are here."""
        if self.size > 1:
            with phase("collectives"):
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
    with process_group(launch, folder, backend) as met:
        ranks = _ranks_of(met.launch)
        with _watching(ranks, on_stopped), windows_closed(_meet), said_once(met.store, ranks):
            yield ranks
        _meet()  # whoever is here has ended the block; a peer that dies now takes nothing away


@contextmanager
def process_group(launch: Launch, folder: Path, backend: str) -> Iterator[Meeting]:
    """Meet and make the process group of the block."""
    met = meet(launch, folder)
    with on_interfaces(met.gloo, met.nccl):
        if "nccl" in backend:
            check_gpus(met.store, met.launch)
        rank, size = met.launch.rank, met.launch.size
        dist.init_process_group(backend, store=met.store, rank=rank, world_size=size, timeout=PATIENCE)
        try:
            yield met
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
def _watching(ranks: Ranks, on_stopped: OnStopped) -> Iterator[None]:
    """Watch the next rank of this machine in the block."""
    machine = machine_number()
    machines, pids = zip(*ranks.numbers(machine, os.getpid()))
    here = [rank for rank in range(ranks.size) if machines[rank] == machine]
    neighbour = here[(here.index(ranks.rank) + 1) % len(here)]
    with nullcontext() if neighbour == ranks.rank else watch_neighbour(neighbour, pids[neighbour], on_stopped):
        yield


def number_of(text: str) -> int:
    """Return a number for a text, the same on all machines."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2


def _ranks_of(launch: Launch) -> Ranks:
    """The ranks with the number of machines they run on."""
    if launch.size == 1:
        return Ranks()
    device = own_gpu(launch.local_rank) if dist.get_backend() == "nccl" else torch.device("cpu")
    ranks = Ranks(rank=launch.rank, size=launch.size, local_rank=launch.local_rank, device=device)
    return replace(ranks, nodes=len({host for (host,) in ranks.numbers(number_of(host_name()))}))


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


PCI = Path("sys/bus/pci/devices")


def bind_near(gpu: torch.device, devices: Path = Path("/") / PCI) -> None:
    """Bind this process to the cores beside its GPU.

    Nothing happens where a launcher has bound it already, or where the system does not tell which cores these are.
    """
    with suppress(OSError, AttributeError, ValueError):  # another system, driver or version of torch
        near = {*numbers_in((devices / pci_address(gpu) / "local_cpulist").read_text(encoding="ascii"))}
        if near and near < os.sched_getaffinity(0):
            os.sched_setaffinity(0, near)


def pci_address(gpu: torch.device) -> str:
    """Return the address of a GPU as the system writes it."""
    properties: Any = torch.cuda.get_device_properties(gpu)
    return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"


@contextmanager
def cores_given_back() -> Iterator[None]:
    """Give all threads of this process its present cores again."""
    if not hasattr(os, "sched_getaffinity"):
        yield
        return
    earlier = os.sched_getaffinity(0)
    try:
        yield
    finally:
        bound = os.sched_getaffinity(0)
        for thread in Path("/proc/self/task").iterdir() if bound != earlier else ():
            with suppress(OSError):  # it has ended
                if os.sched_getaffinity(int(thread.name)) == bound:
                    os.sched_setaffinity(int(thread.name), earlier)
