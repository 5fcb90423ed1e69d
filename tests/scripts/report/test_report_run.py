"""The report of a run that was really trained."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydragnn.config import RunConfig
from hydragnn.datasets import make_split, open_store
from hydragnn.models import load_model
from hydragnn.runs import train
from hydragnn.scripts.report.collect import collect
from hydragnn.training.baselines import baseline_errors, fitted_baselines
from tests.once import shared


@shared
def trained(samples: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = json.loads((samples.ensemble / "members" / "0" / "record.json").read_text())["config"]
    config["model"] = {"kind": "painn", "hidden_dim": 8, "num_layers": 1, "cutoff": 5.0, "num_radial": 4}
    config["train"] = {"epochs": 1}
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(RunConfig.parse(config), folder)
    return folder


def test_dots_of_the_parity_plot_have_the_errors_that_training_recorded(trained: Path) -> None:
    facts = collect(trained)
    part = facts.parts["valid"]
    assert set(part.points) == {"energy", "forces", "charge"}
    for name, one in part.scores.items():
        error, model = part.points[name].error, one.members["model"]
        assert float(np.abs(error).mean()) == pytest.approx(model["mae"], rel=1e-4)  # float32 predictions
        assert float(np.sqrt((error**2).mean())) == pytest.approx(model["rmse"], rel=1e-4)
    graphs, counts = np.unique(part.points["charge"].graph, return_counts=True)
    assert facts.data is not None and len(graphs) == facts.data.parts["valid"]
    assert counts.tolist() == facts.data.sizes.nodes[graphs].tolist()


def test_simple_baselines_of_a_run_are_those_of_its_own_training_and_validation_parts(trained: Path) -> None:
    model, config = load_model(trained / "model"), RunConfig.parse(json.loads((trained / "config.json").read_text()))
    store = open_store(config.data.store)
    split = make_split(store, config.split)
    fitted = fitted_baselines(store, split.train, model.targets, model.inputs)
    expected = baseline_errors([(fitted, split.valid)], store, model.targets)
    scores = collect(trained).parts["valid"].scores
    assert set(expected) == {"energy", "charge"} and not scores["forces"].baselines
    for name, by_baseline in expected.items():
        assert {key: one["mae"] for key, one in scores[name].baselines.items()} == {
            key: metrics["mae"] for key, metrics in by_baseline.items()
        }
