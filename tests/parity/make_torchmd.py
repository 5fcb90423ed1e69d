"""Keeps weights and outputs of TensorNet and of the equivariant transformer, which torchmd-net has from their authors, for the tests of both.

    pip install --no-deps --target FOLDER torchmd-net==3.1.0 warp-lang==1.19.0
    PYTHONPATH=FOLDER:. python tests/parity/make_torchmd.py

torchmd-net brings too much along for the tests. Its networks have our edges in the place of those that they find, each node with itself
among them, and their radial basis no second factor that ends at the cutoff, which the papers do not have either.

TensorNet computes in plain torch: its compiled kernels hold for graphs alone in which every edge has a reverse, and these have none.
All parts of the messages of the transformer end at the cutoff (``vector_cutoff``), and its table of neighbours is a linear map of its
table of nodes, as ours is.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from hydragnn.conformance.cases import make_graph
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.joining import concatenate
from tests.parity import tensornet_torchmd as tensors
from tests.parity import transformer_torchmd as transformer


class Edges(nn.Module):
    """Our edges, of receivers and senders in the order of the network, and an edge of length zero from every node to itself."""

    def __init__(self, batch: GraphBatch, ends: tuple[Tensor, Tensor]) -> None:
        super().__init__()
        self.batch, self.ends = batch, ends

    def forward(self, positions: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
        batch = self.batch
        vectors = positions[batch.senders] - positions[batch.receivers] + batch.edge_shifts
        itself = torch.arange(batch.num_nodes)
        ends = torch.stack([torch.cat([end, itself]) for end in self.ends])
        lengths = torch.cat([vectors.norm(dim=1), vectors.new_zeros(len(itself))])
        # images of oneself, whose vectors TensorNet does not divide by their lengths; the transformer meets none
        own = (batch.senders == batch.receivers).unsqueeze(1)
        vectors = torch.where(own, vectors / vectors.norm(dim=1, keepdim=True), vectors)
        return ends, lengths, torch.cat([vectors, vectors.new_zeros(len(itself), 3)])


class One(nn.Module):
    """No end at the cutoff."""

    def forward(self, lengths: Tensor) -> Tensor:
        return torch.ones_like(lengths)


def prepare(network: Any, batch: GraphBatch, ends: tuple[Tensor, Tensor], std: float) -> None:
    network.distance = Edges(batch, ends)
    network.distance_expansion = network.distance_expansion.double()
    network.distance_expansion.dtype = torch.float64
    network.distance_expansion.reset_parameters()  # its centres were made in float32
    network.distance_expansion.cutoff_fn = One()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=std)
        parameter.data = parameter.data.float().double()  # so that the file can be half as large


def keep(name: str, network: Any, batch: GraphBatch, species: Tensor, channels: int, **more: Any) -> None:
    """Write weights, states, energies and forces; ``more`` are further tensors, or make one after the call."""
    head = nn.Sequential(nn.Linear(channels, channels // 2), nn.SiLU(), nn.Linear(channels // 2, 1))
    head.load_state_dict({name: value.float() for name, value in head.state_dict().items()})
    positions = batch.positions.clone().requires_grad_()
    scalars, vectors = network(species, positions, batch.owner("node"))[:2]
    energy = torch.zeros(2).index_add(0, batch.owner("node"), head(scalars).squeeze(1))
    (gradient,) = torch.autograd.grad(energy.sum(), positions)
    values = {"scalars": scalars, "vectors": vectors, "energy": energy, "forces": -gradient}
    values |= {f"weights.{name}": value.float() for name, value in network.named_parameters()}
    values |= {f"head.{name}": value.float() for name, value in head.named_parameters()}
    values = {**values, **{key: more[key]() if callable(more[key]) else more[key] for key in more}}
    values.pop("weights.neighbor_embedding.embedding.weight", None)
    file = Path(__file__).with_name(f"{name}-torchmd.safetensors")
    save_file({name: value.detach().contiguous() for name, value in values.items()}, file)


def make_tensornet() -> None:
    from torchmdnet.models import tensornet

    batch = tensors.smaller(concatenate([make_graph(1, 5), make_graph(2, 7)]))
    lengths = edge_vectors(batch).norm(dim=1)
    assert (lengths < tensors.CUTOFF).sum() > 20 and (lengths > tensors.CUTOFF).any(), lengths
    network = tensornet.TensorNet(
        hidden_channels=tensors.CHANNELS,
        num_layers=tensors.LAYERS,
        num_rbf=tensors.RADIAL,
        cutoff_upper=tensors.CUTOFF,
        max_z=tensors.SPECIES + 1,
        static_shapes=False,
        dtype=torch.float64,
    )
    for name in ("compose_tensor", "decompose_tensor", "tensor_matmul_o3", "tensor_matmul_so3"):
        setattr(tensornet, name, getattr(tensornet, f"_{name}"))
    for part in (network, network.tensor_embedding, *network.layers):
        part.opt = False
    prepare(network, batch, (batch.receivers, batch.senders), 0.5)
    last: list[Tensor] = []
    network.layers[-1].register_forward_hook(lambda *values: last.append(values[-1]))

    def vectors() -> Tensor:
        matrices = (last[0] - last[0].transpose(1, 2)) / 2
        return torch.stack([matrices[:, 2, 1], matrices[:, 0, 2], matrices[:, 1, 0]], dim=1)

    keep("tensornet", network, batch, batch.nodes["species"] + 1, tensors.CHANNELS, vectors=vectors)


def make_transformer() -> None:
    from torchmdnet.models.torchmd_et import TorchMD_ET

    batch = transformer.crystals()
    network = TorchMD_ET(
        hidden_channels=transformer.CHANNELS,
        num_layers=transformer.LAYERS,
        num_rbf=transformer.RADIAL,
        trainable_rbf=False,
        num_heads=transformer.HEADS,
        cutoff_upper=transformer.CUTOFF,
        max_z=transformer.SPECIES + 1,
        vector_cutoff=True,
        dtype=torch.float64,
    )
    prepare(network, batch, (batch.senders, batch.receivers), 0.3)
    map_ = torch.randn(transformer.CHANNELS, transformer.CHANNELS).float().double()
    network.neighbor_embedding.embedding.weight.data = network.embedding.weight.data @ map_.T
    species = batch.nodes["atomic_numbers"]
    channels = transformer.CHANNELS
    keep("equivariant-transformer", network, batch, species, channels, map_of_neighbours=map_.float())


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    for make in (make_tensornet, make_transformer):
        torch.manual_seed(0)
        make()
