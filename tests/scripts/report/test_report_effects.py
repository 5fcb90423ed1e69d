"""The report shows which values of a hyperparameter are good, and which parameters interact."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from msgspec import structs

from hydragnn.hpo import CampaignHistory, Timeline, TrialHistory, campaign_settings, parameter_effects
from hydragnn.hpo.records import Effects
from hydragnn.scripts.report import collect
from hydragnn.scripts.report.effects import direction, effects
from hydragnn.scripts.report.facts import Campaign

UNIT = {"type": "float", "low": -1.0, "high": 1.0}
PICK = {"type": "categorical", "choices": ["slow", "good", "poor"]}
OF_GOOD = {**UNIT, "when": {"model.pick": "good"}}
COST = {"slow": 1.0, "good": 0.0, "poor": 4.0}


def history(truth: Callable[[dict[str, Any]], float], trials: int, **space: Any) -> CampaignHistory:
    draw = np.random.default_rng(1)
    own = {path: parameter for path, parameter in space.items() if parameter is not None}
    table = {"trials": trials, "space": {f"model.{path}": parameter for path, parameter in own.items()}}
    settings = campaign_settings({"search": table}, Path("CAMPAIGN.toml"))
    every = []
    for number in range(trials):
        values = {
            path: str(draw.choice(one["choices"])) if one["type"] == "categorical" else float(draw.uniform(-1, 1))
            for path, one in own.items()
        }
        if "when" in own.get("d", {}) and values["pick"] != "good":
            del values["d"]
        result = truth(values) + 0.05 * draw.normal()
        more: dict[str, Any] = {"attempt": 1, "status": "finished"}
        named = {f"model.{path}": value for path, value in values.items()}
        more |= {"values": named, "rungs": {1: result}, "results": (result,), "folder": Path(str(number))}
        every.append(TrialHistory(number=number, **more))
    return CampaignHistory(settings=settings, trials=every, rungs=(1,), ending=None, timeline=Timeline(), sampler="")


def effects_of(own: CampaignHistory) -> Effects:
    pytest.importorskip("shap", reason="the extra effects is not installed")
    found = parameter_effects(own)
    assert found is not None
    return found


def campaign(trials: CampaignHistory, with_effects: bool = True) -> Campaign:
    found = effects_of(trials) if with_effects else None
    return Campaign(history=trials, records={}, importances={"model.a": 1.0}, effects=found)


def made_up(values: dict[str, Any]) -> float:
    return float(3 * values["a"] - 2 * values["b"] + values["a"] * values["c"])


def test_signs_order_and_the_interaction_of_a_made_up_truth_are_found() -> None:
    own = campaign(history(made_up, 200, a=UNIT, b=UNIT, c=UNIT, d=UNIT))
    drawn, table = effects(own)
    assert table is not None and drawn is not None
    names = [row[0] for row in table.rows]
    assert names[:3] == ["a", "b", "c"] and names[3] == "d"
    assert [row[2] for row in table.rows[:2]] == ["larger values raise it", "larger values lower it"]
    assert names[4] == "a with c", "the strongest interaction"
    sizes = [float(row[1]) for row in table.rows[:4]]
    assert sizes[0] == pytest.approx(1.5, rel=0.1), "mean of |3 a|"
    assert sizes[1] == pytest.approx(1.0, rel=0.1) and sizes[3] < 0.1


def test_effects_add_up_to_what_was_measured() -> None:
    own = history(made_up, 100, a=UNIT, b=UNIT, c=UNIT)
    values = np.array([trial.value for trial in own.trials])
    assert (values - effects_of(own).shares.sum(1)).std() < 0.15 and values.std() > 1.5


@pytest.mark.parametrize(
    ("truth", "space", "number", "words"),
    [
        (lambda v: COST[v["pick"]], {"pick": PICK, "a": UNIT}, 0, "lowest with good, highest with poor"),
        (lambda v: 4 * v["a"] ** 2, {"a": UNIT, "b": UNIT}, 0, "no single direction"),
        (lambda v: v["a"], {"a": UNIT, "b": {**UNIT, "low": 0.5, "high": 0.5}}, 0, "larger values raise it"),
        (
            lambda v: v["a"],
            {"a": UNIT, "pick": {**PICK, "choices": ["slow"]}, "d": {**PICK, "when": {"model.pick": "slow"}}},
            2,
            "–",
        ),
        (lambda v: COST[v["pick"]] - 3 * v.get("d", 0.0), {"pick": PICK, "d": OF_GOOD}, 1, "larger values lower it"),
    ],
)
def test_directions_are_words(truth: Any, space: dict[str, Any], number: int, words: str) -> None:
    found = effects_of(history(truth, 120, **space))
    assert direction(found, number) == words and not found.shares[~found.active].any()


@pytest.mark.parametrize("number", [0, 7])
def test_a_trial_that_nearly_diverged_changes_no_direction(number: int) -> None:
    own = history(made_up, 60, a=UNIT, b=UNIT, c=UNIT, d=UNIT)
    own.trials[number].rungs[1] += 1e5
    table = effects(campaign(own))[1]
    assert table is not None
    assert [row[0] for row in table.rows[:2]] == ["a", "b"] and float(table.rows[0][1]) == pytest.approx(1.5, rel=0.2)
    assert [row[2] for row in table.rows[:2]] == ["larger values raise it", "larger values lower it"]


def test_few_results_have_no_effects() -> None:
    assert parameter_effects(history(made_up, 5, a=UNIT, b=UNIT, c=UNIT)) is None


def test_small_objectives_have_the_effects_of_large_ones() -> None:
    own = history(made_up, 60, a=UNIT, b=UNIT, c=UNIT)
    small = replace(own, trials=[structs.replace(trial, rungs={1: 1e-12 * trial.rungs[1]}) for trial in own.trials])
    assert effects_of(small).shares == pytest.approx(1e-12 * effects_of(own).shares, rel=1e-6)


@pytest.mark.parametrize("error", [ModuleNotFoundError, ImportError])  # absent; of no use with this numpy
def test_without_the_package_the_importances_name_it(monkeypatch: pytest.MonkeyPatch, error: type[ImportError]) -> None:
    own = campaign(history(made_up, 12, a=UNIT, b=UNIT, c=UNIT), with_effects=False)
    monkeypatch.setitem(sys.modules, "shap", None)
    with pytest.raises(ModuleNotFoundError):
        parameter_effects(own.history)
    monkeypatch.setattr(collect, "parameter_effects", Mock(side_effect=error))
    monkeypatch.setattr(collect, "campaign_history", lambda folder: own.history)
    monkeypatch.setattr(collect, "campaign_records", lambda folder: [])
    monkeypatch.setattr(collect, "parameter_importance", lambda folder: {"model.a": 1.0})
    read = collect.campaign_facts(Path("c"))
    figure, table = effects(read)
    assert read.effects is None and figure is None and table is not None and table.rows == [("a", "100 %")]
    assert "hydragnn-ensemble[effects]" in table.caption
