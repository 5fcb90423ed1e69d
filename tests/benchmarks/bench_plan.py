"""Extrapolated times and memory of layouts beside those that started ranks measure.

    python -m tests.benchmarks.bench_plan [--ranks 2] [--only painn] [--json FILE]

``hydragnn plan`` measures one process without peers and extrapolates all layouts of copies, shards and stages. Then it measures ranks that are started. Ratios
are extrapolated over measured.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn.datasets import StoreWriter
from hydragnn.scripts.plan_curves import layout_words
from tests.benchmarks.harness import Figures
from tests.benchmarks.step_times import CUTOFF, MODELS, crystals

WIDTHS = {"painn": (32, 192), "schnet": (64, 256)}
CONFIG = """
[data]
store = "crystals.h5"
[split]
train = 0.75
valid = 0.125
[batch]
max_graphs = {graphs}
[model]
{model}
[[heads]]
kind = "energy"
field = "energy"
"""


def plan_of(config: Path, ranks: int, launcher: list[str]) -> list[dict[str, Any]]:
    """Return the layouts of a plan."""
    words = [sys.executable, *launcher, "-m", "hydragnn", "plan", str(config), "--ranks-per-node", str(ranks), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    layouts: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])["layouts"]
    return layouts


def main() -> None:
    """Print a row for every layout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--graphs", type=int, default=24)
    parser.add_argument("--only", default="", help="architectures whose name contains this")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    columns = {"kind": "8", "width": "6d", "layout": "24", "ms": "8.1f", "MB": "8.1f", "time": "7.3f", "memory": "7.3f"}
    figures = Figures(columns, options.json)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks)]
    with tempfile.TemporaryDirectory() as folder:
        graphs = crystals(4 * options.graphs)
        with StoreWriter(Path(folder, "crystals.h5"), graphs.fields(), dim=3) as writer:
            writer.write(graphs.read(np.arange(len(graphs)), [field.name for field in graphs.fields()]))
        for kind, width in ((kind, width) for kind, widths in WIDTHS.items() for width in widths):
            if options.only not in kind:
                continue
            settings = {"kind": kind, "hidden_dim": width, "num_layers": 4, "cutoff": CUTOFF, **MODELS.get(kind, {})}
            model = "\n".join(f"{name} = {json.dumps(value)}" for name, value in settings.items())
            config = Path(folder, "config.toml")
            config.write_text(CONFIG.format(graphs=options.graphs, model=model))
            alone = {layout_words(one["parallel"]): one for one in plan_of(config, options.ranks, [])}
            for one in plan_of(config, options.ranks, launcher):
                name = layout_words(one["parallel"])
                own = alone.get(name)
                seconds, size = one["seconds"]["step"], one["memory"]["total"]
                ratios = (own["seconds"]["step"] / seconds, own["memory"]["total"] / size) if own else (0.0, 0.0)
                figures.add(kind, width, name, 1e3 * seconds, size / 1e6, *ratios)


if __name__ == "__main__":
    main()
