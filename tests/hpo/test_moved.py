"""Campaigns and stores that were moved: they go on where the graphs are the same, and nowhere else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rings import write_rings

from hydragnn.base.errors import InputError
from hydragnn.base.files import read_sealed, write_json
from hydragnn.hpo import CampaignSettings, LocalLauncher, campaign_settings, run_search
from hydragnn.runs.moved import name_store
from hydragnn.scripts import api

Launchers = Callable[..., LocalLauncher]
BEFORE = 3  # trials before the move


@pytest.fixture
def begin(table: dict[str, Any], fake_launcher: Launchers) -> Callable[..., Any]:
    """Search in a folder for so many trials, with the store at a place."""

    def run(out: Path, place: Path, trials: int, **options: Any) -> Any:
        return run_search(settings_of(table, place, trials), out, launcher=fake_launcher(), **options)

    return run


def settings_of(table: dict[str, Any], place: Path, trials: int) -> CampaignSettings:
    """The campaign of the table on another store."""
    search = {**table["search"], "trials": trials, "rungs": [], "finalists": 0}
    return campaign_settings({**table, "data": {"store": str(place)}, "search": search}, place.parent / "CAMPAIGN.toml")


def places(out: Path) -> set[str]:
    """The stores that the configurations of all trials name."""
    return {json.loads(path.read_text())["data"]["store"] for path in out.glob("trials/*/config.json")}


def test_a_campaign_and_its_store_go_on_elsewhere(begin: Callable[..., Any], tmp_path: Path) -> None:
    write_rings(tmp_path / "a.h5", 40)
    begin(tmp_path / "c", tmp_path / "a.h5", BEFORE)
    (tmp_path / "new").mkdir()
    store = (tmp_path / "a.h5").rename(tmp_path / "new" / "b.h5")
    out = (tmp_path / "c").rename(tmp_path / "new" / "d")
    result = begin(out, store, BEFORE + 1, resume=True)
    assert (result.ending, result.finished) == ("finished", BEFORE + 1)
    assert places(out) == {str(store)}


def test_another_store_at_the_old_or_a_new_place_is_refused(begin: Callable[..., Any], tmp_path: Path) -> None:
    out, store = tmp_path / "c", tmp_path / "a.h5"
    write_rings(store, 40)
    begin(out, store, BEFORE)
    write_rings(tmp_path / "other.h5", 39)
    with pytest.raises(InputError, match=r"other\.h5 holds other graphs than the one \(that was .*a\.h5\) with which"):
        begin(out, tmp_path / "other.h5", BEFORE + 1, resume=True)
    store.rename(tmp_path / "kept.h5")
    write_rings(store, 39)
    with pytest.raises(InputError, match=r"a\.h5 holds other graphs than the one with which the campaign"):
        begin(out, store, BEFORE + 1, resume=True)
    assert places(out) == {str(store)}
    assert begin(out, tmp_path / "kept.h5", BEFORE + 1, resume=True).finished == BEFORE + 1


def test_an_ensemble_is_told_where_the_store_lies_and_its_members_remember(
    table: dict[str, Any], tmp_path: Path
) -> None:
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
