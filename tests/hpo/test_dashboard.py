"""optuna-dashboard opens a campaign's ``optuna.log``."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from hydragnn.hpo import CampaignSettings, LocalLauncher, run_search

pytest.importorskip(
    "optuna_dashboard", reason="optuna-dashboard is not installed: pip install 'hydragnn-ensemble[dashboard]'"
)

PATIENCE = 240.0


def answer(address: str) -> tuple[int, bytes]:
    """Status and body of an address, once somebody answers there."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            with urlopen(address, timeout=PATIENCE) as response:
                return response.status, response.read()
        except URLError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def test_the_dashboard_lists_the_study_with_its_trials(
    settings: Callable[..., CampaignSettings], fake_launcher: Callable[..., LocalLauncher], tmp_path: Path
) -> None:
    result = run_search(settings(trials=4), tmp_path / "alloys", launcher=fake_launcher())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(Path(sys.executable).with_name("optuna-dashboard")), str(tmp_path / "alloys" / "optuna.log")]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            status, page = answer(f"http://127.0.0.1:{port}/dashboard/")
            assert (status, b"<html" in page.lower()) == (200, True)
            (study,) = json.loads(answer(f"http://127.0.0.1:{port}/api/studies")[1])["study_summaries"]
            assert study["study_name"] == "alloys"
            detail: dict[str, Any] = json.loads(
                answer(f"http://127.0.0.1:{port}/api/studies/{study['study_id']}?after=0")[1]
            )
        finally:
            server.terminate()
    assert [trial["number"] for trial in detail["trials"]] == [0, 1, 2, 3]
    assert sum(trial["state"] == "Complete" for trial in detail["trials"]) == result.finished
