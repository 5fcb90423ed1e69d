"""Signals that arrive where Python drops what they raise, in a callback of a weak reference or in ``__del__``, end the work all the same."""

import os
import signal
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from hydragnn.base.errors import InputError, Interrupted
from hydragnn.datasets import BatchSettings, MemoryStore
from hydragnn.ensemble.prediction import sources, work
from hydragnn.ensemble.prediction.formats import sink
from hydragnn.ensemble.prediction.predict import predict_to_file
from hydragnn.runs import assembly
from hydragnn.runs.session import train
from tests.acting import first_acts
from tests.ensemble.conftest import config_of
from tests.ensemble.finished import assert_same

SMALL = BatchSettings(max_graphs=4)


class Doomed:
    """Sends this process a signal when it dies."""

    def __init__(self, kind: signal.Signals) -> None:
        self.kind = kind

    def __del__(self) -> None:
        os.kill(os.getpid(), self.kind)


class Plain:
    """Something to refer to."""


def in_weak_callback(kind: signal.Signals) -> None:
    """Receive a signal inside a callback of a weak reference."""
    thing = Plain()
    reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), kind))
    del thing
    assert reference() is None


def in_del(kind: signal.Signals) -> None:
    """Receive a signal inside ``__del__``."""
    Doomed(kind)


WAYS = {"weak reference": in_weak_callback, "__del__": in_del}


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Python dropped."""
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: seen.append(what.exc_type))
    return seen


@pytest.fixture(scope="module")
def structures(structures_file: Callable[[int], Path]) -> Path:
    return structures_file(20)


@pytest.mark.parametrize(
    ("owner", "name", "way", "kind"),
    [
        (work, "outcome_of", "weak reference", signal.SIGTERM),
        (work, "outcome_of", "weak reference", signal.SIGINT),
        (work, "outcome_of", "weak reference", signal.SIGHUP),
        (work, "outcome_of", "__del__", signal.SIGTERM),
        (sources.Graphs, "build", "weak reference", signal.SIGTERM),
        (sink.Sink, "append", "weak reference", signal.SIGTERM),
    ],
)
def test_a_dropped_signal_ends_a_prediction_before_its_next_unit(
    owner: Any,
    name: str,
    way: str,
    kind: signal.Signals,
    ensemble: Path,
    structures: Path,
    tmp_path: Path,
    dropped: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out.h5"
    with monkeypatch.context() as patch:
        calls = first_acts(patch, owner, name, lambda: WAYS[way](kind))
        with pytest.raises(Interrupted, match="add --resume"):
            predict_to_file(ensemble, structures, out, batch=SMALL)
    assert dropped == [KeyboardInterrupt] and len(calls) == 1 and not out.exists()
    predict_to_file(ensemble, structures, out, batch=SMALL, resume=True)
    predict_to_file(ensemble, structures, tmp_path / "whole.h5", batch=SMALL)
    assert_same(out, tmp_path / "whole.h5")


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_prediction_into_the_same_file_is_refused_while_the_first_one_works(
    resume: bool, ensemble: Path, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, refusals = tmp_path / "out.h5", list[str]()

    def second() -> None:
        with pytest.raises(InputError) as refusal:
            predict_to_file(ensemble, stored, out, batch=SMALL, resume=resume)
        refusals.append(str(refusal.value))

    first_acts(monkeypatch, work, "outcome_of", second)
    predict_to_file(ensemble, stored, out, batch=SMALL)
    assert refusals == [f"another prediction works in {out}.parts; wait for it, or choose another --out"]
    predict_to_file(ensemble, stored, tmp_path / "whole.h5", batch=SMALL)
    assert_same(out, tmp_path / "whole.h5")
    assert not out.with_name("out.h5.parts").exists()


def workers() -> list[psutil.Process]:
    """Return the local workers of this process that live."""
    children = [one for one in psutil.Process().children() if one.status() != psutil.STATUS_ZOMBIE]
    return [one for one in children if any("spawn_main" in word for word in one.cmdline())]


def test_a_worker_that_was_stopped_holds_up_neither_the_file_nor_the_command(
    ensemble: Path, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> None:
        (worker,) = workers()
        worker.suspend()

    first_acts(monkeypatch, work, "outcome_of", stop)
    result = predict_to_file(ensemble, stored, tmp_path / "out.h5", batch=SMALL, workers=2)
    assert result is not None and (tmp_path / "out.h5").exists()
    assert not workers()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("prepare_data", signal.SIGTERM),
        ("prepare_data", signal.SIGINT),
        ("first_record", signal.SIGHUP),
        ("first_record", signal.SIGUSR1),
    ],
)
def test_a_dropped_signal_ends_a_run_before_its_first_step(
    name: str,
    kind: signal.Signals,
    store: MemoryStore,
    stored: Path,
    tmp_path: Path,
    dropped: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first_acts(monkeypatch, assembly, name, lambda: in_weak_callback(kind))
    with pytest.raises(Interrupted, match=f"stopped by {kind.name} before the first step"):
        train(config_of(stored), tmp_path / "run", store=store)
    assert dropped == [Interrupted] and not (tmp_path / "run" / "record.json").exists()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
