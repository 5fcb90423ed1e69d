"""The last training: all runs to the end, together, as each would be alone, whatever happens meanwhile."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from campaigns import read_journal
from world import after

from hydragnn.base.errors import InputError
from hydragnn.config import RunConfig
from hydragnn.hpo import CampaignSettings, GivenRun, LocalLauncher, campaign_history, run_final, run_search
from hydragnn.hpo.final import best_runs, given_runs
from hydragnn.hpo.scheduling.events import Proposed, Start
from hydragnn.hpo.scheduling.scheduler import State

Settings = Callable[..., CampaignSettings]
Launchers = Callable[..., LocalLauncher]
Weights = Callable[[Path], dict[str, Any]]
PATIENCE = 240.0  # seconds for what a loaded machine does within ten


@pytest.fixture
def runs(table: dict[str, Any]) -> list[GivenRun]:
    """Four configurations of twelve epochs; the second costs most by far, the last is not known."""
    made: list[GivenRun] = []
    for number, work in enumerate([1.0, 9.0, 3.0, None]):
        train = {"epochs": 12, "learning_rate": 10.0 ** -(number + 1), "seed": number}
        model = {"kind": "schnet", "hidden_dim": 16 + number}
        config = {"data": table["data"], "model": model, "heads": table["heads"], "train": train}
        made.append(GivenRun(config=RunConfig.parse(config), work=work))
    return made


def test_all_runs_are_trained_to_the_end_as_each_would_be_alone(
    runs: list[GivenRun], fake_launcher: Launchers, weights_of: Weights, tmp_path: Path
) -> None:
    final = run_final(runs, tmp_path / "together", launcher=fake_launcher(workers=2))
    assert final.result.ending == "finished"
    assert [json.loads((f / "record.json").read_text())["status"] for f in final.folders] == ["finished"] * 4
    together = weights_of(tmp_path / "together")
    for number, run in enumerate(runs):
        alone = run_final([run], tmp_path / f"alone{number}", launcher=fake_launcher())
        assert weights_of(tmp_path / f"alone{number}")["0000"] == together[f"{number:04d}"]
        assert len(together[f"{number:04d}"]) == 12
        assert json.loads((alone.folders[0] / "config.json").read_text()) == run.config.to_json()


def test_two_workers_train_two_runs_at_once_straight_to_the_end_the_costliest_first(
    runs: list[GivenRun], fake_launcher: Launchers, tmp_path: Path
) -> None:
    run_final(runs, tmp_path / "c", launcher=fake_launcher(workers=2))
    state, most, started = State(), 0, list[tuple[int, int]]()
    events = read_journal(tmp_path / "c" / "journal.jsonl")
    for now, event in events:
        actions = after(state, now, event)
        most = max(most, len(state.running))
        started += [(action.trial, action.until) for action in actions if isinstance(action, Start)]
    assert most == 2
    assert 1 in {trial for trial, _ in started[:2]}
    assert sorted(started) == [(trial, 12) for trial in range(4)]
    assert [event.work for _, event in events if isinstance(event, Proposed)] == [1.0, 9.0, 3.0, None]


def test_a_failed_run_is_told_once_the_others_are_trained(
    runs: list[GivenRun], fake_launcher: Launchers, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"1 of 4 final trainings failed; .*0001: diverged: as planned"):
        run_final(runs, tmp_path / "c", launcher=fake_launcher(fault="diverged"))
    statuses = [trial.status for trial in campaign_history(tmp_path / "c").trials]
    assert statuses == ["finished", "failed", "finished", "finished"]


def test_other_runs_are_not_mixed_into_a_training_that_has_begun_but_their_cost_may_change(
    runs: list[GivenRun], fake_launcher: Launchers, tmp_path: Path
) -> None:
    run_final(runs, tmp_path / "c", launcher=fake_launcher())
    dearer = [replace(run, work=5.0) for run in runs]
    assert run_final(dearer, tmp_path / "c", launcher=fake_launcher()).result.ending == "finished"
    with pytest.raises(InputError, match="holds trainings of other configurations, seeds or epochs; repeat"):
        run_final(runs[::-1], tmp_path / "c", launcher=fake_launcher())


def test_runs_of_one_training_have_the_same_epochs(runs: list[GivenRun], tmp_path: Path) -> None:
    shorter = RunConfig.parse({**runs[0].config.to_json(), "train": {"epochs": 3}})
    with pytest.raises(InputError, match=r"different epochs \(\[3, 12\]\)"):
        run_final([*runs, GivenRun(config=shorter)], tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_the_best_configurations_are_those_that_came_furthest(
    settings: Settings, fake_launcher: Launchers, tmp_path: Path
) -> None:
    out = tmp_path / "c"
    run_search(settings(), out, launcher=fake_launcher())
    history = {trial.folder: trial for trial in campaign_history(out).trials}
    ranked = [history[folder] for folder in best_runs(out)]
    assert [len(trial.rungs) for trial in ranked] == sorted((len(t.rungs) for t in history.values()), reverse=True)
    finished = [trial.value for trial in ranked if trial.status == "finished"]
    assert finished == sorted(finished)
    chosen = best_runs(out)[:2]
    given = given_runs(chosen, out, seeds=2, epochs=20)
    assert [run.config.train.seed for run in given] == [0, 1, 2, 3]
    assert {run.config.train.epochs for run in given} == {20}
    assert [run.config.train.learning_rate for run in given] == [
        history[folder].values["train.learning_rate"] for folder in chosen for _ in range(2)
    ]
    assert all(run.work and run.work > 0 for run in given), "the campaign has measured what they cost"
