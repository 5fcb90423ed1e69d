"""The launcher that started this process, read from the environment."""

import atexit
import ctypes
import hashlib
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from hydragnn.base.environment import change_environment, changed_environment, environment
from hydragnn.base.errors import InputError


class LaunchError(InputError):
    """The ranks started are not those asked for, or cannot meet."""


_MPI_SIZES = {"OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK", "PMI_SIZE": "PMI_RANK"}
_MPI_SIZES |= {"PMIX_SIZE": "PMIX_RANK", "PALS_SIZE": "PALS_RANKID"}
_MPI_LOCAL_RANKS = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "PALS_LOCAL_RANKID", "SLURM_LOCALID")
_SLURM_STEP = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
_TORCHRUN_STEP = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")

FIRST_PORT, PORTS = 15_000, 15_000
"""Range of the stores of Slurm's steps, below the ports that systems give away."""

RANK_VARIABLE = re.compile(
    "PMI_.*|PMI2_.*|PMIX_(?!MCA_).*|PALS_.*|HYDI_.*|MPI_LOCAL.*|MV2_COMM_WORLD_.*"
    "|OMPI_(COMM_WORLD|UNIVERSE|APP|NUM_APP|FIRST|FILE|COMMAND|ARGV|MCA_ess|MCA_orte).*"
    "|SLURM_(STEP_.*|STEPID|PROCID|LOCALID|NODEID|GTIDS|TASK_PID|PTY_.*|SRUN_COMM_.*|LAUNCH_NODE_IPADDR)|FLUX_TASK_.*"
    "|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_(RANK|WORLD_SIZE)|ROLE_(RANK|WORLD_SIZE|NAME)"
    "|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_.*"
)
"""Names of the variables by which launchers tell a rank which one it is; those of the allocation, and settings of users, are none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """Launcher of this process, read from the environment."""

    by: Literal["alone", "torchrun", "mpi", "slurm"]
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    step: str = ""
    """The name of this start, the same on its ranks; empty until MPI has told it."""
    node: str = ""
    """The name that the scheduler has for this node, which resolves to the job's interface; empty where it says none."""
    address: str = ""
    """Host of the store of ranks on several nodes; empty on one node, and where rank 0 tells it by MPI."""
    port: int = 0
    by_agent: bool = False
    """torchrun's own process serves the store."""
    variables: tuple[str, ...] = ()
    """The variables of the environment that say so, as ``NAME=value``."""

    @property
    def evidence(self) -> str:
        """Return words for errors: the variables that prove several ranks.

        >>> Launch(by="mpi", rank=0, size=3, variables=("PMI_SIZE=3", "PMI_RANK=0")).evidence
        'PMI_SIZE=3 and PMI_RANK=0 say that a launcher started 3 ranks; if none did, unset PMI_SIZE and PMI_RANK'
        """
        if not self.variables:
            return f"a launcher started {self.size} ranks"
        names = " and ".join(variable.partition("=")[0] for variable in self.variables)
        said = " and ".join(self.variables)
        return f"{said} say that a launcher started {self.size} ranks; if none did, unset {names}"


def launch_from(environment: Mapping[str, str], pid: int | None = None) -> Launch:
    """Return the launcher: torchrun before MPI before Slurm, as they nest.

    A process in the shell of an interactive step of Slurm is no rank of that step: only the step's own task is, whose number
    (``pid``) Slurm knows.

    >>> launch_from({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}).size
    4
    >>> launch_from({}).by
    'alone'
    """
    if {"WORLD_SIZE", "MASTER_ADDR", "RANK"} <= environment.keys():
        return _of_torchrun(environment)
    in_shell = "SLURM_PTY_PORT" in environment and environment.get("SLURM_TASK_PID") != str(pid)
    return _of_mpi(environment, in_shell) or (None if in_shell else _of_slurm(environment)) or Launch(by="alone")


def _of_torchrun(environment: Mapping[str, str]) -> Launch:
    """Return a rank of torchrun, or of variables like its own."""
    size = _number(environment, "WORLD_SIZE", 1)
    rank = _number(environment, "RANK", 0, size)
    start = "\n".join(environment.get(name, "") for name in _TORCHRUN_STEP)
    on_one_node = _number(environment, "LOCAL_WORLD_SIZE", 0) == size
    return Launch(
        by="torchrun",
        rank=rank,
        size=size,
        local_rank=_number(environment, "LOCAL_RANK", rank),
        step=hashlib.sha256(start.encode()).hexdigest()[:16],
        address="" if on_one_node else environment["MASTER_ADDR"],
        port=_number(environment, "MASTER_PORT", 0, 2**16),
        by_agent=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        variables=_named(environment, "WORLD_SIZE", "RANK"),
    )


def _of_mpi(environment: Mapping[str, str], in_shell: bool) -> Launch | None:
    """Return a rank of MPI; None for none."""
    for count, number in _MPI_SIZES.items():
        # variables of Slurm's own PMI are those of the shell; mpirun in that shell sets MPI_LOCALRANKID
        same = environment.get(count) == environment.get("SLURM_STEP_NUM_TASKS")
        size = _number(environment, count, 1)
        if size > 1 and not (in_shell and same and "MPI_LOCALRANKID" not in environment):
            return Launch(
                by="mpi",
                rank=_number(environment, number, 0, size),
                size=size,
                local_rank=_local_rank(environment),
                node=environment.get("SLURMD_NODENAME", ""),
                address=environment.get("MASTER_ADDR", ""),
                port=_number(environment, "MASTER_PORT", 0, 2**16),
                variables=_named(environment, count, number),
            )
    return None


def _of_slurm(environment: Mapping[str, str]) -> Launch | None:
    """Return a rank of a step of Slurm; None for none."""
    size = _number(environment, "SLURM_STEP_NUM_TASKS", 1)
    if size <= 1:
        return None
    step = ".".join(environment.get(name, "0") for name in _SLURM_STEP)
    several = _number(environment, "SLURM_STEP_NUM_NODES", 1) > 1
    host = environment.get("MASTER_ADDR") or first_node(environment.get("SLURM_STEP_NODELIST", ""))
    own_port = FIRST_PORT + int(hashlib.sha256(step.encode()).hexdigest(), 16) % PORTS
    return Launch(
        by="slurm",
        rank=_number(environment, "SLURM_PROCID", below=size),
        size=size,
        local_rank=_local_rank(environment),
        step=step,
        address=host if several else "",
        port=_number(environment, "MASTER_PORT", 0, 2**16) or own_port,
        variables=_named(environment, "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    )


def _local_rank(environment: Mapping[str, str]) -> int:
    return next((_number(environment, name) for name in _MPI_LOCAL_RANKS if environment.get(name)), 0)


def first_node(names: str) -> str:
    """Return the first of Slurm's names of nodes.

    >>> first_node("rack[1-2]n[007,9],login"), first_node("n1,n2")
    ('rack1n007', 'n1')
    """
    return re.sub(r"\[(\d+)[^]]*\]", r"\1", names).partition(",")[0]


def _number(environment: Mapping[str, str], name: str, absent: int | None = None, below: int | None = None) -> int:
    """Return the number in a launcher's variable; LaunchError for other text."""
    text = environment.get(name, "").strip()
    if not text and absent is not None:
        return absent
    if not text.isascii() or not text.isdigit() or (below is not None and int(text) >= below):
        more = "" if below is None else f" below {below}"
        problem = f"{name}={text} is in the environment, where launchers write a number{more}"
        raise LaunchError(f"{problem}; if none started this process, unset {name}")
    return int(text)


def _named(environment: Mapping[str, str], *names: str) -> tuple[str, ...]:
    return tuple(f"{name}={environment[name]}" for name in names if name in environment)


def this_launch() -> Launch:
    """Return the launcher of this process."""
    return launch_from(environment(), os.getpid())


def environment_alone(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment without the variables of ranks.

    >>> environment_alone({"PMI_RANK": "1", "RANK": "1", "SLURM_JOB_ID": "7", "SLURM_STEPMGR": "n1", "OMPI_MCA_btl": "self"})
    {'SLURM_JOB_ID': '7', 'SLURM_STEPMGR': 'n1', 'OMPI_MCA_btl': 'self'}
    """
    variables = environment() if variables is None else variables
    return {name: value for name, value in variables.items() if not RANK_VARIABLE.fullmatch(name)}


def leave_launch() -> None:
    """Remove the variables of ranks from this process."""
    change_environment(dict.fromkeys(environment().keys() - environment_alone().keys()))


def unique_name() -> str:
    """Return a name that no other process on any machine has."""
    return f"{host_name()}-{os.getpid()}"


def host_name() -> str:
    """The name of this machine."""
    return socket.gethostname()


def machine_name() -> str:
    """Return a name that exactly the processes of one machine share."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    return f"{host_name()} {boot}".strip()


@contextmanager
def on_interfaces(gloo: str, nccl: str) -> Iterator[None]:
    """Let gloo and NCCL use these interfaces in the block.

    Variables that the user set stay; "" changes nothing. LaunchError where this node does not have the interface of gloo.
    Environment variables are the one way that both libraries offer through ``torch.distributed``.
    """
    variables, names = environment(), {name for _, name in socket.if_nameindex()}
    if missing := {*filter(None, variables.get(_INTERFACES[0], "").split(","))} - names:
        problem = f"{_INTERFACES[0]} is {', '.join(missing)}, but {host_name()} has {', '.join(sorted(names))}"
        raise LaunchError(f"{problem}; name one of these or unset it")
    changes = {name: value for name, value in zip(_INTERFACES, (gloo, nccl)) if value and not variables.get(name)}
    with changed_environment(changes):
        yield


SECONDS_FOR_THE_FIRST = 5.0
"""Seconds that a failing rank stays, so that rank 0 can write down why before the launcher ends it."""
SECONDS_TO_BE_READ = 1.0
"""Seconds that the launcher has to pass on output; when a rank ends the job, it drops what it has not read."""

_abandoned = threading.Event()


def leave(code: int, seconds: float = SECONDS_FOR_THE_FIRST) -> NoReturn:
    """End the process with ``code``.

    With several ranks it skips the interpreter's shutdown, which can abort under gloo.
    A failing rank other than the first stays for so many ``seconds``.
    MPICH tells mpirun only in a handler of C's ``exit`` that a rank has ended well; without, mpirun may kill the others.
    """
    mpi: Any = sys.modules.get("mpi4py.MPI")
    mpi_runs, launch = mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized(), this_launch()
    if launch.size == 1 and (not mpi_runs or mpi.COMM_WORLD.size == 1):
        sys.exit(code)
    if code and launch.rank:
        time.sleep(seconds)
    if mpi_runs and code == 0 and not _abandoned.is_set():
        mpi.Finalize()
        _flush()
        ctypes.PyDLL(None).exit(code)  # other threads of Python wait for its lock meanwhile
    elif mpi_runs:
        end_job(code)
    _flush()
    os._exit(code)


def abandon() -> None:
    """Stop waiting for other ranks, and end the job on leaving."""
    _abandoned.set()
    atexit.register(lambda: end_job(1 if hasattr(sys, "last_value") else 0))


def end_job(code: int) -> None:
    """End all MPI ranks after the launcher printed this one's output."""
    _flush()
    time.sleep(SECONDS_TO_BE_READ)
    if code == 0:  # a success, of which MPI would say "Abort(0)"
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    mpi: Any = sys.modules["mpi4py.MPI"]
    mpi.COMM_WORLD.Abort(code)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
