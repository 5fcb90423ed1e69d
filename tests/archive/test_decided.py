"""Archived journals tell the same campaign, decision for decision, whatever rules come later; and a campaign of format 2 stays one.

``courses.json`` has a digest of the facts after every line. None of the files is made anew.
``campaign-v2`` is a campaign of five trials; its checkpoints and models were left out.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from hydragnn.base.files import digest
from hydragnn.hpo import campaign_history, campaign_records
from hydragnn.hpo.journal import courses, read_entries
from hydragnn.hpo.status import campaign_status

HERE = Path(__file__).resolve().parent
DECIDED = ("journal-v1-decided.jsonl", "journal-v2.jsonl", "campaign-v2/journal.jsonl")


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


def test_a_campaign_of_format_2_is_read_whole() -> None:
    campaign = HERE / "campaign-v2"
    status = campaign_status(campaign)
    assert (status.status, status.planned, status.trials["finished"], status.trials["paused"]) == ("finished", 5, 2, 1)
    assert status.best is not None and (status.best.trial, round(status.best.value, 6)) == (0, 0.865196)
    kinds = [trial.failure.partition(":")[0] for trial in campaign_history(campaign).trials if trial.status == "failed"]
    assert kinds == ["diverged", "diverged"]
    assert [record.status for _, record, _ in campaign_records(campaign)].count("finished") == 2
