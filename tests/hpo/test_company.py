"""Trials that share a process are what they would be alone, whoever of them dies, and whatever dies with them."""

import json
import multiprocessing.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from hydragnn.base.errors import InputError
from hydragnn.base.machine import Machine
from hydragnn.hpo import CampaignSettings, LocalLauncher, campaign_records, campaign_settings, run_search
from hydragnn.hpo.campaign import batch_memory, launcher_for
from hydragnn.hpo.launching import guest
from hydragnn.hpo.launching.allocation import Allocation, alike
from hydragnn.hpo.launching.packs import PackLauncher
from hydragnn.hpo.launching.sites.pbs import Mpiexec
from hydragnn.hpo.preflight import as_begun, check_campaign
from hydragnn.hpo.scheduling.events import Event, Failed, Launched
from hydragnn.hpo.space.points import space_of
from hydragnn.hpo.status import campaign_status
from hydragnn.hpo.together import with_together
from hydragnn.record import RunRecord
from tests.forked import Forked

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240.0  # seconds for what a loaded machine does within ten
ROUNDING = 1e-9
"""Of float64 after some hundred steps: steps taken as one add in another order."""

Settings = Callable[..., CampaignSettings]


@pytest.fixture
def settings(store_file: Path, tmp_path: Path) -> Settings:
    """A maker of campaigns that really train small models of one shape."""

    def made(epochs: int = 8, high: float = 1e-2, **search: Any) -> CampaignSettings:
        rates = {"type": "float", "low": 1e-4, "high": high, "log": True}
        table = {
            "data": {"store": str(store_file)},
            "model": {"kind": "schnet", "hidden_dim": 8, "num_layers": 1},
            "heads": [{"kind": "scalar", "field": "energy"}],
            "train": {"epochs": epochs, "precision": "fp64"},
            "batch": {"max_graphs": 8},
            "search": {
                "trials": 4,
                "sampler": "random",
                "seed": 3,
                "together": 4,
                "grace_seconds": 60.0,
                "space": {"train.learning_rate": rates},
                **search,
            },
        }
        return campaign_settings(table, tmp_path / "CAMPAIGN.toml")

    return made


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where sockets lie; nothing of them, and no process, stays behind."""
    multiprocessing.util.get_temp_dir()  # where the server that tests fork from has its socket: not here
    place = Path(f"/tmp/company-{os.getpid()}")
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    monkeypatch.setenv("TMPDIR", str(place))
    yield place
    for process in companies(place):
        process.wait(PATIENCE)
    assert list(place.glob("hydragnn-*")) == []
    shutil.rmtree(place)


def companies(place: Path) -> list[psutil.Process]:
    """The processes that train several runs and have their socket under ``place``."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "hydragnn.runs.company" in words and any(word.startswith(str(place)) for word in words):
            found.append(process)
    return found


def records_of(out: Path) -> dict[int, RunRecord]:
    return {number: record for number, record, _ in campaign_records(out)}


def assert_same(one: dict[int, RunRecord], other: dict[int, RunRecord]) -> None:
    assert one.keys() == other.keys()
    for number, record in one.items():
        assert (record.status, record.epochs) == (other[number].status, other[number].epochs) == ("finished", 8)
        for name, curve in record.curves.items():
            assert curve == pytest.approx(other[number].curves[name], rel=ROUNDING), (number, name)


class Meddler:
    """Does something once when a trial has come so far."""

    def __init__(self, act: Callable[[], None], out: Path, trials: int = 4) -> None:
        self.act, self.out, self.trials = act, out, trials
        self.done = False
        self.failures: list[Failed] = []
        self.launched: dict[int, int] = {}

    def __call__(self, state: Any, event: Event, seconds: float) -> None:
        if isinstance(event, Failed):
            self.failures.append(event)
        if isinstance(event, Launched):
            self.launched[event.trial] = event.identity["pid"]
        if not self.done and len(self.launched) == self.trials and self.far():
            self.done = True
            self.act()

    def far(self) -> bool:
        """Return True where every trial has finished its first epoch, as its heartbeat says."""
        beats = [path.read_text().split() for path in self.out.glob("trials/*/heartbeat")]
        return len(beats) == self.trials and all(len(words) == 3 and float(words[2]) > 1.0 for words in beats)


def test_trials_that_share_a_process_are_those_trained_alone(settings: Settings, tmp_path: Path) -> None:
    """The same search; steps are taken as one where that is faster, which the records say."""
    alone = run_search(settings(together=1), tmp_path / "alone")
    shared = run_search(settings(), tmp_path / "shared")
    assert (alone.finished, shared.finished) == (4, 4)
    assert_same(records_of(tmp_path / "alone"), records_of(tmp_path / "shared"))
    notes = [note for record in records_of(tmp_path / "shared").values() for note in record.notes]
    assert any(note.startswith("steps were taken ") for note in notes)
    log = (tmp_path / "shared" / "trials" / "0002" / "log.txt").read_text()
    assert "--- attempt 1: until epoch 8" in log
    assert "finished after 8 epochs" in log
    assert "trained alone" not in log


def test_a_process_that_dies_costs_no_attempt(settings: Settings, tmp_path: Path, temporary: Path) -> None:
    """Its trials go on alone, each in its own process, as if nothing had been."""
    out = tmp_path / "c"

    def kill() -> None:
        [company] = companies(temporary)
        company.kill()

    meddler = Meddler(kill, out, trials=2)
    campaign = settings(epochs=200, trials=2, together=2)
    result = run_search(campaign, out, on_event=meddler)
    assert meddler.done
    assert (result.finished, result.failed, meddler.failures) == (2, 0, [])
    assert {record.attempt for record in records_of(out).values()} == {1}
    for number in range(2):
        assert "trained alone from here on" in (out / "trials" / f"{number:04d}" / "log.txt").read_text()


def test_a_trial_that_is_killed_leaves_the_others_alone(settings: Settings, tmp_path: Path) -> None:
    """It is tried again; the process that trained it and the others does not notice."""
    out = tmp_path / "c"
    meddler = Meddler(lambda: os.kill(meddler.launched[1], signal.SIGKILL), out)
    result = run_search(settings(epochs=200), out, on_event=meddler)
    assert (result.finished, result.failed) == (4, 0)
    assert [(failed.trial, failed.kind) for failed in meddler.failures] == [(1, "preempted")]
    assert [record.attempt for record in records_of(out).values()] == [1, 2, 1, 1]
    assert "trained alone" not in "".join(path.read_text() for path in out.glob("trials/*/log.txt"))


def test_a_process_that_does_not_answer_is_ended_and_its_runs_are_trained_alone(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = temporary / "hung"
    monkeypatch.setattr(guest, "LOOK", 0.05)
    with socket.socket(socket.AF_UNIX) as listener, subprocess.Popen(["sleep", "600"]) as hung:
        listener.bind(str(place))
        listener.listen()
        place.with_name("hung.pid").write_text(str(hung.pid))
        assert guest.attend(str(place), 4, 0.2, {"arguments": [str(tmp_path)]}, alone=lambda request: 7) == 7
        assert hung.wait(PATIENCE) == -signal.SIGKILL


def test_a_trial_that_diverges_fails_alone(settings: Settings, tmp_path: Path) -> None:
    campaign = settings(high=1e300, seed=5)
    result = run_search(campaign, tmp_path / "c")
    records = records_of(tmp_path / "c")
    kinds = {number: record.failure.kind for number, record in records.items() if record.failure is not None}
    assert 0 < result.failed < 4
    assert set(kinds.values()) == {"diverged"}
    rates = {number: record.config["train"]["learning_rate"] for number, record in records.items()}
    assert min(rates[number] for number in kinds) > max(rates[number] for number in rates.keys() - kinds.keys())


DRIVER = """
import json, sys
from pathlib import Path
from hydragnn.hpo import campaign_settings, run_search
table, out = json.loads(sys.argv[1]), Path(sys.argv[2])
print(run_search(campaign_settings(table, out.parent / "CAMPAIGN.toml"), out, resume=True).ending)
"""


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_an_interrupted_search_goes_on(
    settings: Settings, tmp_path: Path, temporary: Path, kind: signal.Signals
) -> None:
    """Ctrl-C saves all trials; nothing outlives a controller that is killed; a resume ends as the undisturbed search."""
    out, script = tmp_path / "c", tmp_path / "driver.py"
    script.write_text(DRIVER)
    table = settings(epochs=150).to_json()
    table["search"]["max_hours"] = 1.0
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    process = Forked([str(script), json.dumps(table), str(out)], environment)
    beats = Meddler(lambda: None, out)
    deadline = time.monotonic() + PATIENCE
    while not beats.far():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate(1)[0]
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(kind)
    process.wait(PATIENCE)
    _, alive = psutil.wait_procs(children, timeout=PATIENCE)
    assert not alive
    if kind == signal.SIGINT:
        assert {record.status for record in records_of(out).values()} == {"paused"}
        assert all(record.epochs > 0 for record in records_of(out).values())
    result = run_search(campaign_settings(table, tmp_path / "CAMPAIGN.toml"), out, resume=True)
    assert (result.ending, result.finished, result.failed) == ("finished", 4, 0)
    assert {record.epochs for record in records_of(out).values()} == {150}


MPIEXEC = Path(sys.executable).with_name("mpiexec")


@pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec beside this Python; install the extra mpi")
def test_shares_of_nodes_train_in_company(settings: Settings, tmp_path: Path) -> None:
    """A pack of two shares on each of two nodes, two trials in each process."""
    site = Mpiexec(hydra=True, program=str(MPIEXEC), options=("-launcher", "fork"), pbsnodes=False)
    allocation = Allocation(by="pbs", nodes=alike(("n1", "n2"), 4))
    log = tmp_path / "packs.txt"
    launcher = PackLauncher(site, allocation, shares=2, together=2, log=log, environment={"PYTHONPATH": str(ROOT)})
    campaign = settings(trials=4, trials_per_node=2, together=2)
    result = run_search(campaign, tmp_path / "c", launcher=launcher)
    assert (result.finished, result.failed) == (4, 0), log.read_text()
    notes = [note for record in records_of(tmp_path / "c").values() for note in record.notes]
    assert any(
        re.match("steps were taken as one with 1 other runs'|steps were taken one after the other", n) for n in notes
    )


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ({"nodes_per_trial": 2}, "together = 4 trials share a process"),
        ({"ranks_per_node": 2}, "together = 4 trials share a process"),
    ],
)
def test_trials_of_several_processes_share_none(settings: Settings, search: dict[str, Any], words: str) -> None:
    campaign = settings(**search)
    with pytest.raises(InputError, match=words):
        check_campaign(campaign, space_of(campaign.search.space))


SMALL = Machine(cores=2, memory=4 * 10**9, gpus=0)


@pytest.mark.parametrize(
    ("search", "base", "machine", "number", "words"),
    [
        ({}, {}, SMALL, 4, "before the sampler has learned"),
        ({"trials": 24}, {}, SMALL, 8, "so many small trials were measured to gain"),
        ({"trials": 24, "workers": 2, "sampler": "tpe"}, {}, SMALL, 4, "before the sampler has learned"),
        ({"trials": 24}, {}, replace(SMALL, memory=10**9), 1, "memory is enough"),
        ({}, {}, replace(SMALL, gpus=1), 1, "was not measured"),
        ({}, {}, None, 1, "in an allocation"),
        ({"space": {"model.hidden_dim": {"type": "int", "low": 4, "high": 8}}}, {}, SMALL, 1, "shape of their models"),
        (
            {},
            {"model": {"kind": "gatv2", "hidden_dim": 8, "wide_heads": True}},
            SMALL,
            1,
            "WideLayer have no stacked form",
        ),
        ({}, {"model": {"kind": "schnet", "hidden_dim": 2048}}, SMALL, 1, "batches are large"),
        ({}, {"batch": {"max_graphs": 8, "memory": "1 GB"}}, SMALL, 1, "would get a part"),
        ({}, {"train": {"precision": "bf16"}}, SMALL, 1, "compiled steps, bf16 and tf32"),
    ],
    ids=["trials", "most", "sampler", "memory", "GPU", "allocation", "shapes", "layers", "large", "limit", "bf16"],
)
def test_auto_shares_a_process_where_that_is_known_to_gain(
    settings: Settings, search: dict[str, Any], base: dict[str, Any], machine: Machine | None, number: int, words: str
) -> None:
    campaign = settings(together="auto", **search)
    campaign = replace(campaign, base={**campaign.base, **base})
    space = space_of(campaign.search.space)
    chosen = with_together(campaign, space, None, machine)
    assert chosen.search.together == number
    assert words in chosen.together_text
    assert chosen == with_together(campaign, space, None, machine)


def test_memory_without_a_limit_may_be_said() -> None:
    """A configuration that is complete with its defaults, as records have it, has an empty one."""
    assert [batch_memory({"batch": {"memory": given}}) for given in ("", "2 GB")] == [0, 2 * 10**9]


def test_a_resumed_campaign_keeps_the_number_that_was_chosen(
    settings: Settings, fake_launcher: Callable[..., LocalLauncher], tmp_path: Path
) -> None:
    notes: list[str] = []
    run_search(settings(together="auto"), tmp_path / "c", launcher=fake_launcher(), on_note=notes.append)
    assert notes == ["4 trials share a process: more at once would be proposed before the sampler has learned"]
    again = as_begun(settings(together="auto", workers=4, trials=8), tmp_path / "c")
    assert (again.search.together, again.together_because) == (4, notes[0].partition(": ")[2])
    run_search(settings(together="auto", workers=4), tmp_path / "c", resume=True, launcher=fake_launcher())
    assert campaign_status(tmp_path / "c").together == notes[0]


def test_shares_that_do_not_fill_processes_are_refused(settings: Settings, tmp_path: Path) -> None:
    allocation = Allocation(by="slurm", nodes=alike(("n1",), 8))
    with pytest.raises(InputError, match="make trials_per_node a multiple of together, such as 4"):
        launcher_for(settings(trials_per_node=6), allocation, tmp_path)
