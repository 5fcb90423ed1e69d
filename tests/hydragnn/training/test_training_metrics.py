"""Errors are gathered as sums; parts and ranks merge without loss."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from hydragnn.datasets import Budget, MemoryStore
from hydragnn.graphs import GraphBatch
from hydragnn.models import Point, Target
from hydragnn.training import errors_on, trivial_predictor
from hydragnn.training.metrics import Errors, moments_of, target_moments
from tests.hydragnn.training.conftest import Configs, assembled

NUMBERS = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20)


def target_of(store: MemoryStore, name: str, **options: Any) -> Target:
    return Target(field=next(field for field in store.fields() if field.name == name), **options)


@given(NUMBERS, NUMBERS, st.floats(-1e9, 1e9))
def test_merged_moments_are_those_of_the_whole_even_far_from_zero(
    first: list[float], second: list[float], offset: float
) -> None:
    one, other = (torch.tensor(values, dtype=torch.float64).unsqueeze(1) + offset for values in (first, second))
    whole, merged = moments_of(torch.cat([one, other])), moments_of(one).merged(moments_of(other))
    assert merged.count == whole.count
    torch.testing.assert_close(merged.mean, whole.mean)
    torch.testing.assert_close(merged.squares, whole.squares, rtol=1e-9, atol=1e-6 + 1e-12 * abs(offset) * 1e3)


def test_merging_with_nothing_changes_nothing() -> None:
    nothing, some = moments_of(torch.zeros(0, 2)), moments_of(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    for merged in (nothing.merged(some), some.merged(nothing)):
        assert merged.count == 2 and merged.mean.tolist() == [2.0, 3.5]


def test_metrics_agree_with_scikit_learn_and_pass_over_missing_labels(store: MemoryStore) -> None:
    targets, part = [target_of(store, "forces"), target_of(store, "charge")], np.arange(28)

    def predict(batch: GraphBatch) -> dict[str, Point]:
        """Wrong by a sine of each label."""
        return {one.name: Point(mean=batch[one.name] + (1e3 * batch[one.name]).sin()) for one in targets}

    metrics, batch = errors_on(predict, store, part, targets, Budget(max_graphs=5)), store.read(part)
    for target in targets:
        present = batch.present(target.name)[batch.owner("node")]
        values = (batch[target.name], predict(batch)[target.name].mean)
        truth, guess = (one[present].reshape(-1, target.field.width).numpy() for one in values)
        actual = metrics[target.name]
        assert actual["count"] == truth.size
        assert actual["mae"] == pytest.approx(mean_absolute_error(truth, guess))
        assert actual["rmse"] == pytest.approx(root_mean_squared_error(truth.ravel(), guess.ravel()))
        assert actual["r2"] == pytest.approx(r2_score(truth, guess, multioutput="variance_weighted"))


def test_extensive_fields_have_errors_per_node(store: MemoryStore) -> None:
    target = target_of(store, "energy", extensive=True)
    batch = store.read([0, 1])
    errors = Errors([target])
    errors.add(target, Point(mean=batch["energy"] + torch.tensor([1.0, -2.0])), batch)
    actual = errors.values(target_moments([target], batch))["energy"]
    per_node = np.array([1.0, 2.0]) / batch.counts("node").numpy()
    assert actual["mae"] == 1.5 and actual["rmse"] == pytest.approx(math.sqrt(2.5))
    assert actual["mae_per_node"] == pytest.approx(per_node.mean())
    assert actual["rmse_per_node"] == pytest.approx(math.sqrt(np.square(per_node).mean()))


def test_a_field_without_labels_or_spread_has_no_r2(store: MemoryStore) -> None:
    target = target_of(store, "energy")
    batch = store.read([0])
    errors = Errors([target])
    nothing = {"mae": None, "rmse": None, "r2": None, "count": 0.0}
    assert errors.values({"energy": moments_of(torch.zeros(0, 1))})["energy"] == nothing
    errors.add(target, Point(mean=batch["energy"] + 1.0), batch)
    assert errors.values(target_moments([target], batch))["energy"]["r2"] is None


@pytest.mark.parametrize("references", [False, True, {"H": -1.0, "O": 2.0}], ids=["none", "fitted", "given"])
def test_the_trivial_predictor_is_the_best_constant_of_the_training_part(
    references: bool | dict[str, float], store: MemoryStore, make_config: Configs
) -> None:
    energy_head = {"kind": "energy", "field": "energy", "references": references, "forces": "forces"}
    config = make_config(heads=[energy_head, {"kind": "scalar", "field": "charge"}])
    (data,) = assembled(config, store).data.branches
    predict = trivial_predictor(store, data.split.train, data.targets, data.normalisation)
    on_training = errors_on(predict, store, data.split.train, data.targets, Budget(max_graphs=1024))
    assert on_training["charge"]["r2"] == pytest.approx(0.0, abs=1e-12)
    batch = store.read(data.split.valid)
    assert predict(batch)["forces"].mean.abs().max() == 0
    energy, nodes = predict(batch)["energy"].mean, batch.counts("node")
    if references:  # one value per species
        owners, species = batch.owner("node"), batch["atomic_numbers"]
        kinds = torch.stack([torch.bincount(owners[species == one], minlength=8) for one in (1, 8)])
        fitted = torch.linalg.lstsq(kinds.T.double(), energy.unsqueeze(1)).solution
        torch.testing.assert_close((kinds.T.double() @ fitted).squeeze(1), energy)
    else:  # one value per node
        torch.testing.assert_close(energy / nodes, (energy / nodes)[:1].expand(len(nodes)))


def test_normalisation_sees_the_training_part_only(store: MemoryStore, make_config: Configs) -> None:
    (data,) = assembled(make_config(), store).data.branches
    charges = store.read(data.split.train, ["charge"])
    present = charges.present("charge")[charges.owner("node")]
    assert data.normalisation.scales["charge"].mean[0] == pytest.approx(charges["charge"][present].mean().item())
