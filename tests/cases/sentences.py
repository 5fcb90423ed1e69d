"""Cases of the second look: sentences of commands."""

from collections.abc import Callable
from pathlib import Path

import hydragnn as package
from tests.cases import inputs
from tests.cases.running import Answer, hydragnn

RUN = """
[data]
store = "graphs.h5"
[model]
kind = "gin"
hidden_dim = 8
num_layers = 1
[[heads]]
kind = "scalar"
field = "clustering"
[train]
epochs = 1
"""


def check_no_positions(folder: Path) -> Answer:
    """Laws of space do not apply to graphs without positions."""
    package.build_store(inputs.NETWORKS, folder / "graphs.h5", data=inputs.networks(24), quiet=True)
    (folder / "run.toml").write_text(RUN, encoding="utf-8")
    package.train(folder / "run.toml", folder / "run")
    checked = hydragnn(folder, "check", "run")
    rotation = next((line for line in checked.text.splitlines() if line.startswith("rotation")), "no rotation")
    seen = f"{' '.join(rotation.split()[:4])}, exit {checked.code}"
    wanted = "rotation does not apply, exit 0"
    return Answer(wanted, seen, seen == wanted)


def help_parallel(folder: Path) -> Answer:
    """Keys of every section have a text."""
    keys = ("parallel", "parallel.shard", "branches", "search.space.low", "split.group", "start.replay", "simulate")
    silent = [key for key in keys if (told := hydragnn(folder, "help", key)).code or len(told.text) < 40]
    return Answer("a text for each", f"none for {', '.join(silent)}" if silent else "a text for each", not silent)


CASES: dict[str, Callable[[Path], Answer]] = {"check_no_positions": check_no_positions, "help_parallel": help_parallel}
