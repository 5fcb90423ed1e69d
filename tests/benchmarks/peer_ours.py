"""This project, now or at an older commit, as a peer of ``bench_peers`` and ``bench_kinds``.

    python peer_ours.py KIND FOLDER [past] [write] [plain] [keep] [computed] [energies] [sharp]

``past``: the modules of commit 57a3d48, found by PYTHONPATH. ``write``: its weights are those of all. ``plain``: no compiled
kernels. ``keep``: freed memory is kept, as in every command that trains. ``computed``: inference without tables of what depends on lengths alone.
``energies``: no forces. ``sharp``: messages do not end smoothly at the cutoff, as in PyTorch Geometric's convolutions.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ase
import numpy as np
import torch
from peer_worker import CUTOFF, HIDDEN, LAYERS, RADIAL, arguments, serve, serve_all, tensors, trains_forces, weights

from hydragnn.graphs.atomic import from_ase
from hydragnn.graphs.field import Field
from hydragnn.graphs.joining import concatenate
from hydragnn.models import build_model, degree_statistics

FIELDS = [
    Field(name="atomic_numbers", on="node", classes=119, dtype="int64"),
    Field(name="energy", on="graph", role="target"),
    Field(name="forces", on="node", shape=(3,), parity="vector", role="target"),
    Field(name="relation", on="edge", classes=8, dtype="int64"),
]
OWN: dict[str, dict[str, Any]] = {
    "relational": {"reduce": "mean"},
    "gps": {"kind": "gin", "global_attention": {"kind": "multihead", "heads": 4}},
    "dimenet": {"num_radial": 6, "envelope": "polynomial"},
    "mace": {"num_layers": 2, "num_radial": 8, "max_ell": 2, "correlation": 3, "envelope": "polynomial"},
    "tensornet": {"num_layers": 2, "radial": "exponential"},
    "equivariant_transformer": {"radial": "exponential"},
}
"""Settings of architectures whose peers have other ones than those of ``settings_of``."""


def batch_of(folder: Path) -> Any:
    """The driver's structures as one batch, with neighbour lists of this commit."""
    given = {name: tensor.numpy() for name, tensor in tensors(folder).items()}
    graphs = []
    for number, (begin, end) in enumerate(zip(given["offsets"], given["offsets"][1:])):
        atoms = ase.Atoms(given["numbers"][begin:end], given["exact_positions"][begin:end])
        atoms.cell, atoms.pbc = given["cells"][number], given["periodic"][number]
        graphs.append(from_ase(atoms, cutoff=CUTOFF))
    return concatenate(graphs)


def present(kind: str, folder: Path, options: list[str]) -> tuple[Any, Any]:
    """Model and batch as the project is now; edges are of eight kinds by the signs of their directions."""
    from hydragnn.architectures import architecture_of
    from hydragnn.graphs.batch import edge_vectors
    from hydragnn.models import parse_head

    batch = batch_of(folder).to(dtype=torch.float32)
    octants = ((edge_vectors(batch) > 0) * torch.tensor([1, 2, 4])).sum(1)
    batch = batch.with_fields({"relation": octants}, fields=FIELDS[-1:])
    table = {**settings_of(kind, norm="paper"), **OWN.get(kind, {})}
    if "sharp" in options:
        table["envelope"] = "none"
    name = table.pop("kind", kind)
    settings = architecture_of(name).Settings
    known = settings.parse(
        {"kind": name, **{key: value for key, value in table.items() if key in settings.model_fields}}
    )
    head = {**head_of(kind, options), **({"hidden_dims": [18]} if kind == "mace" else {})}
    inputs = ["relation"] if kind == "relational" else []
    return built(known, parse_head(head), batch, inputs), batch


def past(kind: str, folder: Path, options: list[str]) -> tuple[Any, Any]:
    """Model and batch at commit 57a3d48."""
    from hydragnn.graphs.batch import to
    from hydragnn.models import HeadSettings
    from hydragnn.models import settings as classes

    batch = to(batch_of(folder), dtype=torch.float32)
    names = {"painn": "PaiNN", "schnet": "SchNet", "egnn": "EGNN", "pna": "PNA"}
    settings = getattr(classes, names[kind] + "Settings")(**settings_of(kind))
    given = {**head_of(kind, options), "kind": None, "pool": "sum"}
    head = HeadSettings(**{name: value for name, value in given.items() if value})
    return built(settings, head, batch), batch


def settings_of(kind: str, **painn: str) -> dict[str, Any]:
    """Sizes, and functions of lengths that schnetpack has as well (no Gaussians: their tails are numbers below 1e-38, which
    processors multiply several times slower on both sides)."""
    sizes = {"hidden_dim": HIDDEN, "num_layers": LAYERS, "num_radial": RADIAL, "cutoff": CUTOFF}
    return {**sizes, "radial": "bessel", "envelope": "cosine", **(painn if kind == "painn" else {})}


def head_of(kind: str, options: list[str]) -> dict[str, Any]:
    """Energies, with forces where these are trained."""
    return {"kind": "energy", "field": "energy", **({"forces": "forces"} if trains_forces(kind, options) else {})}


def built(settings: Any, head: Any, batch: Any, inputs: Sequence[str] = ()) -> Any:
    """The model of these settings."""
    statistics, names = degree_statistics([batch]), ["atomic_numbers", *inputs]
    return build_model(settings, [head], FIELDS, inputs=names, dim=3, seed=0, statistics=statistics)


def share_weights(kind: str, folder: Path, model: Any, options: list[str]) -> None:
    """Take the weights that are there, if ``write`` does not make them, and leave them by this commit's names if it is not past."""
    if "write" not in options:
        given = weights(folder, kind)
        model.load_state_dict(dict(given))
    if "write" in options or "past" not in options:
        np.savez(folder / f"{kind}.npz", **{name: tensor.numpy() for name, tensor in model.state_dict().items()})


def main() -> None:
    """Serve."""
    kind, folder, options = arguments()
    if "keep" in options:
        from hydragnn.base.allocator import keep_memory

        keep_memory()
    if "plain" in options:
        from hydragnn.kernels.cpu import compiled

        compiled.library = lambda: None
    serve_all(folder, lambda folder: serve_one(kind, folder, options))


def serve_one(kind: str, folder: Path, options: list[str]) -> Path | None:
    """Serve the batch in one folder."""
    model, batch = (past if "past" in options else present)(kind, folder, options)
    share_weights(kind, folder, model, options)
    call = model
    fixed = call
    if not {"past", "computed"} & set(options):
        from hydragnn.models.trained import tabulated

        fixed = tabulated(model).eval().requires_grad_(False)  # as ensembles and calculators load it
    return serve(
        model,
        lambda: [prediction.mean for prediction in call(batch).values()],
        recorded=False,
        infer=lambda: [prediction.mean for prediction in fixed(batch).values()],
        weights_alone=True,  # as the training loop does, today's and that of 57a3d48
        ours=True,
    )


if __name__ == "__main__":
    sys.exit(main())
