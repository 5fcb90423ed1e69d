"""Ranks meet their peers and nobody else, whatever lies in the folder and whoever knocks."""

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hydragnn.base.errors import InputError
from hydragnn.distributed.addresses import address_of_job, interface_of
from hydragnn.distributed.launch import Launch, LaunchError, environment_alone, launch_from
from hydragnn.distributed.ranks import check_gpus
from hydragnn.distributed.rendezvous import Invitation, check_private, file_store, meeting_place, rendezvous

PATIENCE = timedelta(seconds=120)


def rank_of_step(rank: int, size: int = 2) -> Launch:
    """One rank of a job step without MPI."""
    return Launch(by="slurm", rank=rank, size=size, step="7.0.0")


def values_after_meeting(folder: Path, word: str) -> list[bytes]:
    """Two ranks meet in the folder; rank 0 writes a word to the store that both read."""
    together = Barrier(2)

    def met(rank: int) -> bytes:
        with rendezvous(rank_of_step(rank), folder, PATIENCE) as meeting:
            if rank == 0:
                meeting.store.set("word", word)
            value = bytes(meeting.store.get("word"))
            together.wait(PATIENCE.total_seconds())
            return value

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(met, range(2)))


@pytest.mark.parametrize("make", [dist.FileStore, file_store])
def test_a_rank_keeps_the_store_that_the_first_one_has_removed(make: Any, tmp_path: Path) -> None:
    """torch's own store looks for the file in vain, five minutes long if nobody says less, and so shows that this test can fail."""
    folder = tmp_path / "place"
    folder.mkdir()
    store, late = (make(str(folder / "store"), 2) for _ in range(2))
    store.set("key", "value")
    shutil.rmtree(folder)
    late.set_timeout(timedelta(seconds=1))
    with nullcontext() if make is file_store else pytest.raises(RuntimeError, match="No such file"):
        assert late.get("key") == b"value"


def test_two_runs_at_once_on_one_node_have_a_store_each(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda word: values_after_meeting(tmp_path / word, word), ["one", "other"]))
    assert runs == [[b"one"] * 2, [b"other"] * 2]
    assert not list(tmp_path.glob("*/.ranks-*"))


def test_the_store_of_one_node_is_closed_to_other_users_and_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with rendezvous(rank_of_step(0, size=1), tmp_path / "run", PATIENCE):
        (place,) = tmp_path.glob("hydragnn-ranks-*")
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        assert stat.S_IMODE(meeting_place(rank_of_step(0), tmp_path / "run").stat().st_mode) == 0o700
    assert not list(tmp_path.glob("hydragnn-ranks-*"))


def test_what_a_dead_attempt_left_misleads_nobody(tmp_path: Path) -> None:
    place = meeting_place(rank_of_step(0), tmp_path)
    place.mkdir(mode=0o700)
    peer = {"host": "gone", "machine": "gone", "number": "old"}
    elsewhere = {"file": "", "address": "192.0.2.1", "port": 9}
    (place / "call.json").write_text(json.dumps({"number": "old"}))
    (place / "rank-1.json").write_text(json.dumps({**peer, "call": "old"}))
    (place / "invitation.json").write_text(json.dumps({"to": ["old", "old"], "store": elsewhere}))
    assert values_after_meeting(tmp_path, "fresh") == [b"fresh", b"fresh"]


def test_ranks_that_never_come_are_named(tmp_path: Path) -> None:
    with (
        pytest.raises(LaunchError, match=r"2 of 3 ranks did not come to .* \(rank 1, 2\)"),
        rendezvous(rank_of_step(0, size=3), tmp_path, timedelta(seconds=0.2)),
    ):
        pass


def test_a_first_rank_that_never_comes_is_missed(tmp_path: Path) -> None:
    with (
        pytest.raises(LaunchError, match=r"rank 1 waited at .* in vain for rank 0"),
        rendezvous(rank_of_step(1), tmp_path, timedelta(seconds=0.2)),
    ):
        pass


def planted_open(place: Path) -> None:
    """A folder in which everybody may write."""
    place.mkdir()
    place.chmod(0o777)


def planted_link(place: Path) -> None:
    """A link to somewhere else."""
    elsewhere = place.with_name("elsewhere")
    elsewhere.mkdir(mode=0o700)
    place.symlink_to(elsewhere)


def planted_by_another_user(place: Path) -> None:
    """A folder of somebody else."""
    if os.geteuid():
        pytest.skip("only root can make a folder of another user")
    place.mkdir(mode=0o700)
    os.chown(place, 12345, -1)


@pytest.mark.parametrize("plant", [planted_open, planted_link, planted_by_another_user])
@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_do_not_meet_where_others_could_tell_them_where_to_connect(
    plant: Callable, rank: int, tmp_path: Path
) -> None:
    plant(meeting_place(rank_of_step(rank), tmp_path))
    with (
        pytest.raises(LaunchError, match="where others than this user could tell them where to connect"),
        rendezvous(rank_of_step(rank), tmp_path, PATIENCE),
    ):
        pass


def test_a_file_where_ranks_would_meet_is_refused(tmp_path: Path) -> None:
    meeting_place(rank_of_step(0), tmp_path).write_text("{}")
    with pytest.raises(LaunchError, match="cannot meet in"), rendezvous(rank_of_step(0), tmp_path, PATIENCE):
        pass
    with pytest.raises(LaunchError, match="do not meet in"):
        check_private(meeting_place(rank_of_step(0), tmp_path))


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {},
        {"file": "", "address": "127.0.0.1", "port": 70000},
        {"file": "", "address": "127.0.0.1", "port": True},
        {"file": "", "address": "127.0.0.1", "port": 80, "more": 1},
    ],
    ids=["null", "a list", "empty", "huge port", "port of another type", "foreign key"],
)
def test_an_invitation_that_is_none_is_refused(wrong: dict[str, Any] | list[Any] | None, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="is no invitation of the first rank"):
        Invitation.parse(wrong, tmp_path / "invitation.json")


@pytest.mark.parametrize("text", ["not json", "[]", '{"host": 1}'])
def test_a_damaged_answer_of_a_rank_is_named(text: str, tmp_path: Path) -> None:
    place = meeting_place(rank_of_step(0), tmp_path)
    place.mkdir(mode=0o700)
    (place / "rank-1.json").write_text(text)
    with pytest.raises(LaunchError, match=r"rank-1\.json"), rendezvous(rank_of_step(0), tmp_path, PATIENCE):
        pass


def test_the_name_that_the_scheduler_has_for_a_node_gives_the_address_of_the_job() -> None:
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "SLURMD_NODENAME": "no-such-node"}
    assert launch_from(step).node == "no-such-node"
    assert interface_of(address_of_job(launch_from(step)))
    with pytest.raises(LaunchError, match="GLOO_SOCKET_IFNAME is none9, but"):
        address_of_job(launch_from({**step, "GLOO_SOCKET_IFNAME": "none9"}))


def test_a_rank_that_waits_says_for_whom_and_which_variables_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hydragnn.distributed.rendezvous.NOTE_AFTER", 0.1)
    step = {"SLURM_STEP_NUM_TASKS": "3", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    why = "SLURM_STEP_NUM_TASKS=3 and SLURM_PROCID={} say that a launcher started 3 ranks; if none did, unset "
    for rank, missing in ((0, "rank 1, 2, which did not come to "), (1, "rank 0, who has not come to ")):
        launch = launch_from({**step, "SLURM_PROCID": str(rank)})
        with pytest.raises(LaunchError) as error, rendezvous(launch, tmp_path, timedelta(seconds=0.5)):
            pass
        said = capsys.readouterr().err
        assert said.startswith(f"rank {rank} waits for {missing}{tmp_path}") and said.count("\n") == 1
        assert why.format(rank) in said and why.format(rank) in str(error.value)


def test_ranks_that_come_in_time_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert values_after_meeting(tmp_path, "word") == [b"word"] * 2
    assert not capsys.readouterr().err


SHELL = {"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "0", "SLURM_PTY_PORT": "4711", "SLURM_TASK_PID": "50"}
"""What Slurm 22.05 gives the shell of ``srun -n 3 --pty bash``, as far as it concerns ranks."""
HYDRA = {"PMI_SIZE": "3", "PMI_RANK": "1", "PMI_FD": "9", "MPI_LOCALRANKID": "1"}


@pytest.mark.parametrize(
    ("more", "pid", "by", "rank"),
    [
        ({}, 51, "alone", 0),
        ({}, 50, "slurm", 0),  # srun --pty hydragnn train: no shell between
        ({"PMI_SIZE": "3", "PMI_RANK": "0"}, 51, "alone", 0),  # the same with Slurm's PMI
        (HYDRA, 51, "mpi", 1),  # mpirun in that shell
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}, 51, "mpi", 1),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, 51, "torchrun", 1),
    ],
)
def test_the_shell_of_an_interactive_step_is_alone_and_what_is_launched_from_it_is_not(
    more: dict[str, str], pid: int, by: str, rank: int
) -> None:
    launch = launch_from({**SHELL, **more}, pid)
    assert (launch.by, launch.rank) == (by, rank)


@pytest.mark.parametrize(
    "rank", [SHELL, HYDRA, {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "LOCAL_RANK": "1"}]
)
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
        done = subprocess.run(
            ["script", "-qec", shell, "/dev/null"],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
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
