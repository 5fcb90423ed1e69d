"""Keeps weights and outputs of mace-torch's MACE for ``test_mace.py``; mace-torch needs another e3nn than the tests, and much else.

    pip install mace-torch==0.3.16
    PYTHONPATH=. python tests/parity/make_mace.py

Its couplings of several factors are kept as polynomials: coefficients of products of components, whose order does not matter.
"""

from collections.abc import Iterator
from itertools import combinations_with_replacement, permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from hydragnn.conformance.cases import make_graph
from hydragnn.graphs.joining import concatenate

OUT = Path(__file__).with_name("mace-torch.safetensors")
CHANNELS, RADIAL, CUTOFF, ELL, CORRELATION, SPECIES = 4, 5, 9.0, 2, 3, 5


MIXED = [CORRELATION, 2, 1]
"""Factors of the products of each interaction of a second network, which has the other weights of the first."""
RADIAL_PARTS = {
    "agnesi.bessel": ("Agnesi", "bessel"),
    "soft.bessel": ("Soft", "bessel"),
    "none.gaussian": ("None", "gaussian"),
    "agnesi.chebyshev": ("Agnesi", "chebyshev"),
}
"""Other distance transforms and radial types, in the place of the network's own. Their Chebyshev polynomials have no derivative, so that
forces and stress lack what comes from them: the energy alone is kept."""


def make_network(correlation: int | list[int] = CORRELATION) -> Any:
    from e3nn import o3
    from mace.modules import MACE, RealAgnosticResidualInteractionBlock

    return MACE(
        r_max=CUTOFF,
        num_bessel=RADIAL,
        num_polynomial_cutoff=6,
        max_ell=ELL,
        interaction_cls=RealAgnosticResidualInteractionBlock,
        interaction_cls_first=RealAgnosticResidualInteractionBlock,
        num_interactions=3,
        num_elements=SPECIES,
        hidden_irreps=o3.Irreps(f"{CHANNELS}x0e + {CHANNELS}x1o"),
        MLP_irreps=o3.Irreps("3x0e"),
        atomic_energies=np.zeros(SPECIES),
        avg_num_neighbors=4.0,
        atomic_numbers=[*range(1, SPECIES + 1)],
        correlation=correlation,
        gate=torch.nn.functional.silu,
        use_reduced_cg=False,
        radial_MLP=[64, 64, 64],
    )


def polynomials(network: Any) -> Iterator[tuple[str, Tensor]]:
    """``[paths, components, monomials]`` by degree and order, from the tensors that the first layer contracts with."""
    for degree, contraction in enumerate(network.products[0].symmetric_contractions.contractions):
        for order in range(1, CORRELATION + 1):
            table = getattr(contraction, f"U_matrix_{order}")  # [components if degree, factor, factor, ..., paths]
            table = table if degree else table.unsqueeze(0)
            columns = [
                sum(table[(slice(None), *places)] for places in set(permutations(monomial)))
                for monomial in combinations_with_replacement(range((ELL + 1) ** 2), order)
            ]
            yield f"polynomials.{degree}.{order}", torch.stack(columns).permute(2, 1, 0)


def output_of(network: Any) -> dict[str, Tensor]:
    batch = concatenate([make_graph(1, 5), make_graph(2, 7)])
    lattices = batch.cell.index_select(0, batch.owner("edge"))  # [edges, 3, 3]
    images = torch.linalg.solve(lattices.mT, batch.edge_shifts.unsqueeze(-1)).squeeze(-1).round()
    output: dict[str, Tensor] = network(
        {
            "positions": batch.positions.clone().requires_grad_(),
            "node_attrs": torch.nn.functional.one_hot(batch.nodes["species"], SPECIES).double(),
            "edge_index": torch.stack([batch.senders, batch.receivers]),
            "shifts": -batch.edge_shifts,  # its edges point from senders to receivers
            "unit_shifts": -images,
            "cell": batch.cell.flatten(0, 1),
            "batch": batch.owner("node"),
            "ptr": batch.node_offsets,
        },
        compute_stress=True,
    )
    return {name: output[name] for name in ("energy", "forces", "stress")}


def of_other_radial_parts(network: Any) -> Iterator[tuple[str, Tensor]]:
    from mace.modules.blocks import RadialEmbeddingBlock

    own = network.radial_embedding
    for name, (transform, radial) in RADIAL_PARTS.items():
        network.radial_embedding = RadialEmbeddingBlock(CUTOFF, RADIAL, 6, radial, transform)
        for what, value in output_of(network).items():
            if what == "energy" or radial != "chebyshev":
                yield f"{what}.{name}", value
    network.radial_embedding = own


def of_mixed_correlation(network: Any) -> Iterator[tuple[str, Tensor]]:
    """Energies, forces and stress of products with another number of factors in each interaction, and the weights of these products."""
    mixed = make_network(MIXED)
    same = {name: value for name, value in network.state_dict().items() if "symmetric_contractions" not in name}
    mixed.load_state_dict(same, strict=False)
    for name, parameter in mixed.named_parameters():
        parameter.data = parameter.data.float().double()
        if "symmetric_contractions" in name:
            yield f"mixed.{name}", parameter.float()
    for what, value in output_of(mixed).items():
        yield f"{what}.mixed", value


def main() -> None:
    torch.serialization.add_safe_globals([slice])  # e3nn 0.4.4 reads its constants so
    from e3nn.math import normalize2mom

    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    network = make_network()
    for parameter in network.parameters():
        parameter.data = parameter.data.float().double()  # so that the file can be half as large
    values = output_of(network) | dict(polynomials(network))
    values |= dict(of_other_radial_parts(network)) | dict(of_mixed_correlation(network))
    values["silu"] = torch.tensor(normalize2mom(torch.nn.functional.silu).cst)
    values |= {f"weights.{name}": value.float() for name, value in network.named_parameters()}
    save_file({name: value.detach().contiguous() for name, value in values.items()}, OUT)


if __name__ == "__main__":
    main()
