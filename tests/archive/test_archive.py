"""Files of earlier versions are read for ever: they are never made anew."""

from pathlib import Path

import pytest

from hydragnn.datasets import check_store, open_store

HERE = Path(__file__).resolve().parent
FINGERPRINT = "14dec59ac01015593c2fb9c690cddcb5"


@pytest.mark.parametrize("name", ["store-v1.h5", "store-v1.bp"])
def test_stores_of_version_1_hold_the_same_graphs(name: str) -> None:
    store = open_store(HERE / name)
    assert check_store(HERE / name) == []
    assert store.fingerprint == FINGERPRINT
    batch = store.read(range(12))
    assert not batch.present("charge")[3] and batch.counts("edge")[5] == 0
    assert batch.periodic[1].tolist() == [True, False, False]
