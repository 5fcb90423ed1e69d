"""Operations and bytes of steps: what a count by hand gives, moved by nothing."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from hydragnn.base.clock import steps_of
from hydragnn.kernels import counting
from hydragnn.kernels.counting import Counter
from hydragnn.runs.counting import StepWork
from hydragnn.runs.session import DTYPES, train
from hydragnn.training.loop import gradient_of_share, take_step
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
    share = next(run.data.epoch(0))
    (part,) = share.parts
    with Counter() as counter:
        gradient_of_share(run.state, share, run.context)
    sizes = Sizes(part.num_nodes, part.num_edges, channels, layers, radial, run.state.model)
    hand = WRITTEN[kind](Hand(), sizes)
    assert counter.totals == pytest.approx((hand.flops, hand.bytes), rel=0.05)


MODELS = (
    [(kind, {}) for kind in ("schnet", "pna", "mace")]
    + [("painn", {"model__dropout": 0.5, "train__precision": precision}) for precision in ("fp64", "bf16")]
    + [("painn", {"train__optimizer": "sgd", "train__ema_decay": 0.9, "train__clip_norm": 1.0})]
)


@pytest.mark.parametrize(("kind", "settings"), MODELS, ids=str)
def test_a_counted_step_has_the_bits_of_others(kind: str, settings: dict[str, Any]) -> None:
    states = []
    for counts in (False, True):
        config, work = make_config(kind, **settings), StepWork()
        run = assembled(config, STORE, DTYPES[config.train.precision])
        context = replace(run.context, counting=work.counting) if counts else run.context
        for share in steps_of(run.data.epoch(0)):
            take_step(run.state, share, context, 1e-3)
        states.append((run.state.tensors(), run.state.totals, torch.random.get_rng_state()))
    assert min(work.totals) > 0
    torch.testing.assert_close(*states, rtol=0, atol=0)


def test_a_run_records_the_work_of_its_segments_steps(tmp_path: Any) -> None:
    config = make_config("schnet", train__epochs=3)
    first = train(config, tmp_path / "run", store=STORE, until=1).usage
    usage = train(config, tmp_path / "run", store=STORE, resume=True).usage
    assert (usage.flops, usage.bytes) == pytest.approx((3 * first.flops, 3 * first.bytes), rel=0.05)


def fails(*_: Any) -> Any:
    raise NotImplementedError


def test_what_cannot_be_counted_is_unknown(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "bytes_of", fails)
    record = train(make_config("schnet", train__epochs=1), tmp_path / "run", store=STORE)
    assert record.status == "finished" and record.usage.flops == record.usage.bytes == 0
