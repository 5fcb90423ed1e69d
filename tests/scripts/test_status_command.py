"""``hydragnn status``: a table for people, JSON for machines, and a watch that ends with the campaign."""

import io
import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

import hydragnn
from hydragnn.hpo import campaign_history, campaign_settings, campaign_status
from hydragnn.hpo.preflight import write_settings
from hydragnn.hpo.scheduling.events import Plan
from hydragnn.hpo.status.view import show_status, status_rows
from tests.charged_rings import RUN, write_rings

SPACE = {
    "model.hidden_dim": {"type": "int", "low": 16, "high": 128, "log": True},
    "train.learning_rate": {"type": "float", "low": 1e-4, "high": 1e-2, "log": True},
}
SEARCH = {"train": {"epochs": 18}, "search": {"trials": 40, "rungs": [2, 6], "space": SPACE}}

Campaign = Callable[..., Path]


@pytest.fixture
def campaign(played: ModuleType, tmp_path: Path) -> Campaign:
    """A maker of campaign folders on so many nodes."""

    def make_campaign(nodes: int = 6, **more: str) -> Path:
        folder = tmp_path / "campaign"
        folder.mkdir()
        write_rings(folder / "rings.h5", 1)
        settings = campaign_settings({**tomllib.loads(RUN), **SEARCH}, folder / "CAMPAIGN.toml")
        write_settings(settings, [], folder)
        plan = Plan(trials=40, rungs=(2, 6, 18), finalists=2, max_slots=2)
        player = played.play(plan, nodes, seed=3, own=0.1, machine=0.08, bad=("n2",), work=30.0, **more)
        player.session(stop_after=1500)
        player.session()
        player.write(folder / "journal.jsonl")
        return folder

    return make_campaign


def shown(folder: Path, *, terminal: bool = False, whole: bytes = b"", as_json: bool = False) -> str:
    """What is printed, watched where there is a whole journal that is written meanwhile."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=160, color_system=None)

    def sleep(_: float) -> None:
        (folder / "journal.jsonl").write_bytes(whole)

    show_status(folder, watch=bool(whole), as_json=as_json, console=console, sleep=sleep)
    return text.getvalue()


def shortened(folder: Path, lines: int) -> bytes:
    """Take the journal back to its first lines; gives what it was."""
    path = folder / "journal.jsonl"
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:lines]))
    return whole


def test_every_question_has_its_line(campaign: Campaign) -> None:
    text = shown(campaign())
    words = "all trials done,40 of 40,epoch 18:,hidden_dim=,node-hours,seconds per epoch,never told to the sampler"
    assert [one for one in words.split(",") if one not in text] == []


TROUBLE = {"number": 3, "since": 1.7e9, "until": 1.7e9 + 30}


@pytest.mark.parametrize(
    ("changes", "row", "sentences"),
    [
        ({}, "sampler", [["tpe, since 6 can run at once"]]),
        # a sampler that fails leaves a random search, which nobody should take for anything else
        ({"stand_ins": 3}, "sampler", [["tpe"], ["3 trial(s), which were drawn at random", "sampler.log says why"]]),
        ({"trouble": None}, "machine", []),
        ({"trouble": TROUBLE}, "machine", [["since 2023-11-1", "(3 time(s) so far)", "no start before 2023-11-1"]]),
        ({"trouble": {**TROUBLE, "since": None, "until": None}}, "machine", [["in order; in trouble 3 time(s)"]]),
    ],
)
def test_a_status_has_sentences_on_its_sampler_and_machine(
    campaign: Campaign, changes: dict[str, Any], row: str, sentences: list[list[str]]
) -> None:
    lines = status_rows(replace(campaign_status(campaign()), **changes)).get(row, [])
    assert len(lines) == len(sentences)
    assert all(word in line for line, words in zip(lines, sentences) for word in words)


@pytest.mark.parametrize(("slots", "name"), [(6, "tpe"), (64, "gp")])
def test_the_sampler_that_auto_became_is_named_with_its_reason(campaign: Campaign, slots: int, name: str) -> None:
    """What proposes depends on the machine, and nobody should have to read the source to know it."""
    folder = campaign(slots)
    [sentence] = status_rows(campaign_status(folder))["sampler"]
    assert sentence.startswith(f'{name}, since {slots} can run at once ("auto" is gp where 64 trials or more')
    assert campaign_history(folder).sampler == sentence
    shortened(folder, 0)
    assert campaign_status(folder).sampler.startswith("not chosen yet")


def test_a_laptop_has_workers(campaign: Campaign) -> None:
    folder = campaign(2, prefix="worker-")
    shortened(folder, 20)
    text = shown(folder)
    assert "of worker time" in text
    assert "workers busy" in text or "worker busy" in text


def test_watching_shows_what_is_new_and_ends_with_the_campaign(campaign: Campaign) -> None:
    folder = campaign()
    for terminal in (False, True):
        text = shown(folder, terminal=terminal, whole=shortened(folder, 100))
        assert "no sign of life" in text and "all trials done" in text
    text = shown(folder, as_json=True, whole=shortened(folder, 100))
    first, last = (json.loads(line) for line in text.splitlines())
    assert (first["status"], last["status"]) == ("silent", "finished")
    assert hydragnn.status(folder).trials == last["trials"]
