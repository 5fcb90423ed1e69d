"""A training step as it is against the compiled one (``train.compile``): ratios of CPU time, steps taken in turn in one process.

    python -m tests.benchmarks.bench_compile [painn schnet egnn ...] [--rounds 9] [--small] [--energies]

Rattled alloys of 8 to 64 atoms with all neighbours within 5 Angstrom (some 1,400 edges per graph, 32 graphs in a batch), 64
channels, 3 layers, energies in fp32, with forces of PaiNN, SchNet, EGNN, MACE, PNA+, PNAEq, DimeNet and TensorNet (``--small``: 4 cells of 54 atoms within 4.2 Angstrom, 48 channels, 2 layers, with stress: the
recipe mlearn). A step is predictions, a loss and its gradient in all weights. Columns: CPU ms of both, the median ratio, CPU seconds to
compile with all that it starts, and the largest differences of values and gradients.
"""

import argparse
import resource
import sys
import time
from statistics import median

import numpy as np
import torch

from hydragnn.architectures import architectures
from hydragnn.base.allocator import keep_memory
from hydragnn.graphs.atomic import from_ase
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.joining import concatenate
from hydragnn.models import NotCompiled, compiled_model
from tests.benchmarks.structures import WITH_FORCES, model_of, step


def alloys(count: int, cutoff: float, atoms: list[tuple[int, int, int]]) -> GraphBatch:
    """Rattled cells of three metals."""
    import ase.build

    random, graphs = np.random.default_rng(0), []
    for _ in range(count):
        cell = ase.build.bulk("Cu", "fcc", a=3.9, cubic=True).repeat(atoms[random.integers(len(atoms))])
        cell.set_atomic_numbers(random.choice([13, 28, 29], len(cell)))
        cell.rattle(0.1, seed=int(random.integers(2**30)))
        graphs.append(from_ase(cell, cutoff=cutoff))
    return concatenate(graphs).to(dtype=torch.float32)


def cpu_seconds() -> float:
    """CPU time of this process and of what it started."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def row(kind: str, rounds: int, small: bool, energies: bool) -> str:
    """One line of the table."""
    sizes = [(2, 1, 1), (2, 2, 1), (2, 2, 2), (2, 2, 3), (2, 2, 4)]
    batch = alloys(4, 4.2, [(3, 3, 1)]) if small else alloys(32, 5.0, sizes)
    derivatives = (["forces", "stress"] if small else ["forces"]) if kind in WITH_FORCES and not energies else []
    model = model_of(kind, batch, 4.2 if small else 5.0, *((48, 2) if small else (64, 3)), derivatives)
    start = cpu_seconds()
    try:
        fast = compiled_model(model)
    except NotCompiled as reason:
        return f"{kind:8} not compiled: {reason}"
    compiling = cpu_seconds() - start
    pairs = [step(predict, model, batch) for predict in (model, fast)]
    errors = [float((ours - theirs).norm() / theirs.norm()) for theirs, ours in zip(*pairs)]
    milliseconds: list[list[float]] = [[], []]
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            begin = time.process_time()
            step((model, fast)[which], model, batch)
            milliseconds[which].append(1e3 * (time.process_time() - begin))
    ratio = median(slow / quick for slow, quick in zip(*milliseconds))
    plain, quick = map(median, milliseconds)
    return f"{kind:8} {plain:9.1f} {quick:9.1f} {ratio:7.2f} {compiling:11.0f} {errors[0]:9.1e} {errors[1]:9.1e}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=sorted({*architectures()} - {"relational"}))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--energies", action="store_true", help="No forces.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    print(
        f"{'step of':8} {'as it is':>9} {'compiled':>9} {'ratio':>7} {'s to compile':>11} {'values':>9} {'gradient':>9}"
    )
    for kind in options.kinds:
        print(row(kind, options.rounds, options.small, options.energies), flush=True)


if __name__ == "__main__":
    sys.exit(main())
