"""Success is a complete record of the right configuration, never an exit code; failures carry their evidence."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hydragnn.hpo import Exit, Task, objective_value
from hydragnn.hpo.launching.verdict import verdict
from hydragnn.hpo.objective import Objective
from hydragnn.hpo.scheduling.events import Failed, Reached
from hydragnn.record import BranchRecord, Cost, Failure, RunRecord, Usage, read_record, write_record

CURVES: dict[str, list[float | None]] = {
    "valid/loss": [3.0, 1.0, 2.0],
    "valid/energy/mae": [9.0, 8.0, 7.0],
    "valid/forces/mae": [0.5, 0.25, 0.1],
}


def record(**members: Any) -> RunRecord:
    trivial = {"valid/energy/mae": 16.0, "valid/forces/mae": 1.0}
    base: dict[str, Any] = {"config": {}, "config_hash": "h", "data_hash": "", "seed": 0, "status": "paused"}
    return RunRecord(**{**base, "epochs": 3, "curves": CURVES, "trivial": trivial, **members})


def verdict_of(folder: Path, code: int | None = 0, objective: Objective = "valid/loss", **end: Any) -> Reached | Failed:
    task = Task(trial=4, attempt=2, until=3, folder=folder, slots=("p",))
    return verdict(Exit(task=task, code=code, **end), "h", objective)


@pytest.mark.parametrize("code", [0, 1, -6, -11])
def test_a_complete_record_is_success_whatever_the_exit_code(tmp_path: Path, code: int) -> None:
    write_record(record(cost=Cost(seconds=12.5, peak_memory_mb=900.0)), tmp_path)
    outcome = verdict_of(tmp_path, code)
    assert outcome == Reached(trial=4, attempt=2, epochs=3, value=1.0, seconds=12.5, memory_mb=900.0)
    write_record(record(status="stopped", epochs=2), tmp_path)
    early = verdict_of(tmp_path, code)
    assert isinstance(early, Reached) and early.over, "an early stop needs no further segment"


@pytest.mark.parametrize(("attempt", "counts"), [(2, True), (1, False), (3, False), (0, True)])
def test_a_record_counts_only_for_the_attempt_that_wrote_it(tmp_path: Path, attempt: int, counts: bool) -> None:
    write_record(record(attempt=attempt), tmp_path)
    outcome = verdict_of(tmp_path, code=0 if counts else -9)
    assert isinstance(outcome, Reached) == counts
    assert counts or (isinstance(outcome, Failed) and outcome.kind == "preempted")


def test_a_failure_knows_the_epochs_that_are_saved_and_the_nodes_that_are_suspected(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / "000002-000000"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text('{"epoch": 2}')
    (checkpoint.parent / "latest.json").write_text('{"version": 1, "checkpoint": "000002-000000"}')
    outcome = verdict_of(tmp_path, code=-9, suspects=("n7",), message="lost n7")
    assert outcome == Failed(trial=4, attempt=2, kind="lost_node", message="lost n7", epochs=2, suspects=("n7",))
    (checkpoint / "state.json").unlink()
    outcome = verdict_of(tmp_path, code=-9)
    assert outcome.epochs == 0


PEERS = {"status": "failed", "failure": Failure(kind="lost_node", message="another rank is gone")}
"""What the other ranks write when one has crashed."""
LINES = "\n".join([*(f"line {k}" for k in range(100)), "rank 1 of 2 was the first to fail: it crashed"])


@pytest.mark.parametrize(
    ("members", "end", "kind"),
    [
        ({"status": "running"}, {"code": 0}, "defect"),
        ({"status": "running"}, {"code": -9}, "preempted"),
        ({"status": "running"}, {"code": -9, "out_of_memory": True}, "out_of_memory"),
        ({"status": "running"}, {"code": -11}, "defect"),
        ({"epochs": 1}, {"code": 0}, "preempted"),
        *((PEERS, {"code": code}, kind) for code, kind in {-11: "defect", 7: "defect", 3: "", -9: ""}.items()),
        ({"config_hash": "other"}, {"code": 0}, "defect"),
        ({"curves": {"valid/loss": [None, None, None]}}, {"code": 0}, "diverged"),
        (None, {"code": 1}, "launch"),
        (None, {"code": None, "message": "no processes left"}, "launch"),
        (None, {"code": -15}, "preempted"),
        (None, {"code": 4}, "preempted"),
        (None, {"code": -9, "hung": True}, "lost_node"),
        (None, {"code": 1, "suspects": ("n3",)}, "lost_node"),
        (None, {"code": None, "suspects": ("n3",), "message": "task launch failed"}, "launch"),
        ({"status": "running"}, {"code": -9, "hung": True, "out_of_memory": True}, "out_of_memory"),
        ("damaged", {"code": 1}, "launch"),
    ],
)
def test_what_is_no_result_is_a_failure_of_a_kind(tmp_path: Path, members: Any, end: dict[str, Any], kind: str) -> None:
    (tmp_path / "log.txt").write_text(LINES)
    if members == "damaged":
        (tmp_path / "record.json").write_text('{"version": 1, "sta')
    elif members is not None:
        write_record(record(**members), tmp_path)
    outcome = verdict_of(tmp_path, **end)
    assert isinstance(outcome, Failed) and outcome.kind == (kind or "lost_node")
    if end["code"] not in (None, 0, 1) and kind == "defect":
        assert outcome.message.endswith("first to fail: it crashed") and "line 80" not in outcome.message


def test_the_objective_is_that_of_the_model_which_is_kept() -> None:
    assert objective_value(record(), "valid/energy/mae") == 8.0
    assert objective_value(record(), "valid/energy/mae", epochs=1) == 9.0
    assert objective_value(record(), {"energy": 1.0, "forces": 3.0}) == pytest.approx((0.5 + 3 * 0.25) / 4)
    assert objective_value(record(), {"charge": 1.0}) is None
    assert objective_value(record(curves={}), "valid/loss") is None
    assert objective_value(record(cost=Cost(graphs_per_second=40.0)), "throughput") == 0.025, "seconds per graph"


SHOWN: list[tuple[str, dict[str, Any], float | None, float | None]] = [
    ("three epochs of four graphs", {"parts": {"train": 4}}, 60.0, 5.0),
    ("not measured", {"parts": {"train": 4}}, None, None),
    ("no graphs", {}, 60.0, None),
    ("branches, of which one is shown twice", {"parts": {"train": 10}, "branches": {"a": 4, "b": 6}}, 60.0, 1.25),
]


@pytest.mark.parametrize(("members", "joules", "value"), [one[1:] for one in SHOWN], ids=[one[0] for one in SHOWN])
def test_joules_count_per_graph_that_training_showed(
    tmp_path: Path, members: dict[str, Any], joules: float | None, value: float | None
) -> None:
    branches = {
        name: BranchRecord(data_hash="", parts={"train": count}) for name, count in members.get("branches", {}).items()
    }
    config = {"branches": [{"name": "a"}, {"name": "b", "weight": 2.0}]} if branches else {}
    write_record(record(**{**members, "branches": branches, "config": config}, usage=Usage(joules=joules)), tmp_path)
    assert objective_value(read_record(tmp_path), "cost/joules_per_graph") == value
    outcome = verdict_of(tmp_path, 0, objective=["valid/loss", "cost/joules_per_graph"])
    if value is None:
        assert isinstance(outcome, Failed) and outcome.kind == "configuration"
        assert "the machine measures no energy" in outcome.message
    else:
        assert isinstance(outcome, Reached) and outcome.others == (value,)


def test_an_objective_of_ones_own_sees_the_record_of_the_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RunRecord] = []
    monkeypatch.setattr("hydragnn.hpo.objective.function_named", lambda *_, **__: lambda one: seen.append(one) or 1.0)
    full = record(notes=["later"], status="finished", best={"epoch": 2.0}, cost=Cost(seconds=3.0))
    assert [objective_value(full, "acme.own:cheap", epochs) for epochs in (1, 3, None)] == [1.0] * 3
    first = {name: curve[:1] for name, curve in CURVES.items()}
    best = {name: curve[0] for name, curve in first.items()} | {"epoch": 1.0}
    assert seen == [replace(full, epochs=1, curves=first, best=best, status="paused", notes=[]), full, full]
