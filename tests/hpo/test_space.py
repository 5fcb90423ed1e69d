"""A point of the space is a valid run, or the space is refused with the next move."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn.architectures import GraphStatistics, architecture_of, architectures
from hydragnn.base.errors import InputError
from hydragnn.base.files import read_json
from hydragnn.base.settings import with_value
from hydragnn.datasets import StoreWriter
from hydragnn.graphs import ATOMIC_NUMBERS_FIELD, Field, graph_from_arrays
from hydragnn.hpo import CampaignSettings, campaign_settings, run_search
from hydragnn.hpo.preflight import as_begun, check_campaign, check_folder, open_campaign, write_settings
from hydragnn.hpo.sampling.sampler import SAMPLERS, History, proposals
from hydragnn.hpo.sampling.tpe import distribution, optuna_value
from hydragnn.hpo.scheduling.scheduler import Trial
from hydragnn.hpo.space.default import TRAINING
from hydragnn.hpo.space.parameters import Choices, FloatRange, IntRange
from hydragnn.hpo.space.points import Point, all_points, contains, is_point, point_key, random_point, space_of, value_at
from hydragnn.hpo.trial_configs import check_space, trial_config, valid_configs
from hydragnn.models import build_from_description
from hydragnn.runs.plan import described_branches

SOURCE = Path("CAMPAIGN.toml")
KIND = {"type": "categorical", "choices": ["schnet", "egnn"]}
RATE = {"type": "float", "low": 1e-4, "high": 1e-2, "log": True}


def checked(table: dict[str, Any], space: dict[str, Any]) -> tuple[CampaignSettings, Any]:
    campaign = campaign_settings({**table, "search": {**table["search"], "space": space}}, SOURCE)
    ordered = space_of(campaign.search.space, campaign.source)
    check_space(campaign, ordered)
    return campaign, ordered


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
    "a key that is gone": (
        {"train.compile": {"type": "categorical", "choices": [True, False]}},
        "is gone: plain steps",
    ),
    "one of heads": ({"heads.0.graph_scale": {"type": "categorical", "choices": [True, False]}}, "is gone: a head"),
    "one with its only value": (
        {"model.residual": {"type": "categorical", "choices": [True]}},
        "is gone: it was a form",
    ),
    "empty": ({}, "is empty"),
}


BAD_WITH: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "an end of a range": (
        {"train": {"epochs": 5}},
        {"train.warmup_epochs": {"type": "float", "low": 0, "high": 9}},
        r"train.warmup_epochs.* = 9.0 takes part in no valid run",
    ),
    "every point, for another parameter": (  # whole numbers at both ends, and none between them
        {},
        {"model.kind": KIND, "model.num_layers": {"type": "float", "low": 1, "high": 3}},
        r"^no point of search.space makes a valid run: .*model.num_layers: Input",
    ),
    "every point, for the base": (
        {"model": {"kind": "schnet", "num_layers": -3}},
        {"model.kind": KIND},
        r"^no point of search.space makes a valid run: .*model.num_layers: Input",
    ),
    "a base key that no searched kind knows": (
        {"model": {"kind": "schnet", "cutof": 4.0}},
        {"model.kind": KIND, "train.learning_rate": RATE},
        "did you mean cutoff",
    ),
}


@pytest.mark.parametrize(
    ("base", "space", "message"), [*(({}, *row) for row in BAD.values()), *BAD_WITH.values()], ids=[*BAD, *BAD_WITH]
)
def test_bad_spaces_are_told(table: dict[str, Any], base: dict[str, Any], space: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        checked(table | base, space)


def test_conditional_parameters_exist_only_where_their_condition_holds(table: dict[str, Any]) -> None:
    space = {"model.attention": {"type": "categorical", "choices": [True], "when": {"model.kind": "egnn"}}}
    _, ordered = checked(table, {**space, "model.kind": KIND, "train.learning_rate": RATE})
    for seed in range(20):
        point = random_point(ordered, np.random.default_rng(seed))
        assert ("model.attention" in point) == (point["model.kind"] == "egnn")
        assert is_point(ordered, point)


def test_base_keys_that_the_chosen_kind_does_not_know_are_left_out(table: dict[str, Any]) -> None:
    table["model"] |= {"cutoff": 4.0, "num_radial": 8}
    campaign, ordered = checked(table, kinds("schnet", "relational"))
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
    campaign, ordered = checked(table, AROUND)
    points = all_points(ordered)
    assert points is not None and len(points) == 5 * 3
    plain = trial_config(campaign, ordered, {}, 0)
    for point in points:
        config = trial_config(campaign, ordered, point, 0)
        attention, pooling = config.model.global_attention, config.model.pooling
        none = point["model.global_attention.kind"] == "none", point["model.pooling.levels"] == 0
        assert (attention is None, pooling is None) == none
        assert (config == plain, config.hash == plain.hash) == (all(none), all(none))
        settings = {f"model.global_attention.{key}": getattr(attention, key) for key in ("kind", "heads") if attention}
        settings |= {"model.pooling.levels": pooling.levels} if pooling else {}
        assert settings.items() <= point.items()


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


def test_a_space_whose_values_are_right_at_their_ends_alone_ends_with_a_sentence(table: dict[str, Any]) -> None:
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
    "of a search": (
        {"search": {"trials": 9, "sampler": "random", "reduction": 3}},
        {},
        r"\[search\]: reduction acts only where trials are compared at rungs; set rungs",
    ),
    "a condition on a continuous range": (
        {"train": {"schedule": "plateau"}},
        {"train.plateau_patience": {**PLATEAU, "when": {"train.learning_rate": 1e-3}}},
        r"never holds: train\.learning_rate is a continuous range",
    ),
}


def campaign_with(table: dict[str, Any], base: dict[str, Any], space: dict[str, Any]) -> Any:
    whole = {**table, **base, "train": {**table["train"], **base.get("train", {})}}
    searched = {**whole["search"], "space": {"train.learning_rate": RATE, **space}}
    return campaign_settings({**whole, "search": searched}, SOURCE)


@pytest.mark.parametrize(("base", "space", "sentence"), IDLE.values(), ids=IDLE)
def test_a_setting_that_cannot_act_is_refused_before_the_first_trial_and_never_in_a_campaign_that_began(
    table: dict[str, Any], base: dict[str, Any], space: dict[str, Any], sentence: str
) -> None:
    campaign = campaign_with(table, base, space)
    with pytest.raises(InputError, match=sentence):
        check_campaign(campaign, space_of(campaign.search.space))
    check_campaign(campaign, space_of(campaign.search.space), begun=True)


@pytest.mark.parametrize("when", [None, {"train.schedule": "plateau"}], ids=["of the base", "searched"])
def test_what_acts_in_some_of_the_trials_may_be_said_once_for_all(table: dict[str, Any], when: Any) -> None:
    searched = {} if when is None else {"train.plateau_patience": {**PLATEAU, "when": when}}
    base = {"train": {"plateau_patience": 3}} if when is None else {}
    campaign = campaign_with(table, base, {"train.schedule": SCHEDULES, **searched})
    check_campaign(campaign, space_of(campaign.search.space))


def test_a_condition_holds_on_the_grid_of_a_range_whatever_the_rounding() -> None:
    rate = FloatRange(low=0.1, high=0.5, step=0.1)
    space = space_of({"dropout": rate, "layers": IntRange(low=1, high=2, when={"dropout": 0.3})})
    points = all_points(space) or []
    assert [round(point["dropout"], 1) for point in points if "layers" in point] == [0.3, 0.3]


def test_modules_on_the_path_of_this_process_alone_are_missed_before_the_first_trial(
    table: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ("from hydragnn.callbacks import TrainingCallback", "class Quiet(TrainingCallback):")
    (tmp_path / "quiet_one.py").write_text("\n".join([*lines, '    kind: str = "quiet_one:Quiet"', ""]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("hydragnn.base.imports._allowed", {"quiet_one", "another"})  # which no trial needs
    campaign = campaign_with(table, {"train": {"callbacks": [{"kind": "quiet_one:Quiet"}]}}, {})
    with pytest.raises(InputError, match="trials, in processes of their own, do not find quiet_one; put its folder on"):
        check_campaign(campaign, space_of(campaign.search.space))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    check_campaign(campaign, space_of(campaign.search.space))


@pytest.mark.parametrize("choices", [["lamb", "adamw"], ["adamw", "lamb"]])
def test_the_package_of_a_choice_is_missed_before_the_first_trial(
    table: dict[str, Any], choices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydragnn.runs.plan.find_spec", lambda name: None)
    campaign = campaign_with(table, {}, {"train.optimizer": {"type": "categorical", "choices": choices}})
    with pytest.raises(InputError, match=r"lamb needs the package pytorch_optimizer; .*\[optimizers\]"):
        check_campaign(campaign, space_of(campaign.search.space))


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


FIELDS = (
    Field(name="site", on="node", classes=2, dtype="int64"),
    Field(name="strength", on="graph", role="target"),
    Field(name="energy", on="graph", role="target"),
)


def kinds(*choices: str) -> dict[str, Any]:
    return {"model.kind": {"type": "categorical", "choices": list(choices)}, "train.learning_rate": RATE}


def write_paths(path: Path, dim: int, *, rich: bool = False) -> None:
    """A few chains of nodes without positions (dim 0), or in a space of ``dim`` dimensions, with forces where there is one.

    ``rich`` ones have species and kinds of edges, too.
    """
    more = [ATOMIC_NUMBERS_FIELD, Field(name="relation", on="edge", classes=2, dtype="int64")] if rich else []
    forces = [Field(name="forces", on="node", shape=(dim,), parity="vector", role="target")] if dim else []
    fields, chain = [*FIELDS, *more, *forces], (np.array([0, 1, 2, 1, 2, 3]), np.array([1, 2, 3, 0, 1, 2]))
    nodes = {"site": np.arange(4) % 2, "forces": np.zeros((4, dim)), "atomic_numbers": np.array([1, 8, 1, 8])}
    named = {field.name for field in fields}
    edges = {"relation": np.arange(6) % 2} if rich else {}
    with StoreWriter(path, fields, dim=dim, attributes={"close_nuclei": True}) as writer:
        for number in range(20):
            places = np.random.default_rng(number).normal(size=(4, dim))
            values = {name: value for name, value in nodes.items() if name in named}
            graphs = {"strength": np.array([1.0 * number]), "energy": np.array([1.0])}
            graph = graph_from_arrays(places, *chain, fields=fields, nodes=values, edges=edges, graphs=graphs)
            writer.write(graph)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("stores")

    @cache
    def store(dim: int, rich: bool = False) -> Path:
        path = folder / f"{dim}-{rich}.h5"
        write_paths(path, dim, rich=rich)
        return path

    return store


@pytest.fixture
def paths(stores: Callable[..., Path]) -> Path:
    return stores(3)


@pytest.fixture
def rich(stores: Callable[..., Path]) -> Path:
    return stores(3, True)


def asked(store: Path, heads: list[dict[str, Any]], space: dict[str, Any], **more: Any) -> CampaignSettings:
    search = {"trials": 4, **more.pop("search", {}), "space": space}
    table = {"data": {"store": str(store)}, "heads": heads, "train": {"epochs": 4}, **more, "search": search}
    return campaign_settings(table, SOURCE)


STRENGTH = {"kind": "scalar", "field": "strength"}
FORCES = {"kind": "energy", "field": "energy", "forces": "forces"}
VECTOR = {"kind": "vector", "field": "forces"}

CANNOT: dict[str, tuple[int, list[dict[str, Any]], dict[str, Any], str]] = {
    "no relation": (3, [STRENGTH], kinds("schnet", "relational"), "'relational' .*categorical edge field 'relation'"),
    "no positions": (0, [STRENGTH], kinds("gin", "painn"), "'painn' .*needs positions"),
    "forces of what sees no lengths": (3, [FORCES], kinds("gin", "schnet"), "'gin' .*no forces or stress"),
    "a plane": (2, [FORCES], kinds("schnet", "mace"), "'mace' .*dimension"),
    "vectors of what gives none": (3, [VECTOR], kinds("painn", "schnet"), "'schnet' .*equivariant model"),
    "no atomic numbers": (3, [{**FORCES, "references": True}], kinds("painn", "schnet"), "references"),
    "kinds of heads and models that do not go together": (
        3,
        [{"kind": "scalar", "field": "strength"}, {"kind": "scalar", "field": "energy"}],
        {
            **kinds("gin", "schnet"),
            "heads.1.kind": {"type": "categorical", "choices": ["scalar", "energy"]},
            "heads.1.forces": {"type": "categorical", "choices": ["forces"], "when": {"heads.1.kind": "energy"}},
        },
        "\"model.kind\" = 'gin' and \"heads.1.kind\" = 'energy' together take part in no valid run.*no forces",
    ),
}


@pytest.mark.parametrize("case", CANNOT)
def test_what_an_architecture_cannot_do_is_said_at_once(case: str, stores: Callable[..., Path], tmp_path: Path) -> None:
    """One that has begun with such an architecture goes on; its trials fail, as they did for the program that began it."""
    dim, heads, space, message = CANNOT[case]
    search = {"objective": f"valid/{heads[0]['field']}/mae"}
    campaign = asked(stores(dim), heads, space, search=search)
    with pytest.raises(InputError, match=message):
        run_search(campaign, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    if case == "no relation":
        check_campaign(campaign, space_of(campaign.search.space), begun=True)


@pytest.mark.parametrize(
    ("references", "words"),
    [({"H": -13.6}, "no energy for atomic number 8, which the store holds"), ({"H": 1.0, "O": 2.0}, "")],
)
def test_an_element_without_an_energy_is_said_at_once(references: dict[str, float], words: str, rich: Path) -> None:
    head = {"kind": "energy", "field": "energy", "references": references}
    campaign = asked(rich, [head], kinds("painn", "schnet"))
    with pytest.raises(InputError, match=words) if words else nullcontext():
        check_campaign(campaign, space_of(campaign.search.space))


INT = {"type": "int", "low": 8, "high": 24}
HOLES: dict[str, tuple[dict[str, Any], dict[str, Any], list[int]]] = {
    "heads of a transformer": ({"kind": "equivariant_transformer", "heads": 3}, {"model.hidden_dim": INT | {"low": 9}}, [9, 12, 15, 18, 21, 24]),
    "heads of tokens": ({"kind": "field_tokens", "heads": 5}, {"model.hidden_dim": INT | {"low": 5, "high": 20}}, [5, 10, 15, 20]),
    "heads of global attention": (
        {"kind": "sage", "global_attention": {"kind": "linear", "heads": 6}}, {"model.hidden_dim": INT | {"low": 6}}, [6, 12, 18, 24],
    ),
    "few heads of many widths": ({"kind": "gatv2", "heads": 20}, {"model.hidden_dim": INT | {"low": 20, "high": 2000, "log": True}, "train.learning_rate": RATE}, list(range(20, 2001, 20))),
    "batches of nodes": ({"kind": "sage"}, {"batch.max_nodes": INT | {"low": 1, "high": 6}, "batch.max_graphs": {"type": "categorical", "choices": [0]}}, [4, 5, 6]),
}  # fmt: skip
"""Models with a space of which few values make a run, and these."""


@pytest.mark.parametrize("hole", HOLES)
def test_points_inside_a_range_that_make_no_run_are_never_proposed(hole: str, rich: Path) -> None:
    model, space, valid = HOLES[hole]
    path = next(iter(space))
    for sampler in SAMPLERS:
        search = {"sampler": sampler, "trials": 3}
        points = proposed(asked(rich, [STRENGTH], space, model=model, search=search), 9)
        assert len(points) >= min(3, len(valid)), sampler
        assert {point[path] for point in points} <= set(valid), sampler
        assert len(points) == min(9, len(valid)) or "train.learning_rate" in space, sampler


def proposed(settings: CampaignSettings, count: int) -> list[Point]:
    space, trials = space_of(settings.search.space), list[Trial]()
    for number in range(count):
        history = History(space=space, startup=4, trials=tuple(trials) if number > 4 else (), rungs=(1,))
        point = proposals(settings, history, number, 1, {point_key(trial.values) for trial in trials})
        if not point:
            break
        trials.append(Trial(number=number, status="paused", values=point[0], results=(float(number),)))
    return [trial.values for trial in trials]


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"model.hidden_dim": INT | {"low": 9, "high": 11}}, r"model\.hidden_dim = \d+ does not divide into model.heads = 4"),
        ({"batch.max_nodes": INT | {"low": 1, "high": 3}, "train.learning_rate": RATE}, "has 4 nodes, more than the budget of"),
    ],
)  # fmt: skip
def test_a_space_without_valid_points_is_refused(space: dict[str, Any], words: str, rich: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        run_search(asked(rich, [STRENGTH], space, model={"kind": "gatv2"}, search={"trials": 2}), tmp_path / "campaign")
    assert not (tmp_path / "campaign").exists()


MEASURED = GraphStatistics(mean_log_degree=1.0, mean_degree=2.0, species=(1, 8))
POINTS = 4


def default_campaign(store: Path, heads: list[dict[str, Any]], **changes: Any) -> CampaignSettings:
    table = {"data": {"store": str(store)}, "heads": heads, "search": {"space": "default"}}
    for path, value in changes.items():
        with_value(table, path.replace("__", "."), value)
    return campaign_settings(json.loads(json.dumps(table)), SOURCE)


def test_one_line_searches_all_able_architectures_and_says_why_others_cannot(paths: Path, rich: Path) -> None:
    campaign = default_campaign(paths, [FORCES])
    kinds = campaign.search.space["model.kind"].choices
    assert {*kinds, *campaign.left_out} == {*architectures()}
    assert all(architecture_of(kind).sees_positions() for kind in kinds)
    for kind, reason in campaign.left_out.items():
        assert not architecture_of(kind).sees_positions() or architecture_of(kind).requires, (kind, reason)
        assert reason and str(SOURCE) not in reason
    check_campaign(campaign, space_of(campaign.search.space))
    whole = default_campaign(rich, [STRENGTH])
    assert whole.left_out == {} and whole.search.space["model.kind"].choices == [*architectures()]


@pytest.mark.parametrize("kind", architectures())
def test_every_point_of_an_architectures_space_builds_a_model(kind: str, rich: Path) -> None:
    campaign = default_campaign(rich, [STRENGTH], model__kind=kind)
    space = space_of(campaign.search.space)
    assert {f"model.{key}" for key in architecture_of(kind).Settings.searched} <= set(space.parameters)
    check_campaign(campaign, space)
    for seed in range(POINTS):
        point = random_point(space, np.random.default_rng(seed))
        assert is_point(space, point)
        config = trial_config(campaign, space, point, 0)
        (branch,) = described_branches(config)
        model = build_from_description(replace(branch.model, statistics=MEASURED), seed=0)
        assert sum(weights.numel() for weights in model.parameters()) > 0


def test_each_architecture_has_its_own_range_of_a_common_setting(paths: Path) -> None:
    campaign = default_campaign(paths, [FORCES])
    space = space_of(campaign.search.space)
    widths = {path: p for path, p in space.parameters.items() if path.partition("#")[0] == "model.hidden_dim"}
    assert len(widths) > 1
    for seed in range(40):
        point = random_point(space, np.random.default_rng(seed))
        own = [value for path, value in point.items() if path in widths]
        assert len(own) == 1
        searched = architecture_of(point["model.kind"]).Settings.searched["hidden_dim"]
        assert searched["low"] <= own[0] <= searched["high"]
        assert trial_config(campaign, space, point, 0).model.hidden_dim == own[0]


def test_what_the_configuration_gives_is_not_searched(paths: Path) -> None:
    campaign = default_campaign(
        paths, [FORCES], model={"hidden_dim": 24}, train={"learning_rate": 1e-3}, batch={"max_nodes": 99}
    )
    places = {path.partition("#")[0] for path in campaign.search.space}
    assert not places & {"model.hidden_dim", "train.learning_rate", "batch.max_graphs"}
    one = default_campaign(paths, [FORCES], model={"kind": "egnn"})
    assert "model.kind" not in one.search.space and "model.attention" in one.search.space
    assert one.left_out == {}


def test_a_task_that_no_architecture_can_do_and_a_space_of_another_name_are_refused(paths: Path) -> None:
    with pytest.raises(InputError, match="no field enthalpy"):
        default_campaign(paths, [{"kind": "scalar", "field": "enthalpy"}])
    with pytest.raises(InputError, match="did you mean default"):
        default_campaign(paths, [STRENGTH], search__space="defalt")


def test_the_read_out_of_intensive_numbers_is_searched_where_nodes_have_no_species(paths: Path, rich: Path) -> None:
    flows = [STRENGTH, {"kind": "scalar", "field": "energy", "extensive": True}]
    space = default_campaign(paths, flows).search.space
    assert space["heads.0.pool"].choices == ["mean", "attention"] and "heads.1.pool" not in space
    for store, head in ((paths, {**STRENGTH, "pool": "max"}), (rich, STRENGTH)):
        assert not [path for path in default_campaign(store, [head]).search.space if path.startswith("heads")]


def test_two_parameters_of_one_key_never_hold_together(paths: Path) -> None:
    width = {"type": "int", "low": 8, "high": 16}
    space = {
        "model.kind": {"type": "categorical", "choices": ["schnet", "gin"]},
        "model.hidden_dim": width,
        "model.hidden_dim#gin": {**width, "when": {"model.kind": "gin"}},
    }
    campaign = default_campaign(paths, [STRENGTH], search__space=space)
    with pytest.raises(InputError, match="set the same key"):
        check_campaign(campaign, space_of(campaign.search.space))
    space["model.hidden_dim"] = {**width, "when": {"model.kind": "schnet"}}
    campaign = default_campaign(paths, [STRENGTH], search__space=space, search__trials=4)
    check_campaign(campaign, space_of(campaign.search.space))
    hidden = default_campaign(
        paths, [STRENGTH], search__space={**space, "data.store#x": {"type": "categorical", "choices": ["a"]}}
    )
    with pytest.raises(InputError, match="cannot be compared"):
        check_campaign(hidden, space_of(hidden.search.space))


def test_a_campaign_keeps_its_default_space(paths: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = default_campaign(paths, [FORCES])
    write_settings(as_begun(begun, tmp_path / "c"), [], tmp_path / "c")
    assert read_json(tmp_path / "c" / "campaign.json")["left_out"] == begun.left_out
    monkeypatch.setitem(TRAINING, "train.warmup_epochs", {"type": "float", "low": 0.0, "high": 1.0})
    later = default_campaign(paths, [FORCES])
    assert "train.warmup_epochs" in later.search.space
    resumed = as_begun(later, tmp_path / "c")
    assert resumed.search.space == begun.search.space
    assert resumed.left_out == begun.left_out == open_campaign(tmp_path / "c").left_out


def test_the_search_says_at_its_beginning_what_is_left_out(paths: Path, tmp_path: Path, fake_launcher: Any) -> None:
    campaign = default_campaign(paths, [FORCES], train={"epochs": 2}, search__trials=2, search__sampler="random")
    notes: list[str] = []
    run_search(campaign, tmp_path / "c", launcher=fake_launcher(), on_note=notes.append)
    (note,) = notes
    assert all(kind in note for kind in campaign.left_out or {})


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_every_architecture_is_tried_once_before_the_sampler_chooses(sampler: str, paths: Path, tmp_path: Path) -> None:
    campaign = default_campaign(paths, [FORCES], search__sampler=sampler)
    points = check_folder(campaign, space_of(campaign.search.space), tmp_path / "c", resume=False)
    assert [point["model.kind"] for point in points] == campaign.search.space["model.kind"].choices
    assert all(is_point(space_of(campaign.search.space), point) for point in points)


def test_what_acts_on_lengths_is_not_searched_where_graphs_have_no_positions(stores: Callable[..., Path]) -> None:
    campaign = default_campaign(stores(0), [STRENGTH])
    space = space_of(campaign.search.space)
    assert "pna" in space.parameters["model.kind"].choices and "model.hidden_dim" in space.parameters
    assert not [path for path in space.parameters if path.partition("#")[0] in ("model.num_radial", "model.radial")]
    check_campaign(campaign, space)
    radial = asked(stores(0), [STRENGTH], {"model.num_radial": INT}, model={"kind": "pna"})
    with pytest.raises(InputError, match=r"model\.num_radial acts only on lengths of edges, and these graphs have no"):
        check_campaign(radial, space_of(radial.search.space))
