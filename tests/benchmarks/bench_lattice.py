"""The training step of ``relational`` on cells of one lattice, by the common modes of its shells and edge by edge, in turns.

    python -m tests.benchmarks.bench_lattice [--repeats 20]

32 cells of 32 sites, eight shells (54 neighbours), four layers, one energy per cell; a step is forward, backward and AdamW on one
thread. Figures are CPU time, medians; the ratio is that of edges over modes.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from unittest.mock import patch

import torch
from ase.build import bulk

from hydragnn.architectures import relational
from hydragnn.architectures.relational import RelationalSettings
from hydragnn.graphs import ATOMIC_NUMBERS_FIELD, Field, GraphBatch, from_ase, relation_field, with_shell_relations
from hydragnn.graphs.joining import concatenate
from hydragnn.graphs.relations import shell_radii
from hydragnn.models import build_model, parse_head

CELLS = 32
FIELDS = [ATOMIC_NUMBERS_FIELD, relation_field(8), Field(name="energy", on="graph", role="target")]


def cells() -> GraphBatch:
    """Tetragonal cells of body-centred sites with two elements at random."""
    atoms = bulk("Fe", "bcc", a=1.0, cubic=True) * (4, 2, 2)
    atoms.set_cell(atoms.cell * [1.0, 1.0, 1.35], scale_atoms=True)
    random, graphs = torch.Generator().manual_seed(0), []
    for _ in range(CELLS):
        atoms.numbers = 26 + 52 * torch.randint(0, 2, (len(atoms),), generator=random).numpy()
        site = from_ase(atoms, 2.03)
        graphs.append(with_shell_relations(site, shell_radii(site)))
    return concatenate(graphs)


def step(batch: GraphBatch, channels: int) -> Callable[[], None]:
    """A training step of a new model."""
    settings = RelationalSettings(hidden_dim=channels, num_layers=4)
    head = parse_head({"kind": "scalar", "field": "energy"})
    model = build_model(settings, [head], FIELDS, inputs=["atomic_numbers", "relation"], dim=3, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def take() -> None:
        optimizer.zero_grad()
        model(batch)["energy"].mean.square().mean().backward()
        optimizer.step()

    return take


def milliseconds(take: Callable[[], None]) -> float:
    """CPU time of one call."""
    start = time.process_time()
    take()
    return 1e3 * (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    batch = cells()
    for channels in (32, 64, 96, 128):
        take, modes, edges = step(batch, channels), [], []
        for _ in range(repeats + 2):
            modes.append(milliseconds(take))
            with patch.object(relational, "lattice_modes", lambda *_: None):
                edges.append(milliseconds(take))
        of_modes, of_edges = median(modes[2:]), median(edges[2:])
        print(
            f"{channels} channels: {of_modes:.1f} ms by modes, {of_edges:.1f} edge by edge, {of_edges / of_modes:.2f}"
        )


if __name__ == "__main__":
    main()
