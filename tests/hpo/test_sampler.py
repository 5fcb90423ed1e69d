"""Samplers answer by the campaign's history alone, stay in the space, and learn from what trials came to."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from virtual import transition

from hydragnn.base.errors import InputError
from hydragnn.hpo.sampling.process import Question, SamplerProcess
from hydragnn.hpo.sampling.sampler import (
    HISTORY,
    SAMPLERS,
    History,
    history_of,
    learns,
    proposal,
    proposals,
    use_compiled_tails,
)
from hydragnn.hpo.scheduling.events import Event, Opened, Plan, Proposed, Reached
from hydragnn.hpo.scheduling.scheduler import State, Trial
from hydragnn.hpo.search_settings import WIDE
from hydragnn.hpo.space.points import is_point, point_key, space_of

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


def keys(state: State) -> set[str]:
    return {point_key(trial.values) for trial in state.trials.values()}


def asked(campaign: Any, trials: int, rungs: tuple[int, ...] = (1, 2)) -> list[dict[str, Any]]:
    """The configurations of a campaign in which every trial passes the first rung."""
    space = space_of(campaign.search.space)
    state = State()

    def feed(event: Event) -> None:
        nonlocal state
        state, _ = transition(state, event, 0.0)

    feed(Opened(plan=Plan(trials=trials, rungs=rungs, reduction=100), slots=("p",)))
    for number in range(trials):
        known = keys(state)
        (point,) = proposals(campaign, space, history_of(campaign, state), number, 1, known)
        assert is_point(space, point)
        feed(Proposed(trial=number, values=point))
        feed(Reached(trial=number, attempt=1, epochs=1, value=error(point)))
    return [state.trials[number].values for number in range(trials)]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_same_history_gives_the_same_configurations_and_no_other_seed_does(settings: Any, sampler: str) -> None:
    once, again, other = (asked(settings(sampler=sampler, space=SPACE, seed=s), 8) for s in (1, 1, 2))
    assert once == again
    assert once != other
    assert len({point_key(values) for values in once}) == 8


@pytest.mark.parametrize("sampler", ["auto", *filter(learns, SAMPLERS)])
def test_a_model_based_sampler_finds_better_points_than_chance(settings: Any, sampler: str) -> None:
    learned = asked(settings(sampler=sampler, space=SPACE, trials=18), 18)
    chance = asked(settings(sampler="random", space=SPACE, trials=18), 18)
    assert sum(map(error, learned[9:])) < 0.7 * sum(map(error, chance[9:]))


def test_a_finite_space_is_exhausted_without_repetition(settings: Any) -> None:
    campaign = settings(
        trials=1, rungs=[], space={"model.hidden_dim": {"type": "int", "low": 8, "high": 40, "step": 16}}
    )
    space = space_of(campaign.search.space)
    state, _ = transition(State(), Opened(plan=Plan(trials=9, rungs=(1,)), slots=("p",)), 0.0)
    seen = []
    for number in range(3):
        point = proposal(campaign, space, history_of(campaign, state), number, keys(state))
        assert point is not None
        seen.append(point["model.hidden_dim"])
        state, _ = transition(state, Proposed(trial=number, values=point), 0.0)
        state, _ = transition(state, Reached(trial=number, attempt=1, epochs=1, value=1.0), 0.0)
    assert sorted(seen) == [8, 24, 40]
    assert proposal(campaign, space, history_of(campaign, state), 3, keys(state)) is None


def test_what_a_sampler_is_told_does_not_grow_with_the_campaign_and_holds_the_best(settings: Any) -> None:
    campaign = settings(sampler="tpe", space={"train.learning_rate": RATE}, trials=5000)
    state, _ = transition(State(), Opened(plan=Plan(trials=5000, rungs=(1, 2), reduction=9999), slots=("a", "b")), 0.0)
    for number in range(2000):
        values = {"train.learning_rate": 1e-5 * (1 + number)}
        state, _ = transition(state, Proposed(trial=number, values=values), 0.0)
        if number != 1999:
            error = float(7 * number % 1999)
            state, _ = transition(state, Reached(trial=number, attempt=1, epochs=1, value=error), 0.0)
    history = history_of(campaign, state)
    assert len(history.trials) <= HISTORY
    best = {number for number in range(1999) if 7 * number % 1999 < 50}
    assert best <= {trial.number for trial in history.trials}
    assert history.trials[-1].number == 1999, "what runs is told, too"
    assert history.width == 2


@pytest.mark.parametrize(("width", "sampler"), [(1, "tpe"), (WIDE - 1, "tpe"), (WIDE, "gp")])
def test_the_default_sampler_is_the_gaussian_process_where_many_trials_run_at_once(
    settings: Any, width: int, sampler: str
) -> None:
    points = asked(settings(sampler="random", space=SPACE), 12)
    trials = tuple(
        Trial(number=number, status="paused", values=values, results=(error(values),))
        for number, values in enumerate(points)
    )
    history, space = History(trials=trials, rungs=(1, 2), width=width), space_of(settings(space=SPACE).search.space)
    known = set(map(point_key, points))
    by_name = {
        name: proposals(settings(sampler=name, space=SPACE), space, history, 12, 3, known)
        for name in ("auto", "tpe", "gp")
    }
    assert by_name["auto"] == by_name[sampler]
    assert by_name["tpe"] != by_name["gp"]


def test_a_sampler_process_that_dies_or_hangs_is_replaced_and_the_answer_is_the_same(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = settings(sampler="tpe", space=SPACE)
    points = asked(settings(sampler="random", space=SPACE), 12)
    trials = tuple(
        Trial(number=number, status="paused", values=values, results=(error(values),))
        for number, values in enumerate(points)
    )
    question = Question(first=12, count=3, history=History(trials=trials, rungs=(1, 2)))
    known = [point_key(values) for values in points]
    limits = [
        600.0,
        600.0,
        600.0,
        0.2,
        600.0,
    ]  # of which the second is for the one that dies, the fourth for the one that hangs
    timer = threading.Timer
    monkeypatch.setattr(threading, "Timer", lambda seconds, act: timer(limits.pop(0), act))
    process = SamplerProcess(campaign, tmp_path / "log")
    try:
        first, pids = process.ask(question, known), [process.pid]
        for number in (signal.SIGKILL, signal.SIGSTOP):
            assert process.pid is not None
            os.kill(process.pid, number)
            assert process.ask(question, known) == first
            pids.append(process.pid)
    finally:
        process.close()
    assert limits == []
    assert len(set(pids)) == 3
    assert first == proposals(campaign, space_of(campaign.search.space), question.history, 12, 3, set(known))


def test_qmc_fills_the_space_more_evenly_than_chance(settings: Any) -> None:
    space = {"train.learning_rate": {"type": "float", "low": 0.5, "high": 1.5}}
    points = asked(settings(sampler="qmc", space=space), 16)
    bins = {int((values["train.learning_rate"] - 0.5) * 16) for values in points}
    assert len(bins) == 16, "a scrambled Sobol sequence has one of 16 points in every sixteenth"


def test_compiled_tails_of_the_normal_distribution_are_those_of_optuna() -> None:
    """Where the distance from the middle exceeds 4, Optuna's own lose digits by cancellation."""
    from optuna.samplers._tpe import _truncnorm
    from optuna.samplers._tpe._erf import erf as own
    from scipy.special import erf, log_ndtr

    use_compiled_tails()
    assert _truncnorm._log_ndtr is log_ndtr and _truncnorm.erf is erf
    everywhere = np.linspace(-7, 7, 500)
    assert erf(everywhere) == pytest.approx(own(everywhere), rel=1e-14)
    for at in [*np.linspace(-40, 4, 89).tolist(), 0.0]:
        assert log_ndtr(at) == pytest.approx(_truncnorm._log_ndtr_single(at), rel=1e-10)


def a_failure(*_: Any) -> Any:
    """A sampler with a defect."""
    raise ZeroDivisionError("no trials")


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (a_failure, r"failed for trial 0 \(ZeroDivisionError: no trials\)"),
        (lambda *_: None, "gave None for trial 0, which is no point"),
        (lambda *_: {"train.learning_rate": 5.0, "model.hidden_dim": 9}, "gave .*5.0.* is no point of search.space"),
        (lambda *_: {"train.learning_rate": 1e-3}, "gave .* is no point of search.space"),
        (
            lambda *_: {"train.learning_rate": np.float32(1e-3), "model.hidden_dim": 9},
            "gave .* is no point of search.space",
        ),
    ],
)
def test_what_a_sampler_of_others_gives_is_a_point_of_the_space_or_refused(
    own: Any, says: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SAMPLERS, "own", own)
    campaign = settings(sampler="own")
    with pytest.raises(InputError, match=f"^search.sampler = 'own' {says}"):
        proposal(campaign, space_of(campaign.search.space), History(), 0, set())
