"""CPU time around the steps: of ``train`` on ten graphs beside torch's import, and of a tiny trial beside its training.

    python -m tests.benchmarks.bench_start [--rounds 5] [--against OTHER/bin/python]

Times are of whole trees of processes, user and system, least and median over the rounds; with ``--against`` another environment takes
turns. Modules are compiled to bytecode before, as in an installation. A trial's time is the difference of searches with
few and with more trials, its training that of searches with more epochs: so nothing that it does once counts as training. Trials
are drawn at random; `bench_samplers` times samplers.
"""

import os
import resource
import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path
from statistics import median

import tomli_w

from hydragnn.scripts.demo import alloys
from tests.benchmarks.harness import Figures, parser

FEW, MORE, EPOCHS = 10, 60, 6
SPACE = {"train.learning_rate": {"type": "float", "low": 1e-4, "high": 1e-2, "log": True}}
ASKED = {"train of ten graphs": "2.9", "trial beside its training": "0.08"}


class Commands:
    """Runs of the commands in a folder, by one interpreter."""

    def __init__(self, python: str, folder: Path) -> None:
        self.python, self.folder, self.numbers = python, folder, count()
        ours = {"OMP_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
        self.environment = {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        } | ours

    def seconds(self, *words: object) -> float:
        """Return the CPU seconds of a process and its children."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [self.python, *map(str, words)]
        subprocess.run(command, cwd=self.folder, env=self.environment, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def of(self, command: str, graphs: int, epochs: int, trials: int = 0) -> float:
        """Return the CPU seconds of ``train`` or ``search`` on so many graphs."""
        store, config = self.folder.parent / f"{graphs}.h5", self.folder / f"{next(self.numbers)}.toml"
        head = {"kind": "energy", "field": "energy", "references": True, "forces": "forces"}
        table = {
            "data": {"store": str(store)},
            "split": {"train": 0.7, "valid": 0.15},
            "batch": {"max_graphs": 16},
            "model": {"kind": "schnet", "cutoff": 4.5, "hidden_dim": 8, "num_layers": 1},
            "heads": [head],
            "train": {"epochs": epochs},
        }
        if trials:
            table["search"] = {"trials": trials, "workers": 1, "sampler": "random", "rungs": [], "space": SPACE}
        config.write_text(tomli_w.dumps(table))
        return self.seconds("-m", "hydragnn.scripts", command, config, "--out", config.with_suffix(""))

    def round(self) -> dict[str, float]:
        """Return the CPU seconds of everything, once."""
        torch, train = self.seconds("-c", "import torch"), self.of("train", 10, 1)
        few, more, longer = (self.of("search", 40, epochs, n) for epochs, n in ((1, FEW), (1, MORE), (EPOCHS, MORE)))
        trial, epoch = (more - few) / (MORE - FEW), (longer - more) / MORE / (EPOCHS - 1)
        names = (
            "torch's import",
            "train of ten graphs",
            "train over torch's import",
            "trial",
            "trial beside its training",
        )
        return dict(zip(names, (torch, train, train - torch, trial, trial - epoch)))


def main() -> None:
    """Print the figures of each environment."""
    arguments = parser(__doc__, rounds=5)
    arguments.add_argument("--against", help="interpreter of another environment, which takes turns")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as place:
        for graphs in (10, 40):
            alloys.make_alloys(Path(place) / f"{graphs}.h5", samples=graphs)
        pythons = {"this": sys.executable} | ({"other": options.against} if options.against else {})
        commands = {name: Commands(python, Path(place) / name) for name, python in pythons.items()}
        for each in commands.values():
            each.folder.mkdir()
            each.of("search", 40, 1, 1)
        rounds = [{name: each.round() for name, each in commands.items()} for _ in range(options.rounds)]
        figures = Figures(
            {"what": "26", "environment": "11", "least": "8.3f", "median": "8.3f", "asked": "6"}, options.json
        )
        for what in rounds[0]["this"]:
            for name in commands:
                values = [each[name][what] for each in rounds]
                figures.add(what, name, min(values), median(values), ASKED.get(what, ""))


if __name__ == "__main__":
    main()
