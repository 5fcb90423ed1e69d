"""The published HydraGNN (PyPI) as a peer of ``bench_peers``: SchNet, EGNN and PNA of equal sizes; it has weights of its own form.

    python peer_hydragnn.py KIND FOLDER [wide] [energies]

Lengths of edges are its edge attributes, which is how it sees periodic images; nodes have one number, or 64 with ``wide``,
which is the work that all layers of ours do. Forces are minus the gradient of the energies, its own losses know none.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from peer_worker import CUTOFF, HIDDEN, LAYERS, RADIAL, Predict, arguments, serve, serve_all, tensors, trains_forces
from torch import Tensor, nn
from torch_geometric.data import Data

from hydragnn.models.create import create_model

NAMES = {"schnet": "SchNet", "egnn": "EGNN", "pna": "PNA"}


def model_of(kind: str, width: int, receivers: Tensor) -> nn.Module:
    """Three convolutions, and a head for the energy of a graph."""
    head = {"num_sharedlayers": 1, "dim_sharedlayers": HIDDEN, "num_headlayers": 1, "dim_headlayers": [HIDDEN]}
    model: nn.Module = create_model(
        NAMES[kind],
        input_dim=width,
        hidden_dim=HIDDEN,
        output_dim=[1],
        output_type=["graph"],
        output_heads={"graph": head},
        activation_function="relu",
        loss_function_type="mse",
        task_weights=[1.0],
        num_conv_layers=LAYERS,
        max_neighbours=1000,
        edge_dim=1,
        pna_deg=torch.bincount(torch.bincount(receivers)).tolist(),
        # its create_model hands SchNet these two in each other's place
        num_gaussians=HIDDEN,
        num_filters=RADIAL,
        radius=CUTOFF,
        use_gpu=False,
    )
    if kind == "schnet":
        # what its stack looks for to take edge attributes, and does not set for this architecture
        model.edge_dim = 1
        model.use_edge_attr = True
        model.graph_convs, model.feature_layers = nn.ModuleList(), nn.ModuleList()
        model._init_conv()
        filters = model.graph_convs[0][0].nn[0]
        assert (filters.in_features, filters.out_features) == (RADIAL, HIDDEN), filters
    return model


def potential_of(kind: str, folder: Path, options: list[str]) -> tuple[nn.Module, Predict]:
    """The network on the batch."""
    given: dict[str, Any] = tensors(folder)
    forces = trains_forces(kind, options)
    width = HIDDEN if "wide" in options else 1
    model = model_of(kind, width, given["receivers"])
    senders, receivers = given["senders"], given["receivers"]
    nodes = given["numbers"].float().unsqueeze(1).expand(-1, width).contiguous() / 50
    # EGNN sums over the first of the two, the other layers over the second
    edges = torch.stack([receivers, senders] if kind == "egnn" else [senders, receivers])

    def predict() -> list[Tensor]:
        positions = given["positions"].detach().requires_grad_(forces)
        vectors = positions[senders] - positions[receivers] + given["shifts"]
        data = Data(x=nodes, pos=positions, edge_index=edges, batch=given["graph"])
        data.edge_attr = vectors.norm(dim=-1, keepdim=True)
        energy = model(data)[0]
        if not forces:
            return [energy]
        (gradient,) = torch.autograd.grad(energy.sum(), positions, create_graph=model.training)
        return [energy, -gradient]

    return model, predict


def main() -> None:
    """Serve."""
    kind, folder, options = arguments()
    forces = trains_forces(kind, options)
    serve_all(folder, lambda folder: serve(*potential_of(kind, folder, options), recorded=forces))


if __name__ == "__main__":
    sys.exit(main())
