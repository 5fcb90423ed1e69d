"""Archived journals give the same campaigns whatever rules there are today.

``courses.json`` has a digest of the facts after every line; none is ever made anew. ``campaign-v2`` is a campaign of five trials;
its checkpoints and models were left out.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clockwork import LATER_RULES

from hydragnn.base.errors import InputError
from hydragnn.base.files import digest
from hydragnn.hpo import campaign_history, campaign_records
from hydragnn.hpo.journal import followed, replay
from hydragnn.hpo.lines import LineChain, encode_line
from hydragnn.hpo.preflight import as_begun, open_campaign
from hydragnn.hpo.scheduling.scheduler import State
from hydragnn.hpo.status import campaign_status

HERE = Path(__file__).resolve().parent


def summary(state: State) -> dict[str, Any]:
    """What a campaign came to, as plain JSON."""
    return {
        "ending": state.ending,
        "spent": state.spent,
        "best": state.best.number if state.best else None,
        "nodes": {name: [node.status, len(node.strikes), node.spells] for name, node in sorted(state.health.items())},
        "trials": {
            str(number): [trial.status, list(trial.results), trial.attempt, trial.micro_batches, trial.seconds]
            for number, trial in sorted(state.trials.items())
        },
    }


def course(path: Path) -> list[str]:
    state = State()
    return [digest(summary(state)) for _ in followed(path, LineChain(path), state)]


def test_later_rules_leave_every_archived_journal_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = json.loads((HERE / "courses.json").read_text())
    for name, change in {"today's": lambda patch: None, **LATER_RULES}.items():
        change(monkeypatch)
        for journal, digests in expected.items():
            assert course(HERE / journal) == digests, (name, journal)


@pytest.mark.parametrize("numbered", [False, True], ids=["format 1", "format 2"])
def test_a_journal_of_a_version_before_the_first_release_is_refused(tmp_path: Path, numbered: bool) -> None:
    opened = {"event": "opened", "slots": ["n1"], "plan": {"trials": 1, "rungs": [1]}, "time": 0.0}
    path = tmp_path / "journal.jsonl"
    path.write_bytes(encode_line({**opened, "line": 1, "format": 2, "then": {}} if numbered else opened))
    with pytest.raises(InputError, match="was written by another version" if numbered else "is damaged in line 1"):
        replay(path)


@pytest.mark.parametrize("number", [1, 4, 8, "auto"])
def test_a_campaign_whose_trials_shared_a_process_is_read(tmp_path: Path, number: object) -> None:
    folder = shutil.copytree(HERE / "campaign-v2", tmp_path / "c")
    table = json.loads((folder / "campaign.json").read_text())
    table["search"]["together"] = number
    table |= {"together_because": "memory is enough for so many copies of the training part"}
    del table["checksum"]
    (folder / "campaign.json").write_text(json.dumps(table))
    assert campaign_status(folder).trials["finished"] == 2
    assert open_campaign(folder).to_json() == open_campaign(HERE / "campaign-v2").to_json()


@pytest.mark.parametrize(("stated", "rate"), [({}, 1e-3), ({"learning_rate": 2e-3}, 2e-3)], ids=["absent", "stated"])
def test_a_campaign_of_0_2_0_keeps_the_default_rate_of_then(
    tmp_path: Path, stated: dict[str, float], rate: float
) -> None:
    folder = shutil.copytree(HERE / "campaign-v2", tmp_path / "c")
    table = json.loads((folder / "campaign.json").read_text())
    del table["checksum"], table["train"]["learning_rate"]
    table["train"] |= stated
    (folder / "campaign.json").write_text(json.dumps(table))
    begun = open_campaign(folder)
    assert begun.base["train"]["learning_rate"] == rate
    anew = {**begun.base, "train": {key: value for key, value in begun.base["train"].items() if key != "learning_rate"}}
    kept = as_begun(replace(begun, base=anew), folder).base["train"]
    assert kept.get("learning_rate") == (None if stated else rate)


def test_a_campaign_is_read_whole() -> None:
    campaign = HERE / "campaign-v2"
    status = campaign_status(campaign)
    assert (status.status, status.planned, status.trials["finished"], status.trials["paused"]) == ("finished", 5, 2, 1)
    assert (status.best.trial, round(status.best.value, 6)) == (0, 0.865196)
    kinds = [trial.failure.kind for trial in campaign_history(campaign).trials if trial.status == "failed"]
    assert kinds == ["diverged", "diverged"]
    assert [record.status for _, record, _ in campaign_records(campaign)].count("finished") == 2
