"""What a training costs before its first step, and what it keeps in memory, on a store of many small graphs.

    python -m tests.benchmarks.bench_data [--graphs 1000000]

Graphs of 8 to 12 nodes with 3 edges per node; PNA, one energy with reference values, 256 graphs per step. Every start is a process of
its own, from the plan to the first batch: alone in memory, the first and the second of a campaign's trials. Memory is what belongs to
the process (RssAnon) beside the files that the system keeps in memory once for all, and the peak of both (ru_maxrss); the line
"imports" is what Python and torch take before.
"""

import argparse
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hydragnn.scripts.bench.data import started, write


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="starting a training on a large store")
    parser.add_argument("--graphs", type=int, default=20_000)
    parser.add_argument("--folder", type=Path, help="where the store is made")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        store = Path(folder) / "store.h5"
        write(store, arguments.graphs)
        bytes_ = sum(file.stat().st_size for file in store.iterdir())
        table = Table(f"{arguments.graphs} graphs, {bytes_ / 1e6:.0f} MB", "s", "CPU s", "MB own", "MB peak")
        for name, shared in (("first trial", True), ("second trial", True), ("alone, in memory", False)):
            row = started(store, shared=shared)
            table.add_row(
                name, *(f"{row[key]:.1f}" for key in ("wall", "cpu")), *(f"{row[key]:.0f}" for key in ("own", "peak"))
            )
        table.add_row("imports", "", "", f"{row['imports']:.0f}", "")
        Console().print(table)


if __name__ == "__main__":
    main()
