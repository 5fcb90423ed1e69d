"""Steps recorded once and replayed: the same numbers, and nothing that a graph of a device cannot do."""

from collections.abc import Callable

import pytest
import torch

from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.distributed import Ranks
from hydragnn.runs import recording
from hydragnn.runs.assembly import Assembly, assemble
from hydragnn.runs.plan import plan_run
from hydragnn.runs.recording import with_replays
from hydragnn.training.data import DevicePlacement
from hydragnn.training.loop import take_step
from tests.hydragnn.training.conftest import MODELS
from tests.hydragnn.training.recorder import StandIn

Configs = Callable[..., RunConfig]
CPU = DevicePlacement(device=torch.device("cpu"), dtype=torch.float64)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """What records on this CPU."""
    stand_in = StandIn()
    monkeypatch.setattr(recording, "recorder_on", lambda device: stand_in)
    return stand_in


def run_of(config: RunConfig, store: MemoryStore) -> Assembly:
    return with_replays(assemble(plan_run(config, store), CPU, Ranks(), lambda: None), Ranks(), lambda: None)


@pytest.mark.parametrize("model", sorted(set(MODELS) - {"relational", "dimenet"}))
def test_replayed_steps_are_the_steps(model: str, store: MemoryStore, make_config: Configs, recorder: StandIn) -> None:
    heads = None if model not in ("gin", "sage", "mfc") else [{"kind": "scalar", "field": "charge", "hidden_dims": [8]}]
    plain, replayed = (
        run_of(make_config(model, heads, train__ema_decay=0.9, train__graphs=graphs), store) for graphs in ("off", "on")
    )
    assert replayed.record.graphs, replayed.record.notes
    for share in list(plain.data.epoch(0))[:3]:
        results = [take_step(run.state, share, run.context, 1e-2) for run in (plain, replayed)]
        torch.testing.assert_close(results[1].loss, results[0].loss, rtol=1e-12, atol=0)
        torch.testing.assert_close(results[1].norm, results[0].norm, rtol=1e-11, atol=0)
    assert recorder.replays >= len(recorder.recorded) > 0
