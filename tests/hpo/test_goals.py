"""Searches with several objectives: fronts, rungs, samplers, results and ensembles."""

import math
import re
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import optuna
import pytest
from campaigns import Search, course
from clockwork import after
from optuna._hypervolume import compute_hypervolume
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from hydragnn.base.errors import InputError
from hydragnn.hpo import campaign_history, finished_runs
from hydragnn.hpo.fronts import distances, front_numbers, front_of, hypervolume, knee, ranked, violation
from hydragnn.hpo.launching.launcher import Exit, Task
from hydragnn.hpo.launching.verdict import verdict
from hydragnn.hpo.objective import check_bounds
from hydragnn.hpo.sampling.gaussian import FAR, REACH, goal_scores
from hydragnn.hpo.sampling.sampler import History, foreseen, proposals, sampler_class
from hydragnn.hpo.sampling.tpe import Genetic, ParzenEstimators
from hydragnn.hpo.scheduling.events import Failed, Opened, Plan, Proposed, Reached, Start
from hydragnn.hpo.scheduling.scheduler import State, Trial
from hydragnn.hpo.scheduling.state import Rung
from hydragnn.hpo.space.points import Point, is_point, point_key, space_of
from hydragnn.hpo.status.facts import campaign_status
from hydragnn.hpo.status.view import status_rows
from hydragnn.record import Failure, RunRecord, write_record
from hydragnn.scripts.ensembles import bounds_from, members_of
from hydragnn.scripts.report.facts import Campaign, Facts
from hydragnn.scripts.report.front import front, front_table, volume, volumes
from hydragnn.scripts.report.search import best_so_far, chapter
from hydragnn.scripts.report.search import history as objectives_by_trial

GOALS: list[Any] = ["valid/loss", {"of": "cost/parameters", "at_most": 6000.0}]
UNIT = {"type": "float", "low": 0.0, "high": 1.0}


def dominates(a: Any, b: Any) -> bool:
    return all(x <= y for x, y in zip(a, b)) and any(x < y for x, y in zip(a, b))


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
def test_fronts_are_those_of_the_definition(objectives: int) -> None:
    draw = np.random.default_rng(objectives)
    points = [tuple(map(float, row)) for row in draw.integers(0, 6, (60, objectives))]  # many are equal
    numbers, rest, number = front_numbers(points), list(range(60)), 0
    while rest:
        front = [one for one in rest if not any(dominates(points[other], points[one]) for other in rest)]
        assert {numbers[one] for one in front} == {number}
        rest, number = [one for one in rest if one not in front], number + 1


def test_a_front_keeps_its_ends_then_what_has_room_then_what_exceeds_bounds() -> None:
    points = [(1.0, 9.0), (5.0, 5.0), (5.1, 4.9), (8.0, 2.0), (9.0, 1.0), (0.5, 20.0), (0.4, 30.0), (9.5, 9.5)]
    order = ranked(points, (None, 10.0))
    assert order[:2] == [0, 4] and order[-3:] == [7, 5, 6]
    assert order.index(3) < order.index(2)
    assert front_of(points, (None, 10.0)) == [0, 1, 2, 3, 4]
    assert front_of(points, (0.1, None)) == []
    assert violation((0.5, 20.0), (None, 10.0)) == 1.0
    assert distances([(1.0, 1.0)]).tolist() == [0.0], "alone, and all equal"
    assert knee([(0.0, 10.0), (1.0, 1.0), (10.0, 0.0)]) == 1


@pytest.mark.parametrize("objectives", [1, 2, 3])
def test_the_hypervolume_is_the_share_of_random_points_that_are_dominated(objectives: int) -> None:
    draw = np.random.default_rng(5)
    points = draw.random((8, objectives))
    samples = draw.random((200_000, objectives))
    share = np.mean([(points <= one).all(1).any() for one in samples[:20_000]])
    volume = hypervolume([tuple(map(float, row)) for row in points], (1.0,) * objectives)
    assert volume == pytest.approx(share, abs=0.01)
    assert hypervolume([(2.0,) * objectives], (1.0,) * objectives) == 0.0


@pytest.mark.parametrize("objectives", [3, 4])
def test_volumes_of_wide_fronts_of_many_objectives_take_seconds(objectives: int) -> None:
    rows = np.abs(np.random.default_rng(1).normal(size=(100, objectives)))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    start = time.process_time()
    reference, course = volumes([tuple(map(float, row)) for row in rows], (None,) * (objectives - 1) + (0.9,))
    assert time.process_time() - start < 10, "minutes and hours, where every prefix is cut into slices"
    rows = rows[rows[:, -1] <= 0.9]
    assert course[-1] == pytest.approx(compute_hypervolume(rows, np.array(reference)))
    assert np.diff(course).min() >= 0.0


def test_a_rung_lets_fronts_through_and_a_bound_is_no_penalty() -> None:
    results = [(1.0, 9.0), (9.0, 1.0), (0.1, 99.0), (5.0, 5.0), (6.0, 6.0), (7.0, 7.0)]
    state = State()
    plan = Plan(trials=6, rungs=(1, 2), reduction=2, bounds=(None, 50.0))
    after(state, 0.0, Opened(plan=plan, slots=("p",)))
    begun = []
    for number, (value, other) in enumerate(results):
        actions = after(state, 0.0, Proposed(trial=number, values={"x": number}))
        while starts := [action for action in actions if isinstance(action, Start) and action.trial != number]:
            begun.append(starts[0].trial)
            actions = after(state, 0.0, second(starts[0], results))
        actions = after(state, 0.0, Reached(trial=number, attempt=1, epochs=1, value=value, others=(other,)))
        while starts := [action for action in actions if isinstance(action, Start)]:
            begun.append(starts[0].trial)
            actions = after(state, 0.0, second(starts[0], results))
    assert sorted(begun) == [0, 1, 3], "the front; the best by one objective exceeds its bound"
    assert state.best is not None and state.best.number == 0


def second(start: Start, results: list[tuple[float, float]]) -> Reached:
    value, other = results[start.trial]
    return Reached(trial=start.trial, attempt=start.attempt, epochs=2, value=value, others=(other,))


@pytest.mark.parametrize(
    ("sign", "expected"),
    [
        (1.0, {0: (2.0, 1.0), 1: (3.0, 5.0), 2: (4.5, 7.0)}),  # errors fall by half, a cost stays
        (-1.0, {0: (-2.0, 1.0), 1: (-3.0, 5.0), 2: (-6.5, 7.0)}),  # likelihoods change by 2.5
    ],
)
def test_trials_at_a_lower_rung_count_as_if_they_had_gone_on(sign: float, expected: Any) -> None:
    trials = [
        Trial(number=0, results=(sign * 4.0, sign * 2.0), others=((1.0,), (1.0,))),
        Trial(number=1, results=(sign * 6.0, sign * 3.0), others=((5.0,), (5.0,))),
        Trial(number=2, results=(sign * 9.0,), others=((7.0,),)),
        Trial(number=3),
        Trial(number=4, status="finished", results=(sign * 8.0,), others=((2.0,),)),  # it stopped early
    ]
    assert foreseen(trials) == {**expected, 4: (sign * 8.0, 2.0)}


def trial(number: int, values: tuple[float, float] | None, **more: Any) -> Trial:
    """Trial at a point of its own, finished where it has values."""
    point = {f"model.{name}": (number * 7 + place * 3) % 11 / 11 for place, name in enumerate("abc")}
    ended = {} if values is None else {"status": "finished", "results": values[:1], "others": (values[1:],)}
    return Trial(number=number, values=point, **{**ended, **more})


DIVERGED = {"status": "failed", "failure": Failure(kind="diverged", message="nan")}


@pytest.mark.parametrize("sampler", ["gp", "tpe", "nsga2"])
@pytest.mark.parametrize("bounds", [(None, None), (None, 50.0), (-1.0, 0.0)])
@pytest.mark.parametrize(
    "trials",
    [
        [trial(0, None, status="running")],  # the first after layouts were compared
        [trial(number, None, **DIVERGED) for number in range(5)],
        [trial(number, (1.0, 2.0), **DIVERGED) for number in range(5)],
        [trial(number, (-1.0 * number, 60.0 + number)) for number in range(8)],
        [trial(number, (1.0, 2.0)) for number in range(8)],
    ],
    ids=["no result", "failures", "failures after a rung", "all beyond bounds", "all equal"],
)
def test_samplers_take_any_results(settings: Any, sampler: str, bounds: Any, trials: list[Trial]) -> None:
    space = space_of(settings(space={f"model.{name}": UNIT for name in "abc"}).search.space)
    history = History(space=space, seed=0, startup=4, rungs=(1,), bounds=bounds, trials=tuple(trials))
    assert is_point(space, sampler_class(sampler)().propose(history, len(trials)))


def test_a_genetic_algorithm_takes_conditions(settings: Any) -> None:
    kind = {"type": "categorical", "choices": ["schnet", "egnn"]}
    conditional = {f"model.{name}": {**UNIT, "when": {"model.kind": [one]}} for name, one in zip("bc", kind["choices"])}
    space = space_of(settings(space={"model.kind": kind, "model.a": UNIT, **conditional}).search.space)
    history, trials = History(space=space, startup=4, rungs=(1,), bounds=(None, None)), list[Trial]()
    for number in range(45):
        point = Genetic().propose(replace(history, trials=tuple(trials)), number)
        assert is_point(space, point)
        results = {"results": (point["model.a"],), "others": ((1 - point["model.a"],),)}
        trials.append(Trial(number=number, status="finished", values=point, **results))  # type: ignore[arg-type]
    assert {one.values["model.kind"] for one in trials} == {*kind["choices"]}


def test_trials_of_equal_results_have_equal_scores() -> None:
    trials = [trial(0, (1.0, 2.0)), trial(1, (1.0, 2.0)), trial(2, (9.0, 9.0)), trial(3, None, **DIVERGED)]
    trials.append(trial(4, None, **DIVERGED))
    for bounds in ((None, None), (None, 1.0)):
        scores, ends = goal_scores(trials, bounds)
        for column, end in zip(scores.T, ends):
            assert column[0] == column[1] < column[2] <= column[3] == column[4] >= end


def test_what_failed_after_a_rung_attracts_no_estimators(settings: Any) -> None:
    space = space_of(settings(space={f"model.{name}": UNIT for name in "abc"}).search.space)
    trials = (*(trial(number, (5.0 + number, 5.0)) for number in range(5)), trial(5, (0.1, 0.1), **DIVERGED))
    sampler = ParzenEstimators()
    sampler.propose(History(space=space, seed=0, startup=4, rungs=(1,), bounds=(None, None), trials=trials), 6)
    assert sampler._memory.trials[-1].state.name == "FAIL"


def test_of_equal_first_objectives_the_others_decide_who_leads() -> None:
    state = State()
    after(state, 0.0, Opened(plan=Plan(trials=2, rungs=(1,), bounds=(None, None)), slots=("p",)))
    for number, other in enumerate([9.0, 5.0]):
        after(state, 0.0, Proposed(trial=number, values={"x": number}))
        after(state, 0.0, Reached(trial=number, attempt=1, epochs=1, value=1.0, others=(other,)))
    assert state.leader == 1


def searched(settings: Any, sampler: str, count: int, seed: int = 0, bounds: Any = (None, None)) -> list[Point]:
    """Points of a sampler that minimises two distances in three numbers, of which one trial fails."""
    space = {f"model.{name}": UNIT for name in "abc"}
    campaign = settings(sampler=sampler, space=space, seed=seed, trials=count)
    history = History(space=space_of(campaign.search.space), seed=seed, startup=8, rungs=(1,), bounds=bounds)
    trials: list[Trial] = []
    for number in range(count):
        trained = tuple(trials) if len(trials) >= 8 else ()
        history = History(space=history.space, seed=seed, startup=8, rungs=(1,), bounds=bounds, trials=trained)
        (point,) = proposals(campaign, history, number, 1, {point_key(trial.values) for trial in trials})
        assert is_point(history.space, point)
        value, other = both(point)
        failed = {"status": "failed", "failure": Failure(kind="out_of_memory", message="full")}
        ended = {"status": "finished", "results": (value,), "others": ((other,),)}
        trials.append(Trial(number=number, values=point, **(failed if number == 5 else ended)))  # type: ignore[arg-type]
    return [trial.values for trial in trials]


def both(point: Point) -> tuple[float, float]:
    row = np.array(list(point.values()))
    return float(((row - 0.3) ** 2).sum()), float(((row - [0.7, 0.3, 0.3]) ** 2).sum())


@pytest.mark.parametrize(("sampler", "trials"), [("tpe", 40), ("gp", 20), ("nsga2", 120)])
def test_samplers_find_a_larger_front_than_chance_and_the_same_again(
    settings: Any, sampler: str, trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydragnn.hpo.sampling.sampler.problem_of", lambda *_: "")
    volumes: dict[str, list[float]] = {}
    for seed in range(1 if sampler == "gp" else 2):
        for name in (sampler, "random"):
            points = searched(settings, name, trials, seed)
            volumes.setdefault(name, []).append(hypervolume([both(point) for point in points], (0.3, 0.3)))
    assert sum(volumes[sampler]) > sum(volumes["random"])
    assert searched(settings, sampler, 10) == searched(settings, sampler, 10)


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_samplers_look_within_bounds(settings: Any, sampler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydragnn.hpo.sampling.sampler.problem_of", lambda *_: "")
    points = searched(settings, sampler, 24, bounds=(None, 0.05))
    late = [both(point)[1] <= 0.05 for point in points[12:]]
    assert sum(late) > 2 * sum(both(point)[1] <= 0.05 for point in searched(settings, "random", 24)[12:])


@pytest.mark.parametrize(
    ("member", "words"),
    [
        ({"parameters": 0}, "objective cost/parameters is not a number"),
        ({"curves": {"valid/loss": [None]}}, "objective valid/loss is not a number"),
    ],
)
def test_one_objective_without_a_number_fails_by_name(tmp_path: Path, member: dict[str, Any], words: str) -> None:
    whole: dict[str, Any] = {"parameters": 7, "curves": {"valid/loss": [1.0]}, "epochs": 1, "status": "paused"}
    write_record(RunRecord(config={}, config_hash="h", data_hash="", seed=0, **{**whole, **member}), tmp_path)
    end = Exit(task=Task(trial=0, attempt=0, until=1, folder=tmp_path, slots=("p",)), code=0)
    outcome = verdict(end, "h", ["valid/loss", "cost/parameters"])
    assert words in outcome.message  # type: ignore[union-attr]


def test_a_campaign_shows_its_front_and_an_ensemble_takes_it(search: Search, tmp_path: Path) -> None:
    result = search("c", objective=GOALS, trials=12)
    history = campaign_history(tmp_path / "c")
    finished = [trial for trial in history.trials if trial.status == "finished"]
    within = [trial for trial in finished if trial.objectives[1] <= 6000]
    shown = [one.trial for one in result.front]
    expected = [t.number for t in within if not any(dominates(o.objectives, t.objectives) for o in within)]
    assert sorted(shown) == expected and shown
    assert result.best is not None and result.best.trial == shown[0]
    assert result.objectives == ("valid/loss", "cost/parameters")
    assert finished_runs(tmp_path / "c")[0].name == history.trials[shown[0]].folder.name
    assert campaign_status(tmp_path / "c").front == result.front
    assert "<th>cost/parameters</th><th>model.hidden_dim</th>" in result._repr_html_()
    assert [row["cost/parameters"] for row in result.shown()["front"]] == [one.others[0] for one in result.front]
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "c" / "optuna.log")))
    study = optuna.load_study(study_name="c", storage=storage)
    assert study.metric_names == ["valid/loss", "cost/parameters"]
    assert sorted(one.number for one in study.best_trials) == expected
    choice = chosen(tmp_path / "c", None)
    assert [int(folder.name) for folder in choice.folders] == shown
    bound = max(one.others[0] for one in result.front) - 1
    assert len(chosen(tmp_path / "c", None, {"cost/parameters": bound}).folders) == len(shown) - 1


def test_a_bound_copied_from_status_or_report_keeps_the_trial_that_it_was_copied_from(
    search: Search, tmp_path: Path
) -> None:
    result = search("c", objective=["valid/loss", "cost/parameters"], trials=12)
    campaign = Campaign(history=campaign_history(tmp_path / "c"), records={}, importances={})
    lines, rows = status_rows(result)["front"][1:], front_table(campaign).rows  # type: ignore[union-attr]
    copies = [(line.split()[1].strip(":"), line.split()[2].strip(",")) for line in lines]
    copies += [(row[0].split()[0], row[1]) for row in rows]
    for trial, loss in copies:
        choice = chosen(tmp_path / "c", None, {"valid/loss": float(loss)})
        assert int(trial) in map(int, choice.selection["chosen"]) and choice.selection["at_most"]["valid/loss"] == float(loss)  # fmt: skip
    least = min(one.value for one in result.front)
    assert chosen(tmp_path / "c", None, {"valid/loss": least * (1 - 4e-6)}).folders, "six digits can be rounded down"
    with pytest.raises(InputError, match="has 0 finished trials"):
        chosen(tmp_path / "c", None, {"valid/loss": least * (1 - 2e-5)})


def test_the_report_draws_the_front(search: Search, tmp_path: Path) -> None:
    result = search("c", objective=GOALS, trials=12)
    campaign = Campaign(history=campaign_history(tmp_path / "c"), records={}, importances={})
    drawn, course, table = front(campaign), volume(campaign), front_table(campaign)
    assert drawn is not None and course is not None and table is not None
    tips = re.findall(r"<title>(trial \d+): valid/loss", drawn.panels[0].svg)
    assert len(tips) == len(campaign.scores) > len(result.front)
    assert [row[0].removesuffix(" (knee)") for row in table.rows] == [str(one.trial) for one in result.front]
    assert sum(row[0].endswith("(knee)") for row in table.rows) == 1
    alone = Campaign(history=campaign_history(search_of_one(search, tmp_path)), records={}, importances={})
    assert (front(alone), volume(alone), front_table(alone)) == (None, None, None)


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_runs_that_stop_early_and_budgets_of_time_change_no_front(search: Search, tmp_path: Path, sampler: str) -> None:
    table: dict[str, Any] = {"objective": GOALS, "sampler": sampler, "trials": 18, "rungs": [1, 3], "fault": "early"}
    whole = search("whole", **table)
    for number, seconds in enumerate((1.0, 2.5, 3600.0)):
        result = search("c", resume=number > 0, pause=0.1, max_hours=seconds / 3600, grace_seconds=0.5, **table)
        assert (result.status == "finished") == (seconds > 60.0)
    assert course(tmp_path / "c") == course(tmp_path / "whole")
    assert [one.trial for one in result.front] == [one.trial for one in whole.front] != []
    ends = [max(one.rungs) for one in campaign_history(tmp_path / "c").trials if one.status == "finished"]
    assert {3, 6} == {*ends}, "what ends early stands at the next rung"


def search_of_one(search: Search, folder: Path) -> Path:
    search("one", trials=2)
    return folder / "one"


def chosen(campaign: Path, top_k: int | None, at_most: Any = None, from_front: bool = True, **more: Any) -> Any:
    options = {"train": False, "seeds": 0, "epochs": None, "workers": None, **more}
    return members_of(campaign, campaign / "e", top_k, True, from_front=from_front, at_most=at_most or {}, **options)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"at_most": {"cost/price": 1.0}}, "has no such objective; .*cost/parameters"),
        (
            {"at_most": {"cost/parameters": 1.0}},
            r"has 0 finished trials with cost/parameters up to 1 \(the least is \d",
        ),
        ({"top_k": 99}, "fewer than 99"),
        ({"at_most": {"cost/parameters": 1.0}, "from_front": False}, "add --from-front"),
        ({"train": True}, "--from-front takes finished trials as they are"),
    ],
)
def test_what_no_front_can_give_is_refused(
    search: Search, tmp_path: Path, arguments: dict[str, Any], words: str
) -> None:
    search("c", objective=["valid/loss", "cost/parameters"], trials=4)
    with pytest.raises(InputError, match=words):
        chosen(tmp_path / "c", **{"top_k": None, **arguments})


@pytest.mark.parametrize("bound", [float("nan"), float("inf"), True, "x", "2", [1.0]])
def test_a_bound_that_is_no_number_is_refused_by_its_name(settings: Any, bound: Any) -> None:
    with pytest.raises(InputError, match=r"objective\.1\.at_most(\.0)?: Input should"):
        settings(objective=["valid/loss", {"of": "cost/parameters", "at_most": bound}])


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        (
            ["valid/loss", {"of": "cost/parameters", "at_mst": 1.0}],
            "unknown key objective.1.at_mst; did you mean at_most",
        ),
        ({"moment": math.inf}, r"objective\.moment: Input should be a finite number"),
        (["valid/loss", {"moment": math.inf}], r"objective\.1\.moment: Input should be a finite number"),
        (["valid/loss", {"of": {"moment": "x"}}], r"objective\.1\.of\.moment: Input should be a valid number"),
        (["valid/loss", 7], r"objective\.1: Input should be a valid string"),
        (["valid/loss", {"at_most": 1.0}], r"missing key objective\.1\.of"),
        ([{"moment": 1.0}, {"moment": 2.0}], r"relative error \(moment 1\) is given twice"),
        ([{"moment": 1.0, "one": 3.0}, {"moment": 0.1, "one": 0.3}], "is given twice"),
        ({"of": "cost/parameters", "at_most": 1.0}, "at_most are for one of several objectives"),
    ],
)
def test_a_wrong_objective_is_named(settings: Any, objective: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        settings(objective=objective)


def test_one_objective_has_no_front(search: Search, tmp_path: Path) -> None:
    assert search("c", trials=2).front == ()
    with pytest.raises(InputError, match="has one objective"):
        chosen(tmp_path / "c", None)


def test_a_bound_that_nothing_meets_ends_with_the_nearest(search: Search, tmp_path: Path) -> None:
    result = search("c", objective=["valid/loss", {"of": "cost/parameters", "at_most": 1.0}], trials=6)
    assert result.status == "finished" and result.front == ()
    least = min(trial.objectives[1] for trial in campaign_history(tmp_path / "c").trials)
    assert result.best is not None and result.best.others == (least,)
    assert status_rows(result)["front"] == [
        "valid/loss, cost/parameters: no finished trial meets all bounds; the best is nearest"
    ]
    campaign = Campaign(history=campaign_history(tmp_path / "c"), records={}, importances={})
    assert volume(campaign) is None
    near = f"cost/parameters = {least:.6g}, the nearest, since none meets all bounds"
    assert near in chapter(Mock(spec=Facts, campaign=campaign)).lead  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text", ["cost/parameters=inf", "cost/parameters=nan", "cost/parameters=2 ms", "=2", "cost/parameters"]
)
def test_a_bound_without_a_number_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is no bound; give OBJECTIVE=NUMBER"):
        bounds_from(["cost/parameters = 2", text])
    assert bounds_from(["cost/parameters = 2"]) == {"cost/parameters": 2.0}
    with pytest.raises(InputError, match="is the second bound of cost/parameters; give one"):
        bounds_from(["cost/parameters = 2", "cost/parameters=9"])


@pytest.mark.parametrize(
    ("of", "at_most", "words"),
    [
        ("cost/parameters", 0.0, "at_most = 0 is below all values of cost/parameters; give a number above 0"),
        ("throughput", -2.0, "at_most = -2 is below all values of seconds per graph"),
        ("valid/moment/mae", -0.5, "below all values of valid/moment/mae"),
        ({"moment": 1.0}, 0.0, r"below all values of relative error \(moment 1\)"),
        ("valid/moment/nll", -0.5, ""),
        ("math:fabs", -0.5, ""),
    ],
)
def test_a_bound_below_all_values_is_refused(settings: Any, of: Any, at_most: float, words: str) -> None:
    objective = settings(objective=["valid/loss", {"of": of, "at_most": at_most}]).search.objective
    with pytest.raises(InputError, match=f"CAMPAIGN.toml: search.objective: .*{words}") if words else nullcontext():
        check_bounds(objective, "CAMPAIGN.toml")


def test_a_campaign_with_a_bound_below_all_values_does_not_begin(search: Search, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give a number above 0"):
        search("c", objective=["valid/loss", {"of": "cost/parameters", "at_most": 0.0}])
    assert not (tmp_path / "c" / "journal.jsonl").exists()


def test_no_trial_at_its_end_has_no_least_value(search: Search, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        search("c", objective=GOALS, trials=2, fault="all diverged")
    with pytest.raises(InputError, match=r"cost/parameters up to 6000, fewer than 1; let more trials finish$"):
        chosen(tmp_path / "c", None)


def test_the_best_so_far_is_within_bounds(search: Search, tmp_path: Path) -> None:
    search("c", objective=["valid/loss", {"of": "cost/parameters", "at_most": 2500.0}], trials=10)
    campaign = Campaign(history=campaign_history(tmp_path / "c"), records={}, importances={})
    trials = campaign.history.trials
    within = [[one.value for one in trials[: end + 1] if one.objectives[1] <= 2500] for end in range(10)]
    best = [min(values, default=math.nan) for values in within]
    assert (
        best_so_far(campaign) == pytest.approx(best, nan_ok=True) and campaign.best and best[-1] == campaign.best.value
    )
    assert "the line is the best within bounds." in objectives_by_trial(campaign).caption  # type: ignore[union-attr]
    assert best_so_far(campaign) != np.minimum.accumulate([one.value for one in trials]).tolist()


def test_the_volume_grows_with_every_end_of_a_front_and_beside_a_constant() -> None:
    draw = np.random.default_rng(2)
    points: list[Any] = [tuple(map(float, row)) for row in draw.normal(size=(20, 3))]
    reference, course = volumes(points, (None, 0.5, None))
    within = np.array([point for point in points if point[1] <= 0.5])
    assert course[-1] == pytest.approx(compute_hypervolume(within, np.array(reference)))
    assert course == sorted(course) and course[-1] > 0
    constant = volumes([(3.0, 5.0), (2.0, 5.0), (1.0, 5.0)], (None, None))[1]
    assert constant[0] < constant[1] < constant[2]


def test_a_constant_objective_changes_nothing(search: Search, tmp_path: Path) -> None:
    result = search("c", objective=["valid/loss", "throughput"], trials=8, sampler="gp")
    assert result.status == "finished" and len(result.front) == 1


def test_far_requests_count_what_costs_several_widths_of_the_front() -> None:
    trials = [trial(0, (1.0, 1.0)), trial(1, (0.9, 2.0)), trial(2, (0.5, 5.0)), trial(3, (9.0, 5.0))]
    narrow = [trial(0, (1.0, 1.0)), trial(1, (0.9, 2.0)), trial(2, (1.5, 5.0))]  # the third is dominated
    for reach, counts in ((REACH, False), (FAR, True)):
        scores, ends = goal_scores(narrow, (None, None), reach)
        assert (scores[2, 1] < ends[1]) == counts
        scores, ends = goal_scores(trials, (None, None), reach)
        assert (scores[:3] < ends).all()


def test_promotions_wait_for_results_where_each_is_at_an_end_of_the_front() -> None:
    first, later = Rung(bounds=(None, None)), list[int]()
    for number in range(90):
        first.reach(number, (-1.0 * number, 1.0 * number))  # none dominates another
        first.rest(number, 0.0)
        for _ in range(first.promotable(reduction=3)):
            first.leave(first.paused[0][1], 0.0)
            later.append(number + 1)
    assert all(results >= 2 * count for count, results in enumerate(later, 1))
    assert len(later) >= 30  # as many as halving lets go on when it knows all results


@pytest.mark.parametrize("kind", ["diverged", "lost_node"])
@pytest.mark.parametrize(("values", "best"), [((1.0, 2.0), 1), ((2.0, 1.0), 0), ((1.0,), None)])
def test_a_trial_that_failed_after_a_rung_is_no_longer_the_best(kind: Any, values: Any, best: int | None) -> None:
    state = State()
    after(state, 0.0, Opened(plan=Plan(trials=len(values), rungs=(1, 2), reduction=1, retries=0), slots=("p", "q")))
    for number in range(len(values)):
        after(state, 0.0, Proposed(trial=number, values={"x": number}))
    for number, value in enumerate(values):
        after(state, 0.0, Reached(trial=number, attempt=1, epochs=1, value=value))
    number = int(np.argmin(values))
    assert state.best is not None and state.best.number == number
    after(state, 1.0, Failed(trial=number, attempt=state.trials[number].attempt, kind=kind, message="NaN"))
    assert state.trials[number].status in ("failed", "lost")
    assert (None if state.best is None else state.best.number) == best
