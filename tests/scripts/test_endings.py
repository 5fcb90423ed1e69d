"""What every ending of a command exits with: 0 is a success, and nothing else is."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hydragnn
import hydragnn.hpo
from hydragnn.base.errors import NO_MEMORY
from hydragnn.hpo.campaign import check_result
from hydragnn.hpo.scheduling.events import Ending
from hydragnn.hpo.scheduling.node_health import NodeEntry, NodeHealth
from hydragnn.hpo.scheduling.state import Rung, State, Trial
from hydragnn.hpo.status.facts import CampaignStatus, status_of
from hydragnn.hpo.status.timeline import TimelineBuilder
from hydragnn.record import Failure
from hydragnn.scripts import api, cli, ensembles
from hydragnn.scripts.__main__ import main
from tests.once import Call

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)

RESULT = Trial(number=0, status="finished", results=(1.0,))
WAITING = Trial(number=1, status="waiting")
REFUSED = Trial(number=3, status="waiting", failure=Failure(kind="launch", message="no answer"))
BROKEN = Trial(number=2, status="failed", failure=Failure(kind="defect", message="it broke"))


def ended(ending: Ending, *trials: Trial, **members: Any) -> State:
    leader = next((trial.number for trial in trials if trial.results), None)
    state = State(ending=ending, closed=True, leader=leader, rungs=[Rung()], **members)
    for trial in trials:
        state.put_trial(trial)
    return state


def status_after(state: State, out: Path) -> CampaignStatus:
    check_result(state, out, "C.toml")
    builder = TimelineBuilder()
    builder.state = state
    return status_of(builder, out, 1.0)


OUT_OF_ORDER = {"health": NodeHealth()}
OUT_OF_ORDER["health"].put("n1", NodeEntry(status="quarantined", message="the probe failed"))
ENDINGS: list[tuple[State, int, str]] = [
    (ended("finished", RESULT, BROKEN), 0, ""),
    (ended("finished", BROKEN), 2, "all 1 trials failed; trial 2: defect: it broke"),
    (ended("finished"), 2, "not one configuration could be tried"),
    (ended("hours", RESULT, WAITING), 0, ""),
    (ended("hours", WAITING), 2, "max_hours spent; raise it and continue with --resume"),
    (ended("node_hours", RESULT, WAITING), 0, ""),
    (ended("node_hours", BROKEN, WAITING), 2, "max_node_hours spent; raise it and continue with --resume"),
    (ended("hopeless", BROKEN, WAITING), 2, "all 1 trials failed"),
    (ended("hopeless", WAITING, **OUT_OF_ORDER), 2, "all 1 nodes are out of order before any trial succeeded; n1: the"),
    (ended("hopeless", REFUSED, nodes={"n1": ("n1",)}), 2, "for 20 minutes nothing that was started came to anything"),
    (ended("walltime", RESULT, WAITING), 75, "the allocation has ended; 1 of 2 trials are done"),
    (ended("walltime", WAITING), 75, "continues with --resume in a new one"),
    (ended("stopped", RESULT, WAITING), 130, "1 of 2 trials are done"),
    (ended("stopped", WAITING), 130, "continues with --resume"),
]


@pytest.mark.parametrize(("state", "code", "message"), ENDINGS)
def test_a_search_exits_with_0_only_where_a_trial_has_a_result_and_nothing_cut_it_short(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: State, code: int, message: str
) -> None:
    monkeypatch.setattr(hydragnn.hpo, "campaign_settings", lambda table, source: table)
    monkeypatch.setattr(hydragnn.hpo, "run_search", lambda table, out, **_: status_after(state, out))
    (tmp_path / "C.toml").touch()
    actual, _, output = call("search", tmp_path / "C.toml", "--out", tmp_path / "campaign", "--json")
    assert actual == code
    assert message in output


@pytest.mark.parametrize(("ending", "code"), [("walltime", 75), ("stopped", 130)])
def test_a_last_training_that_is_cut_short_makes_no_ensemble_and_exits_as_a_search_does(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: Ending, code: int
) -> None:
    status = status_after(ended(ending, RESULT, WAITING), tmp_path)
    monkeypatch.setattr(ensembles, "best_trials", lambda *_, **__: SimpleNamespace(folders=[], selection={}))
    monkeypatch.setattr(ensembles, "given_runs", lambda *_, **__: [])
    monkeypatch.setattr(ensembles, "open_campaign", lambda _: SimpleNamespace(search=None))
    monkeypatch.setattr(ensembles, "run_final", lambda *_, **__: status)
    (tmp_path / "campaign.json").touch()
    actual, _, output = call("ensemble", tmp_path, "--out", tmp_path / "ensemble", "--train", "--json")
    assert actual == code
    assert "the same command continues" in output
    assert not (tmp_path / "ensemble").exists()


@pytest.mark.parametrize(
    ("name", "words", "facts", "code"),
    [
        *(
            ("predict", "model graphs", {"graphs": 3, "failed": failed}, code)
            for failed, code in ((0, 0), (2, 0), (3, 3))
        ),
        *(("train", "C.toml", {"status": one}, code) for one, code in (("finished", 0), ("stopped", 0), ("failed", 3))),
    ],
)
def test_a_prediction_of_any_graph_and_a_run_that_ended_of_its_own_exit_with_0(
    name: str, words: str, facts: dict[str, Any], code: int, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = SimpleNamespace(**facts, to_json=lambda: facts, table=lambda: facts)
    monkeypatch.setattr(api, name, lambda *_, **__: result)
    monkeypatch.setattr(cli, "run_summary", lambda record, _: facts)
    assert call(name, *words.split(), "--out", "out.h5", "--json")[0] == code


INTERRUPTED = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
SWALLOWED = """import os
try:
    os.kill(os.getpid(), 2)
except KeyboardInterrupt:
    raise ValueError("as pydantic makes an error of a schema of it")"""


@pytest.mark.parametrize(
    ("meanwhile", "code", "said"),
    [
        (INTERRUPTED, 130, ""),
        (SWALLOWED, 130, ""),
        ("raise ModuleNotFoundError('No module named ours', name='{}._C')", 2, "error: the package {} is not"),
    ],
)
@pytest.mark.parametrize(
    ("package", "words"),
    [("typer", ["--help"]), ("torch", ["predict", "ensemble", "store", "--out", "out.h5"])],
    ids=["of the command line", "of a command"],
)
def test_ctrl_c_while_modules_are_imported_and_a_package_that_is_missing_end_in_no_traceback(
    package: str, words: list[str], meanwhile: str, code: int, said: str, tmp_path: Path
) -> None:
    (tmp_path / f"{package}.py").write_text(f"{meanwhile.format(package)}\n")
    for mark in ("ensemble/record.json", "store/manifest.json"):  # enough to look like what they are called
        (tmp_path / mark).parent.mkdir()
        (tmp_path / mark).touch()
    said = said.format(package)
    handler = "import signal; signal.signal(2, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{handler}; from hydragnn.scripts.__main__ import main; main()", *words]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == code
    assert ended.stderr.startswith(said) and ended.stderr.count("\n") == bool(said)


def test_packages_of_this_name_are_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(hydragnn, "__all__", [])  # that of the public HydraGNN has none
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "an environment of its own" in capsys.readouterr().err


@pytest.mark.parametrize("kind", SIGNALS)
@pytest.mark.parametrize(("job", "code", "where"), [("", 130, " "), ("7", 75, " in a new allocation ")])
def test_a_signal_while_a_search_still_loads_its_libraries_ends_it_as_one_that_runs(
    kind: signal.Signals, job: str, code: int, where: str, monkeypatch: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("FLUX_URI", "PBS_NODEFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setattr(sys, "argv", ["hydragnn", "search", "c.toml", "--out", "c"])
    monkeypatch.setattr(cli, "main", lambda: signal.raise_signal(kind))
    with pytest.raises(SystemExit) as end:
        main()
    said = f"interrupted: stopped by {kind.name} before the search began; start it again{where}with --resume\n"
    assert (end.value.code, capfd.readouterr().err) == (code, said)
    assert signal.getsignal(kind) == signal.SIG_DFL


def test_libraries_without_memory_are_told(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def load() -> None:
        """As scipy does under a limit of addresses."""
        try:
            raise ImportError("_ccallback_c.so: failed to map segment from shared object")
        except ImportError as error:
            raise ImportError("the scipy install you are using seems to be broken") from error

    monkeypatch.setattr(cli, "main", load)
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capfd.readouterr().err.startswith(f"error: {NO_MEMORY}")
    monkeypatch.setattr(cli, "main", raising(ImportError("cannot import name 'x'")))
    with pytest.raises(ImportError, match="name 'x'"):
        main()


def raising(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize("error", [OSError(12, "Cannot allocate memory"), RuntimeError("unable to allocate memory")])
def test_a_system_without_memory_ends_a_command_in_a_sentence(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "app", raising(error))
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert capfd.readouterr().err == f"error: {NO_MEMORY}\n"
