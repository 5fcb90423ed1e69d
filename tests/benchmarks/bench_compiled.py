"""Compiled kernels against plain torch: ops, and training steps of architectures on rattled alloys; in turns, in one process.

    python -m tests.benchmarks.bench_compiled [--ops] [--steps] [--repeats 20]

Steps are forward, forces, backward (energies alone for PNA) and AdamW, on a batch of 32 rattled fcc alloys of 8 to 64 atoms,
seven of ten periodic, within 5 A; hidden 64, 3 layers, fp32, one thread. Figures are CPU times, medians over the repeats;
ratios are plain over compiled, the median over turns. Freed memory is kept as in every command that trains
(``hydragnn/base/allocator.py``): without, plain torch also pays for fresh pages of every large array.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import torch

from hydragnn.architectures.egnn import EGNNSettings
from hydragnn.architectures.painn import PaiNNSettings
from hydragnn.architectures.pna import PNASettings
from hydragnn.architectures.schnet import SchNetSettings
from hydragnn.base.allocator import keep_memory
from hydragnn.graphs.batch import GraphBatch
from hydragnn.kernels import OPS
from hydragnn.kernels.bench import derivatives, outputs
from hydragnn.kernels.cpu import compiled
from hydragnn.kernels.ops import random_graph
from tests.benchmarks.bench_models import Step, our_step, parse_head
from tests.benchmarks.structures import alloys
from tests.benchmarks.timing import seconds

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


def in_turns(work: Callable[[], object], repeats: int) -> tuple[float, float, float]:
    """Milliseconds of CPU time in plain torch and compiled, and their ratio."""
    turns = []
    for number in range(repeats + 2):
        with plain_torch():
            plain = seconds(work)
        turns.append((plain, seconds(work)))
        if number == 1:
            turns.clear()  # the first two warm up
    return (
        median(plain for plain, _ in turns) * 1e3,
        median(ours for _, ours in turns) * 1e3,
        median(plain / ours for plain, ours in turns),
    )


def step_of(kind: str, batch: GraphBatch) -> Step:
    """A training step of an architecture."""
    settings = KINDS[kind](hidden_dim=64, num_layers=3, num_radial=20, cutoff=5.0)
    forces = {} if kind == "pna" else {"forces": "forces"}
    head = parse_head({"kind": "energy", "field": "energy", **forces})
    return our_step(settings, head, batch, ["atomic_numbers"])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", action="store_true")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    title = f"{'':52} {'plain ms':>9} {'ours ms':>9} {'ratio':>6}"
    if options.ops or not options.steps:
        for nodes, degree, channels in SIZES:
            print(f"{nodes} nodes, {nodes * degree} edges, {channels} channels, fp32\n{title}")
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
                        print(f"{label:52}" + " {:9.2f} {:9.2f} {:6.2f}".format(*in_turns(work, options.repeats)))
    if options.steps or not options.ops:
        batch = alloys(32)
        print(f"steps on {batch.num_nodes} atoms, {batch.num_edges} edges\n{title}")
        for kind in KINDS:
            print(f"{kind:52}" + " {:9.2f} {:9.2f} {:6.2f}".format(*in_turns(step_of(kind, batch), options.repeats)))


if __name__ == "__main__":
    main()
