"""Random molecules, and training steps of an architecture on them: what several measurements share."""

from collections.abc import Callable

import torch

from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.validate import graph_from_arrays
from hydragnn.models import HeadSettings, build_model, degree_statistics

Step = Callable[[], None]
HIDDEN, LAYERS, RADIAL, CUTOFF = 64, 3, 20, 6.0
FIELDS = [
    Field(name="atomic_numbers", on="node", classes=119, dtype="int64"),
    Field(name="energy", on="graph", role="target"),
    Field(name="forces", on="node", shape=(3,), parity="vector", role="target"),
]


def molecule(nodes: int, seed: int) -> GraphBatch:
    """Atoms in a ball at the density of a small molecule, all pairs within the cutoff."""
    random = torch.Generator().manual_seed(seed)
    positions = torch.rand(nodes, 3, generator=random) * 1.5 * nodes ** (1 / 3)
    near = (torch.cdist(positions, positions) < CUTOFF) & ~torch.eye(nodes, dtype=torch.bool)
    receivers, senders = near.nonzero().T.contiguous()
    numbers = torch.randint(1, 9, (nodes,), generator=random)
    return graph_from_arrays(positions, senders, receivers).with_fields({"atomic_numbers": numbers}, fields=FIELDS[:1])


def our_step(settings: object, head: HeadSettings, batch: GraphBatch, inputs: list[str]) -> Step:
    """Return a training step: forward, backward and AdamW."""
    model = build_model(
        settings, [head], FIELDS, inputs=inputs, dim=batch.dim, seed=0, statistics=degree_statistics([batch])
    )
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        torch.stack([p.mean.square().mean() for p in model(batch).values()]).sum().backward(inputs=parameters)
        optimizer.step()

    return step
