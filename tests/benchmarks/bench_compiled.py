"""Compiled kernels against plain torch: ops, and training steps of architectures on rattled alloys; in turns, in one process.

    python -m tests.benchmarks.bench_compiled [--ops] [--steps] [--rounds 20]

Steps are forward, forces, backward (energies alone for PNA) and AdamW, on a batch of 32 rattled fcc alloys of 8 to 64 atoms,
seven of ten periodic, within 5 A; hidden 64, 3 layers, fp32, one thread. Figures are CPU times, medians over the rounds;
ratios are plain over compiled, the median over turns. Freed memory is kept as in every command that trains
(``hydragnn/base/allocator.py``): without, plain torch also pays for fresh pages of every large array.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hydragnn.architectures.egnn import EGNNSettings
from hydragnn.architectures.painn import PaiNNSettings
from hydragnn.architectures.pna import PNASettings
from hydragnn.architectures.schnet import SchNetSettings
from hydragnn.base.allocator import keep_memory
from hydragnn.graphs.batch import GraphBatch
from hydragnn.kernels import OPS
from hydragnn.kernels.cpu import compiled
from hydragnn.kernels.ops import random_graph
from hydragnn.models import parse_head
from tests.benchmarks.bench_kernels import derivatives, outputs
from tests.benchmarks.harness import Figures, Work, in_turns, parser
from tests.benchmarks.molecules import Step, our_step
from tests.benchmarks.structures import alloys

SIZES = ((600, 28, 64), (2000, 30, 128))
"""Nodes, edges per node, channels."""
KINDS = {"painn": PaiNNSettings, "schnet": SchNetSettings, "egnn": EGNNSettings, "pna": PNASettings}


@contextmanager
def plain_torch() -> Iterator[None]:
    """Within the block no kernel is compiled."""
    library = compiled.library
    compiled.library = lambda: None  # type: ignore[assignment]
    try:
        yield
    finally:
        compiled.library = library


def both(work: Work, rounds: int) -> tuple[float, float, float]:
    """Return milliseconds in plain torch and compiled, and their ratio."""

    def plain() -> None:
        with plain_torch():
            work()

    turns = in_turns({"plain": plain, "ours": work}, rounds, warm_up=2)
    return turns.milliseconds("plain"), turns.milliseconds("ours"), turns.ratio("plain", "ours")


def step_of(kind: str, batch: GraphBatch) -> Step:
    """A training step of an architecture."""
    settings = KINDS[kind](hidden_dim=64, num_layers=3, num_radial=20, cutoff=5.0)
    forces = {} if kind == "pna" else {"forces": "forces"}
    head = parse_head({"kind": "energy", "field": "energy", **forces})
    return our_step(settings, head, batch, ["atomic_numbers"])


def main() -> None:
    """Print the tables."""
    arguments = parser(__doc__, rounds=20)
    arguments.add_argument("--ops", action="store_true")
    arguments.add_argument("--steps", action="store_true")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    figures = Figures({"work": "52", "plain ms": "9.2f", "ours ms": "9.2f", "ratio": "6.2f"}, options.json)
    if options.ops or not options.steps:
        for nodes, degree, channels in SIZES:
            print(f"{nodes} nodes, {nodes * degree} edges, {channels} channels, fp32")
            edges = random_graph(nodes, degree)
            for op in OPS.values():
                for name, case in op.cases({"random": edges}, channels):
                    given = case.to(dtype=torch.float32)
                    if not case.smooth:
                        continue
                    for what, work in (
                        ("forward", lambda: outputs(op.call, given)),  # noqa: B023
                        ("and backward", lambda: derivatives(op.call, given, 1)),  # noqa: B023
                    ):
                        label = f"{op.name}, {name.removeprefix('random, ')}, {what}"
                        figures.add(label, *both(work, options.rounds))
    if options.steps or not options.ops:
        batch = alloys(32)
        print(f"steps on {batch.num_nodes} atoms, {batch.num_edges} edges")
        for kind in KINDS:
            figures.add(kind, *both(step_of(kind, batch), options.rounds))


if __name__ == "__main__":
    main()
