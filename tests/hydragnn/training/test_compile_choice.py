"""``train.compile = "auto"``: where a run is long enough to gain by compiled steps, the same wherever it is asked."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.runs import train
from hydragnn.runs.compile_choice import MARGIN, choose_compiling, compile_gains, seconds_saved
from hydragnn.runs.plan import RunPlan, plan_run

CPU = torch.device("cpu")


@pytest.fixture
def plan(make_config: Callable[..., RunConfig], store: MemoryStore) -> Callable[..., RunPlan]:
    """The plan of a run that asks for ``auto``."""

    def make(kind: str = "pnaeq", **changes: object) -> RunPlan:
        return plan_run(make_config(kind, **{"train__compile": "auto", **changes}), store)

    return make


def test_long_runs_are_compiled_and_short_ones_are_not(plan: Callable[..., RunPlan]) -> None:
    """The least number of epochs that gains is the first one that is compiled; the sentence says what was compared."""
    [branch] = plan().branches
    gain = compile_gains()["pnaeq", True]
    least = 1 + int(MARGIN * gain.compiling / seconds_saved(branch, gain))
    assert least > 10
    for epochs, expected in ((least, True), (least - 1, False)):
        chosen, [sentence] = choose_compiling(plan(train__epochs=epochs), CPU, 1)
        assert chosen is expected
        assert sentence.startswith("steps are compiled" if expected else "steps are not compiled")
    assert choose_compiling(plan(train__epochs=least), CPU, 2)[0] is False
    assert choose_compiling(plan(train__epochs=2 * least), CPU, 2)[0] is True
    wider = plan(train__epochs=least // 2 + 1, model__hidden_dim=2 * branch.model.model.hidden_dim)
    assert choose_compiling(wider, CPU, 1)[0] is True


@pytest.mark.parametrize(
    ("kind", "changes", "device"),
    [
        ("schnet", {}, "cpu"),
        ("pnaeq", {"model__checkpoint_activations": True}, "cpu"),
        ("pnaeq", {}, "cuda"),
    ],
)
def test_steps_stay_as_they_are_where_nothing_is_known_to_be_gained(
    plan: Callable[..., RunPlan], kind: str, changes: dict[str, object], device: str
) -> None:
    """However long the run is, and the record says why."""
    chosen, [sentence] = choose_compiling(plan(kind, train__epochs=10**9, **changes), torch.device(device), 1)
    assert not chosen
    assert sentence.startswith("steps are not compiled: ")


def test_who_says_on_or_off_gets_it(plan: Callable[..., RunPlan]) -> None:
    """Without a sentence."""
    for word in ("on", "off"):
        assert choose_compiling(plan(train__compile=word), CPU, 1) == (word == "on", [])


def test_the_record_tells_the_choice(make_config: Callable[..., RunConfig], store: MemoryStore, tmp_path: Path) -> None:
    """A short run of ``auto`` is, bit for bit, the run of ``off``."""
    off, auto = (make_config("pnaeq", train__compile=word, train__epochs=2) for word in ("off", "auto"))
    records = [train(config, tmp_path / f"{number}", store=store) for number, config in enumerate((off, auto))]
    assert [record.compiled for record in records] == [False, False]
    assert records[0].curves["train/loss"] == records[1].curves["train/loss"]
    assert any("s to save" in note for note in records[1].notes)
