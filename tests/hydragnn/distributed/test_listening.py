"""Where the ranks of a run listen, and what a stranger who connects there achieves."""

import ipaddress
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch.distributed as dist

SCRIPT = Path(__file__).with_name("meeting.py")
BIN = Path(sys.executable).parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
MPIRUN = [str(BIN / "mpirun"), "-n", "2", sys.executable]
STEP = {"SLURM_JOB_ID": "91", "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "2"}
LOOPBACK_OF_UCX = {"UCX_NET_DEVICES": "lo"}  # sockets of MPI itself; docs/models.md


@contextmanager
def met(root: Path, tmp_path: Path, *commands: tuple[list[str], dict[str, str]]) -> Iterator[list[dict[str, Any]]]:
    """What two ranks say once they have met; when the block ends they go on, and both must get the right sum."""
    run, results = tmp_path / "run", tmp_path / "results"
    results.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    processes = [
        subprocess.Popen(
            [*command, str(SCRIPT), str(run), str(results)],
            env={**environment, "TMPDIR": str(results), **variables},
            **pipes,
        )
        for command, variables in commands
    ]
    try:
        while not all((results / f"{rank}.json").exists() for rank in range(2)):
            assert not any(process.poll() for process in processes), processes[0].communicate()[0]
            time.sleep(0.05)
        assert not list(run.glob(".ranks-*")) and not list(results.glob("hydragnn-ranks-*"))
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
    return [*command, sys.executable], {**STEP, "SLURM_PROCID": str(rank), **variables}


def assert_on_the_loopback_and_deaf_to_strangers(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["nodes"] == 1
        for address, port in rank["listening"]:
            assert ipaddress.ip_address(address).is_loopback, rank
            assert answer_to_a_stranger(address, port) == ""


STRANGER = """
import datetime, sys
from torch._C._distributed_c10d import TCPStore
print("knocks", flush=True)
store = TCPStore(sys.argv[1], int(sys.argv[2]), None, False, timeout=datetime.timedelta(seconds=2))
store.set("default_pg/0//cpu//0/rank_1", b"mine")
print(store.list_keys(), flush=True)
"""


def answer_to_a_stranger(address: str, port: int) -> str:
    """What a client of torch's TCPStore, which knows no secret, reads there; it may wait for ever and is then stopped."""
    command = [sys.executable, "-c", STRANGER, address, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as stranger:
        assert stranger.stdout is not None and stranger.stdout.readline() == "knocks\n"
        with suppress(subprocess.TimeoutExpired):
            stranger.wait(5)
        stranger.kill()
        return stranger.stdout.read()


def test_an_open_store_of_torch_tells_the_stranger_all_keys() -> None:
    """So that the silence below is that of the ranks, not of the stranger."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    store.set("secret prefix/key", "value")
    assert "secret prefix/key" in answer_to_a_stranger("127.0.0.1", store.port)


def test_ranks_of_a_job_step_on_one_node_listen_on_the_loopback_only(root: Path, tmp_path: Path) -> None:
    with met(root, tmp_path, step_of(0), step_of(1)) as ranks:
        assert_on_the_loopback_and_deaf_to_strangers(ranks)


@pytest.mark.skipif(not (BIN / "mpirun").exists(), reason="no mpirun beside this Python; install mpich")
def test_ranks_of_mpirun_on_one_node_listen_on_the_loopback_only(root: Path, tmp_path: Path) -> None:
    with met(root, tmp_path, (MPIRUN, LOOPBACK_OF_UCX)) as ranks:
        assert_on_the_loopback_and_deaf_to_strangers(ranks)


def test_ranks_of_torchrun_on_one_node_listen_on_the_loopback_only_and_leave_its_open_store_alone(
    root: Path, tmp_path: Path
) -> None:
    with met(root, tmp_path, (TORCHRUN, {})) as ranks:
        assert_on_the_loopback_and_deaf_to_strangers(ranks)


def test_garbage_sent_to_the_ports_of_ranks_changes_no_sum(root: Path, tmp_path: Path) -> None:
    with met(root, tmp_path, step_of(0), step_of(1)) as ranks:
        for rank in ranks:
            for address, port in rank["listening"]:
                for garbage in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 8, b"\xff" * 4096):
                    with socket.create_connection((address, port), timeout=5) as stranger:
                        stranger.sendall(garbage)


def test_ranks_on_two_nodes_listen_at_the_interface_of_the_job_only(root: Path, tmp_path: Path) -> None:
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
    ranks = [step_of(rank, *named, f"node-{rank}", GLOO_SOCKET_IFNAME=interface) for rank in range(2)]
    with met(root, tmp_path, *ranks) as actual:
        assert [rank["nodes"] for rank in actual] == [2, 2]
        assert {one[0] for rank in actual for one in rank["listening"]} == {address}
        # the store does not listen any more: what is left are gloo's own connections
        assert [len(rank["listening"]) for rank in actual] == [1, 1]
