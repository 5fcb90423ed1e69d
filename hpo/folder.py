"""Names and versions of the files in a campaign's folder."""

from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError
from hydragnn.base.files import check_version, read_sealed
from hydragnn.base.places import check_exists

NAME = "campaign.json"
SAMPLER_LOG = "sampler.log"
VERSION = 4


def campaign_table(out: Path) -> dict[str, Any]:
    """Return the table of a campaign's folder; InputError without one."""
    path = out / NAME
    check_exists(out)
    if not path.exists():
        raise InputError(f"{out} is not a campaign (no {NAME}); check the path")
    saved = read_sealed(path)
    if not isinstance(saved, dict) or not isinstance(saved.get("version"), int) or "enqueued" not in saved:
        raise InputError(f"{path} is not a campaign's; check the path")
    check_version(saved["version"], path, oldest=3, newest=VERSION)
    if saved["version"] == 3 and not saved.get("runs"):  # of 0.2.0, where forces had the common default
        saved["train"] = {"learning_rate": 1e-3, **saved.get("train", {})}
    saved.pop("together_because", None)  # of 0.2.0, where trials could share a process
    return saved
