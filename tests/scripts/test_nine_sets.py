"""Nine data sets as people have them, each built by one file and trained."""

from pathlib import Path

import pytest

import hydragnn
from tests.scripts.nine_sets import SETS, build


@pytest.mark.parametrize("name", SETS)
def test_a_data_set_as_people_have_them_trains_beside_a_simple_predictor(name: str, tmp_path: Path) -> None:
    one = SETS[name]
    store = build(name, tmp_path, max(24, one.count // 10))
    record = hydragnn.train(one.run(store, epochs=2), out=tmp_path / "run")
    assert record.status == "finished"
    targets = {head["field"] for head in one.heads}
    assert targets <= {key.split("/")[1] for key in record.trivial}
