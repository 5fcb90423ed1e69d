"""Keeps weights and outputs of the equivariant transformer of its authors for ``test_equivariant_transformer.py``.

    pip install --no-deps --target FOLDER torchmd-net==3.1.0 warp-lang==1.19.0
    PYTHONPATH=FOLDER:. python tests/parity/make_equivariant_transformer.py

Its network has our edges in the place of those that it finds, each node with itself among them, and its radial basis no second factor that ends at
the cutoff. All parts of its messages end there (``vector_cutoff``), and its table of neighbours is a linear map of its table of nodes, as ours is.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from hydragnn.graphs.batch import GraphBatch
from tests.parity.make_tensornet import One
from tests.parity.test_equivariant_transformer import CHANNELS, CUTOFF, HEADS, LAYERS, RADIAL, SPECIES, crystals

OUT = Path(__file__).with_name("equivariant-transformer-torchmd.safetensors")


class Edges(nn.Module):
    """Our edges, senders first, and an edge of length zero from every node to itself."""

    def __init__(self, batch: GraphBatch) -> None:
        super().__init__()
        self.batch = batch

    def forward(self, positions: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Senders and receivers, lengths and vectors."""
        batch = self.batch
        vectors = positions[batch.senders] - positions[batch.receivers] + batch.edge_shifts
        itself = torch.arange(batch.num_nodes)
        ends = torch.stack([torch.cat([batch.senders, itself]), torch.cat([batch.receivers, itself])])
        lengths = torch.cat([vectors.norm(dim=1), vectors.new_zeros(len(itself))])
        return ends, lengths, torch.cat([vectors, vectors.new_zeros(len(itself), 3)])


def main() -> None:
    """Write the file."""
    from torchmdnet.models.torchmd_et import TorchMD_ET

    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    batch = crystals()
    network = TorchMD_ET(
        hidden_channels=CHANNELS,
        num_layers=LAYERS,
        num_rbf=RADIAL,
        trainable_rbf=False,
        num_heads=HEADS,
        cutoff_upper=CUTOFF,
        max_z=SPECIES + 1,
        vector_cutoff=True,
        dtype=torch.float64,
    )
    network.distance = Edges(batch)
    network.distance_expansion = network.distance_expansion.double()
    network.distance_expansion.dtype = torch.float64
    network.distance_expansion.reset_parameters()  # its centres were made in float32
    network.distance_expansion.cutoff_fn = One()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
        parameter.data = parameter.data.float().double()  # so that the file can be half as large
    map_of_neighbours = torch.randn(CHANNELS, CHANNELS).float().double()
    network.neighbor_embedding.embedding.weight.data = network.embedding.weight.data @ map_of_neighbours.T
    head = nn.Sequential(nn.Linear(CHANNELS, CHANNELS // 2), nn.SiLU(), nn.Linear(CHANNELS // 2, 1))
    head.load_state_dict({name: value.float() for name, value in head.state_dict().items()})
    positions = batch.positions.clone().requires_grad_()
    scalars, vectors = network(batch.nodes["atomic_numbers"], positions, batch.owner("node"))[:2]
    energy = torch.zeros(2).index_add(0, batch.owner("node"), head(scalars).squeeze(1))
    (gradient,) = torch.autograd.grad(energy.sum(), positions)
    values = {"scalars": scalars, "vectors": vectors, "energy": energy, "forces": -gradient}
    values |= {f"weights.{name}": value.float() for name, value in network.named_parameters()}
    values |= {f"head.{name}": value.float() for name, value in head.named_parameters()}
    values["map_of_neighbours"] = map_of_neighbours.float()
    del values["weights.neighbor_embedding.embedding.weight"]
    save_file({name: value.detach().contiguous() for name, value in values.items()}, OUT)


if __name__ == "__main__":
    main()
