"""Potentials of other packages on one batch of crystals.

Imports torch alone, so that processes in environments of other packages can load this file by its path.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from warnings import catch_warnings

import torch
from torch import Tensor, nn

Predict = Callable[[], Iterable[Tensor]]
"""Computes energies and forces of the batch, with gradients of weights where the network trains."""

PEERS: Mapping[str, tuple[str, ...]] = {
    "schnet": ("PyTorch Geometric", "schnetpack"),
    "painn": ("schnetpack",),
    "mace": ("mace-torch",),
}
"""Packages that have an architecture."""


def peer_of(package: str, kind: str, batch: Mapping[str, Tensor], **sizes: Any) -> tuple[nn.Module, Predict]:
    """Return a package's network, energies and forces; ImportError without it.

    ``batch``: numbers, positions, senders, receivers, shifts (Angstrom), graph of every node, cells ``[graphs, 3, 3]``, offsets of graphs.
    ``sizes``: hidden, layers, radial, cutoff; for MACE max_ell.
    """
    makers = {"PyTorch Geometric": geometric_schnet, "schnetpack": schnetpack_potential, "mace-torch": mace_potential}
    maker: Any = makers[package]
    model, predict = maker(kind, batch, **sizes)
    return model, predict


def geometric_schnet(
    kind: str, batch: Mapping[str, Tensor], *, hidden: int, layers: int, radial: int, cutoff: float
) -> tuple[nn.Module, Predict]:
    """Return the SchNet of PyTorch Geometric."""
    with catch_warnings(action="ignore"):  # its imports warn with today's torch
        from torch_geometric.nn import SchNet

    senders, receivers = batch["senders"], batch["receivers"]

    def lengths(positions: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        vectors = positions[senders] + batch["shifts"] - positions[receivers]
        return torch.stack([senders, receivers]), vectors.norm(dim=-1)

    model = SchNet(hidden, hidden, layers, radial, cutoff, interaction_graph=lengths)

    def predict() -> list[Tensor]:
        positions = batch["positions"].detach().requires_grad_()
        energy = model(batch["numbers"], positions, batch["graph"])
        (gradient,) = torch.autograd.grad(energy.sum(), positions, create_graph=model.training)
        return [energy, -gradient]

    return model, predict


def schnetpack_network(kind: str, *, hidden: int, layers: int, radial: int, cutoff: float) -> Any:
    """Return schnetpack's PaiNN or SchNet."""
    from torch.utils.data import dataloader

    vars(dataloader).setdefault("T_co", None)  # schnetpack 2.1 imports it; torch 2.13 has no such name
    from schnetpack import atomistic, model, representation
    from schnetpack.nn.cutoff import CosineCutoff
    from schnetpack.nn.radial import BesselRBF

    common = {"radial_basis": BesselRBF(radial, cutoff), "cutoff_fn": CosineCutoff(cutoff)}
    kinds = {"painn": representation.PaiNN, "schnet": representation.SchNet}
    encoder = kinds[kind](hidden, layers, **common, activation=nn.functional.silu)
    energy = atomistic.Atomwise(hidden, n_hidden=hidden, n_layers=2, output_key="energy")
    forces = atomistic.Forces(energy_key="energy", force_key="forces")
    return model.NeuralNetworkPotential(encoder, [atomistic.PairwiseDistances()], [energy, forces])


def schnetpack_inputs(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the batch by schnetpack's names."""
    from schnetpack import properties

    return {
        properties.Z: batch["numbers"],
        properties.R: batch["positions"],
        properties.idx_i: batch["receivers"],
        properties.idx_j: batch["senders"],
        properties.offsets: batch["shifts"],
        properties.idx_m: batch["graph"],
        properties.n_atoms: torch.bincount(batch["graph"]),
    }


def schnetpack_potential(kind: str, batch: Mapping[str, Tensor], **sizes: Any) -> tuple[nn.Module, Predict]:
    """Return schnetpack's potential with weights of its own."""
    model = schnetpack_network(kind, **sizes)
    inputs = schnetpack_inputs(batch)

    def predict() -> list[Tensor]:
        results = model(dict(inputs))
        return [results["energy"], results["forces"]]

    return model, predict


def mace_potential(
    kind: str,
    batch: Mapping[str, Tensor],
    *,
    hidden: int,
    layers: int,
    radial: int,
    cutoff: float,
    max_ell: int = 2,
) -> tuple[nn.Module, Predict]:
    """Return mace-torch's MACE."""
    torch.serialization.add_safe_globals([slice])  # e3nn 0.4.4 reads its constants so
    import numpy as np
    from e3nn import o3
    from mace.modules import MACE, RealAgnosticResidualInteractionBlock

    species, index = batch["numbers"].unique(return_inverse=True)
    network = MACE(
        r_max=cutoff,
        num_bessel=radial,
        num_polynomial_cutoff=6,
        max_ell=max_ell,
        interaction_cls=RealAgnosticResidualInteractionBlock,
        interaction_cls_first=RealAgnosticResidualInteractionBlock,
        num_interactions=layers,
        num_elements=len(species),
        hidden_irreps=o3.Irreps(f"{hidden}x0e + {hidden}x1o"),
        MLP_irreps=o3.Irreps("16x0e"),
        atomic_energies=np.zeros(len(species)),
        avg_num_neighbors=len(batch["senders"]) / len(batch["numbers"]),
        atomic_numbers=species.tolist(),
        correlation=3,
        gate=nn.functional.silu,
        use_reduced_cg=False,
        radial_MLP=[64, 64, 64],
    ).to(index.device)
    inputs = {
        "node_attrs": nn.functional.one_hot(index, len(species)).float(),
        "edge_index": torch.stack([batch["senders"], batch["receivers"]]),
        "shifts": -batch["shifts"],  # its edges point from senders to receivers
        "unit_shifts": torch.zeros_like(batch["shifts"]),
        "cell": batch["cells"].float().flatten(0, 1),
        "batch": batch["graph"],
        "ptr": batch["offsets"],
    }

    def predict() -> list[Tensor]:
        positions = batch["positions"].detach().requires_grad_()
        output = network({**inputs, "positions": positions}, training=network.training)
        return [output["energy"], output["forces"]]

    return network, predict
