"""Journals of version 1 called a slot a place; they are read, and go on in the words of today."""

import json
import shutil
from pathlib import Path

import pytest

from hydragnn.base.errors import InputError
from hydragnn.hpo.journal import Journal, read_journal, replay
from hydragnn.hpo.scheduling.events import Opened, Plan, event_from_json
from hydragnn.hpo.submit.chain import _sessions

JOURNAL = Path(__file__).resolve().parent / "campaign-v1" / "journal.jsonl"


def test_places_of_version_1_are_slots() -> None:
    openings = [event for _, event in read_journal(JOURNAL) if isinstance(event, Opened)]
    assert '"places"' in JOURNAL.read_text() and '"slots"' not in JOURNAL.read_text()
    assert [event.slots for event in openings] == [("worker-0",)] * len(openings)
    assert {(event.plan.min_slots, event.plan.max_slots) for event in openings} == {(1, 1)}
    assert [span.nodes for span in _sessions(read_journal(JOURNAL))] == [1] * len(openings)


def test_a_plan_of_version_1_keeps_the_number_of_places_of_its_trials() -> None:
    line = {"event": "opened", "places": ["n1", "n2/0"], "plan": {"trials": 3, "rungs": [1, 4], "max_places": 2}}
    assert event_from_json(line) == Opened(plan=Plan(trials=3, rungs=(1, 4), max_slots=2), slots=("n1", "n2/0"))
    assert event_from_json({**line, "plan": {"trials": 3, "rungs": [1], "min_places": 2}}).plan.min_slots == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("damage", [{"plan": None}, {"plan": "no plan"}, {"places": None}], ids=str)
def test_a_damaged_opening_of_version_1_is_named(damage: dict[str, object]) -> None:
    line = {"event": "opened", "places": ["n1"], "plan": {"trials": 3, "rungs": [1]}, **damage}
    with pytest.raises(InputError, match="event opened is damaged"):
        event_from_json(line)


def test_what_is_added_to_a_journal_of_version_1_has_the_words_of_today(tmp_path: Path) -> None:
    path = shutil.copy(JOURNAL, tmp_path / "journal.jsonl")
    before, written = replay(path), path.read_bytes()
    opening = Opened(plan=before.plan, slots=("worker-0", "worker-1"))
    with Journal(path) as journal:
        journal.append(opening, before.last + 60.0)
    assert path.read_bytes().startswith(written), "nothing that was written is written again"
    claim, added = map(json.loads, path.read_bytes()[len(written) :].splitlines())
    assert claim["event"] == "claim"
    assert added["slots"] == ["worker-0", "worker-1"] and added["plan"]["max_slots"] == 1 and "places" not in added
    after = replay(path)
    assert after.slots == ("worker-0", "worker-1") and set(after.trials) == set(before.trials)
