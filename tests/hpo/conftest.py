"""A tiny real store, and a search without real training: attempts are processes of a module that learns in milliseconds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from campaigns import Settings, campaign_table, course, environment, of_module, weights_of

from hydragnn.hpo import CampaignSettings, CampaignStatus, LocalLauncher, campaign_settings, run_search
from tests.charged_rings import write_rings


@pytest.fixture(scope="session")
def store_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "store.h5"
    write_rings(path, 40)
    return path


@pytest.fixture
def table(store_file: Path) -> dict[str, Any]:
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
        return of_module(LocalLauncher, "fake.training", settings)(workers, hang_seconds=hang_seconds)

    return made


@pytest.fixture
def search(
    settings: Settings, fake_launcher: Callable[..., LocalLauncher], tmp_path: Path
) -> Callable[..., CampaignStatus]:
    def run(
        out: Path | str,
        *,
        resume: bool = False,
        workers: int = 1,
        pause: float = 0.0,
        fault: str = "",
        hang_seconds: float = 600.0,
        **search: Any,
    ) -> CampaignStatus:
        launcher = fake_launcher(workers, pause, fault, hang_seconds)
        return run_search(settings(**search), tmp_path / out, launcher=launcher, resume=resume)

    return run


@pytest.fixture(scope="session")
def undisturbed(store_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """What the campaign of the table did and what its trials learned, where nothing happened to them."""
    out = tmp_path_factory.mktemp("undisturbed") / "c"
    launcher = of_module(LocalLauncher, "fake.training", environment(0.0, ""))(1)
    run_search(campaign_settings(campaign_table(store_file), out.parent / "CAMPAIGN.toml"), out, launcher=launcher)
    return course(out), weights_of(out)
