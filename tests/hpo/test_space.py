"""A point of the space is a valid run, or the space is refused at the door with the next move."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rings import write_rings

from hydragnn.base.errors import InputError
from hydragnn.hpo.preflight import check_campaign
from hydragnn.hpo.sampling.optuna_trials import distribution, optuna_value
from hydragnn.hpo.settings import campaign_settings
from hydragnn.hpo.space.parameters import Choices, FloatRange, IntRange
from hydragnn.hpo.space.points import all_points, contains, is_point, random_point, space_of, value_at
from hydragnn.hpo.trial_configs import check_space, trial_config, valid_configs

SOURCE = Path("CAMPAIGN.toml")
KIND = {"type": "categorical", "choices": ["schnet", "egnn"]}
RATE = {"type": "float", "low": 1e-4, "high": 1e-2, "log": True}


def checked(table: dict[str, Any], space: dict[str, Any], **search: Any) -> None:
    campaign = campaign_settings({**table, "search": {**table["search"], **search, "space": space}}, SOURCE)
    check_space(campaign, space_of(campaign.search.space, campaign.source))


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown path": ({"model.cutof": {"type": "float", "low": 1, "high": 2}}, "did you mean cutoff"),
    "unknown section": ({"modell.cutoff": RATE}, "did you mean model"),
    "value out of range": ({"model.hidden_dim": {"type": "int", "low": 0, "high": 8}}, "greater than or equal to 1"),
    "choice that does not exist": ({"model.kind": {"type": "categorical", "choices": ["schnet", "foo"]}}, "foo"),
    "wrong type": ({"model.hidden_dim": {"type": "float", "low": 1.5, "high": 2.5}}, "valid integer"),
    "key of another kind": (
        {"model.kind": KIND, "model.attention": {"type": "categorical", "choices": [True, False]}},
        "needs when",
    ),
    "head that does not exist": ({"heads.3.hidden_dims": {"type": "categorical", "choices": [[8]]}}, "not a position"),
    "low above high": ({"train.learning_rate": {"type": "float", "low": 2, "high": 1}}, "swap"),
    "log of zero": ({"train.learning_rate": {"type": "float", "low": 0, "high": 1, "log": True}}, "low > 0"),
    "log with step": ({"model.hidden_dim": {"type": "int", "low": 8, "high": 64, "log": True, "step": 8}}, "exclude"),
    "no choices": ({"model.kind": {"type": "categorical", "choices": []}}, "at least 1"),
    "a choice twice": ({"model.kind": {"type": "categorical", "choices": ["schnet", "schnet"]}}, "twice"),
    "no type": ({"model.cutoff": {"low": 1, "high": 2}}, "with type"),
    "unknown type": ({"model.cutoff": {"type": "real", "low": 1, "high": 2}}, "unknown type real"),
    "unknown member": ({"model.cutoff": {"type": "float", "low": 1, "hihg": 2, "high": 3}}, "did you mean high"),
    "condition on nothing": ({"model.cutoff": {**RATE, "when": {"model.kind": "egnn"}}}, "not in the space"),
    "condition that cannot come true": (
        {"model.kind": KIND, "model.cutoff": {**RATE, "when": {"model.kind": "pna"}}},
        "never is 'pna'",
    ),
    "circular conditions": (
        {
            "model.kind": {**KIND, "when": {"model.radial": "bessel"}},
            "model.radial": {"type": "categorical", "choices": ["bessel"], "when": {"model.kind": "egnn"}},
        },
        "circle",
    ),
    "the data": ({"data.store": {"type": "categorical", "choices": ["a.h5"]}}, "cannot be compared"),
    "the split": ({"split.seed": {"type": "int", "low": 0, "high": 3}}, "cannot be compared"),
    "the budget": ({"train.epochs": {"type": "int", "low": 5, "high": 9}}, "cannot be compared"),
    "what the loss means": ({"heads.0.weight": RATE}, "set objective"),
    "fewer points than trials": ({"model.kind": KIND}, "2 points"),
    "empty": ({}, "is empty"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_space_that_cannot_work_is_refused_with_the_next_move(table: dict[str, Any], case: str) -> None:
    space, message = BAD[case]
    with pytest.raises(InputError, match=message):
        checked(table, space)


def test_every_value_of_a_parameter_must_be_part_of_some_valid_run(table: dict[str, Any]) -> None:
    table["train"]["epochs"] = 5
    with pytest.raises(InputError, match=r"train.warmup_epochs.* = 9.0 takes part in no valid run"):
        checked(table, {"train.warmup_epochs": {"type": "float", "low": 0, "high": 9}})


@pytest.mark.parametrize("wrong", ["another parameter", "the base"])
def test_no_choice_is_blamed_for_what_is_wrong_with_every_point(table: dict[str, Any], wrong: str) -> None:
    """Whole numbers at both ends, and none between them: the ends alone are fine, and all points that are drawn fail."""
    space: dict[str, Any] = {"model.kind": KIND}
    if wrong == "the base":
        table["model"]["num_layers"] = -3
    else:
        space["model.num_layers"] = {"type": "float", "low": 1, "high": 3}
    with pytest.raises(InputError, match=r"^no point of search.space makes a valid run: .*model.num_layers: Input"):
        checked(table, space)


def test_conditional_parameters_exist_only_where_their_condition_holds(table: dict[str, Any]) -> None:
    space = {"model.attention": {"type": "categorical", "choices": [True], "when": {"model.kind": "egnn"}}}
    campaign = campaign_settings(
        {**table, "search": {**table["search"], "space": {**space, "model.kind": KIND, "train.learning_rate": RATE}}},
        SOURCE,
    )
    ordered = space_of(campaign.search.space)
    check_space(campaign, ordered)
    for seed in range(20):
        point = random_point(ordered, np.random.default_rng(seed))
        assert ("model.attention" in point) == (point["model.kind"] == "egnn")
        assert is_point(ordered, point)


def test_base_keys_that_the_chosen_kind_does_not_know_are_left_out(table: dict[str, Any]) -> None:
    table["model"] |= {"cutoff": 4.0, "num_radial": 8}
    space = {"model.kind": {"type": "categorical", "choices": ["schnet", "relational"]}, "train.learning_rate": RATE}
    campaign = campaign_settings({**table, "search": {**table["search"], "space": space}}, SOURCE)
    ordered = space_of(campaign.search.space)
    check_space(campaign, ordered)
    of_kind = {k: trial_config(campaign, ordered, {"model.kind": k}, 0).model for k in ("schnet", "relational")}
    assert of_kind["schnet"].to_json()["cutoff"] == 4.0
    assert "cutoff" not in of_kind["relational"].to_json()


AROUND: dict[str, dict[str, Any]] = {
    "model.global_attention.kind": {"type": "categorical", "choices": ["none", "multihead", "linear"]},
    "model.global_attention.heads": {
        "type": "categorical",
        "choices": [2, 4],
        "when": {"model.global_attention.kind": ["multihead", "linear"]},
    },
    "model.pooling.levels": {"type": "int", "low": 0, "high": 2},
}


def test_attention_and_pooling_can_be_searched_with_none_as_one_of_the_choices(table: dict[str, Any]) -> None:
    campaign = campaign_settings({**table, "search": {**table["search"], "space": AROUND}}, SOURCE)
    ordered = space_of(campaign.search.space)
    check_space(campaign, ordered)
    points = all_points(ordered)
    assert points is not None and len(points) == 5 * 3
    plain = trial_config(campaign, ordered, {}, 0)
    for point in points:
        config = trial_config(campaign, ordered, point, 0)
        attention, pooling = config.model.global_attention, config.model.pooling
        none = point["model.global_attention.kind"] == "none", point["model.pooling.levels"] == 0
        assert (attention is None, pooling is None) == none
        assert (config == plain, config.hash == plain.hash) == (all(none), all(none))
        if attention is not None:
            assert attention.kind == point["model.global_attention.kind"]
            assert attention.heads == point["model.global_attention.heads"]
        if pooling is not None:
            assert pooling.levels == point["model.pooling.levels"]


def test_a_base_key_that_no_searched_kind_knows_is_an_error(table: dict[str, Any]) -> None:
    table["model"]["cutof"] = 4.0
    with pytest.raises(InputError, match="did you mean cutoff"):
        checked(table, {"model.kind": KIND, "train.learning_rate": RATE})


def test_every_trial_has_its_own_seed_unless_the_space_sets_it(table: dict[str, Any]) -> None:
    table["train"]["seed"] = 40
    campaign = campaign_settings(table, SOURCE)
    space = space_of(campaign.search.space)
    assert trial_config(campaign, space, {}, 2).train.seed == 42
    seeded = {**campaign.search.space, "train.seed": campaign.search.space["model.hidden_dim"]}
    assert trial_config(campaign, space_of(seeded), {"train.seed": 9}, 2).train.seed == 9


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_every_fraction_of_a_range_gives_a_value_of_the_range(data: Any) -> None:
    low = data.draw(st.integers(1, 50))
    high = low + data.draw(st.integers(0, 50))
    log = data.draw(st.booleans())
    step = data.draw(st.integers(1, 7))
    fraction = data.draw(st.floats(0, 1, exclude_max=True))
    for parameter in (
        FloatRange(low=low, high=high, log=log),
        FloatRange(low=low, high=high, step=step),
        IntRange(low=low, high=high, log=log),
        IntRange(low=low, high=high, step=step),
        Choices(choices=["a", 1, 2.5, [64]]),
    ):
        assert contains(parameter, value_at(parameter, fraction)), parameter


def test_a_small_discrete_space_is_counted_with_its_conditions() -> None:
    space = space_of({"kind": Choices(choices=["a", "b"]), "depth": IntRange(low=1, high=3, when={"kind": "b"})})
    points = all_points(space)
    assert points is not None
    assert len(points) == 4


def test_a_space_whose_values_are_right_at_their_ends_alone_ends_with_a_sentence(tmp_path: Path) -> None:
    write_rings(tmp_path / "a.h5", 1)
    table = {
        "data": {"store": str(tmp_path / "a.h5")},
        "model": {"kind": "gin"},
        "heads": [{"kind": "scalar", "field": "moment"}],
    }
    space = {"model.num_layers": {"type": "float", "low": 1.0, "high": 4.0}}  # 1.0 and 4.0 are whole numbers
    settings = campaign_settings({**table, "search": {"space": space}}, SOURCE)
    with pytest.raises(InputError, match=r"none of 1000 points drawn from search\.space .*model\.num_layers.*integer"):
        next(valid_configs(settings, space_of(settings.search.space)))


PLATEAU = {"type": "int", "low": 2, "high": 9}
SCHEDULES = {"type": "categorical", "choices": ["cosine", "plateau"]}
IDLE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "of the base": ({"train": {"plateau_patience": 3}}, {}, r"train\.plateau_patience acts only with schedule"),
    "searched": ({}, {"train.plateau_patience": PLATEAU}, r"train\.plateau_patience acts only with schedule"),
    "searched with some choices only": (
        {},
        {"train.schedule": SCHEDULES, "train.plateau_patience": PLATEAU},
        r"acts only with schedule.* when = ",
    ),
    "of a section": ({"batch": {"budget": "auto", "max_graphs": 9, "memory": "1 GB"}}, {}, r"batch\.max_graphs acts"),
    "a condition on a continuous range": (
        {"train": {"schedule": "plateau"}},
        {"train.plateau_patience": {**PLATEAU, "when": {"train.learning_rate": 1e-3}}},
        r"never holds: train\.learning_rate is a continuous range",
    ),
}


def campaign_with(table: dict[str, Any], base: dict[str, Any], space: dict[str, Any], **search: Any) -> Any:
    whole = {**table, **base, "train": {**table["train"], **base.get("train", {})}}
    searched = {**table["search"], "space": {"train.learning_rate": RATE, **space}, **search}
    return campaign_settings({**whole, "search": searched}, SOURCE)


@pytest.mark.parametrize(("base", "space", "sentence"), IDLE.values(), ids=IDLE)
def test_a_setting_that_cannot_act_is_refused_before_the_first_trial_and_never_in_a_campaign_that_began(
    table: dict[str, Any], base: dict[str, Any], space: dict[str, Any], sentence: str
) -> None:
    campaign = campaign_with(table, base, space)
    with pytest.raises(InputError, match=sentence):
        check_campaign(campaign, space_of(campaign.search.space))
    check_campaign(campaign, space_of(campaign.search.space), begun=True)


def test_what_acts_in_some_of_the_trials_may_be_said_once_for_all(table: dict[str, Any]) -> None:
    for base, space in (
        ({"train": {"plateau_patience": 3}}, {"train.schedule": SCHEDULES}),
        (
            {},
            {"train.schedule": SCHEDULES, "train.plateau_patience": {**PLATEAU, "when": {"train.schedule": "plateau"}}},
        ),
    ):
        campaign = campaign_with(table, base, space)
        check_campaign(campaign, space_of(campaign.search.space))


def test_settings_of_a_search_that_cannot_act_are_refused(table: dict[str, Any]) -> None:
    del table["search"]["rungs"]
    campaign = campaign_with(table, {}, {})
    with pytest.raises(
        InputError, match=r"\[search\]: reduction acts only where trials are compared at rungs; set rungs"
    ):
        check_campaign(campaign, space_of(campaign.search.space))


def test_a_condition_holds_on_the_grid_of_a_range_whatever_the_rounding() -> None:
    rate = FloatRange(low=0.1, high=0.5, step=0.1)
    space = space_of({"dropout": rate, "layers": IntRange(low=1, high=2, when={"dropout": 0.3})})
    points = all_points(space) or []
    assert [round(point["dropout"], 1) for point in points if "layers" in point] == [0.3, 0.3]


@pytest.mark.parametrize(
    ("choices", "kept"),
    [
        ([1, 1.0, 2], [1, 2]),
        ([2.0, 3, 2], [2.0, 3]),
        ([[64], [64.0], [64, 64]], [[64], [64, 64]]),
        ([0.5, 0, 0.0], [0.5, 0]),
        ([True, 1], [True, 1]),
        (["1", 1, 1.5], ["1", 1, 1.5]),
    ],
)
def test_equal_numbers_are_one_choice_and_other_kinds_stay_apart(choices: list[Any], kept: list[Any]) -> None:
    parameter = Choices(choices=choices)
    assert [*map(repr, parameter.choices)] == [*map(repr, kept)]
    assert [parameter.index(choice) for choice in parameter.choices] == list(range(len(kept)))
    allowed = distribution(parameter)
    assert len({allowed.to_internal_repr(optuna_value(parameter, choice)) for choice in parameter.choices}) == len(kept)
