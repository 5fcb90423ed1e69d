"""Callbacks of runs: what they see, and what becomes of their errors."""

import contextlib
import csv
import os
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hydragnn.base.errors import InputError, Interrupted
from hydragnn.base.files import read_json, write_json
from hydragnn.callbacks import CsvLogger, RunView, StopTraining, TrainingCallback, as_callback
from hydragnn.config import config_from_table, stored_config
from hydragnn.datasets import MemoryStore
from hydragnn.graphs import graph_from_arrays
from hydragnn.record import read_record
from tests.hydragnn.training.conftest import STORE, Trained, assert_same_end, finish, make_config, start_ranks, written

HERE = "tests.hydragnn.training.test_callbacks"


class Within(TrainingCallback):
    kind: str = f"{HERE}:Within"
    curves = ("valid/energy/within",)
    tolerance: float = 1.0
    most: float = -1.0

    def epoch(self, run: RunView) -> dict[str, float]:
        predictions, labels = run.predict()["energy"]
        share = float(((predictions - labels).abs() < self.tolerance).double().mean())
        if run.epoch >= 2 and share <= self.most:
            raise StopTraining("enough")
        return {"valid/energy/within": share}


class Needy(TrainingCallback):
    kind: str = f"{HERE}:Needy"
    need: int

    def model_post_init(self, context: Any) -> None:
        [][self.need]


class Ended(TrainingCallback):
    """A file that says which methods were called after which epoch."""

    kind: str = f"{HERE}:Ended"

    def note(self, run: RunView, moment: str) -> None:
        with (run.folder / "moments.txt").open("a") as file:
            file.write(f"{moment} {run.epoch}\n")

    def begin(self, run: RunView) -> None:
        self.note(run, "begin")

    def rung(self, run: RunView) -> None:
        self.note(run, "rung")

    def end(self, run: RunView) -> None:
        self.note(run, "end")


def in_hartree() -> MemoryStore:
    graphs = STORE[:2]
    energy = replace(graphs.fields["energy"], unit="Hartree")
    return MemoryStore(graphs.with_fields(drop=["energy"]).with_fields({"energy": graphs["energy"]}, fields=[energy]))


def meddle(run: RunView) -> None:
    torch.manual_seed(1)
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    random.seed(1)
    predictions, labels = run.predict()["energy"]
    predictions.zero_()
    labels.zero_()
    run.config["train"].clear()  # type: ignore[index]
    with contextlib.suppress(InputError):
        run.predict(MemoryStore([graph_from_arrays([[0.0, 0.0, 0.0]], [], [])]))  # has no elements
    for curve in run.curves.values():
        curve[-1] = 0.0  # type: ignore[index]


@pytest.mark.parametrize("kind", ["csv", "tensorboard", "mlflow", "wandb", f"{HERE}:Within", f"{HERE}:Ended"])
def test_no_callback_changes_a_bit_over_a_pause(
    kind: str, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind in ("tensorboard", "mlflow", "wandb"):
        pytest.importorskip(kind)
    monkeypatch.setitem(os.environ, "WANDB_SILENT", "true")
    options = {"train__epochs": 3, "train__ema_decay": 0.9, "model__dropout": 0.2}
    trained("plain", **options)
    config = make_config(**options, train__callbacks=[{"kind": kind}])
    trained("run", config, until=2)
    trained("run", config, resume=True)
    if kind != f"{HERE}:Within":  # which adds a curve
        assert_same_end(tmp_path / "plain", tmp_path / "run")
    one, other = (read_record(tmp_path / name).curves for name in ("plain", "run"))
    assert {name: other[name] for name in one} == one
    files = {"csv": "curves.csv", "tensorboard": "tensorboard/events.*"}
    files |= {"mlflow": "mlflow.db", "wandb": "wandb/offline-run-*/*.wandb"}
    assert kind not in files or list((tmp_path / "run").glob(files[kind]))


def test_functions_see_copies_and_their_numbers_become_curves(trained: Trained, tmp_path: Path) -> None:
    options = {"train__epochs": 2, "model__dropout": 0.2}
    trained("plain", **options)
    seen: list[dict[str, Any]] = []

    def mae(run: RunView) -> dict[str, float]:
        predictions, labels = run.predict("valid")["energy"]
        seen.append(run.values)
        return {"mine": float((predictions - labels).abs().mean())}

    record = trained("run", **options, callbacks=[as_callback(meddle), as_callback(mae)])
    assert record.curves["mine"] == pytest.approx(record.curves["valid/energy/mae"], rel=1e-6)
    assert [one["valid/loss"] for one in seen] == record.curves["valid/loss"]
    plain = read_record(tmp_path / "plain").curves
    assert {name: record.curves[name] for name in plain} == plain


def test_the_file_of_values_is_whole_after_a_pause(trained: Trained, tmp_path: Path) -> None:
    trained(train__epochs=3, until=1)
    number = as_callback(lambda run: {"mine": float(run.epoch)})
    record = trained(train__epochs=3, train__callbacks=[{"kind": "csv"}], callbacks=[number], resume=True)
    rows = [*csv.DictReader((tmp_path / "run" / "curves.csv").read_text().splitlines())]
    assert [float(row["valid/loss"]) for row in rows] == record.curves["valid/loss"]
    assert [row["mine"] for row in rows] == ["", "2.0", "3.0"] and record.curves["mine"] == [None, 2.0, 3.0]
    trained(train__epochs=3, resume=True)
    assert "callbacks" not in read_json(tmp_path / "run" / "config.json")["train"]  # nor do they come back


def test_a_run_resumes_with_former_keys_and_not_without_the_class_of_a_callback(
    trained: Trained, tmp_path: Path
) -> None:
    trained(train__epochs=3, until=1)
    path = tmp_path / "run" / "config.json"
    table = read_json(path)
    write_json(path, {**table, "train": {**table["train"], "tensorboard": False}})
    assert trained(train__epochs=3, resume=True, until=2).status == "paused"
    callbacks = [{"kind": "acme.gone:Logger", "rate": 3}]
    write_json(path, {**table, "train": {**table["train"], "callbacks": callbacks}})
    assert stored_config(path).to_json()["train"]["callbacks"] == callbacks  # a prediction needs no callback
    with pytest.raises(InputError, match=r"callbacks.kind = 'acme.gone:Logger' names code of acme.gone"):
        trained("run", stored_config(path), resume=True)


def test_the_first_of_two_ranks_logs_for_both(tmp_path: Path) -> None:
    config = make_config(train__epochs=2, train__callbacks=[{"kind": "csv"}], train__precision="fp64")
    finish(*start_ranks({tmp_path / "run": config}, 2))
    rows = [*csv.DictReader((tmp_path / "run" / "curves.csv").read_text().splitlines())]
    assert [float(row["valid/loss"]) for row in rows] == read_record(tmp_path / "run").curves["valid/loss"]


def test_moments_of_segments(trained: Trained, tmp_path: Path) -> None:
    options: dict[str, Any] = {"train__epochs": 3, "train__callbacks": [{"kind": f"{HERE}:Ended"}]}
    trained(**options, until=1)
    trained(**options, resume=True)
    assert (tmp_path / "run" / "moments.txt").read_text().split("\n") == ["begin 0", "rung 1", "begin 1", "end 3", ""]


def test_a_callback_stops_a_run_for_good(trained: Trained, tmp_path: Path) -> None:
    config = make_config(train__epochs=6, train__callbacks=[{"kind": f"{HERE}:Within", "most": 1.0}])
    record = trained("run", config)
    assert (record.status, record.epochs) == ("stopped", 2)
    assert any("stopped the run in epoch 2: enough" in note for note in record.notes)
    again = trained("run", config, resume=True)
    assert (again.status, again.epochs) == ("stopped", 2)
    assert any("stopped the run in epoch 2: enough" in note for note in again.notes)


def test_an_error_of_a_callback_ends_the_run_with_its_name_and_a_checkpoint(trained: Trained, tmp_path: Path) -> None:
    trained("plain", train__epochs=4)

    def broken(run: RunView) -> None:
        if run.epoch == 3:
            raise KeyError("energies")

    with pytest.raises(InputError, match=r"callback broken failed after epoch 3: KeyError: 'energies'.*resume"):
        trained(train__epochs=4, callbacks=[as_callback(broken)])
    assert read_record(tmp_path / "run").status == "failed"

    def impatient(run: RunView) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="a checkpoint was written"):
        trained(train__epochs=4, resume=True, callbacks=[as_callback(impatient)])
    assert trained(train__epochs=4, resume=True).status == "finished"
    assert_same_end(tmp_path / "plain", tmp_path / "run")


def test_an_error_after_the_last_epoch_is_a_note(trained: Trained) -> None:
    class Last(CsvLogger):
        kind: str = "last"

        def end(self, run: RunView) -> None:
            raise OSError("no space")

    record = trained(train__epochs=1, callbacks=[Last()])
    assert record.status == "finished" and "callback last: OSError: no space" in record.notes


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda run: 3, "returned 3; return a dict of numbers"),
        (lambda run: {"a": "x"}, "return a dict of numbers"),
        (lambda run: {"valid/loss": 1.0}, "valid/loss, which is the name of something else"),
        (lambda run: {"stopped": 1.0}, "stopped, which is the name"),
        (lambda run: sys.exit(3), "failed after epoch 1: SystemExit: 3"),
        (lambda run: run.predict(branch="metals"), "no branch 'metals'"),
        (lambda run: run.predict("gone.h5"), "callback <lambda>: gone.h5"),
        (lambda run: run.predict(MemoryStore(STORE[:2], {"cutoff": 9.0})), "callback <lambda>: .*cutoff is .* and 9.0"),
        (lambda run: run.predict(in_hartree()), "energy is in Hartree, but the model was trained in eV"),
    ],
)
def test_what_a_callback_returns_is_checked(function: Callable[..., Any], words: str, trained: Trained) -> None:
    with pytest.raises(InputError, match=words):
        trained(train__epochs=1, callbacks=[as_callback(function)])


def test_a_store_that_training_does_not_see_is_predicted(trained: Trained, tmp_path: Path) -> None:
    hidden = written(tmp_path / "hidden.h5", STORE)

    def errors(run: RunView) -> dict[str, float]:
        predictions, labels = run.predict(hidden)["charge"]
        assert len(predictions) == len(labels) > 100 and labels.isnan().any()  # every fifth graph has none
        return {"hidden": float((predictions - labels).abs().nanmean())}

    assert trained(train__epochs=1, callbacks=[as_callback(errors)]).curves["hidden"][0] > 0


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"kind": "csw"}, "unknown kind of callback 'csw'; did you mean csv"),
        ({}, "a callback has no kind"),
        ({"kind": "csv", "file": "a"}, "file"),
        ({"kind": "os:path"}, "holds no callbacks"),
        ({"kind": f"{HERE}:Needy"}, r"missing key train.callbacks.0.need; add it"),
        ({"kind": f"{HERE}:Needy", "need": 1}, "a check in a class of it failed: IndexError: .*; repair it"),
        ({"kind": f"{HERE}:meddle"}, "has no callback meddle; derive it from"),
    ],
)
def test_tables_of_callbacks_are_checked(table: dict[str, Any], words: str) -> None:
    run = {"data": {"store": "a.h5"}, "model": {"kind": "gin"}, "heads": [{"kind": "scalar", "field": "charge"}]}
    with pytest.raises(InputError, match=words):
        config_from_table({**run, "train": {"callbacks": [table]}}, Path("CONFIG.toml"))


@pytest.mark.parametrize("value", [3, CsvLogger])
def test_what_is_no_callback_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match="is no callback"):
        as_callback(value)
