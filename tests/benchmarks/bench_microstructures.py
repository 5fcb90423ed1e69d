"""Seconds from a map of 1,000 x 1,000 points to its graph, beside the reader of orix.

OMP_NUM_THREADS=1 python tests/benchmarks/bench_microstructures.py [--points 1000] [--orix]
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy.spatial import KDTree

from hydragnn.datasets.sources.microstructure import MicrostructureBuild

HEADER = """# Phase 1
# MaterialName Nickel
# Symmetry 43
# LatticeConstants 3.5 3.5 3.5 90 90 90
# GRID: SqrGrid
# XSTEP: 0.5
# YSTEP: 0.5
# NCOLS_ODD: {0}
# NCOLS_EVEN: {0}
# NROWS: {0}
#"""


def write_map(path: Path, points: int) -> None:
    """Write an .ang of random grains of about 18 x 18 points."""
    random, places = np.random.default_rng(0), np.stack(np.indices((points, points)), axis=-1).reshape(-1, 2)
    seeds = random.uniform(0, points, (max(2, points**2 // 324), 2))
    grain = KDTree(seeds).query(places)[1]
    angles = (random.uniform(0, 1, (len(seeds), 3)) * [6.28, 1.57, 1.57])[grain] + random.normal(
        0, 0.005, (points**2, 3)
    )
    columns = [
        np.abs(angles),
        places[:, ::-1] * 0.5,
        np.ones((points**2, 2)),
        np.zeros(points**2),
        np.ones((points**2, 2)),
    ]
    np.savetxt(path, np.column_stack(columns), fmt="%.5f", header=HEADER.format(points), comments="")


def main() -> None:
    """Print seconds of each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--orix", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "map.ang"
        write_map(path, options.points)
        start = time.process_time()
        graph = next(MicrostructureBuild(files=[str(path)]).makers())()
        print(f"reading, grains and graph {time.process_time() - start:.1f} s; {graph}")
        if options.orix:
            from orix import io

            start = time.process_time()
            io.load(path, autogen_names=False)
            print(f"reading by orix {time.process_time() - start:.1f} s")


if __name__ == "__main__":
    main()
