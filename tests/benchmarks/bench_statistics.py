"""Training steps with smooth statistics beside the paper's, in turns on the same batches, on one thread.

    python -m tests.benchmarks.bench_statistics [--rounds 20]

Steps and batches are those of ``molecules``; figures are CPU times, the least of all rounds.
"""

import torch

from hydragnn.architectures import architecture_of
from hydragnn.graphs.joining import concatenate
from hydragnn.models import parse_head
from tests.benchmarks.harness import Figures, in_turns, parser
from tests.benchmarks.molecules import CUTOFF, HIDDEN, LAYERS, RADIAL, molecule, our_step


def main() -> None:
    """Print the table."""
    options = parser(__doc__, rounds=20).parse_args()
    torch.set_num_threads(1)
    bulk = concatenate([molecule(60, seed) for seed in range(8)]).to(dtype=torch.float32)
    common = {"hidden_dim": HIDDEN, "num_layers": LAYERS, "num_radial": RADIAL, "cutoff": CUTOFF}
    columns = {"step": "30", "smooth ms": "10.1f", "paper ms": "10.1f", "ratio": "6.2f"}
    figures = Figures(columns, options.json)
    for kind in ("pna", "pnaplus", "pnaeq"):
        for name, forces in (("energy", {}), ("energy and forces", {"forces": "forces"})):
            head = parse_head({"kind": "energy", "field": "energy", **forces})
            settings = architecture_of(kind).Settings
            steps = {
                form: our_step(settings(**common, statistics=form), head, bulk, ["atomic_numbers"])
                for form in ("smooth", "paper")
            }
            smooth, paper = map(in_turns(steps, options.rounds, warm_up=2).least, steps)
            figures.add(f"{kind}, {name}", smooth, paper, smooth / paper)


if __name__ == "__main__":
    main()
