"""Samplers answer by the history of their campaign alone, stay in the space, learn from results, and find layouts that fit."""

import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clockwork import after
from scipy import optimize
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

from hydragnn.base import imports
from hydragnn.base.errors import InputError
from hydragnn.hpo import campaign_history, run_search
from hydragnn.hpo.sampling.gaussian import Coordinates, Kernel, Outlook, likely_kernel, normal_scores
from hydragnn.hpo.sampling.proposals import SamplerProcess
from hydragnn.hpo.sampling.sampler import HISTORY, SAMPLERS, History, Sampler, history_of, learns, num_random, proposals
from hydragnn.hpo.sampling.tpe import ParzenEstimators
from hydragnn.hpo.scheduling.events import Opened, Plan, Proposed, Reached
from hydragnn.hpo.scheduling.scheduler import State, Trial
from hydragnn.hpo.search_settings import WIDE
from hydragnn.hpo.space.able import check_model
from hydragnn.hpo.space.parameters import Choices, FloatRange, IntRange
from hydragnn.hpo.space.points import Point, Space, is_point, near_point, point_key, random_point, space_of
from hydragnn.hpo.trial_configs import check_space
from hydragnn.record import Failure
from tests.hydragnn.distributed.splitting import configuration
from tests.hydragnn.training.worker import clusters

RATE = {"type": "float", "low": 1e-5, "high": 1e-1, "log": True}
SPACE = {
    "model.kind": {"type": "categorical", "choices": ["schnet", "egnn"]},
    "model.attention": {"type": "categorical", "choices": [True, False], "when": {"model.kind": "egnn"}},
    "model.hidden_dim": {"type": "int", "low": 8, "high": 128, "log": True},
    "heads.0.hidden_dims": {"type": "categorical", "choices": [[32], [64, 64]]},
    "train.learning_rate": RATE,
}


def error(values: dict[str, Any]) -> float:
    return abs(values.get("model.hidden_dim", 0) - 64) / 64 + (values.get("model.kind") == "egnn")


def result_of(values: Point) -> dict[str, float]:
    return {"value": error(values)}


def asked(
    campaign: Any, trials: int, rungs: tuple[int, ...] = (1, 2), result: Callable[[Point], dict[str, float]] = result_of
) -> list[Point]:
    """The configurations of a campaign in which every trial passes the first rung."""
    space = space_of(campaign.search.space)
    state = State()
    after(state, 0.0, Opened(plan=Plan(trials=trials, rungs=rungs, reduction=100), slots=("p",)))
    for number in range(trials):
        known = {point_key(trial.values) for trial in state.trials.values()}
        (point,) = proposals(campaign, history_of(campaign, space, state), number, 1, known)
        assert is_point(space, point)
        ended = Reached(trial=number, attempt=1, epochs=1, **result(point))
        after(state, 0.0, Proposed(trial=number, values=point), ended)
    return [state.trials[number].values for number in range(trials)]


def with_results(settings: Any, width: int = 1) -> tuple[History, list[str]]:
    """Twelve random trials with results, and the keys of their points."""
    points = asked(settings(sampler="random", space=SPACE), 12)
    trials = [Trial(number=n, status="paused", values=point, results=(error(point),)) for n, point in enumerate(points)]
    space = space_of(settings(space=SPACE).search.space)
    return History(space=space, startup=4, trials=tuple(trials), rungs=(1, 2), width=width), list(
        map(point_key, points)
    )


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_same_history_gives_the_same_configurations_and_no_other_seed_does(settings: Any, sampler: str) -> None:
    once, again, other = (asked(settings(sampler=sampler, space=SPACE, seed=s), 6) for s in (1, 1, 2))
    assert once == again
    assert once != other
    assert len({point_key(values) for values in once}) == 6


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_a_model_based_sampler_finds_better_points_than_chance(settings: Any, sampler: str) -> None:
    learned = asked(settings(sampler=sampler, space=SPACE, trials=15), 15)
    chance = asked(settings(sampler="random", space=SPACE, trials=15), 15)
    assert sum(map(error, learned[9:])) < 0.7 * sum(map(error, chance[9:]))


def test_adapted_covariances_find_a_narrow_valley(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydragnn.hpo.sampling.sampler.problem_of", lambda *_: "")
    unit = {"type": "float", "low": 0.0, "high": 1.0}
    space = {**{f"train.{name}": unit for name in "abc"}, "model.kind": SPACE["model.kind"]}

    def depth(values: Point) -> float:
        a, b, c = (values[f"train.{name}"] - 0.4 for name in "abc")
        return float((a + b) ** 2 + 100 * (a - b) ** 2 + c**2)

    def late(sampler: str) -> float:
        campaign = settings(sampler=sampler, space=space, trials=99)
        points = asked(campaign, 99, result=lambda values: {"value": depth(values)})
        assert {point["model.kind"] for point in points[-20:]} == {"schnet", "egnn"}, "choices are drawn at random"
        return float(np.median([depth(point) for point in points[-20:]]))

    assert late("cmaes") < 0.05 * late("random")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"objective": ["valid/loss", "cost/parameters"]},
            "knows one objective, and there are 2; take gp, tpe or nsga2",
        ),
        ({"space": {"train.learning_rate": RATE}}, "needs two ranges of numbers without when; take tpe"),
    ],
)
def test_what_no_covariance_is_for_is_refused(search: Any, more: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=f"search.sampler = 'cmaes': CMA-ES {words}"):
        search("c", sampler="cmaes", **more)


def test_points_near_a_known_point_of_the_estimators_come_next(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = {f"model.{name}": {"type": "int", "low": 1, "high": 9, "step": 1} for name in ("hidden_dim", "num_layers")}
    campaign, drawn, best = settings(sampler="tpe", space=grid), [], {"model.hidden_dim": 5, "model.num_layers": 5}
    space = space_of(campaign.search.space)
    monkeypatch.setattr(ParzenEstimators, "_drawn", lambda self, history, number: drawn.append(number) or best)
    history = History(space=space, trials=(Trial(number=0, status="paused", values=best, results=(0.0,)),), rungs=(1,))
    points = proposals(campaign, history, 1, 8, {point_key(best)})
    assert drawn == list(range(1, 9)), "one draw each"
    assert len({point_key(point) for point in points} | {point_key(best)}) == 9
    away = [[abs(point[path] - best[path]) for path in best] for point in points]
    assert sum(min(steps) == 0 and max(steps) <= 3 for steps in away) >= 6, "one parameter changes, and little"
    monkeypatch.undo()
    assert points != proposals(campaign, history, 10, 8, {point_key(best)}), "every trial has its own"


@pytest.mark.parametrize("distance", [0.0, 0.5, 1.0])
def test_a_point_near_another_is_one_of_the_space_whatever_conditions_change(settings: Any, distance: float) -> None:
    space, generator = space_of(settings(space=SPACE).search.space), np.random.default_rng(0)
    point = random_point(space, generator)
    for _ in range(100):
        point = near_point(space, point, distance, generator)
        assert is_point(space, point)


def test_what_a_sampler_is_told_does_not_grow_with_the_campaign_and_holds_the_best(settings: Any) -> None:
    campaign = settings(sampler="tpe", space={"train.learning_rate": RATE}, trials=5000)
    state = State()
    after(state, 0.0, Opened(plan=Plan(trials=5000, rungs=(1, 2), reduction=9999), slots=("a", "b")))
    for number in range(2000):
        values = {"train.learning_rate": 1e-5 * (1 + number)}
        after(state, 0.0, Proposed(trial=number, values=values))
        if number != 1999:
            error = float(7 * number % 1999)
            after(state, 0.0, Reached(trial=number, attempt=1, epochs=1, value=error))
    history = history_of(campaign, space_of(campaign.search.space), state)
    assert len(history.trials) <= HISTORY
    best = {number for number in range(1999) if 7 * number % 1999 < 50}
    assert best <= {trial.number for trial in history.trials}
    assert history.trials[-1].number == 1999, "what runs is told, too"
    assert history.width == 2
    campaign = settings(sampler="cmaes", space={"train.learning_rate": RATE}, trials=5000)
    assert len(history_of(campaign, space_of(campaign.search.space), state).trials) == 2000, "its generations need all"


def test_a_sampler_gets_every_result_once_there_are_enough_and_an_unknown_one_is_refused(settings: Any) -> None:
    campaign = settings(sampler="tpe", space=SPACE, rungs=[], trials=20)
    space, first = space_of(campaign.search.space), num_random(campaign)
    state = State()
    after(state, 0.0, Opened(plan=Plan(trials=20, rungs=(1,)), slots=("p",)))
    for number, point in enumerate(asked(settings(sampler="random", space=SPACE), 20)):
        known = [trial.number for trial in history_of(campaign, space, state).trials if trial.results]
        assert known == (list(range(number)) if number >= first else [])
        after(state, 0.0, Proposed(trial=number, values=point))
        after(state, 0.0, Reached(trial=number, attempt=1, epochs=1, value=1.0))
    with pytest.raises(InputError, match="unknown kind of sampler 'tpee'; did you mean tpe"):
        learns("tpee")


@pytest.mark.parametrize(("width", "sampler"), [(1, "tpe"), (WIDE - 1, "tpe"), (WIDE, "gp")])
def test_the_default_sampler_is_the_gaussian_process_for_many_trials(settings: Any, width: int, sampler: str) -> None:
    history, known = with_results(settings, width)
    by_name = {
        name: proposals(settings(sampler=name, space=SPACE), history, 12, 3, set(known))
        for name in ("auto", "tpe", "gp")
    }
    assert by_name["auto"] == by_name[sampler]
    assert by_name["tpe"] != by_name["gp"]


BLOCKED = """
from multiprocessing import resource_tracker
from hydragnn.hpo.sampling.proposals import clean_children
import subprocess, sys
with clean_children():
    resource_tracker.ensure_running()  # as the first process of a pool does
    shown = ["-c", "print(open('/proc/self/status').read().partition('SigBlk:')[2].split()[0])"]
    print(subprocess.run([sys.executable, *shown], capture_output=True, text=True).stdout)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="signals of a process are read from /proc")
def test_ctrl_c_is_blocked_in_the_first_sampler_process_from_its_start() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, check=True)
    assert int(done.stdout, 16) & 1 << signal.SIGINT - 1


class Impatient(SamplerProcess):
    """Processes that have ``limits`` seconds for an answer, one after the other, and then enough."""

    limits: list[float]

    def start(self) -> Any:
        pool = super().start()
        self.hang = self.limits.pop(0) if self.limits else 600.0
        return pool


def test_a_sampler_process_that_dies_or_hangs_changes_no_answer(settings: Any, tmp_path: Path) -> None:
    campaign = settings(sampler="tpe", space=SPACE)
    history, known = with_results(settings)
    sampler = Impatient(campaign, tmp_path / "log")
    sampler.limits, pids, points = [], [], proposals(campaign, history, 12, 3, set(known))
    try:
        sampler.start()
        for number in (signal.SIGKILL, signal.SIGSTOP):
            pids.append(sampler.pid)
            os.kill(sampler.pid, number)
            sampler.limits = [1.0] if number == signal.SIGSTOP else []
            assert sampler.ask(history, 12, 3, known) == points
    finally:
        pids.append(sampler.pid)
        sampler.close()
    assert len(set(pids)) == 3


def test_qmc_fills_the_space_more_evenly_than_chance(settings: Any) -> None:
    space = {"train.learning_rate": {"type": "float", "low": 0.5, "high": 1.5}}
    points = asked(settings(sampler="qmc", space=space), 16)
    bins = {int((values["train.learning_rate"] - 0.5) * 16) for values in points}
    assert len(bins) == 16, "a scrambled Sobol sequence has one of 16 points in every sixteenth"


@pytest.mark.parametrize(
    ("point", "says"),
    [
        ("a defect", "for trial 0 failed: ZeroDivisionError: no trials; repair it"),
        ("an exit", "for trial 0 failed: SystemExit: 0; repair it"),
        (None, "gave None for trial 0, which is no point"),
        ({"train.learning_rate": 5.0, "model.hidden_dim": 9}, "gave .*5.0.* is no point of search.space"),
        ({"train.learning_rate": 1e-3}, "gave .* is no point of search.space"),
        ({"train.learning_rate": [1e-3], "model.hidden_dim": 9}, "gave .* is no point of search.space"),
    ],
)
def test_own_samplers_answer_with_points(point: Any, says: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(Sampler):
        def propose(self, history: History, number: int) -> Any:
            if point == "a defect":
                raise ZeroDivisionError("no trials")
            if point == "an exit":
                raise SystemExit(0)
            return point

    monkeypatch.setitem(SAMPLERS, "own", Own)
    campaign = settings(sampler="own")
    with pytest.raises(InputError, match=f"^search.sampler = 'own' {says}"):
        proposals(campaign, History(space=space_of(campaign.search.space)), 0, 1, set())


def test_own_samplers_may_answer_with_numbers_of_numpy_and_say_why_they_cannot_be_made(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(Sampler):
        def propose(self, history: History, number: int) -> Any:
            return {"train.learning_rate": np.float64(1e-3), "model.hidden_dim": np.int64(9)}

    monkeypatch.setitem(SAMPLERS, "own", Own)
    campaign = settings(sampler="own")
    history = History(space=space_of(campaign.search.space))
    (point,) = proposals(campaign, history, 0, 1, set())
    assert point == {"train.learning_rate": 1e-3, "model.hidden_dim": 9}
    assert {type(one) for one in point.values()} == {float, int}
    monkeypatch.setattr(Own, "__init__", lambda self: 1 / 0)
    with pytest.raises(InputError, match=r"^search.sampler = 'own' failed: ZeroDivisionError"):
        proposals(campaign, history, 0, 1, set())


TOY = """
from hydragnn.hpo.sampling import History, Sampler
from hydragnn.hpo.space.points import Point, random_point


class Neighbour(Sampler):
    \"\"\"A random point that keeps one value of the best trial.\"\"\"

    def propose(self, history: History, number: int) -> Point:
        done = [trial for trial in history.trials if trial.results]
        best = min(done, key=lambda trial: trial.results[-1], default=None)
        kept = {} if best is None else {"model.hidden_dim": best.values["model.hidden_dim"]}
        return random_point(history.space, history.generator(number), kept)
"""


def test_a_sampler_of_ones_own_is_one_file(
    settings: Any, fake_launcher: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toys.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    campaign, out = settings(sampler="toys:Neighbour", rungs=[], trials=6), tmp_path / "c"
    with pytest.raises(InputError, match=r"names code of toys, which a file may not run by itself.*--allow-code toys"):
        run_search(campaign, out, workers=1)
    monkeypatch.setattr(imports, "_allowed", {"toys"})
    result = run_search(campaign, out, launcher=fake_launcher())
    assert (result.status, result.trials["finished"]) == ("finished", 6)
    trials = campaign_history(out).trials
    assert {trial.origin for trial in trials} == {"sampler"}
    for number in range(4, 6):
        best = min(trials[:number], key=lambda trial: trial.value or 0.0)
        assert trials[number].values["model.hidden_dim"] == best.values["model.hidden_dim"]
    assert (out / "sampler.log").exists()


CUBE = space_of(
    {
        "kind": Choices(choices=["a", "b"]),
        "rate": FloatRange(low=1e-4, high=1e-1, log=True),
        "layers": IntRange(low=1, high=9, when={"kind": "a"}),
        "flag": Choices(choices=[True, False], when={"kind": "b"}),
        "fixed": FloatRange(low=2.0, high=2.0),
    }
)


def cube_error(point: Point) -> float:
    return (math.log10(point["rate"]) + 2.5) ** 2 + 0.1 * abs(point.get("layers", 9) - 4) + (point["kind"] == "b")


def cube_trials(space: Space, count: int, open_ones: int = 0) -> list[Trial]:
    draw = np.random.default_rng(3)
    points = [random_point(space, draw) for _ in range(count + open_ones)]
    done = [Trial(number=n, status="paused", values=p, results=(cube_error(p),)) for n, p in enumerate(points[:count])]
    return [*done, *(Trial(number=n + count, status="running", values=p) for n, p in enumerate(points[count:]))]


def test_places_in_the_cube_follow_the_scale_and_inactive_parameters_do_not_tell_points_apart() -> None:
    points = [
        {"kind": "a", "rate": 1e-4, "layers": 9, "fixed": 2.0},
        {"kind": "b", "rate": 1e-1, "flag": False, "fixed": 2.0},
    ]
    rows = Coordinates(CUBE).of(points)
    half = math.sqrt(0.5)
    assert rows == pytest.approx(np.array([[half, 0, 0, 0.5, 1, 0, 0], [0, half, 1, 0.5, 0.5, 0, half]]))


def _of_scikit_learn(kernel: Kernel) -> Any:
    parameters, covariance = len(kernel.columns), ConstantKernel(kernel.joint) * Matern(1 / kernel.scales, nu=2.5)
    for columns in kernel.columns:
        lengths = np.full(len(kernel.scales), 1e9)  # other parameters do not count
        lengths[columns] = 1 / kernel.scales[columns] / math.sqrt(parameters)
        covariance += ConstantKernel(kernel.alone / parameters) * Matern(lengths, nu=2.5)
    return covariance


def test_mean_and_deviation_are_those_of_scikit_learn_also_after_requests_of_the_same_answer() -> None:
    trials = cube_trials(CUBE, 40, open_ones=5)
    outlook = Outlook(CUBE, trials, np.random.default_rng(0))
    goal, rows = outlook._goals[0], outlook._rows
    expected = [outlook.ranked(np.random.default_rng(n))[0] for n in range(3)]
    for point in expected:
        outlook.expect(point)
    coordinates = Coordinates(CUBE)

    def regressor(points: list[Point], scores: np.ndarray) -> GaussianProcessRegressor:
        regression = GaussianProcessRegressor(
            _of_scikit_learn(goal.kernel), alpha=goal.kernel.noises[0], optimizer=None
        )
        return regression.fit(coordinates.of(points), scores)

    done, everyone = [t.values for t in trials[:40]], [t.values for t in trials] + expected
    means = regressor(done, normal_scores(trials[:40])).predict(rows)
    _, deviations = regressor(everyone, np.zeros(len(everyone))).predict(rows, return_std=True)
    assert goal.means == pytest.approx(means, abs=1e-8)
    assert np.sqrt(goal.variances) == pytest.approx(deviations, abs=1e-6)


def test_lengths_are_short_where_something_changes() -> None:
    points = np.random.default_rng(0).random((60, 3))
    scores = np.sin(6 * points[:, 1])
    levels = np.arange(60) % 2
    noisy = scores + 0.3 * levels * np.random.default_rng(1).normal(size=60)
    kernel = likely_kernel(points, (noisy - noisy.mean()) / noisy.std(), levels, np.arange(3))
    assert kernel.scales[1] > 3 * max(kernel.scales[0], kernel.scales[2])
    assert kernel.noises[0] < 0.02 < 0.1 < kernel.noises[1]
    assert kernel.alone > 10 * kernel.joint  # the score is a function of one parameter


def test_a_rung_of_which_no_result_decides_on_lengths_has_the_usual_noise() -> None:
    points = np.random.default_rng(2).random((300, 2))
    scores = np.sort(points[:, 0])  # the worst, a failure alone on its level, is not among the some of many
    kernel = likely_kernel(points, scores, (scores == scores.max()).astype(int), np.arange(2))
    assert kernel.noises[1] == pytest.approx(math.exp(-4), rel=1e-3)


def test_the_gradient_that_lengths_are_found_by_is_that_of_the_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    differences = []

    def spy(improbability: Any, start: Any, **options: Any) -> Any:
        at = start + np.linspace(-0.3, 0.3, len(start))
        numbers = optimize.approx_fprime(at, lambda logs: improbability(logs)[0], 1e-6)
        differences.append(numbers - improbability(at)[1])
        return optimize.minimize(improbability, start, **options)

    monkeypatch.setattr("hydragnn.hpo.sampling.gaussian.minimize", spy)
    points = np.random.default_rng(1).random((30, 4))
    likely_kernel(points, points[:, 0] - 0.5, np.arange(30) % 3, np.array([0, 1, 1, 2]))
    assert differences[0] == pytest.approx(0.0, abs=1e-3)


def test_trials_count_by_their_place_the_highest_rung_first_and_failed_ones_last() -> None:
    def trial(*results: float, status: str = "paused") -> Trial:
        return Trial(number=0, status=status, results=results)  # type: ignore[arg-type]

    scores = normal_scores(
        [trial(9.0, 5.0), trial(1.0), trial(3.0, 4.0), trial(math.nan), trial(0.1, status="failed"), trial(1.0)]
    )
    assert np.argsort(scores, kind="stable").tolist() == [2, 0, 1, 5, 3, 4]
    assert scores[1] == scores[5]
    assert scores.std() == pytest.approx(1.0)
    assert normal_scores([trial(1.0), trial(1.0)]).tolist() == [0.0, 0.0]


def test_candidates_are_new_points_of_the_space_and_no_choice_is_given_up() -> None:
    trials = cube_trials(CUBE, 60)
    outlook = Outlook(CUBE, trials, np.random.default_rng(0))
    first = [outlook.ranked(np.random.default_rng(n))[0] for n in range(100)]
    known = {point_key(trial.values) for trial in trials}
    everyone = outlook.ranked(np.random.default_rng(0))
    keys = [point_key(point) for point in everyone]
    assert all(is_point(CUBE, point) for point in everyone)
    assert len(set(keys)) == len(keys) and not known & set(keys)
    worse = sum(point["kind"] == "b" for point in first)
    assert 2 <= worse <= 30, "kind b is worse everywhere, and is looked at all the same"
    outlook.expect(everyone[0])
    assert everyone[0] not in outlook.ranked(np.random.default_rng(0))


SIZES = {"shard": [1, 2, 4], "tensor": [1, 2], "graph": [1, 2]}


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ({"ranks_per_node": None}, "set search.ranks_per_node"),
        ({"space": {"parallel": {"shard": [1, 3]}}}, r"shard = 3 takes 3 ranks, which do not divide the 4"),
        ({"space": {"parallel": {"tensor": [1, 8]}}, "nodes_per_trial": 2}, "would share channels between nodes"),
        ({"space": {"parallel": {"shard": [1, 8]}}, "nodes_per_trial": (1, 2)}, "trials on 1 node"),
    ],
)
def test_a_layout_that_does_not_fit_the_ranks_is_refused(settings: Any, search: dict[str, Any], words: str) -> None:
    campaign = settings(**{"space": {"parallel": SIZES}, "ranks_per_node": 4, "trials": 2, **search})
    with pytest.raises(InputError, match=words) as caught:
        check_space(campaign, space_of(campaign.search.space))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "layout", "words"),
    [
        ("schnet", {"pipeline": 4}, "takes a layer per stage, and model.num_layers is 2"),
        ("dimenet", {"graph": 2}, "so that ranks cannot share one graph"),
        ("schnet", {"tensor": 3}, "does not divide model.hidden_dim"),
    ],
)
def test_a_layout_that_the_model_cannot_have_is_refused(kind: str, layout: dict[str, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_model(configuration(kind, {}, parallel=layout), lambda place: clusters(4))


def test_chunks_are_searched_beside_stages(settings: Any) -> None:
    sizes = {"parallel": {"pipeline": [1, 2], "chunks": [1, 2]}}
    campaign = settings(space=sizes, ranks_per_node=2, trials=3, sampler="tpe")
    for layers, fit in {4: [(1, 1), (2, 1), (2, 2)], 3: [(1, 1), (2, 1)]}.items():  # every chunk takes a layer
        campaign.base["model"]["num_layers"] = layers
        check_space(campaign, space_of(campaign.search.space))
        layouts = proposals(campaign, History(space=space_of(campaign.search.space)), 0, 20, set())
        assert sorted((one["parallel.pipeline"], one["parallel.chunks"]) for one in layouts) == fit


def test_proposed_layouts_divide_the_ranks_until_none_is_left(settings: Any) -> None:
    campaign = settings(space={"parallel": SIZES}, ranks_per_node=4, trials=8, sampler="tpe")
    layouts = proposals(campaign, History(space=space_of(campaign.search.space)), 0, 20, set())
    products = [one["parallel.shard"] * one["parallel.tensor"] * one["parallel.graph"] for one in layouts]
    assert len(layouts) == 8
    assert all(4 % product == 0 for product in products)


def test_layouts_that_ran_out_of_memory_become_improbable(settings: Any) -> None:
    campaign = settings(space={"train.learning_rate": RATE, "parallel": {"shard": [1, 2, 4]}}, ranks_per_node=4)
    space = space_of(campaign.search.space)
    failure = Failure(kind="out_of_memory", message="no memory")

    def trial(number: int) -> Trial:
        history = History(space=space)
        values = random_point(space, history.generator(number))
        if values["parallel.shard"] == 1:
            return Trial(number=number, status="failed", values=values, failure=failure)
        return Trial(number=number, status="finished", values=values, results=(1.0 + number % 3,))

    history = History(space=space, startup=4, trials=tuple(map(trial, range(30))), rungs=(1,))
    sampler = ParzenEstimators()
    drawn = [sampler.propose(history, number)["parallel.shard"] for number in range(30, 60)]
    assert drawn.count(1) <= 2  # of 30; ten without the constraint
