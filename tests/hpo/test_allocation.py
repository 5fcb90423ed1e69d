"""What schedulers say about an allocation, and the command lines that follow from it."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn.base.errors import InputError
from hydragnn.hpo.launching.allocation import Allocation, Node, alike, hosts
from hydragnn.hpo.launching.rank import gpu_variables, local_rank, share
from hydragnn.hpo.launching.sites import Evidence, Site, Step, read_allocation, site_of
from hydragnn.hpo.launching.sites.flux import Flux
from hydragnn.hpo.launching.sites.pbs import Mpiexec
from hydragnn.hpo.launching.sites.slurm import Slurm

HYDRA = Mpiexec(hydra=True)
SCONTROL = "JobId=7 JobName=pilot TimeLimit={limit} EndTime={end} NumNodes=3 TresPerNode=gres/gpu:8 StepMgrEnabled=Yes"
QSTAT = """\
Job Id: 7.server
    Job_Name = pilot
    Resource_List.ngpus = 8
    Resource_List.nodect = 2
    Resource_List.walltime = 01:30:00
    stime = Sat Nov 21 16:00:00 2026
    Variable_List = PBS_O_HOME=/home/u,PBS_O_PATH=/usr/bin:
\t/bin
"""
VNODES = "    exec_vnode = (x1[0]:ncpus=52:ngpus=2:mem=64gb+x1[1]:ncpus=52:ngpus=2)+(x2:ncpus=52:\n\tngpus=2)\n"
DETAILS = (
    "JobId=7 NodeList=n[1-3] TimeLimit=UNLIMITED JOB_GRES=gpu:6   Nodes=n1 CPU_IDs=0-7 Mem=8000 GRES=gpu:4(IDX:0-3)   "
    "Nodes=n2 CPU_IDs=0-3 Mem=4000 GRES=gpu:tesla:2(IDX:0-1)   Nodes=n3 CPU_IDs=0-3 Mem=0 GRES=(null) MinCPUsNode=1 "
    "MinMemoryNode=0 TresPerNode=gres:gpu:2"
)
"""What scontrol of Slurm 22.05 shows of a job with all that three nodes of different sizes have."""
R_LITE = [{"rank": "0,2", "children": {"core": "0-7", "gpu": "0-3"}}, {"rank": "1", "children": {"core": "0-3"}}]
R = json.dumps({"version": 1, "execution": {"R_lite": R_LITE, "nodelist": ["a[1-3]"]}})


def answers(**printed: str) -> Callable[[Sequence[str]], str]:
    """Stands in for the scheduler's programs: what a command prints, by one of its words."""

    def run(command: Sequence[str]) -> str:
        for word, text in printed.items():
            if word in command:
                return text
        raise InputError(printed.get("error", f"{command} failed"))

    return run


def end(hour: int, minute: int) -> float:
    return time.mktime((2026, 11, 21, hour, minute, 0, 0, 0, -1))


SLURM = {"SLURM_JOB_ID": "7"}
JOB = {**SLURM, "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_CPUS_PER_NODE": "128(x2),64"}
LIMITED = SCONTROL.format(limit="02:00:00", end="2026-11-21T18:00:00")
OF_JOB = "n1 128 8 None, n2 128 8 None, n3 64 8 None"
LOST_N0 = {**SLURM, "SLURM_JOB_NODELIST": "n[0-3]", "SLURM_JOB_CPUS_PER_NODE": "2,8,4(x2)"}
SHELL = {**SLURM, "SLURM_CPUS_ON_NODE": "8", "SLURM_GPUS_ON_NODE": "4"}
THREE, OF_THREE = {"hostnames": "n1\nn2\nn3\n", "job": DETAILS}, "n1 8 4 8000, n2 4 2 4000, n3 4 0 None"
UNLIMITED = SCONTROL.format(limit="UNLIMITED", end="Unknown")
GPUS = {"SLURM_GPUS_ON_NODE=4": 4, "SLURM_GPUS_PER_NODE=a100:4": 4, "SLURM_GPUS_PER_NODE=tesla:2,kepler:1": 3}
FLUX = {"FLUX_URI": "local:///run/flux", "FLUX_JOB_ID": "f2", **SLURM}
"""A Flux that was started in a job of Slurm."""
BY = {"FLUX_URI": ("flux", "f2"), "PBS_NODEFILE": ("pbs", "7.server"), "SLURM_JOB_ID": ("slurm", "7")}
PBS = {"PBS_JOBID": "7.server", "NCPUS": "104"}
SITE, OF_SITE = {**PBS, "PBS_NODEFILE": "x1.site\nx1.site\nx2.site\n"}, "x1.site 104 4 None, x2.site 52 4 None"
HOSTS = "    exec_host = x1/0*52+x1/1*52+x2/0*52\n"


@pytest.mark.parametrize(
    ("environment", "printed", "nodes", "deadline"),
    [
        (JOB, {**THREE, "job": LIMITED}, OF_JOB, end(18, 0)),
        ({**JOB, "SLURM_JOB_CPUS_PER_NODE": "8,4(x2)", "SLURM_CPUS_ON_NODE": "8"}, THREE, OF_THREE, None),
        (LOST_N0, THREE, OF_THREE, None),
        (SHELL, THREE, OF_THREE, None),
        *(
            # without a limit, the end that Slurm shows means nothing
            (
                {**SLURM, "SLURM_JOB_NODELIST": "n1", **dict([words.split("=")])},
                {"hostnames": "n1", "job": UNLIMITED},
                f"n1 1 {gpus} None",
                None,
            )
            for words, gpus in {**GPUS, "SLURM_JOB_GPUS=0,1": 2, "SLURM_JOB_END_TIME=1": 8}.items()
        ),
        ({**PBS, "PBS_NODEFILE": "x2\nx2\nx1\nx1\n"}, {"qstat": QSTAT}, "x2 104 4 None, x1 104 4 None", end(17, 30)),
        ({**PBS, "PBS_NODEFILE": "x2\nx2\n"}, {}, "x2 104 0 None", None),
        (SITE, {"qstat": QSTAT + VNODES}, "x1.site 104 4 65536, x2.site 52 2 None", end(17, 30)),
        (SITE, {"qstat": QSTAT + HOSTS}, OF_SITE, end(17, 30)),  # GPUs are those that were asked for
        (SITE, {"qstat": QSTAT}, OF_SITE, end(17, 30)),
        (FLUX, {"R": R}, "a1 8 4 None, a2 4 0 None, a3 8 4 None", None),
        (FLUX, {"list": "2 16 8 a[1,3]\n1 4 0 a2\n"}, "a1 8 4 None, a3 8 4 None, a2 4 0 None", None),
        (FLUX, {"resource": "1 4 0 a\n", "timeleft": "4294967295\n"}, "a 4 0 None", None),
    ],
)
def test_an_allocation_is_what_its_scheduler_says_of_it(
    environment: dict[str, str], printed: dict[str, str], nodes: str, deadline: float | None, tmp_path: Path
) -> None:
    if "PBS_NODEFILE" in environment:
        (tmp_path / "nodes").write_text(environment["PBS_NODEFILE"])
        environment = {**environment, "PBS_NODEFILE": str(tmp_path / "nodes")}
    found = read_allocation(environment, answers(**printed))
    memories = [None if node.memory is None else node.memory // 2**20 for node in found.nodes]
    sizes = [f"{n.name} {n.cores} {n.gpus} {memory}" for n, memory in zip(found.nodes, memories)]
    assert (", ".join(sizes), found.deadline) == (nodes, deadline)
    assert (found.by, found.job) == next(one for name, one in BY.items() if name in environment)
    assert found.managed == ("StepMgrEnabled=Yes" in printed.get("job", ""))


def test_an_allocation_without_a_scheduler_is_this_machine_and_flux_says_how_long_it_lasts() -> None:
    here = read_allocation({})
    assert (here.by, len(here.nodes), here.deadline) == ("local", 1, None)
    found = read_allocation(FLUX, answers(resource="1 4 0 a\n", timeleft="3600\n"))
    assert found.deadline == pytest.approx(time.time() + 3600, abs=60)


def test_nodes_without_a_gpu_are_left_out_and_steps_take_what_the_smallest_has() -> None:
    used = read_allocation(SLURM, answers(**THREE)).fastest_kind()
    assert (used.names, used.unused, used.least(["n1", "n2"])) == (("n1", "n2"), ("n3",), (4, 2))
    assert used.shares(4) == {"n1": 4, "n2": 2}


@given(cores=st.lists(st.integers(1, 256), min_size=1, max_size=9), largest=st.integers(1, 256))
def test_no_share_of_a_smaller_node_is_smaller_than_those_of_the_largest(cores: list[int], largest: int) -> None:
    nodes = tuple(Node(name=f"n{number}", cores=count) for number, count in enumerate(cores))
    for node, shares in zip(nodes, Allocation(by="pbs", nodes=nodes).shares(largest).values()):
        assert 1 <= shares <= largest
        assert shares == 1 or shares * max(cores) <= (largest * node.cores) + 0.1 * max(cores)
    assert len({*Allocation(by="pbs", nodes=alike(["a", "b"], 7)).shares(largest).values()}) == 1


def test_nodes_that_differ_by_some_memory_only_are_alike_and_those_with_much_less_have_fewer_shares() -> None:
    memory = (515_000, 514_900, 256_000)
    nodes = tuple(Node(name=str(size), cores=64, memory=size * 2**20) for size in memory)
    assert Allocation(by="slurm", nodes=nodes[:2]).shares(8) == {"515000": 8, "514900": 8}
    big = Node(name="big", cores=128, memory=512_000 * 2**20)
    assert Allocation(by="slurm", nodes=(big, nodes[2])).shares(8) == {"big": 8, "256000": 4}
    poor = Node(name="poor", cores=64, memory=64_000 * 2**20)
    assert Allocation(by="slurm", nodes=(big, poor)).shares(8) == {"big": 8, "poor": 1}


@pytest.mark.parametrize(
    ("environment", "printed", "words", "code"),
    [
        ({"PBS_NODEFILE": "x", "want": "slurm"}, {}, r"SLURM_JOB_ID is not set.*--submit", 2),
        ({"PBS_NODEFILE": "/dev/null"}, {}, "names no node", 2),
        ({"PBS_NODEFILE": "/nowhere"}, {}, "cannot be read", 2),
        (SLURM, {"job": "JobId=7 NodeList=(null)"}, "has no nodes yet", 2),
        (SLURM, {"error": "slurm_load_jobs error: Invalid job id specified"}, "job 7 has ended", 75),
        (SLURM, {"error": "scontrol did not answer"}, "scontrol did not answer", 2),
        (
            SLURM,
            {"scontrol": "JobId=7 JobState=CANCELLED"},
            r"job 7 has ended \(CANCELLED\); take a new allocation",
            75,
        ),
        (SLURM, None, "scontrol is not on the PATH", 2),
    ],
)
def test_a_scheduler_that_gives_nothing_is_a_sentence_with_the_way_out(
    environment: dict[str, str], printed: Any, words: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InputError, match=words) as error:
        run = None if printed is None else answers(**printed)
        read_allocation(environment, run, want=environment.get("want", "auto"))
    assert error.value.code == code


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("rack[0-1]_blade[0-1]", "rack0_blade0 rack0_blade1 rack1_blade0 rack1_blade1"),
        ("x[1-2]c[08-10]-ib0,login", "x1c08-ib0 x1c09-ib0 x1c10-ib0 x2c08-ib0 x2c09-ib0 x2c10-ib0 login"),
        ("a[1,3]b[2]c[0-1]", "a1b2c0 a1b2c1 a3b2c0 a3b2c1"),
        ("[1-2]", "1 2"),
        ("n[098-101],m[7-8]", "n098 n099 n100 n101 m7 m8"),
        ("n[0-99999999],m1", "n[0-99999999] m1"),
        ("r[0-999]b[0-999]", "r[0-999]b[0-999]"),
        ("n[3-1],n[a-b],n[]", "n[3-1] n[a-b] n[]"),
    ],
)
def test_every_bracket_counts_and_what_is_no_list_stands_for_itself(text: str, names: str) -> None:
    assert list(hosts(text)) == names.split()


@given(items=st.integers(1, 200), parts=st.integers(1, 64))
def test_shares_of_cores_are_disjoint_complete_and_even(items: int, parts: int) -> None:
    shares = [share(range(items), part, parts) for part in range(parts)]
    if items >= parts:
        assert [item for one in shares for item in one] == list(range(items))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    else:
        assert all(len(one) == 1 for one in shares)


def test_every_rank_sees_its_own_gpu_through_one_variable_only() -> None:
    assert gpu_variables({}, part=0, parts=1, gpus=0) == {}
    both = {"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "0,1,2,3"}
    hidden = dict.fromkeys(("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"))
    found = gpu_variables(both, part=3, parts=4, gpus=4)
    assert found == {"ROCR_VISIBLE_DEVICES": "7", "HIP_VISIBLE_DEVICES": None, "CUDA_VISIBLE_DEVICES": None}
    within = {"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "0,2"}
    assert gpu_variables(within, part=1, parts=2, gpus=4) == {**hidden, "ROCR_VISIBLE_DEVICES": "6"}
    for nothing in ("", "-1", "NoDevFiles"):
        assert gpu_variables({"CUDA_VISIBLE_DEVICES": nothing}, part=0, parts=2, gpus=4) == {}
    assert gpu_variables({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, 1, 2, 2)["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert [list(gpu_variables({}, part, 16, 8).values()).count(None) for part in (0, 15)] == [2, 2]


def test_the_number_of_a_rank_on_its_node_is_that_of_its_launcher() -> None:
    names, variables = Mpiexec.local_rank_variables, {"MPI_LOCALRANKID": "3", "SLURM_LOCALID": "0"}
    assert (local_rank(variables, names), local_rank(variables, Slurm.local_rank_variables)) == (3, 0)


STEP = Step(name="trial-3-1", nodes=("a", "b"), cores=56, gpus=8, ranks=4, program=("python", "x.py"))


PACK = Step(name="pack-1", nodes=("a", "b"), program=("python",), resident=True)


@pytest.mark.parametrize(
    ("site", "step", "line"),
    [
        (
            Slurm(),
            STEP,
            "srun --job-name=trial-3-1 --overlap --exact --export=ALL --mem=0 --cpu-bind=none --nodelist=a,b --nodes=2 --ntasks=8 "
            "--ntasks-per-node=4 --cpus-per-task=14 --gpus-per-node=8 --gpu-bind=none --kill-on-bad-exit=1 --input=none python x.py",
        ),
        (
            Slurm(),
            PACK,
            "srun --job-name=pack-1 --overlap --exact --export=ALL --mem=0 --cpu-bind=none --nodelist=a,b --nodes=2 --ntasks=2 "
            "--ntasks-per-node=1 --cpus-per-task=1 --no-kill --kill-on-bad-exit=0 --wait=0 python",
        ),
        (HYDRA, STEP, "mpiexec -hosts a,b -n 8 -ppn 4 -bind-to none python x.py"),
        (HYDRA, PACK, "mpiexec -hosts a,b -n 2 -ppn 1 -bind-to none -disable-auto-cleanup python"),
        (Mpiexec(hydra=False), STEP, "mpiexec --hosts a,b -n 8 --ppn 4 --cpu-bind none --line-buffer python x.py"),
        (
            Flux(),
            STEP,
            "flux run --job-name=trial-3-1 --requires=host:a,b --nodes=2 --ntasks=8 --exclusive -o cpu-affinity=off "
            "-o gpu-affinity=off -o exit-on-error python x.py",
        ),
    ],
)
def test_a_step_names_its_nodes_and_ranks_as_its_launcher_wants(site: Site, step: Step, line: str) -> None:
    assert " ".join(site.command(step)) == line


def test_ranks_of_flux_get_signals_by_the_name_of_their_step() -> None:
    command = Flux().signal("trial-3-1", "USR1")
    named = "flux job kill --signal=USR1 $(flux jobs --no-header --format='{id}' --name=trial-3-1)"
    assert command is not None and command[-1] == named


def test_which_mpiexec_there_is_it_says_itself() -> None:
    allocation = Allocation(by="pbs", nodes=alike(("a",), 4))
    assert site_of(allocation, answers(mpiexec="HYDRA build details:")) == Mpiexec(hydra=True, pbsnodes=False)
    assert site_of(allocation, answers(mpiexec="PALS 1.2", pbsnodes="")) == Mpiexec(hydra=False)
    with pytest.raises(InputError, match="Open MPI"):
        site_of(allocation, answers(mpiexec="mpiexec (Open MPI) 5.0"))


UNABLE = "srun: error: Unable to create step for job 1: "
EVIDENCE: dict[str, dict[str, Any]] = {
    "epoch 3\nsrun: error: n2: task 1: Exited with exit code 7\nsrun: error: n1: task 0: Terminated\n": {"code": 7},
    "srun: error: Node failure on n[3-4]\n": {"suspects": ("n3", "n4")},
    "srun: error: Task launch for StepId=7.2 failed on node n4: error\n": {"suspects": ("n4",), "started": False},
    "slurmstepd: error: Detected 1 oom_kill event in StepId=7.1\n": {"out_of_memory": True},
    "my loss: Node failure on n1, Out Of Memory\n": {},
    f"{UNABLE}Unable to contact slurm controller (connect failure)": {"started": False, "unreachable": True},
    "srun: error: Unable to confirm allocation for job 7: Connection refused": {"started": False, "unreachable": True},
    f"{UNABLE}Zero Bytes were transmitted or received": {"started": False, "unreachable": True},
    f"{UNABLE}Socket timed out on send/recv operation": {"started": False, "unreachable": True},
    f"{UNABLE}Requested node configuration is not available": {"started": False},
}


@pytest.mark.parametrize("log", EVIDENCE)
def test_evidence_is_what_the_launcher_wrote_and_nothing_that_a_trial_prints(log: str) -> None:
    assert replace(Slurm().evidence(log), message="") == Evidence(**EVIDENCE[log])
    killed = "=   EXIT CODE: 9\nYOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n"
    assert HYDRA.evidence(killed).code == -9


CONTACT = "slurm_load_partitions: Unable to contact slurm controller (connect failure)\n"
PBS_GONE = "Connection refused\nqstat: cannot connect to server pbs (errno=15010)\n"
FLUX_GONE = "flux-resource: ERROR: [Errno 2] Unable to connect to Flux\n"


@pytest.mark.parametrize(
    ("site", "printed", "states"),
    [
        (Slurm(), "", ""),
        (Slurm(), "a unknown\nb unknown*\n", ""),
        (Slurm(), "a allocated\nb down*\nc mixed*\nd draining@\n", "a well, b lost, c silent, d well"),
        (Slurm(), CONTACT, ""),
        (HYDRA, "", "a well, b well"),
        (HYDRA, "a.site state-unknown,down\nb unknown\n", ""),
        (HYDRA, "a.site down,offline disk\nb offline\n", "a lost, b well"),
        (Flux(), "", ""),
        (Flux(), FLUX_GONE, ""),
        (Flux(), "online \noffline a,b\nonline c[1-2]\n", "a lost, b lost, c1 well, c2 well"),
    ],
)
def test_what_a_scheduler_says_of_nodes_and_nothing_that_it_does_not_say(site: Site, printed: str, states: str) -> None:
    found = site.states(printed, ["a.site", "b.site"]).items()
    assert ", ".join(f"{name} {state}" for name, state in found if len(name) <= 2) == states


@pytest.mark.parametrize(
    ("site", "printed", "over"),
    [
        *((Slurm(), word, False) for word in ("RUNNING\n", "SUSPENDED\n")),
        *((Slurm(), word, True) for word in ("COMPLETING\n", "TIMEOUT\n", "PENDING\n")),
        (Slurm(), "slurm_load_jobs error: Invalid job id specified\n", True),
        (HYDRA, "Job Id: 7.pbs\n    Job_Name = x\n    job_state = R\n", False),
        (HYDRA, "Job Id: 7.pbs\n    job_state = E\n", True),
        (HYDRA, "qstat: 7.pbs Job has finished, use -x or -H to obtain historical job information\n", True),
        (HYDRA, "qstat: Unknown Job Id 7.pbs\n", True),
        *((site, words, None) for site, words in ((Slurm(), CONTACT), (HYDRA, PBS_GONE))),
        *((site, "", None) for site in (Slurm(), HYDRA, Flux())),
    ],
)
def test_an_allocation_is_over_only_where_the_scheduler_says_so(site: Site, printed: str, over: bool | None) -> None:
    word = site.job_over(printed)
    assert (None if word is None else bool(word)) is over
