"""How many threads a prediction computes with: one per process, since processes share its cores, unless something else was asked for."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hydragnn.ensemble.prediction import reporting, work
from hydragnn.ensemble.prediction.predict import predict_to_file


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """This process computes with two, whatever it had."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """With how many threads units were predicted."""
    seen, original = set[int](), work.outcome_of

    def noting(*known: Any) -> Any:
        seen.add(torch.get_num_threads())
        return original(*known)

    monkeypatch.setattr(work, "outcome_of", noting)
    return seen


@pytest.mark.parametrize(("asked", "threads"), [(None, 1), ("2", 2)])
def test_a_process_predicts_with_one_thread_or_as_many_as_were_asked_for_and_its_caller_keeps_his(
    asked: str | None,
    threads: int,
    ensemble: Path,
    stored: Path,
    seen: set[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    predict_to_file(ensemble, stored, tmp_path / "out.h5")
    assert seen == {threads} and torch.get_num_threads() == 2
    assert json.loads((tmp_path / "out.h5.plan.json").read_text())["planned"]["threads"] == threads


def test_one_process_beside_idle_cores_says_what_would_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "cores", lambda: 4)
    monkeypatch.setattr(reporting, "visible_gpus", lambda: 0)
    plan = {"units": 6, "tasks": 2, "workers": 1, "ratio": 1.0, "threads": 1}
    assert reporting.plan_line(plan).endswith(
        "on 1 rank of 1 thread; makespan 1.000 x the lower bound; idle cores: 3 (--workers auto)"
    )
    assert reporting.plan_line(plan | {"workers": 4}).endswith(
        "on 4 ranks of 1 thread; makespan 1.000 x the lower bound"
    )
    assert "idle" not in reporting.plan_line(plan | {"threads": 4})
