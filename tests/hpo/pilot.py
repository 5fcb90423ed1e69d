"""What a batch job of the tests runs: a search in this allocation, whose trials train nothing.

python pilot.py CAMPAIGN.json OUT
"""

import json
import os
import sys
from pathlib import Path

from hydragnn.hpo.campaign import run_search
from hydragnn.hpo.launching.sites import read_allocation, site_of
from hydragnn.hpo.launching.steps import StepLauncher
from hydragnn.hpo.settings import campaign_settings


def main(path: Path, out: Path) -> None:
    """Begin the campaign, or go on with it."""
    allocation = read_allocation(os.environ)
    launcher = StepLauncher(site_of(allocation), allocation, ranks=1, module="fake_steps")
    result = run_search(campaign_settings(json.loads(path.read_text()), path), out, resume=True, launcher=launcher)
    print(json.dumps(result.to_json()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
