"""Several data sets on one trunk: branches take turns by their weights, and each is normalised, judged and predicted by itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hydragnn.base.errors import InputError
from hydragnn.base.files import read_json
from hydragnn.config import BranchedConfig
from hydragnn.datasets import MemoryStore
from hydragnn.graphs import Field, concatenate
from hydragnn.models import load_model
from hydragnn.training.loop import take_step
from tests.hydragnn.training.conftest import STORE, Trained, assembled, assert_same_end, branched, make_config
from tests.hydragnn.training.worker import clusters


def large_energies() -> MemoryStore:
    """Twelve clusters whose energies are a thousand times as large and start elsewhere."""
    graphs = clusters(12, seed=7).read(range(12))
    return MemoryStore(graphs.with_fields({"energy": 1000.0 * graphs["energy"] + 77.0}))


STORES = {"metals": STORE, "oxides": large_energies()}


def make(model: str = "schnet", **changes: Any) -> BranchedConfig:
    oxides = [{"kind": "energy", "field": "energy", "references": True, "hidden_dims": [8]}]
    return branched(make_config(model), {"metals": make_config(model).to_json()["heads"], "oxides": oxides}, **changes)


@pytest.mark.parametrize("model", ["painn", "pna"])
def test_each_branch_learns_and_predicts_in_its_own_units(model: str, trained: Trained, tmp_path: Path) -> None:
    record = trained("run", make(model, train__epochs=12), store=STORES)
    assert record.status == "finished"
    assert record.parts == {"train": 36, "valid": 11, "calibration": 0, "test": 5}
    assert record.branches["oxides"].parts == {"train": 8, "valid": 3, "calibration": 0, "test": 1}
    assert record.branches["oxides"].data_hash == STORES["oxides"].fingerprint
    assert record.curves["valid/loss"][-1] < record.curves["valid/loss"][0]
    for name, store in STORES.items():
        model_of = load_model(tmp_path / "run" / "model", torch.float64, branch=name)
        batch = store.read(range(len(store)))
        actual = model_of.predict(batch)[f"energy@{name}"].mean
        assert (actual - batch["energy"]).abs().mean() < 0.5 * batch["energy"].std()
    assert {target.name for target in model_of.targets} == {"energy@oxides"}
    assert "valid/charge@metals/mae" in record.best and "valid/charge@oxides/mae" not in record.best
    assert "valid/energy@oxides/mae" in record.trivial


def test_a_step_of_one_branch_leaves_the_heads_of_the_other_without_a_gradient() -> None:
    run = assembled(make(train__weight_decay=0.0), STORES)
    share = next(share for share in run.data.epoch(0) if share.branch == 1)
    called: list[str] = []
    for heads in run.state.model.heads[0]:
        heads.register_forward_hook(lambda *_: called.append("metals"))
    before = {name: value.clone() for name, value in run.state.model.state_dict().items()}
    take_step(run.state, share, run.context, 1e-2)
    moved = {name for name, value in run.state.model.state_dict().items() if not torch.equal(value, before[name])}
    assert not called
    assert any(name.startswith("trunk.encoder") for name in moved) and any(name.startswith("heads.1") for name in moved)
    assert not any(name.startswith("heads.0") for name in moved)


@pytest.mark.parametrize("weight", [0.5, 1.0, 1.7, 2.0])
def test_an_epoch_shows_the_graphs_of_a_branch_as_often_as_its_weight_says(weight: float) -> None:
    run = assembled(make(branches__1__weight=weight, batch__max_graphs=2), STORES)
    shares = [share for epoch in range(10) for share in run.data.epoch(epoch) if share.branch == 1]
    shown = [part["energy"] for share in shares for part in share.parts]
    assert len(shown) == 4 * 10 * weight
    times = torch.cat(shown).unique(return_counts=True)[1]
    assert len(times) == 8 and set(times.tolist()) == {int(10 * weight)}  # whole passes: every graph equally often
    assert {share.branch for share in run.data.epoch(0)} == {0, 1}


def test_turns_of_branches_are_spread_evenly_over_the_epoch() -> None:
    run = assembled(make(batch__max_graphs=2), STORES)
    turns = [run.data.turns(epoch) for epoch in range(20)]
    for one in turns:
        assert np.bincount(one).tolist() == [14, 4]
        between = np.diff(np.flatnonzero(one == 1)) - 1
        assert set(between.tolist()) <= {3, 4}  # 14 / 4 = 3.5 batches of the first data set between two of the second
    assert len({tuple(one.tolist()) for one in turns}) > 1  # the second's first batch comes earlier or later
    equal = assembled(make(branches__1__weight=3.5, batch__max_graphs=2), STORES).data
    for epoch in range(20):
        assert np.abs(np.diff(equal.turns(epoch))).tolist() == [1] * 27  # strictly one after the other


@pytest.mark.parametrize(
    "changes", [{}, {"branches__0__data__window": 16}, {"batch": {"max_graphs": 0, "max_nodes": 25}}]
)
def test_an_epoch_can_be_entered_at_any_step(changes: dict[str, Any]) -> None:
    run = assembled(make(branches__1__weight=1.5, **changes), STORES)
    for epoch in (0, 1):
        whole = list(run.data.epoch(epoch))
        assert len(whole) == run.data.steps(epoch)
        for start in range(len(whole) + 1):
            rest = list(run.data.epoch(epoch, start))
            assert [share.branch for share in rest] == [share.branch for share in whole[start:]]
            for one, other in zip(rest, whole[start:]):
                assert torch.equal(concatenate(one.parts)["energy"], concatenate(other.parts)["energy"])


def test_a_run_in_segments_has_the_bits_of_one_in_one_go(trained: Trained, tmp_path: Path) -> None:
    config = make(branches__1__weight=1.5)
    trained("whole", config, store=STORES)
    trained("parts", config, store=STORES, until=1)
    trained("parts", config, store=STORES, resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")
    elsewhere = make(branches__1__weight=1.5, branches__0__data__store="moved.h5")
    assert trained("parts", elsewhere, store=STORES, resume=True).status == "finished"
    with pytest.raises(InputError, match="another configuration"):
        trained("parts", make(branches__1__weight=2.0), store=STORES, resume=True)


def test_equal_inputs_look_equal_to_the_trunk_whatever_the_data_set() -> None:
    def with_heat(count: int, seed: int, around: float) -> MemoryStore:
        graphs = clusters(count, seed).read(range(count))
        heat = torch.full((count,), around, dtype=torch.float64) + torch.arange(count)
        field = Field(name="heat", on="graph", unit="K", dtype="float64")
        return MemoryStore(graphs.with_fields({"heat": heat}, fields=[field]))

    stores = {"metals": with_heat(20, 0, 300.0), "oxides": with_heat(20, 1, 900.0)}
    inputs = ["atomic_numbers", "heat"]
    run = assembled(make(branches__0__data__inputs=inputs, branches__1__data__inputs=inputs[::-1]), stores)
    cold, hot = (branch.normalisation for branch in run.data.branches)
    assert cold.scales["heat"] == hot.scales["heat"]
    together = torch.cat([stores[one.name].read(one.split.train)["heat"] for one in run.data.branches])
    assert cold.scales["heat"].mean[0] == pytest.approx(together.mean().item())
    assert cold.scales["heat"].std[0] == pytest.approx(together.std(unbiased=False).item())
    assert cold.scales["energy"] != hot.scales["energy"]


UNREADABLE: list[tuple[str, Any, str]] = [
    ("0__data__inputs", ["atomic_numbers", "length"], "metals reads the input length, and branch oxides does not"),
    ("1__data__inputs", ["lenght"], r"branch oxides: data.inputs: the store has no field lenght"),
    ("1__weight", 0.1, "branch oxides: weight = 0.1 leaves an epoch less than one"),
    (
        "1__heads",
        [{"kind": "scalar", "field": "enrgy"}],
        "branch oxides: heads: .* no field enrgy; did you mean energy",
    ),
]


@pytest.mark.parametrize(("key", "value", "words"), UNREADABLE)
def test_what_one_trunk_cannot_read_is_refused_with_a_sentence(key: str, value: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        assembled(make(**{f"branches__{key}": value}), STORES)


def test_a_configuration_says_what_its_branches_are() -> None:
    config = make()
    assert config.targets == ["energy@metals", "forces@metals", "charge@metals", "energy@oxides"]
    assert BranchedConfig.parse(config.to_json()) == config
    assert config.of_branch("metals") == make_config()
    with pytest.raises(InputError, match=r"no branch metal; did you mean metals.*branches: metals, oxides"):
        config.of_branch("metal")
    for changes, message in (
        ({"branches__1__name": "metals"}, "two are named metals"),
        ({"branches__1__name": ""}, "branches.1 has no name"),
        ({"branches__1__name": "a@b"}, "branches.1.name"),
        ({"heads": []}, "heads belongs to a branch"),
        ({"branches__1__weight": 0}, "branches.1.weight"),
    ):
        with pytest.raises(InputError, match=message):
            make(**changes)


def test_a_model_with_branches_asks_for_one_of_them(trained: Trained, tmp_path: Path) -> None:
    trained("run", make(), store=STORES, until=1)
    model = tmp_path / "run" / "model"
    assert read_json(model / "model.json")["version"] == 4
    for branch, words in (("", "several branches, and none was named"), ("metal", "no branch metal")):
        with pytest.raises(InputError, match=f"{words}; name one of metals, oxides"):
            load_model(model, branch=branch)
