"""Ranks that share channels or layers compute what one rank computes, whatever the architecture."""

import json
from pathlib import Path
from typing import Any

import pytest

from hydragnn.base.errors import InputError
from hydragnn.runs.plan import plan_run
from tests.forked import ends_of_ranks
from tests.hydragnn.distributed.splitting import CASES, GRAPHS, STAGES, WITHOUT_FORCES, configuration
from tests.hydragnn.training.conftest import CHARGE
from tests.once import shared

WORKER = Path(__file__).with_name("splitting.py")
ROUNDING = 1e-12
"""Sums of some dozen numbers in another order, in double precision, through two derivatives and ten layers."""
PLAIN = {"heads": WITHOUT_FORCES}
ATTENTION = {"global_attention": {"kind": "linear", "heads": 3}}
ALL_PAIRS = {"global_attention": {"kind": "equivariant", "heads": 2, "cutoff": 2.0}}
TWO = {"tensor": 2}
SPLIT = {"equivariant_transformer": 0.75, "schnet": 0.85}
SPLIT |= dict.fromkeys(("field_tokens", "painn", "painn beside attention"), 0.7)
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
def test_two_ranks_that_share_channels_have_losses_and_gradients_of_one(
    name: str, comparisons: dict[str, dict[str, Any]]
) -> None:
    result = comparisons[name]
    assert result["loss"] <= ROUNDING and result["gradient"] <= ROUNDING and result["same bits"], result


@pytest.mark.parametrize("name", SPLIT)
def test_what_is_wide_is_split(name: str, comparisons: dict[str, dict[str, Any]]) -> None:
    assert comparisons[name]["share"] <= SPLIT[name]


@pytest.mark.parametrize("name", STAGES)
def test_two_stages_compute_what_one_rank_does_and_hold_weights_once(
    name: str, comparisons: dict[str, dict[str, Any]]
) -> None:
    result = comparisons["stages"][name]
    assert result["gradient"] <= ROUNDING and result["predictions"] <= ROUNDING, result
    assert result["held once"] and result["share"] < 0.85


GRAPH, PIPE, CHUNKS = {"graph": 2}, {"pipeline": 2}, {"pipeline": 2, "chunks": 2}
POOLED = "model.pooling exchanges levels of whole graphs between layers"
REFUSED: list[tuple[str, dict[str, Any], dict[str, int], dict[str, Any], str]] = [
    ("schnet", {"hidden_dim": 6}, {"tensor": 4}, {}, "parallel.tensor = 4 does not divide model.hidden_dim = 6"),
    ("equivariant_transformer", {"hidden_dim": 12, "heads": 3}, TWO, {}, "does not divide model.heads = 3"),
    ("painn", {"hidden_dim": 12, **ATTENTION}, TWO, {}, "= 3, which its ranks would share, and is no multiple of it"),
    ("painn", {**ALL_PAIRS}, {"tensor": 4}, {}, "does not divide model.global_attention.heads = 2"),
    ("schnet", {"num_layers": 1}, PIPE, PLAIN, "takes a layer per stage, and model.num_layers is 1"),
    (
        "schnet",
        {"num_layers": 3},
        CHUNKS,
        PLAIN,
        "takes a layer per chunk, 4 with chunks = 2, and model.num_layers is 3",
    ),
    (
        "schnet",
        {"pooling": {"levels": 1}},
        PIPE,
        PLAIN,
        POOLED,
    ),
    ("dimenet", {}, GRAPH, {}, "model dimenet reads pairs of consecutive edges"),
    ("schnet", ALL_PAIRS, GRAPH, {}, "looks at all pairs of nodes"),
    ("schnet", {}, GRAPH, {"heads": [{**CHARGE, "loss": "relative"}]}, 'loss = "relative"'),
]


@pytest.mark.parametrize(("kind", "model", "layout", "more", "words"), REFUSED)
def test_a_layout_that_cannot_be_is_one_sentence(
    kind: str, model: dict[str, Any], layout: dict[str, int], more: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        plan_run(configuration(kind, model, parallel=layout, **more), GRAPHS)
    if layout == GRAPH:
        plan_run(configuration(kind, model, **more), GRAPHS)
