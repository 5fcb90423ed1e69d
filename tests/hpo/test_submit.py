"""Batch scripts and chains: what is asked of schedulers, and that budgets and values from files stay within bounds."""

import json
import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from campaigns import Settings

from hydragnn.base import imports
from hydragnn.base.errors import InputError
from hydragnn.base.files import read_sealed
from hydragnn.hpo import CampaignSettings, campaign_settings, read_campaign, run_search
from hydragnn.hpo.job import JobSettings
from hydragnn.hpo.journal import Entry, Journal
from hydragnn.hpo.preflight import as_begun, plan_of
from hydragnn.hpo.scheduling.events import Opened, Tick
from hydragnn.hpo.scheduling.scheduler import State, decide
from hydragnn.hpo.search_settings import SearchSettings
from hydragnn.hpo.space.parameters import FloatRange
from hydragnn.hpo.space.points import space_of
from hydragnn.hpo.submit import job_script, minutes_of, submit_campaign, successor
from hydragnn.hpo.submit.chain import JobChain
from hydragnn.hpo.trial_configs import trial_config
from hydragnn.record import read_record
from hydragnn.runs.run import main as train

EXPECTED = {
    "slurm": ["#SBATCH --no-kill", "#SBATCH --no-requeue", "#SBATCH --exclusive", "#SBATCH --signal=B:USR1@70"],
    "frontier": ["#SBATCH --stepmgr", "#SBATCH --network=single_node_vni,job_vni", "#SBATCH --time=1:59:00"],
    "lumi": ["#SBATCH --gpus-per-node=8", "#SBATCH --partition=batch", "#SBATCH --nodes=4"],
    "perlmutter": ["#SBATCH --gpus-per-node=4", "#SBATCH --partition=batch", "#SBATCH --nodes=4"],
    "pbs": ["#PBS -l select=4", "#PBS -l walltime=01:59:00", "#PBS -W tolerate_node_failures=all", "#PBS -q batch"],
    "aurora": ["#PBS -l filesystems=home:flare", "#PBS -A mat123", "#PBS -r n"],
    "flux": ["#flux: --nodes=4", "#flux: --time-limit=119m", "#flux: --bank=mat123", "#flux: --exclusive"],
}


def script(folder: Path, *, minutes: int = 119, grace: float = 10.0, cwd: Path | None = None, **job: Any) -> str:
    """The script of the third job of a campaign, the first of its chain."""
    chain = JobChain(
        version=1,
        jobs=[{"serial": serial, "id": str(serial)} for serial in (1, 2)],
        source="C.toml",
        overrides=[],
        workers=None,
        directory=str(cwd or folder),
        python="python",
        first=3,
    )
    settings = CampaignSettings(
        base={"data": {"store": str(folder / "a store.h5")}},
        search=SearchSettings(space={"train.learning_rate": FloatRange(low=0, high=1)}, grace_seconds=grace),
        job=JobSettings.parse({"site": "slurm", "nodes": 4, "hours": 2.0, **job}),
    )
    return job_script(settings, chain, folder, minutes)


@pytest.mark.parametrize("site", list(EXPECTED))
@pytest.mark.parametrize("staged", [False, True], ids=["in place", "staged"])
def test_every_site_has_a_script_that_is_bash_and_asks_for_what_the_pilot_needs(site: str, staged: bool) -> None:
    folder = Path("/scratch/me/alloys")
    own = {"account": "mat123", "queue": "batch", "setup": ["module load rocm"], "directives": ["--mine=1"]}
    text = script(folder, site=site, stage_environment=staged, stage_data=staged, **own)
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    lines = text.splitlines()
    assert [line for line in EXPECTED[site] if line not in lines] == []
    assert f"{lines[1].split()[0]} --mine=1" in lines
    assert "module load rocm" in lines
    assert ("tar -C" in text) == staged


@pytest.mark.parametrize("site", ["frontier", "lumi", "perlmutter", "aurora"])
def test_every_setting_of_a_machine_has_its_source_and_yields_to_the_user(site: str, tmp_path: Path) -> None:
    text = script(tmp_path, site=site, setup=["export FI_CXI_RX_MATCH_MODE=mine"])
    chosen = [line for line in text.splitlines() if line.startswith(("export ", "module ")) and "OMP_" not in line][1:]
    sources = ("https://docs.olcf.", "https://docs.alcf.", "https://github.com/")
    assert len(chosen) > 5
    assert all(line.partition(" # ")[2].startswith(sources) for line in chosen)
    lines = "\n".join(line for line in text.splitlines() if line.startswith("export ") and "OMP_" not in line)
    done = subprocess.run(
        ["bash", "-uc", f'{lines}\necho "$FI_CXI_RX_MATCH_MODE $FI_CXI_DEFAULT_CQ_SIZE"'],
        env={"USER": "me", "SLURM_JOB_ID": "7"},
        text=True,
        capture_output=True,
        check=True,
    )
    assert done.stdout.split()[0] == "mine"
    assert done.stdout.split()[1].isdigit()


def test_what_is_staged_lies_on_the_nodes(tmp_path: Path) -> None:
    text = script(tmp_path, site="frontier", stage_kernels="/tmp/my kernels/gfx90a", stage_data=True)
    assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).returncode == 0
    lines = {"    export TRITON_CACHE_DIR='/tmp/my kernels/gfx90a'", "#SBATCH --constraint=nvme"}
    assert lines <= set(text.splitlines()) and "sbcast" in text and "'a store.h5'" in text
    of_user = script(tmp_path, stage_data=True, local_storage="/local/$USER")
    assert 'storage="/local/$USER/hydragnn-$id"' in of_user.splitlines()


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"stage_kernels": "kernels"}, "no absolute path"),
        ({"setup": ["module load a\nrm -rf b"]}, "not one line"),
        ({"setup": ["module load a\rrm"]}, "not one line"),
        ({"account": "m\n#SBATCH --nodes=9999"}, "cannot stand in a scheduler's directive"),
        ({"queue": "a b"}, "cannot stand in a scheduler's directive"),
        ({"directives": ["--x\n#SBATCH -N 9999"]}, "not one line"),
        ({"directives": ["#SBATCH --qos=debug"]}, "begin it with a dash"),
        ({"local_storage": "/tmp/$(rm -rf b)"}, "no absolute path"),
        ({"local_storage": "tmp"}, "no absolute path"),
        ({"python": "a\nb"}, "not one line"),
        ({"site": "lsf"}, "slurm"),
        ({"chain": 0}, "chain"),
        ({"minutes": 10}, "unknown key minutes"),
    ],
)
def test_a_job_section_that_could_break_the_script_is_refused(table: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        JobSettings.parse({"site": "slurm", "nodes": 1, "hours": 1.0, **table})


@pytest.fixture
def with_job(table: dict[str, Any], tmp_path: Path) -> Settings:
    """A maker of campaigns with a [job]; keyword arguments replace its members, and those of [search] by ``search``."""

    def made(search: dict[str, Any] | None = None, **job: Any) -> CampaignSettings:
        whole = {**table, "search": {**table["search"], **(search or {})}}
        return campaign_settings(
            {**whole, "job": {"site": "slurm", "nodes": 4, "hours": 2.0, **job}}, tmp_path / "C.toml"
        )

    return made


def test_trials_do_not_know_that_a_batch_job_carries_them(with_job: Settings, settings: Settings) -> None:
    here, there = settings(), with_job()
    point = {"train.learning_rate": 0.01, "model.hidden_dim": 16}
    configs = [trial_config(one, space_of(one.search.space), point, 0) for one in (here, there)]
    assert configs[0].to_json() == configs[1].to_json()
    assert there.to_json()["job"]["nodes"] == 4
    assert "job" not in here.to_json()


def test_jobs_too_short_to_save_and_folders_that_no_directive_can_hold_are_refused(with_job: Settings) -> None:
    with pytest.raises(InputError, match=r"job.hours = 0.01 is too short; give at least 0\.04"):
        minutes_of(with_job(hours=0.01))
    with pytest.raises(InputError, match="directives hold no such path"):
        script(Path("/scratch/my campaigns/a"))


@pytest.fixture
def campaign_file(table: dict[str, Any], tmp_path: Path) -> Path:
    """CAMPAIGN.toml with a [job] of two hours on four nodes, at most three jobs, and 20 node-hours."""
    import tomli_w

    whole = {**table, "job": {"site": "slurm", "nodes": 4, "hours": 2.0, "chain": 3, "python": "python3"}}
    whole["search"] = {**table["search"], "max_node_hours": 20.0}
    path = tmp_path / "CAMPAIGN.toml"
    path.write_text(tomli_w.dumps(whole))
    return path


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for sbatch, since chains are arithmetic here; gives the file with what it was called with."""
    called = tmp_path / "called"
    program = tmp_path / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text(f'#!/bin/bash\necho "$*" >>{called}\necho "$(wc -l <{called});cluster"\n')
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return called


def held(out: Path, hours: float) -> None:
    settings = as_begun(read_campaign(out.parent / "CAMPAIGN.toml"), out)
    opened = Opened(plan=plan_of(settings), slots=("a", "b", "c", "d"))
    state = State()
    with Journal(out / "journal.jsonl") as journal:
        for event, now in ((opened, 0.0), (Tick(), 3600 * hours)):
            journal.extend([Entry(now, event, decide(state, event, now).changes or {})])


def test_jobs_follow_each_other_until_the_chain_ends(campaign_file: Path, queue: Path, tmp_path: Path) -> None:
    out = tmp_path / "c"
    first = submit_campaign(campaign_file, out, overrides=["search.trials=7"], workers=2)
    assert (first.id, first.hours) == ("1", 2.0)
    assert f"search {campaign_file} --out {out} --resume --workers 2 --set search.trials=7" in first.script.read_text()
    second = successor(out, 1, "1")
    assert second is not None and second.hours == 2.0
    assert queue.read_text().splitlines()[-1] == f"--parsable --dependency=afterany:1 {out}/jobs/0002.sh"
    assert successor(out, 1, "1") is None, "every job has one successor"
    assert successor(out, 2, "2") is not None
    assert successor(out, 3, "3") is None, "the chain has three jobs"
    with pytest.raises(InputError, match=r"waits in a queue as job 3.*--resume"):
        submit_campaign(campaign_file, out)
    submit_campaign(campaign_file, out, resume=True)
    assert successor(out, 4, "4") is not None, "a new chain counts from its first job"


@pytest.mark.parametrize(
    ("hours", "budget", "goes_on"),
    [
        (1.0, "max_node_hours=4.0", False),
        (1.0, "max_node_hours=4.1", True),
        (1.0, "max_hours=1.0", False),
        (1.0, "max_hours=1.1", True),
    ],
)
def test_no_job_follows_once_a_budget_is_spent(
    campaign_file: Path, queue: Path, tmp_path: Path, hours: float, budget: str, goes_on: bool
) -> None:
    out = tmp_path / "c"
    submit_campaign(campaign_file, out, overrides=[f"search.{budget}"])
    held(out, hours)
    assert (successor(out, 1, "1") is not None) is goes_on
    again = partial(submit_campaign, campaign_file, out, overrides=[f"search.{budget}"], resume=True)
    if goes_on:
        assert again().hours == 2.0
    else:
        with pytest.raises(InputError, match=r"the budget of \[search\] leaves no time for a job"):
            again()


def test_a_dry_run_shows_the_job_only(campaign_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "_allowed", {"own.models"})
    submission = submit_campaign(campaign_file, tmp_path / "c", dry_run=True)
    assert submission.text.startswith("#!/bin/bash\n#SBATCH") and "--allow-code own.models" in submission.text
    assert not (tmp_path / "c").exists()


def test_what_a_scheduler_says_is_told_and_only_a_file_with_a_job_section_is_submitted(
    campaign_file: Path, queue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin" / "sbatch").write_text("#!/bin/bash\necho 'Invalid account' >&2\nexit 1\n")
    with pytest.raises(InputError, match=r"sbatch .* failed: .*Invalid account"):
        submit_campaign(campaign_file, tmp_path / "c")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(InputError, match="sbatch is not on the PATH"):
        submit_campaign(campaign_file, tmp_path / "d")
    text = campaign_file.read_text()
    campaign_file.write_text(text[: text.index("[job]")] + text[text.index("python3") + 9 :])
    with pytest.raises(InputError, match=r"section \[job\] is missing"):
        submit_campaign(campaign_file, tmp_path / "e")


def test_trials_read_the_copy_of_the_store_that_a_job_has_made(
    with_job: Settings, settings: Settings, store_file: Path, fake_launcher: Any, tmp_path: Path
) -> None:
    search = {"trials": 1, "rungs": [], "finalists": 1}
    run_search(with_job(search, store_copy=str(store_file)), tmp_path / "c", launcher=fake_launcher())
    told = read_sealed(tmp_path / "c" / "trials" / "0000" / "attempt.json")
    assert told == {"attempt": 1, "store": str(store_file)}

    run = tmp_path / "run"
    run.mkdir()
    point = {"train.learning_rate": 0.01, "model.hidden_dim": 8}
    config = trial_config(settings(), space_of(settings().search.space), point, 0).to_json()
    config["data"]["store"] = str(tmp_path / "slow" / "store.h5")
    (run / "config.json").write_text(json.dumps(config))
    (run / "attempt.json").write_text(json.dumps({"attempt": 1, "store": str(tmp_path / "nowhere.h5")}))
    assert train([str(run), "--until", "1", "--attempt", "1"]) == 2, "neither the store nor a copy is there"
    (run / "attempt.json").write_text(json.dumps({"attempt": 2, "store": str(store_file)}))
    assert train([str(run), "--until", "1", "--attempt", "2"]) == 0
    assert read_record(run).epochs == 1


PYTHON = """#!/bin/bash
case "$2" in
hydragnn.scripts)
    trap 'echo saved >>{log}; exit 75' USR1
    echo search >>{log}
    while [ -f {folder}/wait ]; do sleep 0.05; done
    exit {code}
    ;;
hydragnn.hpo.submit)
    echo "submit ${{*: -1}}" >>{log}
    {next}
    ;;
esac
"""


def left_in(session: int) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError):
            if os.getsid(process.pid) == session and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.fixture
def carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[[], tuple[int, list[str]]]]:
    """Runs the script of a job where neither its scheduler nor a search is: gives the exit code, and what was called."""
    log, jobs = tmp_path / "log", tmp_path / "campaign" / "jobs"
    jobs.mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    for name in ("scancel", "qdel", "flux"):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/bash\n[ "$1" = getattr ] && echo f7 || echo "{name} $*" >>{log}\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    for variable in ("SLURM_JOB_ID", "PBS_JOBID"):
        monkeypatch.setenv(variable, "7")

    def start(site: str, code: int, successor: str, grace: float = 10.0) -> Callable[[], tuple[int, list[str]]]:
        python = tmp_path / "bin" / "python"
        python.write_text(PYTHON.format(log=log, folder=tmp_path, code=code, next=f"echo {successor}"))
        python.chmod(0o755)
        text = script(tmp_path / "campaign", minutes=2, grace=grace, cwd=tmp_path, site=site, nodes=1)
        process = subprocess.Popen(["bash", "-c", text], start_new_session=True)

        def ended() -> tuple[int, list[str]]:
            if site == "slurm" and (tmp_path / "wait").exists():
                while not log.exists() or "search" not in log.read_text():
                    time.sleep(0.02)
                process.send_signal(signal.SIGUSR1)
            code = process.wait(240)
            while left_in(process.pid):
                time.sleep(0.02)
            return code, sorted(log.read_text().splitlines())

        return ended

    return start


@pytest.mark.parametrize(("site", "cancel"), [("slurm", "scancel"), ("pbs", "qdel"), ("flux", "flux --parent cancel")])
def test_finished_jobs_cancel_successors(carried: Callable[..., Any], tmp_path: Path, site: str, cancel: str) -> None:
    asked = "submit 7" if site != "flux" else "submit f7"
    usual = ["search", asked]
    assert carried(site, code=0, successor="8")() == (0, sorted([*usual, f"{cancel} 8"]))
    for code in (2, 4, 75, 130, 137):
        (tmp_path / "log").unlink()
        expected = sorted([*usual, f"{cancel} 8"] if code in (2, 4) else usual)
        assert carried(site, code=code, successor="8")() == (code, expected)
    (tmp_path / "log").unlink()
    assert carried(site, code=75, successor="")() == (75, sorted([*usual, asked])), "none yet: asks again"
    stamps = sorted(path.name for path in (tmp_path / "campaign" / "jobs").iterdir())
    assert stamps == ["0003.next"]


@pytest.mark.parametrize("site", ["slurm", "pbs", "flux"])
def test_the_search_is_told_before_the_walltime_ends(carried: Callable[..., Any], tmp_path: Path, site: str) -> None:
    (tmp_path / "wait").touch()
    two_minutes_less_three_seconds = 57.0
    code, called = carried(site, code=0, successor="8", grace=two_minutes_less_three_seconds)()
    assert (code, called[:2]) == (75, ["saved", "search"])
