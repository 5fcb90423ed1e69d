"""Whatever rules come later, archived journals tell the same campaign, decision for decision; and a campaign of format 2 stays one.

``journal-v1-decided.jsonl`` is the journal of ``campaign-v1``, which holds events alone, with the decisions of the last version that
decided as then (``translated``). ``courses.json`` has a digest of the facts after every line. None of them is made anew.
``journal-v1-faults.jsonl`` is a journal of events alone as 57a3d48 wrote it, of 40 trials on 12 nodes of which one is bad, with a
killed and a stopped controller and seven trials lost to faults (``Player`` of ``tests/hpo/played.py``, seed 9, ``own=0.08``,
``machine=0.5``); ``course-v1-faults.json`` has the digests of what the rules of 57a3d48 decided.
``campaign-v2`` is a campaign of five trials in format 2, of ``campaign-v2.toml`` on ``graphs-v1.h5``; checkpoints that it no
more needs were left out. ``interrupted-campaign-v2`` is one of three trials that 079be92 left when one was trained to the end and one
to its first rung.
"""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import hydragnn
from hydragnn.base.files import digest
from hydragnn.config import parse_config
from hydragnn.hpo import campaign_history, campaign_records
from hydragnn.hpo.journal import Entry, courses, read_entries, replay
from hydragnn.hpo.journal import Journal as Writer
from hydragnn.hpo.scheduling.changes import changes_between
from hydragnn.hpo.scheduling.scheduler import State
from hydragnn.hpo.status import campaign_status
from hydragnn.record import read_record

HERE = Path(__file__).resolve().parent
DECIDED = ("journal-v1-decided.jsonl", "journal-v2.jsonl", "campaign-v2/journal.jsonl")
FAULTS = "journal-v1-faults.jsonl"


def rules() -> Any:
    """The module of the rules that later versions might have."""
    path = HERE.parent / "hpo" / "test_decisions.py"
    spec = importlib.util.spec_from_file_location("later_rules", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RULES = rules()


def course(path: Path) -> list[str]:
    """A digest of the facts after every line."""
    return [digest(RULES.summary(after.state)) for _, _, after in courses(path, read_entries(path))]


def translated(path: Path, out: Path) -> None:
    """A journal of events, with what the rules of version 1 decide about each."""
    with Writer(out) as journal:
        before = State()
        for _, entry, after in courses(path, read_entries(path)):
            journal.append(entry.event, entry.time, changes_between(before, entry.event, after.state))
            before = after.state


def test_five_changes_of_rules_one_after_the_other_leave_every_archived_journal_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = json.loads((HERE / "courses.json").read_text())
    assert sorted(expected) == sorted(DECIDED)
    for name, change in {"today's": lambda patch: None, **RULES.LATER_RULES}.items():
        change(monkeypatch)
        for journal in DECIDED:
            assert course(HERE / journal) == expected[journal], (name, journal)
    assert {entry.then is None for journal in DECIDED for entry in read_entries(HERE / journal)} == {False}


def test_a_journal_of_events_tells_what_its_version_decided_whatever_rules_there_are_today(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, new, faults = HERE / "campaign-v1" / "journal.jsonl", HERE / "journal-v1-decided.jsonl", HERE / FAULTS
    assert [Entry(*entry[:2]) for entry in read_entries(new)] == [Entry(*entry[:2]) for entry in read_entries(old)]
    assert {entry.then for journal in (old, faults) for entry in read_entries(journal)} == {None}
    expected, decided = json.loads((HERE / "course-v1-faults.json").read_text()), replay(faults)
    assert decided.ending == "finished" and decided.count("lost") == 7
    for name, change in {"today's": lambda patch: None, **RULES.LATER_RULES}.items():
        change(monkeypatch)
        assert course(old) == course(new) and replay(old) == replay(new), name
        assert course(faults) == expected and replay(faults) == decided, name


def test_a_campaign_of_format_2_is_read_whole() -> None:
    campaign = HERE / "campaign-v2"
    status = campaign_status(campaign)
    assert (status.status, status.planned, status.trials["finished"], status.trials["paused"]) == ("finished", 5, 2, 1)
    assert status.best is not None and (status.best.trial, round(status.best.value, 6)) == (0, 0.865196)
    kinds = [trial.failure.partition(":")[0] for trial in campaign_history(campaign).trials if trial.status == "failed"]
    assert kinds == ["diverged", "diverged"]
    assert [record.status for _, record, _ in campaign_records(campaign)].count("finished") == 2


def test_a_campaign_of_format_2_that_was_moved_goes_on_as_it_ended(tmp_path: Path) -> None:
    shutil.copytree(HERE / "campaign-v2", tmp_path / "campaign-v2")
    store, campaign = shutil.copytree(HERE / "graphs-v1.h5", tmp_path / "moved.h5"), HERE / "campaign-v2.toml"
    result = hydragnn.search(campaign, tmp_path / "campaign-v2", resume=True, workers=1, store=store)
    assert (result.ending, result.trials, result.finished) == ("finished", 5, 2)


def test_a_campaign_that_an_earlier_version_left_in_the_middle_goes_on_with_the_work_that_was_done(
    tmp_path: Path,
) -> None:
    """Its configurations lack keys that came later, and its checkpoints and records have the hashes of that time."""
    folder = shutil.copytree(HERE / "interrupted-campaign-v2", tmp_path / "campaign")
    trial = folder / "trials" / "0001"
    begun = json.loads((trial / "config.json").read_text())
    today = parse_config(begun, stored=True).to_json()
    assert begun["model"].keys() < today["model"].keys() and begun["heads"][1].keys() < today["heads"][1].keys()
    store = shutil.copytree(HERE / "graphs-v1.h5", tmp_path / "moved.h5")
    toml = HERE / "interrupted-campaign-v2.toml"
    result = hydragnn.search(toml, folder, resume=True, workers=1, store=store)
    assert (result.ending, result.finished, result.failed) == ("finished", 3, 0)
    record = read_record(trial)
    assert record.status == "finished" and "checkpoint" not in (trial / "log.txt").read_text()
    # what that version came to when nobody interrupted it; a training from the beginning would have other curves
    assert record.best["valid/loss"] == pytest.approx(6.489963009626237, rel=1e-6)
    assert [part.keys() for part in (record.config["model"], *record.config["heads"])] == [
        part.keys() for part in (begun["model"], *begun["heads"])
    ]  # to the letter, so that whoever kills it anywhere can resume it again
