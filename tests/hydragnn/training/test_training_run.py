"""One run from configuration to record."""

import math

import pytest
import torch

from hydragnn.models import load_model
from hydragnn.record import read_record
from hydragnn.training import evaluate, train


def test_a_run_leaves_its_record_its_configuration_and_a_model_that_predicts(store, make_config, tmp_path):
    config = make_config(train__epochs=4)
    record = train(config, tmp_path / "run", store=store)
    assert record.status == "finished" and record.epochs == 4
    assert read_record(tmp_path / "run") == record
    assert record.parts == {"train": 28, "valid": 8, "test": 4}
    assert all(len(curve) == 4 for curve in record.curves.values())
    for name in ("train/loss", "valid/loss", "learning_rate", "valid/energy/mae", "valid/energy/mae_per_node"):
        assert all(math.isfinite(value) for value in record.curves[name])
    assert record.best["valid/loss"] == min(record.curves["valid/loss"])
    model = load_model(tmp_path / "run" / "model", dtype=torch.float64)
    from hydragnn.datasets import make_split

    metrics = evaluate(model, store, make_split(store, config.split).valid)
    for field in ("energy", "forces", "charge"):
        for name in ("mae", "rmse", "r2"):
            assert metrics[field][name] == pytest.approx(record.best[f"valid/{field}/{name}"], rel=1e-9)
