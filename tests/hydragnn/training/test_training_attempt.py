"""Attempts at one run: the one that its folder names writes; a run begins only where nothing else lies."""

import itertools
import json
import os
import shutil
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pytest

from hydragnn.base.errors import Busy, InputError
from hydragnn.base.files import lock_file, unlock_file, write_sealed
from hydragnn.record import read_record, write_record
from hydragnn.runs import run
from hydragnn.runs.attempt import (
    BEAT_SECONDS,
    SECONDS_BETWEEN_BEATS,
    Fenced,
    Heartbeat,
    RunAttempt,
    keep_beating,
    shown_epochs,
)
from hydragnn.runs.checkpoint import _remove_old
from tests.hydragnn.training.conftest import TORCHRUN, Trained, at, files, launch, make_config, wait_for


def take_over(folder: Path, number: int) -> None:
    """What a controller writes before it starts an attempt."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "attempt.json.new").write_text(json.dumps({"attempt": number}))
    (folder / "attempt.json.new").replace(folder / "attempt.json")


@pytest.mark.parametrize("moment", [1.2, 3.0], ids=["in an epoch", "at the last step"])
def test_a_fenced_attempt_leaves_at_once_and_changes_no_file(moment: float, trained: Trained, tmp_path: Path) -> None:
    run, before = tmp_path / "run", {}

    def a_successor_comes() -> None:
        take_over(run, 2)
        before.update(files(run))

    take_over(run, 1)
    with pytest.raises(Fenced, match="belongs to attempt 2 now; attempt 1 leaves"):
        trained(attempt=1, progress=at(moment, a_successor_comes))
    assert files(run) == before and read_record(run).attempt == 1 and read_record(run).status == "running"
    again = trained(attempt=2, resume=True)
    assert (again.attempt, again.status) == (2, "finished")


@pytest.mark.parametrize("content", [None, "{}", "[", '{"attempt": "1"}', '{"attempt": 3}'])
def test_an_attempt_not_named_by_its_folder_never_begins(content: str | None, trained: Trained, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    if content is not None:
        (run / "attempt.json").write_text(content)
    before = files(run)
    with pytest.raises(Fenced):
        trained(attempt=1)
    assert files(run) == before


def test_without_attempts_nothing_is_fenced_and_records_are_of_attempt_0(trained: Trained, tmp_path: Path) -> None:
    run = tmp_path / "run"
    take_over(run, 7)
    record = trained(train__epochs=1)
    assert record.status == "finished" and read_record(run).attempt == 0
    before = files(run)
    with pytest.raises(Fenced):  # at the last moment of writing
        write_record(record, run, RunAttempt(folder=run, number=1).check)
    assert files(run) == before
    table = json.loads((run / "record.json").read_text())
    old = {name: value for name, value in table.items() if name not in ("attempt", "checksum")}
    (run / "record.json").write_text(json.dumps(old))
    assert read_record(run) == record
    write_record(record, run)
    assert json.loads((run / "record.json").read_text())["version"] == 1


class Overtaken(RunAttempt):
    """An attempt that is overtaken, and its successor writes a checkpoint, at the very moment at which it checks."""

    def check(self) -> None:
        (self.folder / "000003-000000").mkdir()


def test_checkpoints_of_a_later_attempt_are_never_tidied_away(tmp_path: Path) -> None:
    for name in ("000000-000000", "000001-000000", "000002-000000", "000004-000000", ".000005-000000.1.tmp"):
        (tmp_path / name).mkdir()
    _remove_old(tmp_path, "000002-000000", Overtaken(folder=tmp_path, number=1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001-000000", "000002-000000", "000003-000000"]


@pytest.mark.parametrize(
    "name", ["record.json", "weights.safetensors", "latest.json", "000002-000000", "000003-000000"]
)
def test_a_successor_keeps_its_files_before_a_late_renaming(
    name: str, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old attempt has looked and stops; it wakes up after its successor has trained and renames what it wrote."""
    run, before = tmp_path / "run", {}
    take_over(run, 1)
    trained(train__epochs=4, attempt=1, until=1)

    def wakes_up_late(path: Path, target: Path) -> Path:
        if target.name == name and ".attempt-1." in str(path) and not before:
            take_over(run, 2)
            trained(train__epochs=4, attempt=2, resume=True, until=3)
            before.update(files(run))
        return rename(path, target)

    rename = Path.rename
    monkeypatch.setattr(Path, "rename", wakes_up_late)
    monkeypatch.setattr(Path, "replace", wakes_up_late)
    with pytest.raises(Fenced):
        trained(train__epochs=4, attempt=1, resume=True)
    assert before and files(run) == before
    assert trained(train__epochs=4, attempt=2, resume=True).status == "finished"


def test_all_ranks_of_a_fenced_attempt_leave_and_its_successor_trains_on(trained: Trained, tmp_path: Path) -> None:
    run = tmp_path / "run"
    take_over(run, 1)
    process = launch({run: make_config(train__epochs=4000)}, "--attempt", "1", launcher=TORCHRUN)
    wait_for(run / "checkpoints" / "latest.json", process)
    take_over(run, 2)
    output, _ = process.communicate(timeout=600)
    assert process.returncode != 0 and "FENCED" in output, output
    fenced = read_record(run)
    assert (fenced.attempt, fenced.status) == (1, "running")
    assert not list(run.glob(".failure*"))
    until = fenced.epochs + 1
    again = trained(train__epochs=4000, attempt=2, resume=True, until=until)
    whole = trained("whole", train__epochs=4000, until=until)
    assert again.attempt == 2 and again.curves["valid/loss"] == pytest.approx(whole.curves["valid/loss"], rel=1e-6)


def beats_of(heart: Heartbeat, files: list[Path], now: list[float], last: float) -> list[list[float]]:
    """Return the moments, half seconds apart, at which a heart writes each of its files."""
    moments: list[list[float]] = [[] for _ in files]
    while now[0] <= last:
        heart.beat(now[0])
        for file, found in zip(files, moments):
            if file.exists():
                found.append(now[0])
                file.unlink()
        now[0] += 0.5
    return moments


EVERY_SECOND = [float(second) for second in range(33)]


@pytest.mark.parametrize(
    ("asked", "beats"), [(30.0, [0.0, 30.0]), (0.01, EVERY_SECOND), ("often", EVERY_SECOND), (None, EVERY_SECOND)]
)
def test_the_heart_beats_as_rarely_as_its_starter_asks(tmp_path: Path, asked: Any, beats: list[float]) -> None:
    now, run, node = [0.0], tmp_path / "heartbeat", tmp_path / "node"
    write_sealed(tmp_path / "attempt.json", {"attempt": 1, **({BEAT_SECONDS: asked} if asked else {})})
    heart = Heartbeat(RunAttempt(folder=tmp_path, number=1, beats=node), first=True, clock=lambda: now[0])
    assert beats_of(heart, [run, node], now, 32.9) == [beats, EVERY_SECOND]


def heart_of(folder: Path, number: int, **options: Any) -> Heartbeat:
    return Heartbeat(RunAttempt(folder=folder, number=number), **{"first": True, **options})


def test_only_the_owners_heart_beats_and_only_on_the_first_rank(tmp_path: Path) -> None:
    beat = tmp_path / "heartbeat"
    take_over(tmp_path, 2)
    with pytest.raises(Fenced):
        heart_of(tmp_path, 1).beat()
    heart_of(tmp_path, 2, first=False).beat()
    assert not beat.exists()
    heart_of(tmp_path, 2).beat()
    assert abs(float(beat.read_text().split()[0]) - time.time()) < 60
    Heartbeat(RunAttempt(folder=tmp_path / "gone"), first=True).beat()  # a full disk does not stop the heart
    assert not (tmp_path / "gone").exists()


def test_a_heart_beats_through_no_link_and_into_no_pipe(tmp_path: Path) -> None:
    take_over(tmp_path, 1)
    beat, mine = tmp_path / "heartbeat", tmp_path / "mine"
    mine.write_text("mine")
    for make, words in ((beat.symlink_to, "a symbolic link"), (lambda _: os.mkfifo(beat), "no regular file")):
        make(mine)
        with pytest.raises(InputError, match=f"is {words}"):
            heart_of(tmp_path, 1).beat()
        beat.unlink()
    assert mine.read_text() == "mine"


def test_the_heartbeat_says_how_far_its_own_attempt_has_come(tmp_path: Path) -> None:
    now = [0.0]
    take_over(tmp_path, 3)
    heart = heart_of(tmp_path, 3, clock=lambda: now[0])
    assert shown_epochs(tmp_path, 3) is None
    shown = []
    for now[0], epochs in ((0.0, None), (2.0, 12345.6789), (4.0, 2.5), (6.0, None)):
        heart.beat(epochs)
        shown.append(shown_epochs(tmp_path, 3))
    assert shown == [None, 12345.6789, 2.5, 2.5] and shown_epochs(tmp_path, 2) is None
    (tmp_path / "heartbeat").write_text("what an older version wrote")
    assert shown_epochs(tmp_path, 3) is None


def test_a_run_beats_while_it_reads_trains_and_validates(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    moments: set[str] = set()

    def beat(heart: Heartbeat, epochs: int | None = None) -> None:
        moments.update(frame.f_code.co_name for frame, _ in traceback.walk_stack(None))

    monkeypatch.setattr(Heartbeat, "beat", beat)
    trained("run", "pna", train__epochs=1)
    assert {"prepare_data", "_row", "row", "on_step_end", "heartbeat"} <= moments


def test_long_work_shows_that_the_run_lives(tmp_path: Path) -> None:
    take_over(tmp_path, 3)
    ticks = itertools.count()
    heart = heart_of(tmp_path, 3, clock=lambda: next(ticks) * SECONDS_BETWEEN_BEATS)

    def seen(content: str) -> bool:
        """Wait for a heartbeat file that is not this one."""
        end = time.monotonic() + 30
        while (tmp_path / "heartbeat").read_text() == content and time.monotonic() < end:
            time.sleep(0.01)
        return (tmp_path / "heartbeat").read_text() != content

    with keep_beating(heart.beat, every=0.01):
        (tmp_path / "heartbeat").write_text("")
        assert seen("")  # written by nobody but the thread
    with pytest.raises(Fenced), keep_beating(heart.beat, every=0.01):
        take_over(tmp_path, 4)
    with keep_beating(lambda: None, every=0.01, longest=0.0):
        (thread,) = [one for one in threading.enumerate() if one.name == "heartbeat"]
        thread.join(30)
        assert not thread.is_alive()  # what hangs for ever shows no life for ever


KINDS: dict[str, tuple[str, ...]] = {
    "is a store": ("manifest.json",),
    "is a campaign": ("campaign.json",),
    "is an ensemble": ("ensemble.json",),
    "is a model, and a run would be mixed into it": ("model.json", "config.json", "record.json"),
    "holds thesis.tex, which belongs to no run": ("thesis.tex",),
}


@pytest.mark.parametrize("words", KINDS)
@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_with_something_else_is_left_alone(words: str, resume: bool, trained: Trained, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in KINDS[words]:  # the last but one is the member of an ensemble
        (folder / name).write_text(json.dumps(make_config().to_json() if name == "config.json" else {}))
    says = "holds no run to resume" if resume and "thesis" in words else words
    with pytest.raises(InputError, match=f"{folder} {says}"):
        trained(resume=resume)
    assert sorted(entry.name for entry in folder.iterdir()) == sorted(KINDS[words])


def test_a_configuration_of_another_program_is_not_overwritten(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name in (".failure-1.json", ".config.json.99.tmp"):
        (tmp_path / "run" / name).write_text("{}")
    (tmp_path / "run" / "config.json").write_text('{"architectures": ["Llama"]}')
    with pytest.raises(InputError, match=r"config.json is not the configuration of a run .*choose another --out"):
        trained(until=1)
    assert "Llama" in (tmp_path / "run" / "config.json").read_text()
    (tmp_path / "run" / "config.json").unlink()
    assert trained(until=1).epochs == 1


def test_nothing_is_written_through_a_link_out_of_the_folder(trained: Trained, tmp_path: Path) -> None:
    trained(until=1)
    for name in ("checkpoints", "model"):
        folder, elsewhere = tmp_path / name, tmp_path / f"beside {name}"
        shutil.copytree(tmp_path / "run", folder)
        elsewhere.mkdir()
        (folder / name).rename(folder / "moved")
        (folder / name).symlink_to(elsewhere)
        with pytest.raises(InputError, match=f"{folder / name} is a symbolic link, and nothing is written through one"):
            trained(name, resume=True)
        assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("begun", [False, True])
def test_the_second_that_trains_in_a_folder_leaves_it_as_it_is(begun: bool, trained: Trained, tmp_path: Path) -> None:
    """One that begins beside one that begins, and one that resumes what another process trains."""
    out = tmp_path / "run"
    trained(until=1) if begun else out.mkdir()
    lock = lock_file(out / ".lock")
    assert lock is not None
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    with pytest.raises(Busy, match=f"another process trains in {out}; wait for it"):
        trained(resume=begun)
    assert not begun or run.main([str(out)]) == run.BAD_INPUT
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    unlock_file(out / ".lock", lock)
    assert trained(resume=begun, until=2).epochs == 2
    assert not (out / ".lock").exists()
