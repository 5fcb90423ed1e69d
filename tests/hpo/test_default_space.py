"""``space = "default"``: all architectures that can do the task, each with ranges of its own, in one line."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_space_models import FORCES, STRENGTH, write_paths

from hydragnn.architectures import GraphStatistics, architecture_of, architectures
from hydragnn.base.errors import InputError
from hydragnn.base.files import read_json
from hydragnn.base.settings import with_value
from hydragnn.config import RunConfig
from hydragnn.datasets import StoreWriter
from hydragnn.graphs import Field, graph_from_arrays
from hydragnn.hpo import CampaignSettings, campaign_settings, run_search
from hydragnn.hpo.preflight import as_begun, check_campaign, check_folder, open_campaign, write_settings
from hydragnn.hpo.space.default import TRAINING
from hydragnn.hpo.space.points import is_point, random_point, space_of
from hydragnn.hpo.trial_configs import trial_config
from hydragnn.models import build_from_description
from hydragnn.runs.plan import described_branches

SOURCE = Path("CAMPAIGN.toml")
MEASURED = GraphStatistics(mean_log_degree=1.0, mean_degree=2.0, species=(1, 8))
POINTS = 4


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chains in space, with vectors."""
    path = tmp_path_factory.mktemp("paths") / "paths.h5"
    write_paths(path, 3)
    return path


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chains in space with all that any architecture asks for."""
    path = tmp_path_factory.mktemp("rich") / "rich.h5"
    write_paths(path, 3, rich=True)
    return path


def campaign(store: Path, heads: list[dict[str, Any]], **changes: Any) -> CampaignSettings:
    table = {"data": {"store": str(store)}, "heads": heads, "search": {"space": "default"}}
    for path, value in changes.items():
        with_value(table, path.replace("__", "."), value)
    return campaign_settings(json.loads(json.dumps(table)), SOURCE)


def test_one_line_searches_all_architectures_that_can_do_the_task_and_says_why_others_cannot(paths: Path) -> None:
    settings = campaign(paths, [FORCES])
    kinds = settings.search.space["model.kind"].choices
    assert settings.left_out is not None
    assert {*kinds, *settings.left_out} == {*architectures()}
    assert {kind for kind in kinds if not architecture_of(kind).sees_positions()} == set()
    for kind, reason in settings.left_out.items():
        assert not architecture_of(kind).sees_positions() or architecture_of(kind).requires, (kind, reason)
        assert reason and str(SOURCE) not in reason
    check_campaign(settings, space_of(settings.search.space))


@pytest.mark.parametrize("kind", architectures())
def test_every_point_of_an_architectures_space_builds_a_model(kind: str, rich: Path) -> None:
    settings = campaign(rich, [STRENGTH], model__kind=kind)
    space = space_of(settings.search.space)
    assert {f"model.{key}" for key in architecture_of(kind).Settings.searched} <= set(space.parameters)
    check_campaign(settings, space)
    for seed in range(POINTS):
        point = random_point(space, np.random.default_rng(seed))
        assert is_point(space, point)
        config = trial_config(settings, space, point, 0)
        assert isinstance(config, RunConfig)
        (branch,) = described_branches(config)
        model = build_from_description(replace(branch.model, statistics=MEASURED), seed=0)
        assert sum(weights.numel() for weights in model.parameters()) > 0


def test_data_with_all_that_architectures_ask_for_leave_none_out(rich: Path) -> None:
    settings = campaign(rich, [STRENGTH])
    assert settings.left_out == {} and settings.search.space["model.kind"].choices == [*architectures()]


@pytest.mark.parametrize("kind", architectures())
def test_what_an_architecture_says_is_searched_are_settings_of_its_own(kind: str) -> None:
    settings = architecture_of(kind).Settings
    assert set(settings.searched) <= set(settings.model_fields)
    for key, parameter in settings.searched.items():
        for value in parameter.get("choices") or [parameter["low"], parameter["high"]]:
            assert getattr(settings.parse({"kind": kind, key: value}), key) == value


def test_each_architecture_has_its_own_range_of_a_common_setting(paths: Path) -> None:
    settings = campaign(paths, [FORCES])
    space = space_of(settings.search.space)
    widths = {path: p for path, p in space.parameters.items() if path.partition("#")[0] == "model.hidden_dim"}
    assert len(widths) > 1
    for seed in range(40):
        point = random_point(space, np.random.default_rng(seed))
        own = [value for path, value in point.items() if path in widths]
        assert len(own) == 1
        searched = architecture_of(point["model.kind"]).Settings.searched["hidden_dim"]
        assert searched["low"] <= own[0] <= searched["high"]
        assert trial_config(settings, space, point, 0).model.hidden_dim == own[0]


def test_what_the_configuration_gives_is_not_searched(paths: Path) -> None:
    settings = campaign(
        paths, [FORCES], model={"hidden_dim": 24}, train={"learning_rate": 1e-3}, batch={"max_nodes": 99}
    )
    places = {path.partition("#")[0] for path in settings.search.space}
    assert not places & {"model.hidden_dim", "train.learning_rate", "batch.max_graphs"}
    one = campaign(paths, [FORCES], model={"kind": "egnn"})
    assert "model.kind" not in one.search.space and "model.attention" in one.search.space
    assert one.left_out == {}


def test_a_task_that_no_architecture_can_do_and_a_space_of_another_name_are_refused(paths: Path) -> None:
    with pytest.raises(InputError, match="no field enthalpy"):
        campaign(paths, [{"kind": "scalar", "field": "enthalpy"}])
    with pytest.raises(InputError, match="did you mean default"):
        campaign(paths, [STRENGTH], search__space="defalt")


def test_the_read_out_of_intensive_numbers_is_searched_where_nodes_have_no_species(paths: Path, rich: Path) -> None:
    flows = [STRENGTH, {"kind": "scalar", "field": "energy", "extensive": True}]
    space = campaign(paths, flows).search.space
    assert space["heads.0.pool"].choices == ["mean", "attention"] and "heads.1.pool" not in space
    for store, head in ((paths, {**STRENGTH, "pool": "max"}), (rich, STRENGTH)):
        assert not [path for path in campaign(store, [head]).search.space if path.startswith("heads")]


def test_two_parameters_of_one_key_never_hold_together(paths: Path) -> None:
    width = {"type": "int", "low": 8, "high": 16}
    space = {
        "model.kind": {"type": "categorical", "choices": ["schnet", "gin"]},
        "model.hidden_dim": width,
        "model.hidden_dim#gin": {**width, "when": {"model.kind": "gin"}},
    }
    settings = campaign(paths, [STRENGTH], search__space=space)
    with pytest.raises(InputError, match="set the same key"):
        check_campaign(settings, space_of(settings.search.space))
    space["model.hidden_dim"] = {**width, "when": {"model.kind": "schnet"}}
    settings = campaign(paths, [STRENGTH], search__space=space, search__trials=4)
    check_campaign(settings, space_of(settings.search.space))
    hidden = campaign(
        paths, [STRENGTH], search__space={**space, "data.store#x": {"type": "categorical", "choices": ["a"]}}
    )
    with pytest.raises(InputError, match="cannot be compared"):
        check_campaign(hidden, space_of(hidden.search.space))


def test_a_campaign_keeps_the_default_space_that_it_began_with(
    paths: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = campaign(paths, [FORCES])
    write_settings(as_begun(begun, tmp_path / "c"), [], tmp_path / "c")
    assert read_json(tmp_path / "c" / "campaign.json")["left_out"] == begun.left_out
    monkeypatch.setitem(TRAINING, "train.warmup_epochs", {"type": "float", "low": 0.0, "high": 1.0})
    later = campaign(paths, [FORCES])
    assert "train.warmup_epochs" in later.search.space
    resumed = as_begun(later, tmp_path / "c")
    assert resumed.search.space == begun.search.space
    assert resumed.left_out == begun.left_out == open_campaign(tmp_path / "c").left_out


def test_the_search_says_at_its_beginning_what_is_left_out(paths: Path, tmp_path: Path, fake_launcher: Any) -> None:
    settings = campaign(paths, [FORCES], train={"epochs": 2}, search__trials=2, search__sampler="random")
    notes: list[str] = []
    run_search(settings, tmp_path / "c", launcher=fake_launcher(), on_note=notes.append)
    (note,) = notes
    assert all(kind in note for kind in settings.left_out or {})


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_every_architecture_is_tried_once_before_the_sampler_chooses(sampler: str, paths: Path, tmp_path: Path) -> None:
    settings = campaign(paths, [FORCES], search__sampler=sampler)
    points = check_folder(settings, space_of(settings.search.space), tmp_path / "c", resume=False)
    assert [point["model.kind"] for point in points] == settings.search.space["model.kind"].choices
    assert all(is_point(space_of(settings.search.space), point) for point in points)


def test_what_acts_on_lengths_is_not_searched_where_graphs_have_no_positions(tmp_path: Path) -> None:
    ends = np.array([0, 1, 2]), np.array([1, 2, 0])
    size, energy = Field(name="size", on="node"), Field(name="energy", on="graph", role="target")
    with StoreWriter(tmp_path / "flat.h5", [size, energy], dim=0) as writer:
        for number in range(10):
            values = {"size": np.full(3, number, dtype=np.float32)}
            label = {"energy": np.float32(number)}
            writer.write(graph_from_arrays(np.zeros((3, 0)), *ends, fields=[size, energy], nodes=values, graphs=label))
    settings = campaign(tmp_path / "flat.h5", [{"kind": "scalar", "field": "energy"}])
    space = space_of(settings.search.space)
    assert "pna" in space.parameters["model.kind"].choices and "model.hidden_dim" in space.parameters
    assert not [path for path in space.parameters if path.partition("#")[0] in ("model.num_radial", "model.radial")]
    check_campaign(settings, space)
    radial = {"model.num_radial": {"type": "int", "low": 8, "high": 32}}
    table = {**settings.base, "model": {"kind": "pna"}, "search": {"space": radial}}
    asked = campaign_settings(table, SOURCE)
    with pytest.raises(
        InputError, match=r"model\.num_radial acts only on lengths of edges, and these graphs have no pos"
    ):
        check_campaign(asked, space_of(asked.search.space))
