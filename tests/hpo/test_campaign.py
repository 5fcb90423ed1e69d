"""Whole campaigns with attempts in real processes: determinism, faults, settings, moves, the last training."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
import tomli_w
from campaigns import Launchers, Search, Settings, course, read_journal, weights_of
from clockwork import after
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from hydragnn.base.errors import Busy, InputError
from hydragnn.base.files import read_sealed, write_json, write_sealed
from hydragnn.config import RunConfig
from hydragnn.hpo import (
    CampaignStatus,
    GivenRun,
    campaign_history,
    campaign_records,
    campaign_settings,
    parameter_importance,
    run_final,
    run_search,
    study_log,
)
from hydragnn.hpo.final import best_runs, given_runs
from hydragnn.hpo.journal import Journal
from hydragnn.hpo.launching.verdict import log_tail
from hydragnn.hpo.preflight import as_begun, check_folder, write_settings
from hydragnn.hpo.scheduling.events import Failed, Proposed, Start
from hydragnn.hpo.scheduling.scheduler import State
from hydragnn.hpo.space.parameters import Choices, IntRange
from hydragnn.hpo.space.points import space_of
from hydragnn.hpo.status import campaign_status
from hydragnn.hpo.warm import warm_source
from hydragnn.record import read_record
from hydragnn.runs.attempt import shown_epochs
from hydragnn.runs.folder import name_store
from hydragnn.scripts import api
from tests.charged_rings import write_rings


def test_one_worker_gives_the_same_campaign_twice(search: Search, undisturbed: Any, tmp_path: Path) -> None:
    result, out = search("c"), tmp_path / "c"
    assert result.status == "finished"
    assert (course(out), weights_of(out)) == undisturbed
    finished = [t for t in course(out) if t[1] == "finished"]
    assert len(finished) == result.trials["finished"] >= 2
    assert result.best and result.best.value == min(v for t in course(out) for v in t[3].values())
    assert len({record.seed for _, record, _ in campaign_records(out)}) == 9


def test_records_are_in_the_order_of_numbers_also_beyond_four_digits(search: Search, tmp_path: Path) -> None:
    search("c", trials=2, rungs=[], finalists=0)
    for number in ("10000", "9999"):
        shutil.copytree(tmp_path / "c" / "trials" / "0001", tmp_path / "c" / "trials" / number)
    assert [number for number, _, _ in campaign_records(tmp_path / "c")] == [0, 1, 9999, 10000]


LINKED = ("trials/0001/log.txt", "trials/0001/heartbeat", "journal.jsonl", "sampler.log", "optuna.log", "packs.txt")


def test_a_planted_link_is_not_followed_and_a_planted_pipe_is_not_waited_for(search: Search, tmp_path: Path) -> None:
    begun, elsewhere = tmp_path / "begun", tmp_path / "elsewhere"
    search(begun, trials=1, rungs=[], finalists=0)
    elsewhere.mkdir()
    (elsewhere / "log.txt").write_text("mine")
    for number, (place, pipe) in enumerate([("trials/0001", False), *product(LINKED, (False, True))]):
        out = shutil.copytree(begun, tmp_path / f"c{number}")
        (out / place).parent.mkdir(exist_ok=True)
        (out / place).unlink(missing_ok=True)
        if pipe:
            os.mkfifo(out / place)
        else:
            (out / place).symlink_to(elsewhere if place == "trials/0001" else elsewhere / "log.txt")
        refusal = "is no regular file" if pipe else "is a symbolic link, and nothing is written through one"
        with pytest.raises(InputError, match=refusal):
            search(out, resume=True, trials=2, rungs=[], finalists=0)
    assert [path.name for path in elsewhere.iterdir()] == ["log.txt"]
    assert (elsewhere / "log.txt").read_text() == "mine"


def test_what_looks_at_a_campaign_follows_no_link_and_waits_for_no_pipe(search: Search, tmp_path: Path) -> None:
    out = tmp_path / "c"
    search(out, trials=1, rungs=[], finalists=0)
    journal, elsewhere = out / "journal.jsonl", tmp_path / "elsewhere"
    journal.rename(elsewhere)
    trial = out / "trials" / "0000"
    for plant, words in ((os.mkfifo, "no regular file"), (lambda path: path.symlink_to(elsewhere), "a symbolic link")):
        for path in (journal, trial / "heartbeat", trial / "log.txt"):
            path.unlink(missing_ok=True)
            plant(path)
        for look in (campaign_status, lambda folder: read_journal(folder / "journal.jsonl")):
            with pytest.raises(InputError, match=words):
                look(out)
        assert (shown_epochs(trial, 1), log_tail(trial)) == (None, "")


def test_a_process_killed_from_outside_is_retried(search: Search, tmp_path: Path, undisturbed: Any) -> None:
    result = search("c", fault="kill once")
    assert result.trials["failed"] == 0
    assert (course(tmp_path / "c"), weights_of(tmp_path / "c")) == undisturbed


def test_a_hanging_process_is_killed_and_retried(settings: Settings, fake_launcher: Launchers, tmp_path: Path) -> None:
    launcher = fake_launcher(fault="hang once", hang_seconds=4.0)
    result = run_search(settings(trials=2, rungs=[], finalists=0), tmp_path / "c", launcher=launcher)
    assert (result.trials["finished"], result.trials["failed"]) == (2, 0)
    failures = [event for _, event in read_journal(tmp_path / "c" / "journal.jsonl") if isinstance(event, Failed)]
    assert [(event.kind, event.message) for event in failures] == [("lost_node", "no heartbeat for 0.0667 minutes")]


def test_when_everything_fails_the_reason_is_told_early(search: Search) -> None:
    with pytest.raises(InputError, match="all 5 trials failed; trial 0: configuration: as planned"):
        search("c", fault="all configuration", trials=40)
    with pytest.raises(InputError, match=r"(?s)launch: exit code 9 without a result.*something is broken"):
        search("d", fault="all crash", trials=2, retries=1)


def test_a_trial_that_takes_too_long_fails_as_timeout(search: Search) -> None:
    with pytest.raises(InputError, match="timeout"):
        search("c", pause=0.7, trials=1, rungs=[], timeout_minutes=0.02)


def test_a_finished_campaign_resumed_gives_its_result_and_can_be_extended(search: Search) -> None:
    first = search("c")
    again = search("c", resume=True)
    assert (again.trials, again.best) == (first.trials, first.best)
    slots = {"launcher": "local", "nodes_per_trial": [1, 4], "max_node_hours": 9.0, "grace_seconds": 5.0}
    more = search("c", resume=True, trials=12, **slots)
    assert sum(more.trials.values()) == 12


def test_an_unwritable_study_holds_nothing_up(search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "c"
    search(out, trials=2)
    (out / "optuna.log.lock").symlink_to("c/optuna.log")
    search(out, resume=True, trials=3)
    storage = JournalStorage(JournalFileBackend(str(out / "optuna.log")))
    (study,) = storage.get_all_studies()
    assert [trial.number for trial in storage.get_all_trials(study._study_id)] == [0, 1, 2]

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(study_log, "os", SimpleNamespace(**{**vars(os), "write": full}))
    result = search(out, resume=True, trials=4)
    assert (result.status, sum(result.trials.values())) == ("finished", 4)
    assert not (out / "optuna.log").exists()


def test_a_folder_is_not_taken_over(search: Search, settings: Settings, tmp_path: Path) -> None:
    out = tmp_path / "c"
    search(out, trials=1, rungs=[])
    with pytest.raises(InputError, match="--resume"):
        run_search(settings(trials=1, rungs=[]), out)
    with pytest.raises(InputError, match=r"begun with other settings \(search.reduction: \d, now 4\)"):
        run_search(settings(trials=1, rungs=[], reduction=4), out, resume=True)
    with Journal(out / "journal.jsonl"), pytest.raises(InputError, match="another search runs"):
        run_search(settings(trials=1, rungs=[]), out, resume=True)
    begun = read_sealed(out / "campaign.json")
    write_sealed(out / "campaign.json", {**begun, "batch": {"budget": "auto"}})
    with pytest.raises(InputError, match=r'begun with batch\.budget = "auto", which is gone; begin a new campaign'):
        run_search(settings(trials=1, rungs=[]), out, resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(InputError, match="is not a campaign"):
        run_search(settings(), tmp_path / "other")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rungs": [1, 6]}, "below it"),
        ({"objective": "valid/momen/mae"}, "not recorded; valid: valid/loss, throughput, .*valid/moment/mae"),
        ({"objective": {"dipole": 1.0}}, "no head predicts dipole"),
        ({"objective": ["valid/loss"]}, "a list has two objectives or more"),
        ({"objective": ["valid/loss", "valid/loss"]}, "valid/loss is given twice"),
        ({"objective": ["valid/loss", {"dipole": 1.0}]}, "no head predicts dipole"),
        ({"objective": ["valid/loss", {"of": "cost/price"}]}, "not recorded; valid: .*cost/ms_per_graph"),
        ({"objective": ["valid/loss", {"of": "cost/parameters", "at_mots": 3}]}, "at_mots"),
        ({"objective": "cost/joules_per_graph"}, "the machine measures no energy.* take another objective"),
        ({"objective": ["valid/loss", "cost/joules_per_graph"]}, "the machine measures no energy"),
        (
            {"objective": ["valid/loss", {"of": {"moment": -1.0, "other": 1.0}}]},
            r"objective\.1\.of\.moment: Input should be greater",
        ),
        ({"warm_start": ["nowhere"]}, "neither a campaign"),
        ({"nodes_per_trial": [3, 2]}, r"nodes_per_trial = \(3, 2\); give the smallest"),
        ({"nodes_per_trial": 0}, "at least 1"),
        ({"nodes_per_trial": 2, "trials_per_node": 4}, "leave out nodes_per_trial, ranks_per_node and other shares"),
        ({"nodes_per_trial": 2}, "this machine is one node; begin with --set search.nodes_per_trial=1"),
        ({"launcher": "slurm"}, 'launcher = "slurm", but this is no allocation'),
    ],
)
def test_bad_settings_are_refused(settings: Settings, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run_search(settings(**change), tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_the_best_of_an_earlier_campaign_are_tried_first(search: Search, tmp_path: Path) -> None:
    search("a")
    search("b", warm_start=["a"], seed=8)
    before = min(campaign_history(tmp_path / "a").trials, key=lambda trial: trial.value or 9.0)
    after = campaign_history(tmp_path / "b").trials
    assert after[0].values == before.values
    assert [trial.origin for trial in after] == ["warm start"] * 2 + ["sampler"] * 7


def test_a_deephyper_file_is_a_warm_start(settings: Settings, fake_launcher: Launchers, tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text(
        "p:hidden_dim,p:train.learning_rate,p:other,objective,job_id\n"
        "16,0.01,x,-3.0,0\n64,0.001,x,-1.0,1\n64,0.001,x,F_diverged,2\n999,0.001,x,-0.1,3\n16,0.02,x,-4.0,4\n"
    )
    notes: list[str] = []
    earlier = settings(warm_start=["results.csv"], trials=8)
    run_search(earlier, tmp_path / "c", launcher=fake_launcher(), on_note=notes.append)
    assert [note for note in notes if "warm_start" in note] == [
        f"search.warm_start: 3 of 5 configurations in {tmp_path / 'results.csv'} are not tried first: "
        "1 without a result (line 4: objective 'F_diverged'); 1 outside the search space (line 5: model.hidden_dim = '999'); "
        "1 beyond a quarter of the trials, 2"
    ]
    best, second = campaign_history(tmp_path / "c").trials[:2]
    assert best.values == {"model.hidden_dim": 64, "train.learning_rate": 0.001}
    assert second.values == {"model.hidden_dim": 16, "train.learning_rate": 0.01}


def test_whole_numbers_that_a_spreadsheet_wrote_with_a_point_are_the_same_choices(tmp_path: Path) -> None:
    """A column of whole numbers with empty cells, of an inactive parameter, is written as 8.0."""
    space = space_of(
        {
            "model.kind": Choices(choices=["schnet", "mfc"]),
            "model.max_degree": Choices(choices=[4, 8], when={"model.kind": "mfc"}),
            "train.shuffle": Choices(choices=[True, False]),
            "model.num_layers": IntRange(low=1, high=4),
        }
    )
    (tmp_path / "results.csv").write_text(
        "p:kind,p:max_degree,p:num_layers,p:shuffle,objective\nmfc,8.0,2.0,True,-0.3\nschnet,,3.0,True,-0.1\nmfc,4.0,1.0,1,-0.2\n"
    )
    source = warm_source(tmp_path / "results.csv", space)
    assert source.points == [
        {"model.kind": "schnet", "train.shuffle": True, "model.num_layers": 3},
        {"model.kind": "mfc", "train.shuffle": True, "model.num_layers": 2, "model.max_degree": 8},
    ]
    assert source.reasons == {"outside the search space": ["line 4: train.shuffle = '1'"]}  # a number is no truth value


RESULTS: dict[str, tuple[str, list[int] | str]] = {
    "several objectives": ("objective_0,objective_1\n16,-1.0,-5.0\n17,-3.0,-3.0\n18,-2.0,-1.0\n19,-1.0,-2.0\n20,F,-1.0", [19, 18, 16, 17]),
    "a row cut off": ("objective\n16,-1.0\n17", [16]),
    "a row with more": ("objective\n16,-1.0\n17,-0.5,2,3", [17, 16]),
    "an infinite objective": ("objective\n16,-inf\n17,-9.0", [17]),
    "no objective": ("loss\n16,1.0", "has no column objective"),
    "no rows": ("objective", "has no column objective"),
    "failures alone": ("objective_0,objective_1\n16,F,F", "line 2: objective_0 'F', objective_1 'F'"),
}  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_ordered_or_say_what_they_lack(name: str, tmp_path: Path) -> None:
    text, expected = RESULTS[name]
    (tmp_path / "results.csv").write_text(f"p:hidden_dim,{text}\n")
    space = space_of({"model.hidden_dim": IntRange(low=8, high=64)})
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            warm_source(tmp_path / "results.csv", space)
    else:
        assert [point["model.hidden_dim"] for point in warm_source(tmp_path / "results.csv", space).points] == expected


def test_searches_of_the_public_hydragnn_have_other_names(tmp_path: Path) -> None:
    space = space_of({"model.kind": Choices(choices=["egnn", "gatv2"]), "model.num_layers": IntRange(low=1, high=6)})
    for name in ("mpnn_type", "model_type"):
        (tmp_path / "results.csv").write_text(f"p:{name},p:num_conv_layers,objective\nEGNN,2,-1\nGAT,3,-2\nMACE,3,-1\n")
        source = warm_source(tmp_path / "results.csv", space)
        assert [[*point.values()] for point in source.points] == [["egnn", 2], ["gatv2", 3]]
        assert source.reasons == {"outside the search space": ["line 4: model.kind = 'MACE'"]}


def test_importance_finds_the_parameter_that_matters(search: Search, tmp_path: Path) -> None:
    space = {
        "train.learning_rate": {"type": "float", "low": 1e-5, "high": 1e-1, "log": True},
        "train.weight_decay": {"type": "float", "low": 0.0, "high": 0.1},
    }
    search("c", workers=2, sampler="qmc", space=space, trials=16, rungs=[])
    importance = parameter_importance(tmp_path / "c")
    assert next(iter(importance)) == "train.learning_rate"
    assert importance["train.learning_rate"] > 0.7
    assert sum(importance.values()) == pytest.approx(1.0)


def test_failures_are_kept_and_the_optuna_study_says_what_the_journal_says(search: Search, tmp_path: Path) -> None:
    out = tmp_path / "c"
    assert search(out, fault="diverged").trials["failed"] == 3
    failed = [(t.number, t.reason, t.attempt) for t in campaign_history(out).trials if t.status == "failed"]
    assert failed == [(number, "diverged: as planned", 1) for number in (1, 4, 7)]

    def stored() -> list[tuple[Any, ...]]:
        storage = JournalStorage(JournalFileBackend(str(out / "optuna.log")))
        study = optuna.load_study(study_name="c", storage=storage)
        return [(t.number, t.state.name, t.params, t.intermediate_values) for t in study.trials]

    names = {"finished": "COMPLETE", "paused": "PRUNED", "failed": "FAIL"}
    expected = [(number, names[status], values, rungs) for number, status, values, rungs in course(out)]
    assert stored() == expected
    search(out, resume=True)
    assert stored() == expected


def test_a_campaign_keeps_the_default_sampler_that_it_began_with(settings: Settings, tmp_path: Path) -> None:
    for name in ("tpe", "auto"):
        write_settings(settings(sampler=name), [], tmp_path / name)
        resumed = as_begun(settings(sampler="auto"), tmp_path / name)
        assert resumed.search.sampler == name
        assert check_folder(resumed, space_of(resumed.search.space), tmp_path / name, resume=True) == []
    assert as_begun(settings(sampler="gp"), tmp_path / "tpe").search.sampler == "gp", "what a file says is compared"


MPIRUN = Path(sys.executable).with_name("mpirun")


@pytest.mark.skipif(not MPIRUN.exists(), reason="no mpirun beside this Python; install the extra mpi")
def test_ranks_of_mpirun_make_one_search_whose_trials_are_no_ranks(table: dict[str, Any], tmp_path: Path) -> None:
    search = {**table["search"], "trials": 1, "rungs": [], "finalists": 1}
    source, out = tmp_path / "CAMPAIGN.toml", tmp_path / "campaign"
    source.write_text(tomli_w.dumps({**table, "train": {"epochs": 1}, "search": search}))
    words = [str(MPIRUN), "-n", "2", sys.executable, "-m", "hydragnn.scripts", "search", str(source), "--out", str(out)]
    done = subprocess.run([*words, "--workers", "1", "--json"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("{"))
    assert json.loads(line)["trials"]["finished"] == 1 and read_record(out / "trials" / "0000").cost.ranks == 1
    for rank, does in ((0, "goes on, as a process alone"), (1, "leaves it to rank 0")):
        assert f"hydragnn search is one process, and rank {rank} of 2 {does}" in done.stderr
        assert f"PMI_SIZE=2 and PMI_RANK={rank} say that a launcher started 2 ranks" in done.stderr


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


def test_two_workers_train_the_costliest_first(runs: list[GivenRun], fake_launcher: Launchers, tmp_path: Path) -> None:
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


def test_a_failed_run_is_told_at_the_end(runs: list[GivenRun], fake_launcher: Launchers, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"1 of 4 final trainings failed; .*0001: diverged: as planned"):
        run_final(runs, tmp_path / "c", launcher=fake_launcher(fault="diverged"))
    statuses = [trial.status for trial in campaign_history(tmp_path / "c").trials]
    assert statuses == ["finished", "failed", "finished", "finished"]


def test_runs_that_began_stay_by_themselves(runs: list[GivenRun], fake_launcher: Launchers, tmp_path: Path) -> None:
    run_final(runs, tmp_path / "c", launcher=fake_launcher())
    dearer = [replace(run, work=5.0) for run in runs]
    assert run_final(dearer, tmp_path / "c", launcher=fake_launcher()).status == "finished"
    with pytest.raises(InputError, match="holds trainings of other configurations, seeds or epochs; repeat"):
        run_final(runs[::-1], tmp_path / "c", launcher=fake_launcher())


def test_runs_of_one_training_have_the_same_epochs(runs: list[GivenRun], tmp_path: Path) -> None:
    shorter = RunConfig.parse({**runs[0].config.to_json(), "train": {"epochs": 3}})
    with pytest.raises(InputError, match=r"different epochs \(\[3, 12\]\)"):
        run_final([*runs, GivenRun(config=shorter)], tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_the_best_configurations_are_those_that_came_furthest(search: Search, tmp_path: Path) -> None:
    out = tmp_path / "c"
    search(out)
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


def test_a_campaign_goes_on_with_its_store(table: dict[str, Any], fake_launcher: Launchers, tmp_path: Path) -> None:
    def search(out: Path, store: Path, trials: int) -> CampaignStatus:
        asked = {**table["search"], "trials": trials, "rungs": [], "finalists": 0}
        whole = {**table, "data": {"store": str(store)}, "search": asked}
        settings = campaign_settings(whole, store.parent / "CAMPAIGN.toml")
        return run_search(settings, out, launcher=fake_launcher(), resume=True)

    def stores(out: Path) -> set[str]:
        return {json.loads(path.read_text())["data"]["store"] for path in out.glob("trials/*/config.json")}

    out, store, other, new = tmp_path / "c", tmp_path / "a.h5", tmp_path / "other.h5", tmp_path / "new"
    write_rings(store, 40)
    search(out, store, 3)
    write_rings(other, 39)
    with pytest.raises(InputError, match=r"other\.h5 holds other graphs than the one \(that was .*a\.h5\) with which"):
        search(out, other, 4)
    new.mkdir()
    moved = store.rename(new / "b.h5")
    other.rename(store)
    with pytest.raises(InputError, match=r"a\.h5 holds other graphs than the one with which the campaign"):
        search(out, store, 4)
    assert stores(out) == {str(store)}
    out = out.rename(new / "d")
    result = search(out, moved, 4)
    assert (result.status, result.trials["finished"]) == ("finished", 4)
    assert stores(out) == {str(moved)}


def test_an_ensemble_and_its_members_remember_where_the_store_lies(table: dict[str, Any], tmp_path: Path) -> None:
    store, runs = tmp_path / "a.h5", [tmp_path / "r0", tmp_path / "r1"]
    write_rings(store, 40)
    config = {"data": {"store": str(store)}, "model": {"kind": "gin", "hidden_dim": 4, "num_layers": 1}}
    for seed, run in enumerate(runs):
        api.train({**config, "heads": table["heads"], "train": {"epochs": 1, "seed": seed}}, run)
    store.rename(tmp_path / "b.h5")
    with pytest.raises(InputError, match=r"a\.h5, .*is not there any more; .* \(--store PATH\)"):
        api.build_ensemble(runs, tmp_path / "e")
    write_rings(tmp_path / "other.h5", 39)
    with pytest.raises(InputError, match=r"other\.h5 is not what .*r0 was trained on"):
        api.build_ensemble(runs, tmp_path / "e", store=tmp_path / "other.h5")
    api.build_ensemble(runs, tmp_path / "e", store=tmp_path / "b.h5")
    api.build_ensemble(runs, tmp_path / "again")
    assert read_sealed(tmp_path / "e" / "ensemble.json")["data"]["store"] == "../b.h5"


def test_one_branch_is_told_alone(tmp_path: Path) -> None:
    write_rings(tmp_path / "b.h5", 4)
    branches = [{"name": name, "data": {"store": f"/{name}.h5"}} for name in ("metals", "oxides")]
    write_json(tmp_path / "run" / "config.json", {"branches": branches})
    name_store([tmp_path / "run"], tmp_path / "b.h5", "oxides")
    told = json.loads((tmp_path / "run" / "config.json").read_text())["branches"]
    assert [one["data"]["store"] for one in told] == ["/metals.h5", str(tmp_path / "b.h5")]


def test_the_result_is_read_before_the_lock_goes(search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def status_while_locked(folder: Path) -> CampaignStatus:
        with pytest.raises(Busy):
            Journal(folder / "journal.jsonl")
        return replace(campaign_status(folder), stand_ins=77)

    monkeypatch.setattr("hydragnn.hpo.campaign.campaign_status", status_while_locked)
    assert search("c", trials=2).stand_ins == 77
