"""Graphs from structures: ``from_ase`` beside the transform of the public HydraGNN 3.0 and beside vesin alone, in turns in one process.

    python -m tests.benchmarks.bench_graphs [--cells 150] [--rounds 7]

Periodic fcc alloys of 8 to 64 atoms within 5 A. ``RadiusGraphPBC`` are the steps of that class (ase.neighborlist, two tensors,
``coalesce``, lengths) without its last assertion, which refuses cells that are smaller than twice the cutoff. CPU microseconds per graph,
medians over the rounds; ours include every check of the graph, theirs have none.
"""

import ase
import ase.neighborlist
import torch
from torch_geometric.data import Data
from vesin import NeighborList

from hydragnn.graphs.atomic import from_ase
from tests.benchmarks.harness import Figures, in_turns, parser
from tests.benchmarks.structures import structures

CUTOFF = 5.0


def radius_graph_pbc(atoms: ase.Atoms) -> Data:
    """What ``RadiusGraphPBC`` of HydraGNN 3.0 does."""
    data = Data(pos=torch.tensor(atoms.positions), x=torch.tensor(atoms.numbers), supercell_size=atoms.cell.array)
    found = ase.Atoms(positions=data.pos, cell=data.supercell_size, pbc=True)
    first, second, lengths = ase.neighborlist.neighbor_list("ijd", a=found, cutoff=CUTOFF, self_interaction=False)
    data.edge_index = torch.stack([torch.LongTensor(first), torch.LongTensor(second)], dim=0)
    data.coalesce()
    data.edge_attr = torch.tensor(lengths, dtype=torch.float).unsqueeze(1)
    return data


def neighbours_alone(atoms: ase.Atoms) -> object:
    """Pairs and shifts by vesin, and nothing else."""
    return NeighborList(cutoff=CUTOFF, full_list=True).compute(atoms.positions, atoms.cell.array, True, "ijS")


def main() -> None:
    """Print the table."""
    arguments = parser(__doc__, rounds=7)
    arguments.add_argument("--cells", type=int, default=150)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    cells = [atoms for atoms in structures(2 * options.cells, 0) if atoms.pbc.all()][: options.cells]
    works = {
        "from_ase": lambda: [from_ase(atoms, CUTOFF) for atoms in cells],
        "RadiusGraphPBC": lambda: [radius_graph_pbc(atoms) for atoms in cells],
        "vesin alone": lambda: [neighbours_alone(atoms) for atoms in cells],
    }
    turns = in_turns(works, options.rounds)
    figures = Figures({"way": "20", "us per graph": ".0f", "over from_ase": ".2f"}, options.json)
    for name in works:
        figures.add(name, 1e3 * turns.milliseconds(name) / len(cells), turns.ratio(name, "from_ase"))


if __name__ == "__main__":
    main()
