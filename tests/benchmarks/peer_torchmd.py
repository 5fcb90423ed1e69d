"""torchmd-net's TensorNet and equivariant transformer as a peer of ``bench_kinds``, with weights of their own.

    python peer_torchmd.py KIND FOLDER [plain]

They have our edges in the place of those that they find in every step, each node with itself among them. ``plain``: TensorNet without its compiled kernels.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from peer_worker import CUTOFF, HIDDEN, LAYERS, RADIAL, Predict, arguments, serve, serve_all, tensors
from torch import Tensor, nn


class Edges(nn.Module):
    """The edges given, and one of length zero from every node to itself."""

    def __init__(self, given: dict[str, Tensor], receivers_first: bool) -> None:
        super().__init__()
        itself = torch.arange(len(given["numbers"]))
        self.senders, self.receivers, self.shifts = given["senders"], given["receivers"], given["shifts"]
        ends = [torch.cat([self.senders, itself]), torch.cat([self.receivers, itself])]
        self.ends, self.zeros = torch.stack(ends[::-1] if receivers_first else ends), torch.zeros(len(itself), 3)

    def forward(self, positions: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Ends, lengths and vectors."""
        vectors = positions[self.senders] - positions[self.receivers] + self.shifts
        lengths = torch.cat([vectors.norm(dim=1), self.zeros[:, 0]])
        return self.ends, lengths, torch.cat([vectors, self.zeros])


def network_of(kind: str, options: list[str]) -> nn.Module:
    """The network, of the size of ours."""
    common: dict[str, Any] = {
        "hidden_channels": HIDDEN,
        "num_rbf": RADIAL,
        "cutoff_upper": CUTOFF,
        "trainable_rbf": False,
    }
    if kind == "equivariant_transformer":
        from torchmdnet.models.torchmd_et import TorchMD_ET

        transformer: nn.Module = TorchMD_ET(num_layers=LAYERS, num_heads=8, vector_cutoff=True, **common)
        return transformer
    from torchmdnet.models import tensornet

    network: Any = tensornet.TensorNet(num_layers=2, static_shapes=False, **common)
    if "plain" in options:
        for name in ("compose_tensor", "decompose_tensor", "tensor_matmul_o3", "tensor_matmul_so3"):
            setattr(tensornet, name, getattr(tensornet, f"_{name}"))
        for part in (network, network.tensor_embedding, *network.layers):
            part.opt = False
    tensors_of: nn.Module = network
    return tensors_of


def potential_of(kind: str, folder: Path, options: list[str]) -> tuple[nn.Module, Predict]:
    """Network and head."""
    given = tensors(folder)
    network = network_of(kind, options)
    network.distance = Edges(given, receivers_first=kind == "tensornet")
    head = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, 1))
    graphs = int(given["graph"].max()) + 1

    def predict() -> list[Tensor]:
        with torch.enable_grad():
            positions = given["positions"].detach().requires_grad_()
            states = network(given["numbers"], positions, given["graph"])[0]
            energy = torch.zeros(graphs).index_add(0, given["graph"], head(states).squeeze(1))
            (gradient,) = torch.autograd.grad(energy.sum(), positions, create_graph=network.training)
        return [energy, -gradient]

    return nn.ModuleList([network, head]), predict


def main() -> None:
    """Serve."""
    kind, folder, options = arguments()
    serve_all(folder, lambda folder: serve(*potential_of(kind, folder, options), weights_alone=True))


if __name__ == "__main__":
    sys.exit(main())
