"""The radial basis inside whole networks: with ``sinc``, training does not depend on the unit of length."""

import pytest
import torch

from hydragnn.conformance.cases import small_settings
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.topology import Topology
from hydragnn.models import GraphStatistics, build_model, parse_head

SIZE = Field(name="size", on="node")
DISPLACEMENT = Field(name="displacement", on="node", shape=(2,), role="target")


def grid(spacing: float, cutoff: float) -> GraphBatch:
    """Five by five points joined up to and including the cutoff, one of them twice in one place, and a lone node."""
    square = torch.cartesian_prod(torch.arange(5), torch.arange(5)).float()
    points = torch.cat([square, square[:1], torch.tensor([[99.0, 99.0]])]) * spacing
    # its products of matrices are too coarse for points at the very cutoff
    exactly = "donot_use_mm_for_euclid_dist"
    apart = torch.cdist(points, points, compute_mode=exactly) <= cutoff * (1 + 1e-6)
    receivers, senders = (apart & ~torch.eye(len(points), dtype=torch.bool)).nonzero(as_tuple=True)
    return GraphBatch(
        positions=points,
        topology=Topology.square(senders, receivers, len(points)),
        edge_shifts=torch.zeros(len(senders), 2),
        cell=torch.zeros(1, 3, 3),
        periodic=torch.zeros(1, 3, dtype=torch.bool),
        node_offsets=torch.tensor([0, len(points)]),
        edge_offsets=torch.tensor([0, len(senders)]),
        fields={"size": SIZE},
        nodes={"size": torch.arange(len(points)) / len(points)},
    )


@pytest.mark.parametrize("spacing", [0.06, 0.1])
@pytest.mark.parametrize("kind", ["schnet", "painn", "egnn", "cgcnn", "gatv2", "pna", "pnaplus", "pnaeq", "dimenet"])
def test_with_sinc_the_first_gradient_is_the_same_on_a_grid_in_any_unit_of_length(kind: str, spacing: float) -> None:
    def first_gradient(unit: float) -> torch.Tensor:
        shape = {"radial": "sinc", "num_radial": 4, "envelope": "none", "hidden_dim": 16, "num_layers": 4}
        model = build_model(
            small_settings(kind, cutoff=0.1 * unit, **shape),
            [parse_head({"kind": "scalar", "field": "displacement"})],
            [SIZE, DISPLACEMENT],
            inputs=["size"],
            dim=2,
            seed=0,
            statistics=GraphStatistics(mean_log_degree=1.5),
        )
        (value,) = model(grid(spacing * unit, 0.1 * unit)).values()
        value.mean.square().mean().backward()
        return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])

    small, large = first_gradient(1.0), first_gradient(50.0)
    assert small.isfinite().all()
    # fp32, in which positions, phases and sums over hundreds of edges round: relative to the gradient as a whole
    assert (small - large).norm() < 1e-5 * large.norm()
