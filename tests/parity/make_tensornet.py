"""Keeps weights and outputs of the TensorNet of its authors for ``test_tensornet.py``; torchmd-net brings too much along for the tests.

    pip install --no-deps --target FOLDER torchmd-net==3.1.0 warp-lang==1.19.0
    PYTHONPATH=FOLDER:. python tests/parity/make_tensornet.py

Its network has our edges in the place of those that it finds, each node with itself among them, and its radial basis no second factor that ends at
the cutoff, which the paper does not have either. It computes in plain torch: its compiled kernels hold for graphs alone in which every edge has a
reverse, and these have none.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from hydragnn.conformance.cases import make_graph
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.joining import concatenate

OUT = Path(__file__).with_name("tensornet-torchmd.safetensors")
CHANNELS, LAYERS, RADIAL, CUTOFF, SPECIES = 4, 2, 6, 5.0, 5


class Edges(nn.Module):
    """Our edges, receivers first, and an edge of length zero from every node to itself."""

    def __init__(self, batch: GraphBatch) -> None:
        super().__init__()
        self.batch = batch

    def forward(self, positions: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Receivers and senders, lengths and vectors."""
        batch = self.batch
        vectors = positions[batch.senders] - positions[batch.receivers] + batch.edge_shifts
        itself = torch.arange(batch.num_nodes)
        ends = torch.stack([torch.cat([batch.receivers, itself]), torch.cat([batch.senders, itself])])
        own = (batch.senders == batch.receivers).unsqueeze(
            1
        )  # images of oneself, whose vectors they do not divide by their lengths
        vectors, lengths = torch.where(own, vectors / vectors.norm(dim=1, keepdim=True), vectors), vectors.norm(dim=1)
        lengths = torch.cat([lengths, vectors.new_zeros(len(itself))])
        return ends, lengths, torch.cat([vectors, vectors.new_zeros(len(itself), 3)])


class One(nn.Module):
    """No end at the cutoff."""

    def forward(self, lengths: Tensor) -> Tensor:
        """Ones."""
        return torch.ones_like(lengths)


def smaller(batch: GraphBatch) -> GraphBatch:
    """The graphs at half their size: the centres of their radial basis are ours at a cutoff of 5 alone, and most edges shall be shorter."""
    half = {name: getattr(batch, name) / 2 for name in ("positions", "edge_shifts", "cell")}
    return replace(batch, **half)


def make_network(batch: GraphBatch) -> Any:
    """The network, with random weights."""
    from torchmdnet.models import tensornet

    network = tensornet.TensorNet(
        hidden_channels=CHANNELS,
        num_layers=LAYERS,
        num_rbf=RADIAL,
        cutoff_upper=CUTOFF,
        max_z=SPECIES + 1,
        static_shapes=False,
        dtype=torch.float64,
    )
    for name in ("compose_tensor", "decompose_tensor", "tensor_matmul_o3", "tensor_matmul_so3"):
        setattr(tensornet, name, getattr(tensornet, f"_{name}"))
    for part in (network, network.tensor_embedding, *network.layers):
        part.opt = False
    network.distance = Edges(batch)
    network.distance_expansion = network.distance_expansion.double()
    network.distance_expansion.dtype = torch.float64
    network.distance_expansion.reset_parameters()  # its centres were made in float32
    network.distance_expansion.cutoff_fn = One()
    return network


def main() -> None:
    """Write the file."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    batch = smaller(concatenate([make_graph(1, 5), make_graph(2, 7)]))
    lengths = edge_vectors(batch).norm(dim=1)
    assert (lengths < CUTOFF).sum() > 20 and (lengths > CUTOFF).any(), lengths
    network = make_network(batch)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.5)
        parameter.data = parameter.data.float().double()  # so that the file can be half as large
    head = nn.Sequential(nn.Linear(CHANNELS, CHANNELS // 2), nn.SiLU(), nn.Linear(CHANNELS // 2, 1))
    head.load_state_dict({name: value.float() for name, value in head.state_dict().items()})
    positions = batch.positions.clone().requires_grad_()
    tensors: list[Tensor] = []
    network.layers[-1].register_forward_hook(lambda *values: tensors.append(values[-1]))
    scalars = network(batch.nodes["species"] + 1, positions, batch.owner("node"))[0]
    energy = torch.zeros(2).index_add(0, batch.owner("node"), head(scalars).squeeze(1))
    (gradient,) = torch.autograd.grad(energy.sum(), positions)
    vectors = torch.stack([tensors[0][:, 2, 1], tensors[0][:, 0, 2], tensors[0][:, 1, 0]], dim=1)
    vectors = (vectors - torch.stack([tensors[0][:, 1, 2], tensors[0][:, 2, 0], tensors[0][:, 0, 1]], dim=1)) / 2
    values = {"scalars": scalars, "vectors": vectors, "energy": energy, "forces": -gradient}
    values |= {f"weights.{name}": value.float() for name, value in network.named_parameters()}
    values |= {f"head.{name}": value.float() for name, value in head.named_parameters()}
    save_file({name: value.detach().contiguous() for name, value in values.items()}, OUT)


if __name__ == "__main__":
    main()
