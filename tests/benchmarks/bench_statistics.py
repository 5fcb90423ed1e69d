"""Training steps with smooth statistics beside the paper's, in turns on the same batches, on one thread.

    python -m tests.benchmarks.bench_statistics [--repeats 20]

Steps and batches are those of ``bench_models``; figures are CPU times, minima over the repeats.
"""

import argparse

import torch

from hydragnn.architectures import architecture_of
from hydragnn.graphs.joining import concatenate
from hydragnn.models import parse_head
from tests.benchmarks.bench_models import CUTOFF, HIDDEN, LAYERS, RADIAL, compared, molecule, our_step


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    bulk = concatenate([molecule(60, seed) for seed in range(8)]).to(dtype=torch.float32)
    common = {"hidden_dim": HIDDEN, "num_layers": LAYERS, "num_radial": RADIAL, "cutoff": CUTOFF}
    print(f"{'step':30} {'smooth ms':>10} {'paper ms':>10} {'ratio':>6}")
    for kind in ("pna", "pnaplus", "pnaeq"):
        for name, forces in (("energy", {}), ("energy and forces", {"forces": "forces"})):
            head = parse_head({"kind": "energy", "field": "energy", **forces})
            settings = architecture_of(kind).Settings
            smooth, paper = (
                our_step(settings(**common, statistics=form), head, bulk, ["atomic_numbers"])
                for form in ("smooth", "paper")
            )
            mine, other = compared(smooth, paper, repeats)
            print(f"{kind + ', ' + name:30} {mine * 1e3:10.1f} {other * 1e3:10.1f} {mine / other:6.2f}")


if __name__ == "__main__":
    main()
