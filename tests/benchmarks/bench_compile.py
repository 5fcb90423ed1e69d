"""A training step as it is against the compiled one (``train.compile``): ratios of CPU time, steps taken in turn in one process.

    python -m tests.benchmarks.bench_compile [painn schnet egnn ...] [--rounds 9] [--small] [--energies]

Rattled alloys of 8 to 64 atoms with all neighbours within 5 Angstrom (some 1,400 edges per graph, 32 graphs in a batch), 64
channels, 3 layers, energies in fp32, with forces of PaiNN, SchNet, EGNN, MACE, PNA+, PNAEq, DimeNet and TensorNet (``--small``: 4 cells of 54 atoms within 4.2 Angstrom, 48 channels, 2 layers, with stress: the
recipe mlearn). A step is predictions, a loss and its gradient in all weights. Columns: CPU ms of both, the median ratio, CPU seconds to
compile with all that it starts, and the largest differences of values and gradients.
"""

import resource

import numpy as np
import torch

from hydragnn.architectures import architectures
from hydragnn.base.allocator import keep_memory
from hydragnn.graphs.atomic import from_ase
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.joining import concatenate
from hydragnn.models import NotCompiled, compiled_model
from tests.benchmarks.harness import Figures, in_turns, parser
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


def row(kind: str, rounds: int, small: bool, energies: bool) -> list[float]:
    """Return the figures of an architecture."""
    sizes = [(2, 1, 1), (2, 2, 1), (2, 2, 2), (2, 2, 3), (2, 2, 4)]
    batch = alloys(4, 4.2, [(3, 3, 1)]) if small else alloys(32, 5.0, sizes)
    derivatives = (["forces", "stress"] if small else ["forces"]) if kind in WITH_FORCES and not energies else []
    model = model_of(kind, batch, 4.2 if small else 5.0, *((48, 2) if small else (64, 3)), derivatives)
    start = cpu_seconds()
    fast = compiled_model(model)
    compiling = cpu_seconds() - start
    pairs = [step(predict, model, batch) for predict in (model, fast)]
    errors = [float((ours - theirs).norm() / theirs.norm()) for theirs, ours in zip(*pairs)]
    works = {"plain": lambda: step(model, model, batch), "compiled": lambda: step(fast, model, batch)}
    turns = in_turns(works, rounds, warm_up=0)
    return [*map(turns.milliseconds, works), turns.ratio("plain", "compiled"), compiling, *errors]


def main() -> None:
    """Print the table."""
    arguments = parser(__doc__, rounds=9)
    arguments.add_argument("kinds", nargs="*", default=sorted({*architectures()} - {"relational"}))
    arguments.add_argument("--small", action="store_true")
    arguments.add_argument("--energies", action="store_true", help="No forces.")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    milliseconds = {"as it is, ms": ".1f", "compiled, ms": ".1f", "ratio": "7.2f", "s to compile": ".0f"}
    columns = {"step of": "24", **milliseconds, "values": "9.1e", "gradient": "9.1e"}
    figures = Figures(columns, options.json)
    for kind in options.kinds:
        try:
            figures.add(kind, *row(kind, options.rounds, options.small, options.energies))
        except NotCompiled as reason:
            figures.add(kind, f"not compiled: {reason}", *[""] * (len(columns) - 2))


if __name__ == "__main__":
    main()
