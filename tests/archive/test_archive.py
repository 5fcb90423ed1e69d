"""What version 1 wrote is read for ever: these files are never made anew."""

import json
from pathlib import Path

import pytest
import torch

from hydragnn.datasets import check_store, open_store
from hydragnn.models import load_model

HERE = Path(__file__).resolve().parent
EXPECTED = json.loads((HERE / "expected-v1.json").read_text())


@pytest.mark.parametrize("name", ["store-v1.h5", "store-v1.bp"])
def test_stores_of_version_1_hold_the_same_graphs(name: str) -> None:
    store = open_store(HERE / name)
    assert check_store(HERE / name) == []
    assert store.fingerprint == EXPECTED["fingerprint"]
    batch = store.read(range(12))
    assert not batch.present("charge")[3] and batch.edges_per_graph[5] == 0
    assert batch.periodic[1].tolist() == [True, False, False]


def test_models_of_version_1_predict_the_same_numbers() -> None:
    model = load_model(HERE / "model-v1", dtype=torch.float64)
    said = model.predict(open_store(HERE / "store-v1.h5").read(range(12)))
    for name, values in (
        ("energy", said["energy"].mean),
        ("charge", said["charge"].mean),
        ("charge_variance", said["charge"].variance),
    ):
        # other processors and libraries round differently; a changed format or formula is not a matter of rounding
        torch.testing.assert_close(values, torch.tensor(EXPECTED[name], dtype=torch.float64), rtol=1e-7, atol=1e-9)
