"""Ranks meet their peers and nobody else, whatever lies in the folder."""

import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hydragnn.base.errors import InputError
from hydragnn.distributed.launch import Launch, LaunchError, environment_alone, launch_from, on_interfaces
from hydragnn.distributed.meeting import ServedStore, file_store, meet, meeting_place
from hydragnn.distributed.ranks import check_gpus

PATIENCE = timedelta(seconds=120)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the ranks of a step meet; the folder of temporary files is the test's own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return meeting_place(rank_of_step(0), tmp_path)


def rank_of_step(rank: int) -> Launch:
    return Launch(by="slurm", rank=rank, size=2, step="7.0.0")


def values_after_meeting(folder: Path, word: str) -> list[bytes]:
    """Two ranks meet in the folder; rank 0 writes a word to the store that both read."""

    def met(rank: int) -> bytes:
        store = meet(rank_of_step(rank), folder, PATIENCE).store
        if rank == 0:
            store.set("word", word)
        return bytes(store.get("word"))

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(met, (1, 0)))


def test_a_rank_keeps_the_store_that_the_first_one_has_removed(tmp_path: Path) -> None:
    folder = tmp_path / "place"
    folder.mkdir()
    store, late = (file_store(str(folder / "store"), 2) for _ in range(2))
    store.set("key", "value")
    shutil.rmtree(folder)
    late.set_timeout(timedelta(seconds=1))
    assert late.get("key") == b"value"


def test_two_runs_at_once_on_one_node_have_a_store_each(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda word: values_after_meeting(tmp_path / word, word), ["one", "other"]))
    assert runs == [[b"one"] * 2, [b"other"] * 2]
    assert not list(tmp_path.iterdir())


def test_what_a_dead_attempt_left_misleads_nobody(
    tmp_path: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place.mkdir(mode=0o700)
    old = file_store(str(place / "store"))
    for key in ("rank 1", "all", "word"):
        old.set(key, "old")
    assert values_after_meeting(tmp_path, "fresh") == [b"fresh", b"fresh"]
    assert not capsys.readouterr().err


def test_meetings_at_one_server_share_no_keys() -> None:
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    first, second = (ServedStore(f"7.0.0 {number}", server) for number in range(2))
    first.another().set("opening", "old")
    assert first.get("opening") == b"old" and not second.check(["opening"])


def plant(what: str, place: Path) -> None:
    if what == "of another user" and os.geteuid():
        pytest.skip("only root can make a folder of another user")
    if what == "a file":
        place.write_text("{}")
    elif what == "a link":
        place.with_name("elsewhere").mkdir(mode=0o700)
        place.symlink_to(place.with_name("elsewhere"))
    else:
        place.mkdir(mode=0o700)
    if what == "open to all":
        place.chmod(0o777)
    elif what == "of another user":
        os.chown(place, 12345, -1)
    if what != "a file":
        (place / "store").touch()


TOLD = "where others than this user could tell them where to connect"


@pytest.mark.parametrize(
    ("what", "rank", "words"),
    [*product(["open to all", "a link", "of another user"], [0, 1], [TOLD]), ("a file", 0, "cannot meet in")],
)
def test_ranks_do_not_meet_where_others_could_steer_them(
    what: str, rank: int, words: str, tmp_path: Path, place: Path
) -> None:
    plant(what, place)
    with pytest.raises(LaunchError, match=words):
        meet(rank_of_step(rank), tmp_path, PATIENCE)


STEP = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1", "SLURM_STEP_NODELIST": "n[03-04]"}
TORCHRUN = {"WORLD_SIZE": "4", "RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "9"}


@pytest.mark.parametrize(
    ("rank", "address", "fault"), [(1, "127.0.0.1", "does not answer"), (0, "no-such-node.invalid", "cannot be served")]
)
def test_a_store_that_is_not_there_is_a_sentence(rank: int, address: str, fault: str, tmp_path: Path) -> None:
    launch = Launch(by="torchrun", rank=rank, size=2, address=address, port=9)
    words = rf"^the store of rank 0 at {address} port 9 {fault} \([^\n]*MASTER_ADDR[^\n]*$"
    with pytest.raises(LaunchError, match=words):
        meet(launch, tmp_path, timedelta(seconds=1))


def test_an_interface_that_this_node_does_not_have_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none9")
    with pytest.raises(LaunchError, match=r"GLOO_SOCKET_IFNAME is none9, but \S+ has .*lo"), on_interfaces("", ""):
        pass


LATE = r"2 of 3 ranks did not come to \S+ \(rank 1, 2\); do all of them see it"
ALONE = r"rank 1 waited at \S+ in vain for rank 0; do all ranks of the node see this folder"


@pytest.mark.parametrize(
    ("rank", "missing", "why"),
    [(0, "rank 1, 2, which did not come to ", LATE), (1, "rank 0, who has not come to ", ALONE)],
)
def test_a_rank_that_waits_says_for_whom_and_which_variables_say_so(
    rank: int,
    missing: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("hydragnn.distributed.meeting.NOTE_AFTER", 0.1)
    step = {"SLURM_STEP_NUM_TASKS": "3", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank)}
    with pytest.raises(LaunchError, match=why) as error:
        meet(launch_from(step), tmp_path, timedelta(seconds=0.5))
    printed = capsys.readouterr().err
    assert printed.startswith(f"rank {rank} waits for {missing}{tmp_path}") and printed.count("\n") == 1
    started = f"SLURM_STEP_NUM_TASKS=3 and SLURM_PROCID={rank} say that a launcher started 3 ranks"
    evidence = f"{started}; if none did, unset "
    assert evidence in printed and evidence in str(error.value)


SHELL = {"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "0", "SLURM_PTY_PORT": "4711", "SLURM_TASK_PID": "50"}
"""What Slurm 22.05 gives the shell of ``srun -n 3 --pty bash``, as far as it concerns ranks."""
HYDRA = {"PMI_SIZE": "3", "PMI_RANK": "1", "PMI_FD": "9", "MPI_LOCALRANKID": "1"}


SEVERAL = {**STEP, "SLURM_STEP_NUM_NODES": "2"}
PMI, OPEN_MPI = {"PMI_SIZE": "2", "PMI_RANK": "0"}, {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}


@pytest.mark.parametrize(
    ("environment", "by", "rank", "address", "port"),
    [
        ({**STEP, "SLURM_STEP_NUM_NODES": "1"}, "slurm", 1, "", None),
        (SEVERAL, "slurm", 1, "n03", None),
        ({**SEVERAL, "MASTER_ADDR": "hsn3", "MASTER_PORT": "7"}, "slurm", 1, "hsn3", 7),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "4"}, "torchrun", 1, "", 9),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "torchrun", 1, "a", 9),
        (TORCHRUN, "torchrun", 1, "a", 9),
        (PMI, "mpi", 0, "", 0),
        ({**PMI, "MASTER_ADDR": "hsn3"}, "mpi", 0, "hsn3", 0),
        # in the shell of an interactive step, which is process 50
        (SHELL, "alone", 0, "", 0),
        ({**SHELL, "SLURM_TASK_PID": "51"}, "slurm", 0, "", None),  # srun --pty hydragnn train: no shell between
        ({**SHELL, "PMI_SIZE": "3", "PMI_RANK": "0"}, "alone", 0, "", 0),  # the same with Slurm's PMI
        ({**SHELL, **HYDRA}, "mpi", 1, "", 0),  # mpirun in that shell
        ({**SHELL, **OPEN_MPI}, "mpi", 1, "", 0),
        ({**SHELL, **TORCHRUN}, "torchrun", 1, "a", 9),
        ({"PMI_SIZE": "2", "PMI_RANK": "1", "SLURM_STEP_NUM_TASKS": "8"}, "mpi", 1, "", 0),
        ({"SLURM_NTASKS": "8"}, "alone", 0, "", 0),  # an allocation, but no job step
        ({"PMI_SIZE": "1", "SLURM_STEP_NUM_TASKS": "1"}, "alone", 0, "", 0),
        ({"PMI_SIZE": "", "SLURM_LOCALID": "", "SLURM_STEP_NUM_TASKS": ""}, "alone", 0, "", 0),
    ],
)
def test_a_rank_knows_its_launcher_and_meeting_place(
    environment: dict[str, str], by: str, rank: int, address: str, port: int | None
) -> None:
    launch = launch_from(environment, 51)
    assert (launch.by, launch.rank, launch.address) == (by, rank, address)
    assert launch.local_rank == 1 or "LOCAL_RANK" not in environment
    assert launch.port == port if port is not None else 15_000 <= launch.port < 30_000


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({**TORCHRUN, "RANK": "x"}, "RANK=x"),
        ({**TORCHRUN, "RANK": "4"}, "RANK=4"),
        ({"PMI_SIZE": "two"}, "PMI_SIZE=two"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "-1"}, "OMPI_COMM_WORLD_RANK=-1"),
        ({"SLURM_STEP_NUM_TASKS": "3"}, "SLURM_PROCID="),
        ({"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "7"}, "SLURM_PROCID=7"),
    ],
)
def test_variables_that_no_launcher_writes_are_named(environment: dict[str, str], name: str) -> None:
    with pytest.raises(LaunchError, match=f"^{name} is in the environment.*unset {name.partition('=')[0]}$"):
        launch_from(environment)


@pytest.mark.parametrize("rank", [SHELL, HYDRA, {**TORCHRUN, "LOCAL_RANK": "1"}])
def test_what_a_rank_starts_beside_its_launcher_is_alone(rank: dict[str, str]) -> None:
    own = {"PATH": "/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "OMPI_MCA_btl": "self", "FLUX_URI": "x"}
    assert environment_alone({**own, **rank}) == own
    assert launch_from(environment_alone({**own, **rank}), 50).size == 1


@pytest.mark.skipif(not shutil.which("script"), reason="no program script to make a terminal")
def test_the_shell_of_a_real_interactive_step_is_alone_and_its_tasks_are_ranks(slurm: Any, root: Path) -> None:
    program = "from hydragnn.distributed.launch import this_launch as l; print(l().by, l().size)"
    for option, expected in (("--pty", "alone 1"), ("--label", "slurm 3")):
        shell = f"srun -N1 -n3 --overcommit --mpi=none {option} bash -c '{sys.executable} -c \"{program}\"; true'"
        environment = {**os.environ, **slurm.environment, "PYTHONPATH": str(root)}
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 300}
        done = subprocess.run(["script", "-qec", shell, "/dev/null"], env=environment, **options)
        assert done.stdout.count(expected) == (1 if option == "--pty" else 3), done.stdout


@pytest.mark.parametrize("of_rank", [["A", "B", "C"], ["A", "B", "A"], ["A", "A", "A"]], ids="".join)
def test_ranks_that_have_one_gpu_are_told_in_one_sentence(of_rank: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sees one GPU, as where they are bound; the first of them says so, the others leave with it and print nothing."""
    store, gpu = dist.HashStore(), threading.local()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=gpu.identity))

    def join(rank: int) -> str:
        gpu.identity = of_rank[rank]
        try:
            check_gpus(store, Launch(by="torchrun", rank=rank, size=3, local_rank=rank))
        except InputError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    with ThreadPoolExecutor(3) as ranks:
        said = list(ranks.map(join, range(3)))
    if len(set(of_rank)) == 3:
        assert said == ["", "", ""]
    else:
        assert said[0].startswith("LaunchError: two of 3 ranks have GPU 0 of ") and "start as many ranks" in said[0]
        assert all(other == said[0].replace("LaunchError", "SaidByFirst") for other in said[1:])
