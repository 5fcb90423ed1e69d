"""Cases of the second look: searches, and faults while files are written."""

import json
from collections.abc import Callable
from pathlib import Path

from hydragnn.scripts.api import build_store
from tests.cases import inputs
from tests.cases.running import Answer, hydragnn

WIDTHS = """
[data]
store = "graphs.h5"
[model]
kind = "gatv2"
num_layers = 1
[[heads]]
kind = "scalar"
field = "clustering"
[train]
epochs = 1
[search]
trials = 4
[search.space."model.hidden_dim"]
type = "int"
low = 8
high = 24
"""


def search_range(folder: Path) -> Answer:
    """A search over widths, of which heads divide few, tries no other."""
    build_store(inputs.NETWORKS, folder / "graphs.h5", data=inputs.networks(40), quiet=True)
    (folder / "campaign.toml").write_text(WIDTHS, encoding="utf-8")
    searched = hydragnn(folder, "search", "campaign.toml", "--out", "campaign", "--workers", "1")
    wanted = "4 trials, none lost, of widths 8, 12, 16, 20, 24"
    if searched.code:
        return Answer(wanted, searched.sentence, False)
    records = [json.loads(path.read_text()) for path in sorted((folder / "campaign").glob("trials/*/record.json"))]
    widths = sorted(record["config"]["model"]["hidden_dim"] for record in records)
    finished = sum(record["status"] == "finished" for record in records)
    seen = f"{finished} of {len(records)} trials finished, of widths {', '.join(map(str, widths))}"
    return Answer(wanted, seen, finished == 4 and all(width % 4 == 0 for width in widths))


CASES: dict[str, Callable[[Path], Answer]] = {"search_range": search_range}
