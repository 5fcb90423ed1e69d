"""Where the ranks of a run listen."""

import ipaddress
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.forked import Forked
from tests.hydragnn.training.conftest import MPIRUN, TORCHRUN, needs_mpirun

SCRIPT = Path(__file__).with_name("listening.py")
STEP = {"SLURM_JOB_ID": "91", "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "2"}
LOOPBACK_OF_UCX = {"UCX_NET_DEVICES": "lo"}  # sockets of MPI itself; docs/training.md


@contextmanager
def met(root: Path, tmp_path: Path, *commands: tuple[list[str], dict[str, str]]) -> Iterator[list[dict[str, Any]]]:
    """What two ranks say once they have met; when the block ends they go on, and both must get the right sum."""
    run, results = tmp_path / "run", tmp_path / "results"
    results.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "TMPDIR": str(results)}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    words = [str(SCRIPT), str(run), str(results)]
    processes = [
        subprocess.Popen([*command, *words], env={**environment, **variables}, **pipes)
        if command
        else Forked(words, {**environment, **variables})
        for command, variables in commands
    ]
    try:
        while not all((results / f"{rank}.json").exists() for rank in range(2)):
            assert not any(process.poll() for process in processes), processes[0].communicate()[0]
            time.sleep(0.05)
        assert not run.exists() and not list(results.glob("hydragnn-ranks-*"))
        yield [json.loads((results / f"{rank}.json").read_text()) for rank in range(2)]
        (results / "go").touch()
        output = "".join(process.communicate(timeout=120)[0] for process in processes)
        assert all(process.returncode == 0 for process in processes), output
        assert output.count("sum 3.0") == 2, output
    finally:
        for process in processes:
            process.kill()
            process.wait()


def step_of(rank: int, *command: str, **variables: str) -> tuple[list[str], dict[str, str]]:
    """A rank of a job step without MPI, as srun starts it."""
    return [*command, sys.executable] if command else [], {**STEP, "SLURM_PROCID": str(rank), **variables}


@pytest.mark.parametrize(
    "commands",
    [[step_of(0), step_of(1)], pytest.param([(MPIRUN, LOOPBACK_OF_UCX)], marks=needs_mpirun), [(TORCHRUN, {})]],
    ids=["job step", "mpirun", "torchrun"],
)
def test_ranks_on_one_node_listen_on_the_loopback_only(
    commands: list[tuple[list[str], dict[str, str]]], root: Path, tmp_path: Path
) -> None:
    with met(root, tmp_path, *commands) as ranks:
        assert {rank["nodes"] for rank in ranks} == {1}
        places = [place for rank in ranks for place in rank["listening"]]
        assert all(ipaddress.ip_address(address).is_loopback for address, _ in places), ranks
        for address, port in places if len(commands) == 2 else ():  # sockets of MPI and torch are their own
            for garbage in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 8, b"\xff" * 4096):
                with socket.create_connection((address, port), timeout=5) as stranger:
                    stranger.sendall(garbage)


def test_ranks_on_two_nodes_meet_at_the_interface_of_the_job(root: Path, tmp_path: Path) -> None:
    """Two host names are two nodes; their network is the first of this machine's that is no loopback."""
    named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"']
    try:
        tried = subprocess.run([*named, "node", "true"], capture_output=True).returncode
    except OSError:
        tried = 1
    if tried:
        pytest.skip("only root can give a process another host name")
    table = [(entry.address, name) for name, entries in psutil.net_if_addrs().items() for entry in entries]
    outward = [(a, name) for a, name in table if a.count(".") == 3 and not ipaddress.ip_address(a).is_loopback]
    if not outward:
        pytest.skip("this machine has no network but the loopback")
    address, interface = outward[0]
    with socket.socket() as free:
        free.bind(("", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": address, "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": interface}
    variables = {"SLURM_STEP_NUM_NODES": "2", **place}
    ranks = [step_of(rank, *named, f"node-{rank}", **variables) for rank in range(2)]
    with met(root, tmp_path, *ranks) as actual:
        assert [rank["nodes"] for rank in actual] == [2, 2]
        of_gloo = [[one for one in rank["listening"] if one[0] == address] for rank in actual]
        assert [len(one) for one in of_gloo] == [1, 1]
        assert [len(rank["listening"]) for rank in actual] == [2, 1]  # rank 0 serves the store, too
