"""A real Slurm of virtual nodes on this machine, for tests: Debian's slurm-wlm and munge, no systemd, no cgroups.

Every node is a slurmd in namespaces of its own: it has its own host name (n1, n2, ...), address and process numbers, and
killing it takes everything that runs there with it, as the loss of a real node does.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "srun", "sinfo", "munged", "unshare", "mount")
PATIENCE = 240.0  # seconds until all nodes must be there
CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/state/slurmctld.pid
SlurmdPidFile={folder}/spool/%n/slurmd.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=0
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=10
SlurmctldTimeout=10
MessageTimeout=10
KillWait=2
TCPTimeout=2
PropagateResourceLimits=NONE
AccountingStorageType=accounting_storage/none
"""


def why_not() -> str:
    """Why no Slurm can be brought up here; empty where it can."""
    missing = [program for program in PROGRAMS if not shutil.which(program, path=_path())]
    if missing:
        return f"no {missing[0]}; apt-get install slurm-wlm munge"
    if os.geteuid() != 0:
        return "virtual Slurm nodes need root"
    tried = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "--uts", "true"], capture_output=True)
    return "" if tried.returncode == 0 else "namespaces are not allowed here"


class Cluster:
    """Nodes with so many cores (more than the machine has, if need be); use as a context manager."""

    def __init__(self, *cores: int) -> None:
        self.names = [f"n{number}" for number in range(1, len(cores) + 1)]
        self._cores = cores
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # a short path, because sockets allow no long ones

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs beside the usual to speak to this Slurm."""
        return {"SLURM_CONF": str(self._folder / "slurm.conf"), "PATH": _path()}

    def __enter__(self) -> "Cluster":
        try:
            self._configure()
            self._start_munge()
            self.start_controller()
            for name in self.names:
                self.restart(name)
            self._wait_until_idle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in [*self.names, "slurmctld", "munged"]:
            if name in self._processes:
                self.kill(name)
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self, name: str) -> None:
        """A node, or a daemon, is gone at once, with everything that runs on it."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def lose(self, name: str) -> None:
        """A node is gone, and slurmctld, which would take ten seconds to find out, calls it down at once."""
        self.kill(name)
        down = ["scontrol", "update", f"nodename={name}", "state=down", "reason=lost"]
        subprocess.run(down, env={**os.environ, **self.environment}, check=True)

    def stop_controller(self) -> None:
        """End slurmctld in good order, as its service manager does; nodes and what runs on them stay."""
        process = self._processes.pop("slurmctld")
        process.terminate()
        process.wait()

    def start_controller(self) -> None:
        self._spawn("slurmctld", ["slurmctld", "-D", "-i", "-f", str(self._folder / "slurm.conf")])

    def restart(self, name: str) -> None:
        (self._folder / "spool" / name).mkdir(parents=True, exist_ok=True)
        script = (
            f"hostname {name}; mount --bind {self._folder}/hosts /etc/hosts; ulimit -c 0; "
            f"exec slurmd -D -N {name} -f {self._folder}/slurm.conf"
        )
        unshare = ["unshare", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc", "--uts"]
        self._spawn(name, [*unshare, "bash", "-c", script])

    def _configure(self) -> None:
        for name in ("munge", "state", "spool", "log"):
            (self._folder / name).mkdir(parents=True)
        self._folder.chmod(0o755)
        (self._folder / "munge").chmod(0o711)
        host, ports = socket.gethostname().partition(".")[0], _free_ports(len(self.names) + 1)
        text = CONFIGURATION.format(folder=self._folder, host=host, port=ports[0])
        hosts = f"127.0.0.1 localhost {host}\n"
        for number, (name, port, cores) in enumerate(zip(self.names, ports[1:], self._cores), start=1):
            text += (
                f"NodeName={name} NodeHostname={name} NodeAddr=127.0.1.{number} Port={port} CPUs={cores} Boards=1 "
                f"SocketsPerBoard=1 CoresPerSocket={cores} ThreadsPerCore=1 RealMemory=4000 State=UNKNOWN\n"
            )
            hosts += f"127.0.1.{number} {name}\n"
        nodes = f"n[1-{len(self.names)}]"
        text += f"PartitionName=all Nodes={nodes} Default=YES MaxTime=INFINITE State=UP OverSubscribe=EXCLUSIVE\n"
        (self._folder / "slurm.conf").write_text(text)
        (self._folder / "hosts").write_text(hosts)

    def _start_munge(self) -> None:
        folder = self._folder / "munge"
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o600)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
        self._spawn(
            "munged", ["munged", "-F", "-f", *(f"--{option}={folder / name}" for option, name in files.items())]
        )
        _wait(lambda: (folder / "socket").exists(), "munged")

    def _wait_until_idle(self) -> None:
        def idle() -> bool:
            if self._processes["slurmctld"].poll() is not None:
                raise RuntimeError((self._folder / "log" / "slurmctld.log").read_text()[-2000:])
            asked = ["sinfo", "-h", "-N", "-t", "idle", "-o", "%n"]
            actual = subprocess.run(asked, env={**os.environ, **self.environment}, capture_output=True, text=True)
            return len(actual.stdout.split()) == len(self.names)

        _wait(idle, "nodes of the virtual Slurm")

    def _spawn(self, name: str, command: list[str]) -> None:
        with (self._folder / "log" / f"{name}.out").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self.environment},
            )


def _wait(ready: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come up within {PATIENCE:.0f} s")
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens at, below those that the system gives to whoever asks for any; another process begins elsewhere."""
    free: list[int] = []
    for number in range(10_000):
        port = 10_000 + (os.getpid() * 97 + number) % 20_000
        with socket.socket() as one, suppress(OSError):
            one.bind(("0.0.0.0", port))
            free.append(port)
        if len(free) == count:
            return free
    raise RuntimeError(f"there are no {count} free ports")


def _path() -> str:
    """Daemons lie where only root's own shell looks."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
