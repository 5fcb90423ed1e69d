"""A tiny real store, and a search without real training: attempts are processes of a module that learns in milliseconds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from campaigns import campaign_table, environment
from rings import write_rings

from hydragnn.hpo import CampaignSettings, LocalLauncher, campaign_settings

Settings = Callable[..., CampaignSettings]


@pytest.fixture(scope="session")
def store_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty rings."""
    path = tmp_path_factory.mktemp("store") / "store.h5"
    write_rings(path, 40)
    return path


@pytest.fixture
def table(store_file: Path) -> dict[str, Any]:
    """A campaign as it comes from TOML."""
    return campaign_table(store_file)


@pytest.fixture
def settings(table: dict[str, Any], tmp_path: Path) -> Settings:
    """A maker of campaigns: keyword arguments replace members of [search]."""

    def made(**search: Any) -> CampaignSettings:
        return campaign_settings({**table, "search": {**table["search"], **search}}, tmp_path / "CAMPAIGN.toml")

    return made


@pytest.fixture
def fake_launcher() -> Callable[..., LocalLauncher]:
    """A maker of launchers whose attempts run the module above in real processes."""

    def made(workers: int = 1, pause: float = 0.0, fault: str = "", hang_seconds: float = 600.0) -> LocalLauncher:
        settings = environment(pause, fault)
        return LocalLauncher(workers, module="fake.training", environment=settings, hang_seconds=hang_seconds)

    return made


@pytest.fixture
def weights_of() -> Callable[[Path], dict[str, Any]]:
    """Reads what all trials of a campaign learned."""

    def read(out: Path) -> dict[str, Any]:
        return {p.parent.name: json.loads(p.read_text()) for p in sorted(out.glob("trials/*/weights.json"))}

    return read
