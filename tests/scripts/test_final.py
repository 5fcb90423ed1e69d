"""``hydragnn ensemble --train``: real trainings of the best configurations, together, and the ensemble of them."""

import json
import signal
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from hydragnn.base.errors import InputError
from hydragnn.config import RunConfig
from hydragnn.ensemble import Ensemble
from hydragnn.hpo import CampaignView, campaign_history
from hydragnn.hpo.scheduling.events import Reached
from hydragnn.runs import train
from hydragnn.scripts import api
from tests.charged_rings import RUN, write_rings
from tests.once import Call


@pytest.fixture(scope="module", autouse=True)
def no_gpus() -> Iterator[None]:
    """Two workers are right on any machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hydragnn.hpo.launching.local.visible_gpus", lambda: 0)
        yield


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four small trials on rings of charges; a rung lets one of them through."""
    folder = tmp_path_factory.mktemp("final")
    table = tomllib.loads(RUN) | {"data": {"store": str(write_rings(folder / "rings.h5", 24))}, "train": {"epochs": 4}}
    space = {"model.hidden_dim": {"type": "int", "low": 4, "high": 12}}
    table["search"] = {"trials": 4, "rungs": [2], "reduction": 4, "finalists": 1, "space": space}
    api.search(table, folder / "campaign", workers=2, quiet=True)
    return folder / "campaign"


def test_members_trained_together_are_what_they_are_alone(call: Call, campaign: Path, tmp_path: Path) -> None:
    out = tmp_path / "ensemble"
    options = ["--out", out, "--top-k", "3", "--train", "--epochs", "6", "--workers", "2"]
    code, output, _ = call("ensemble", campaign, *options)
    assert code == 0 and "finished at epoch 6" in output
    ensemble = Ensemble.load(out)
    records = [member.record for member in ensemble.members]
    assert [(record.epochs, record.seed) for record in records] == [(6, 0), (6, 1), (6, 2)]
    names = ensemble.manifest.selection["chosen"]
    widths = {trial.folder.name: trial.values["model.hidden_dim"] for trial in campaign_history(campaign).trials}
    assert [member.config.model.hidden_dim for member in ensemble.members] == [widths[name] for name in names]
    for trial in campaign_history(tmp_path / "ensemble.training").trials:
        config = RunConfig.parse(json.loads((trial.folder / "config.json").read_text()))
        train(config, tmp_path / "alone" / trial.folder.name)
        alone = load_file(tmp_path / "alone" / trial.folder.name / "model" / "weights.safetensors")
        together = load_file(trial.folder / "model" / "weights.safetensors")
        assert alone.keys() == together.keys()
        assert all(alone[name].tobytes() == together[name].tobytes() for name in alone)


def test_a_campaign_is_loaded_as_its_best_trial_which_is_not_changed(campaign: Path) -> None:
    number = api.status(campaign).best.trial  # type: ignore[union-attr]
    best = campaign_history(campaign).trials[number]
    assert best.number == number
    assert api.load(campaign).names == (best.folder.name,) == api.load(str(best.folder / "model")).names
    assert f"best: trial {number}" in api.status(campaign)._repr_html_()
    with pytest.raises(InputError, match=r"is a trial of a campaign.*train.epochs: 4, now 9"):
        api.train(best.folder, resume=True, overrides=["train.epochs=9"])


def test_a_training_is_continued(call: Call, campaign: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    show: Callable[..., None] = CampaignView.__call__

    def showing(view: CampaignView, state: Any, event: Any, seconds: float) -> None:
        """The first training that reaches a rung is followed by Ctrl-C."""
        show(view, state, event, seconds)
        if isinstance(event, Reached):
            monkeypatch.setattr(CampaignView, "__call__", show)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(CampaignView, "__call__", showing)
    out = tmp_path / "ensemble"
    command = ("ensemble", campaign, "--out", out, "--top-k", "1", "--final-seeds", "2")
    code, _, errors = call(*command)
    assert code == 130 and "the same command continues" in errors
    assert not out.exists()
    assert call(*command)[0] == 0
    manifest = json.loads((out / "ensemble.json").read_text())
    assert [member["summary"]["seed"] for member in manifest["members"]] == [0, 1]
    assert [member["weight"] for member in manifest["members"]] == [0.5, 0.5]
    assert manifest["selection"]["final_seeds"] == 2


@pytest.mark.parametrize(
    "train, words",
    [(True, "4 configurations with a result, fewer than top-k = 5"), (False, "top-k = 5 exceeds the 1 finished runs")],
)
def test_more_members_than_configurations_are_refused(train: bool, words: str, campaign: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        api.build_ensemble(campaign, tmp_path / "ensemble", top_k=5, train=train)
    assert not list(tmp_path.iterdir())
