"""What is measured on the data at the start: each block by one rank, and the same bits for any number of ranks."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hydragnn.base.errors import InputError
from hydragnn.base.files import read_json
from hydragnn.datasets import MemoryStore, Survey
from hydragnn.datasets import survey as survey_module
from hydragnn.distributed import Ranks
from hydragnn.record import read_record
from hydragnn.runs.preparation import check_on_all
from tests.hydragnn.training.conftest import Configs, Trained


def test_two_ranks_measure_the_data_with_the_bits_of_one(
    trained: Trained, make_config: Configs, train_on_ranks: Callable[..., str], tmp_path: Path
) -> None:
    config = make_config("pna", train__epochs=1)
    alone = trained("alone", config)
    train_on_ranks({tmp_path / "pair": config}, 2)
    for key in ("normalisation", "statistics"):
        here, there = (read_json(tmp_path / name / "model" / "model.json").get(key) for name in ("alone", "pair"))
        assert here == there, key
    assert read_record(tmp_path / "pair").trivial == alone.trivial


def test_a_survey_reads_a_field_once(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[str, int]] = []
    column = MemoryStore.column

    def noted(self: MemoryStore, name: str, start: int = 0, stop: int | None = None) -> object:
        read.append((name, start))
        return column(self, name, start, stop)

    monkeypatch.setattr(MemoryStore, "column", noted)
    monkeypatch.setattr(survey_module, "BLOCK", 16)
    survey = Survey(store, np.arange(20))
    forces = next(field for field in store.fields() if field.name == "forces")
    assert survey.summary(forces) is survey.summary(forces)
    assert read == [("forces", 0), ("forces", 16)]  # no graph of the training part lies beyond


class OtherRankFoundDamage(Ranks):
    """The first of two ranks, whose peer adds a one to single numbers: it has found something."""

    def sum_in_place(self, values: torch.Tensor) -> torch.Tensor:
        return values + 1 if values.is_floating_point() and not values.dim() else values


def test_damage_that_only_another_rank_sees_ends_the_run() -> None:
    with pytest.raises(InputError, match="and the first rank none; copy the store anew"):
        check_on_all(lambda graphs: None, np.arange(10), OtherRankFoundDamage(size=2))
