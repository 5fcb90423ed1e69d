"""mace-torch's MACE as a peer of ``bench_kinds``, with weights of its own.

python peer_mace.py mace FOLDER
"""

import sys
from typing import Any

import numpy as np
import torch
from peer_worker import CUTOFF, HIDDEN, Predict, arguments, serve, serve_all, tensors
from torch import Tensor


def network_of(numbers: Tensor, mean_degree: float, hidden: int = HIDDEN, max_ell: int = 2) -> Any:
    """The network, of the size of ours."""
    torch.serialization.add_safe_globals([slice])  # e3nn 0.4.4 reads its constants so
    from e3nn import o3
    from mace.modules import MACE, RealAgnosticResidualInteractionBlock

    return MACE(
        r_max=CUTOFF,
        num_bessel=8,
        num_polynomial_cutoff=6,
        max_ell=max_ell,
        interaction_cls=RealAgnosticResidualInteractionBlock,
        interaction_cls_first=RealAgnosticResidualInteractionBlock,
        num_interactions=2,
        num_elements=len(numbers),
        hidden_irreps=o3.Irreps(f"{hidden}x0e + {hidden}x1o"),
        MLP_irreps=o3.Irreps("16x0e"),
        atomic_energies=np.zeros(len(numbers)),
        avg_num_neighbors=mean_degree,
        atomic_numbers=numbers.tolist(),
        correlation=3,
        gate=torch.nn.functional.silu,
        use_reduced_cg=False,
        radial_MLP=[64, 64, 64],
    )


def potential_of(given: dict[str, Tensor], *sizes: int) -> tuple[Any, Predict]:
    """The network on the batch."""
    species, index = given["numbers"].unique(return_inverse=True)
    network = network_of(species, len(given["senders"]) / len(given["numbers"]), *sizes).to(index.device)
    batch = {
        "node_attrs": torch.nn.functional.one_hot(index, len(species)).float(),
        "edge_index": torch.stack([given["senders"], given["receivers"]]),
        "shifts": -given["shifts"],  # its edges point from senders to receivers
        "unit_shifts": torch.zeros_like(given["shifts"]),
        "cell": given["cells"].float().flatten(0, 1),
        "batch": given["graph"],
        "ptr": given["offsets"],
    }

    def predict() -> list[Tensor]:
        positions = given["positions"].detach().requires_grad_()
        output = network({**batch, "positions": positions}, training=network.training)
        return [output["energy"], output["forces"]]

    return network, predict


def main() -> None:
    """Serve."""
    _, folder, _ = arguments()
    serve_all(folder, lambda folder: serve(*potential_of(tensors(folder)), weights_alone=True))


if __name__ == "__main__":
    sys.exit(main())
