"""Keeps weights and outputs of schnetpack's PaiNN for ``test_networks.py``; schnetpack itself brings too much along for the tests.

    pip install --no-deps --target FOLDER schnetpack==2.1.1
    PYTHONPATH=FOLDER python tests/parity/make_schnetpack.py

Only the modules of the representation are imported, so none of its other dependencies is needed.
"""

import importlib.util
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from hydragnn.conformance.cases import make_graph
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.joining import concatenate

OUT = Path(__file__).with_name("painn-schnetpack.safetensors")
CHANNELS, LAYERS, RADIAL, CUTOFF = 6, 3, 5, 9.0


def without_their_init(name: str, folder: str) -> None:
    """Put an empty package in the place of one whose ``__init__`` imports everything."""
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [folder]


def with_energy(network: Any, batch: GraphBatch, names: ModuleType) -> dict[str, Tensor]:
    """Energies of their head, their forces and their stress, with the weights of the head."""
    parts = {name: import_module(f"schnetpack.atomistic.{name}") for name in ("atomwise", "distances", "response")}
    head = parts["atomwise"].Atomwise(CHANNELS, output_key=names.energy).double()
    inputs = {
        names.Z: batch.nodes["species"] + 1,
        names.R: batch.positions.clone().requires_grad_(),
        names.offsets: batch.edge_shifts,
        names.cell: batch.cell,
        names.idx_i: batch.receivers,
        names.idx_j: batch.senders,
        names.idx_m: batch.owner("node"),
    }
    forces = parts["response"].Forces(calc_stress=True).eval()
    for module in (parts["response"].Strain(), parts["distances"].PairwiseDistances(), network, head, forces):
        inputs = module(inputs)
    outputs = {"energy": names.energy, "forces": names.forces, "stress": names.stress}
    return {name: inputs[key] for name, key in outputs.items()} | {
        f"head.{name}": value for name, value in head.outnet.named_parameters()
    }


def main() -> None:
    torch.manual_seed(0)
    spec = importlib.util.find_spec("schnetpack")
    assert spec is not None and spec.submodule_search_locations, __doc__
    (folder,) = spec.submodule_search_locations
    without_their_init("schnetpack", folder)
    without_their_init("schnetpack.representation", f"{folder}/representation")
    without_their_init("schnetpack.atomistic", f"{folder}/atomistic")
    painn, nn, names = (import_module(f"schnetpack.{part}") for part in ("representation.painn", "nn", "properties"))
    network = painn.PaiNN(
        CHANNELS, LAYERS, nn.GaussianRBF(RADIAL, CUTOFF), nn.CosineCutoff(CUTOFF), activation=torch.nn.functional.silu
    )
    torch.set_default_dtype(torch.float64)
    for (
        parameter
    ) in network.double().parameters():  # its radial basis is made in float32, where these centres are exact
        torch.nn.init.normal_(parameter, std=0.5)
    batch = concatenate([make_graph(1, 5), make_graph(2, 7)])
    vectors = edge_vectors(batch).requires_grad_()
    inputs = {names.Z: batch.nodes["species"] + 1, names.Rij: vectors}
    output = network({**inputs, names.idx_i: batch.receivers, names.idx_j: batch.senders})
    scalars, turning = output["scalar_representation"], output["vector_representation"]
    (gradient,) = torch.autograd.grad(scalars.sum() + turning.square().sum(), vectors)
    values = {"edge_vectors": vectors, "scalars": scalars, "vectors": turning, "gradient": gradient}
    weights = {f"weights.{name}": value for name, value in network.named_parameters()}
    values |= with_energy(network, batch, names)
    save_file({name: value.detach().contiguous() for name, value in (values | weights).items()}, OUT)


if __name__ == "__main__":
    main()
