"""A bit of a campaign's files that changed on a disk: whoever reads them is told, or reads what was written."""

from collections.abc import Callable
from operator import eq
from pathlib import Path

from hydragnn.hpo import CampaignSettings
from hydragnn.hpo.journal import Entry, Journal, read_journal
from hydragnn.hpo.preflight import NAME, open_campaign, write_settings
from hydragnn.hpo.scheduling.events import Reached
from tests.flips import FLIPS, silent


def test_a_flipped_bit_of_the_settings_of_a_campaign_is_never_silent(
    settings: Callable[..., CampaignSettings], tmp_path: Path
) -> None:
    write_settings(settings(), [{"model.hidden_dim": 16}], tmp_path)
    found, refused = silent(tmp_path / NAME, lambda: open_campaign(tmp_path), eq)
    assert not found and refused > FLIPS / 2


def test_a_flipped_bit_of_a_journal_changes_no_event(tmp_path: Path) -> None:
    """Nor does it take the last one away, which may have had consequences, as a torn line has none."""
    path = tmp_path / "journal.jsonl"
    events = [(float(k), Reached(trial=k, attempt=1, epochs=3, value=0.5 + k / 7)) for k in range(12)]
    with Journal(path) as journal:
        journal.extend(Entry(*event) for event in events)
    found, refused = silent(path, lambda: read_journal(path), eq)
    assert not found and refused > FLIPS / 2
