"""What MACE asks of its settings and of the training part."""

from pathlib import Path

import pytest
import torch

from hydragnn.architectures import GraphStatistics, architecture_of
from hydragnn.datasets import Normalisation
from hydragnn.errors import InputError
from hydragnn.graphs import ATOMIC_NUMBERS_FIELD
from hydragnn.graphs.field import Field
from hydragnn.models import build_model, load_model, parse_head, save_model

SIZE = Field(name="size", on="node")


@pytest.mark.parametrize(
    ("changes", "dim", "sentence"),
    [
        ({}, 2, "needs graphs in 3 dimensions, and these have 2"),
        ({"hidden_l": 2, "max_ell": 1}, 3, r"hidden_l = 2 is above model\.max_ell = 1"),
        ({"correlation": 4, "max_ell": 4}, 3, "lower one of them to 3"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, int], dim: int, sentence: str) -> None:
    field = Field(name="energy", on="graph", role="target")
    settings = architecture_of("mace").Settings.parse({"kind": "mace", **changes})
    with pytest.raises(InputError, match=sentence):
        build_model(
            settings,
            [parse_head({"field": "energy"})],
            [SIZE, field],
            inputs=["size"],
            dim=dim,
            seed=0,
            statistics=GraphStatistics(mean_log_degree=1.0),
        )


def test_species_of_the_training_part_have_weights_of_their_own_and_others_share_one_set(tmp_path: Path) -> None:
    numbers = ATOMIC_NUMBERS_FIELD
    energy = Field(name="energy", on="graph", role="target")
    statistics = GraphStatistics(mean_log_degree=1.0, mean_degree=2.0, species=(8, 26))
    settings = architecture_of("mace").Settings.parse({"kind": "mace", "hidden_dim": 4, "max_ell": 1})
    model = build_model(
        settings,
        [parse_head({"field": "energy"})],
        [numbers, energy],
        inputs=[numbers.name],
        dim=3,
        seed=0,
        statistics=statistics,
    )
    kinds = model.encoder.layers[0].kinds
    assert kinds.count == 3 and kinds.rows[torch.tensor([8, 26, 1, 27])].tolist() == [0, 1, 2, 2]
    save_model(tmp_path, model, Normalisation())
    assert load_model(tmp_path).model.description.statistics == statistics
