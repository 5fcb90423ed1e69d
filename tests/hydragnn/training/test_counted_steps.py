"""Operations and bytes of steps: what a count by hand gives, moved by nothing."""

from typing import Any
from unittest.mock import patch

import pytest
import torch

from hydragnn.distributed import Ranks
from hydragnn.kernels.counting import Counter
from hydragnn.record import read_record
from hydragnn.runs import counting
from hydragnn.runs.session import train
from tests.hydragnn.training.by_hand import Hand
from tests.hydragnn.training.conftest import STORE, assembled, make_config
from tests.hydragnn.training.hand_written import WRITTEN, Sizes

SIZES = {"small": (32, 2, 4), "medium": (64, 2, 6), "large": (128, 3, 8)}
"""Channels, layers and radial functions; MACE has half the channels and two layers."""


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", WRITTEN)
def test_a_count_by_hand_gives_the_same(kind: str, size: str) -> None:
    channels, layers, radial = SIZES[size]
    if kind == "mace":
        channels, layers = channels // 2, 2
    head = {"kind": "energy", "field": "energy", "hidden_dims": [8]}
    head |= {} if kind == "pna" else {"forces": "forces", "forces_weight": 10.0}
    model = {"hidden_dim": channels, "num_layers": layers, "num_radial": radial, "repulsion": "none"}
    changes: dict[str, Any] = {f"model__{name}": value for name, value in model.items()}
    run = assembled(make_config(kind, heads=[head], batch__max_graphs=100, **changes), STORE, torch.float32)
    share, _ = counting.first_share(run.data.branches[0], 0)
    (part,) = share.parts
    counts = counting.counts_of_gradient(run, share)
    sizes = Sizes(part.num_nodes, part.num_edges, channels, layers, radial, run.state.model)
    hand = WRITTEN[kind](Hand(), sizes)
    assert counts.flops == pytest.approx(hand.flops, rel=0.05)
    assert counts.bytes == pytest.approx(hand.bytes, rel=0.05)


@pytest.mark.parametrize(
    "settings",
    [{"model__dropout": 0.5}, {"train__optimizer": "sgd"}, {"train__ema_decay": 0.9, "train__clip_norm": 1.0}],
    ids=str,
)
def test_a_counted_step_moves_nothing(settings: dict[str, Any]) -> None:
    run = assembled(make_config("painn", **settings), STORE)
    run.state.totals += 1.0
    before = {name: value.clone() for name, value in run.state.tensors().items()}
    random = torch.random.get_rng_state()
    counts = counting.counts_of_step(run)
    assert counts.flops > 0 and torch.equal(random, torch.random.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in run.state.tensors().items())
    assert (run.state.totals == 1.0).all() and not run.state.parameters.gradient.any()
    assert counts == counting.counts_of_step(run)


def test_a_run_records_the_work_of_its_steps(tmp_path: Any) -> None:
    config = make_config("schnet", train__epochs=2)
    run = assembled(config, STORE)
    flops, moved = counting.step_totals(run, Ranks())
    steps = sum(run.data.steps(epoch) for epoch in range(2))
    train(config, tmp_path / "run", store=STORE, until=1)
    train(config, tmp_path / "run", store=STORE, resume=True)
    usage = read_record(tmp_path / "run").usage
    assert (usage.flops, usage.bytes) == pytest.approx((steps * flops, steps * moved))


def test_a_step_that_cannot_be_counted_is_unknown(tmp_path: Any) -> None:
    with patch.object(Counter, "add", side_effect=NotImplementedError):
        record = train(make_config("schnet", train__epochs=1), tmp_path / "run", store=STORE)
    assert record.status == "finished" and record.usage.flops == record.usage.bytes == 0
