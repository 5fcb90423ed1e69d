"""Ranks that share channels or layers compute what one rank computes, whatever the architecture."""

import json
from pathlib import Path
from typing import Any

import pytest

from hydragnn.base.errors import InputError
from hydragnn.runs.plan import plan_run
from tests.forked import ends_of_ranks
from tests.hydragnn.distributed.splitting import CASES, STAGES, WITHOUT_FORCES, configuration
from tests.hydragnn.training.worker import clusters
from tests.once import shared

WORKER = Path(__file__).with_name("splitting.py")
ROUNDING = 1e-12
"""Sums of some dozen numbers in another order, in double precision, through two derivatives and ten layers."""
PLAIN = {"heads": WITHOUT_FORCES}
ATTENTION = {"global_attention": {"kind": "linear", "heads": 3}}
SPLIT = {
    "equivariant_transformer": 0.75,
    "field_tokens": 0.7,
    "painn": 0.7,
    "painn beside attention": 0.7,
    "schnet": 0.85,
}
"""Largest share of the weights that a rank of two holds at 8 channels, where networks of 6 radial functions and small heads stay whole."""


@shared
def comparisons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every case by two ranks, one after the other in the same two processes, which check the operations' derivatives before."""
    out = tmp_path_factory.mktemp("channels") / "out.json"
    for code, output in ends_of_ranks(2, WORKER, out):
        assert code == 0, output
    result: dict[str, dict[str, Any]] = json.loads(out.read_text())
    return result


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_that_share_channels_have_the_losses_and_gradients_of_one_and_bit_for_bit_where_both_hold_weights(
    name: str, comparisons: dict[str, dict[str, Any]]
) -> None:
    result = comparisons[name]
    assert result["loss"] <= ROUNDING and result["gradient"] <= ROUNDING and result["same bits"], result


@pytest.mark.parametrize("name", SPLIT)
def test_what_is_wide_is_split(name: str, comparisons: dict[str, dict[str, Any]]) -> None:
    assert comparisons[name]["share"] <= SPLIT[name]


@pytest.mark.parametrize(
    ("model", "ranks", "words"),
    [
        ({"kind": "schnet", "hidden_dim": 6}, 4, "parallel.tensor = 4 does not divide model.hidden_dim = 6"),
        ({"kind": "equivariant_transformer", "hidden_dim": 12, "heads": 3}, 2, "does not divide model.heads = 3"),
        ({"kind": "painn", "hidden_dim": 12, **ATTENTION}, 2, "does not divide model.global_attention.heads = 3"),
    ],
)
def test_channels_that_do_not_divide_are_one_sentence(model: dict[str, Any], ranks: int, words: str) -> None:
    kind = model.pop("kind")
    with pytest.raises(InputError, match=words):
        plan_run(configuration(kind, model, parallel={"tensor": ranks}), clusters(12))


@pytest.mark.parametrize("name", STAGES)
def test_two_stages_have_the_gradients_and_predictions_of_one_rank_and_every_weight_once(
    name: str, comparisons: dict[str, dict[str, Any]]
) -> None:
    result = comparisons["stages"][name]
    assert result["gradient"] <= ROUNDING and result["predictions"] <= ROUNDING, result
    assert result["held once"] and result["share"] < 0.85


@pytest.mark.parametrize(
    ("changes", "more", "chunks", "words"),
    [
        ({}, {}, 1, "head energy has forces or stress, whose backward pass lies in the forward pass"),
        ({"num_layers": 1}, PLAIN, 1, "takes a layer per stage, and model.num_layers is 1"),
        ({"num_layers": 3}, PLAIN, 2, "takes a layer per chunk, 4 with chunks = 2, and model.num_layers is 3"),
        (
            {"pooling": {"levels": 1}},
            PLAIN,
            1,
            "model.pooling exchanges levels of whole graphs between layers",
        ),
    ],
)
def test_a_pipeline_that_cannot_be_is_one_sentence(
    changes: dict[str, Any], more: dict[str, Any], chunks: int, words: str
) -> None:
    config = configuration("schnet", changes, parallel={"pipeline": 2, "chunks": chunks}, **more)
    with pytest.raises(InputError, match=words):
        plan_run(config, clusters(12, related=True))
