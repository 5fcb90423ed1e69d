"""Two ranks that share channels: every architecture's losses and gradients, beside those of the whole model.

Run by ``test_channels.py``: ``splitting.py OUT.json``.
"""

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from hydragnn.architectures import architectures
from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.distributed import join_ranks, leave
from hydragnn.distributed.channels import Channels, split_channels
from hydragnn.distributed.mesh import Mesh, make_mesh
from hydragnn.distributed.pipeline import SharedSteps, make_pipeline
from hydragnn.graphs import Field
from hydragnn.graphs.atomic import from_ase
from hydragnn.models import GraphModel
from hydragnn.parallel import ParallelSettings
from hydragnn.training.loss import loss_sums
from tests.hydragnn.training.conftest import (
    CHARGE,
    ENERGY,
    PLAIN_ENERGY,
    WITHOUT_FORCES,
    assembled,
    crystal,
    make_config,
)
from tests.hydragnn.training.worker import FIELDS, clusters

MULTIHEAD = {"global_attention": {"kind": "multihead", "heads": 2}}
LINEAR = {"global_attention": {"kind": "linear", "heads": 2}}
EQUIVARIANT = {"global_attention": {"kind": "equivariant", "heads": 2}}
GRAPHS = clusters(12, related=True)
STRESS_FIELD = Field(name="stress", on="graph", shape=(3, 3), parity="tensor", role="target", dtype="float64")
STRESS = {**PLAIN_ENERGY, "loss": "mse", "forces": "forces", "stress": "stress"}


def crystals(count: int) -> MemoryStore:
    """Rattled cells of copper with labels of energy, forces and stress; every third has no forces."""
    fields = [*FIELDS[1:3], STRESS_FIELD]
    graphs = []
    for number, atoms in enumerate(crystal(seed) for seed in range(count)):
        labels = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
        own = {name: torch.as_tensor(value, dtype=torch.float64) for name, value in labels.items()}
        own |= {"energy": own["energy"].reshape(1), "stress": torch.as_tensor(atoms.get_stress(voigt=False))[None]}
        graph = from_ase(atoms, cutoff=3.0).with_fields(own, fields=fields)
        graphs.append(graph.with_fields(drop=["forces"]) if number % 3 == 2 else graph)
    return MemoryStore(graphs, {"cutoff": 3.0, "close_nuclei": True})


BLIND = ("gin", "relational", "sage", "mfc")
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, {}) for kind in sorted(architectures())},
    "painn beside attention": ("painn", {**MULTIHEAD, "dropout": 0.25}),
    "schnet beside linear attention": ("schnet", {**LINEAR, "dropout": 0.25}),
    "mace beside equivariant attention": ("mace", EQUIVARIANT),
    "mace with dropout": ("mace", {"dropout": 0.25}),
    "equivariant transformer, computed twice": ("equivariant_transformer", {"checkpoint_activations": True}),
    "field tokens with angles": ("field_tokens", {"angles": 2}),
    "painn beside attention of one head": ("painn", {"global_attention": {"kind": "multihead", "heads": 1}}),
    "schnet beside linear attention of one head": ("schnet", {"global_attention": {"kind": "linear", "heads": 1}}),
    "equivariant transformer of one head": ("equivariant_transformer", {"heads": 1}),
    "field tokens of one head": ("field_tokens", {"heads": 1}),
}


def configuration(kind: str, changes: dict[str, Any], **more: Any) -> RunConfig:
    inputs = ["atomic_numbers", "relation"] if kind == "relational" else ["atomic_numbers"]
    heads = WITHOUT_FORCES if kind in BLIND else [ENERGY, CHARGE]
    more |= {f"model__{key}": value for key, value in changes.items()}
    return make_config(kind, more.pop("heads", heads), data__inputs=inputs, train__epochs=1, **more)


def gradients(model: GraphModel, parts: Sequence[Any], targets: Any) -> tuple[float, dict[str, Tensor]]:
    torch.manual_seed(3)
    loss = torch.stack([loss_sums(targets, model(part), part).sum() for part in parts]).sum()
    names = dict(model.named_parameters())
    every = torch.autograd.grad(loss, list(names.values()), allow_unused=True)
    whole = [torch.zeros_like(weight) if one is None else one for weight, one in zip(names.values(), every)]
    return float(loss.detach()), dict(zip(names, whole))


def one_rank(
    config: RunConfig, count: int = 1, graphs: MemoryStore = GRAPHS
) -> tuple[Any, Any, Any, float, dict[str, Tensor]]:
    run = assembled(config, graphs, parts=count)
    model, targets, parts = run.state.model, run.data.targets, next(iter(run.data.epoch(0))).parts
    assert len(parts) == count
    for weight in model.parameters():
        weight.data, weight.grad = weight.data.clone(), None
    return model, targets, parts, *gradients(model, parts, targets)


def errors_of(own: dict[str, Tensor], whole: dict[str, Tensor]) -> dict[str, float]:
    """Return the largest error of every gradient, in the largest of all."""
    scale = max(float(one.abs().max()) for one in whole.values())
    return {name: float((whole[name] - one).abs().max()) / scale for name, one in own.items()}


def compare(kind: str, changes: dict[str, Any], mesh: Mesh) -> dict[str, Any]:
    """Return relative errors of losses and gradients, and the share of weights that a rank holds."""
    model, targets, parts, loss, whole = one_rank(configuration(kind, changes))
    pieces = split_channels(model, mesh)
    own_loss, own = gradients(model, parts, targets)
    errors = errors_of(own, {name: pieces[name].of(one) for name, one in whole.items()})
    replicated = torch.cat([one.flatten() for name, one in own.items() if pieces[name].is_whole])
    return {
        "loss": abs(own_loss / loss - 1),
        "gradient": max(errors.values()),
        "worst": max(errors, key=errors.__getitem__),
        "share": sum(one.numel() for one in own.values()) / sum(one.numel() for one in whole.values()),
        "same bits": bool(all(torch.equal(replicated, one) for one in mesh.ranks.gather(replicated))),
    }


STAGES: dict[str, tuple[str, dict[str, Any], int]] = {
    "relational": ("relational", {}, 1),
    "mace of three layers, computed twice": ("mace", {"checkpoint_activations": True, "num_layers": 3}, 1),
    **{f"{kind} in chunks": (kind, {"num_layers": 4}, 2) for kind in sorted(architectures())},
    "painn beside attention in chunks": ("painn", {**MULTIHEAD, "num_layers": 5}, 2),
}
"""Kind, changes, and chunks of each rank."""
WITH_FORCES: dict[str, tuple[str, dict[str, Any], int]] = {
    "field tokens on forces": ("field_tokens", {}, 1),
    "painn beside attention on forces": ("painn", {**MULTIHEAD, "num_layers": 3}, 1),
    "mace on forces, computed twice": ("mace", {"checkpoint_activations": True, "num_layers": 3}, 1),
    "egnn on forces": ("egnn", {"num_layers": 4}, 1),
    "mace on stress": ("mace", {}, 1),
    "schnet on stress, computed twice": ("schnet", {"checkpoint_activations": True}, 1),
    "schnet beside equivariant attention on forces": ("schnet", {**EQUIVARIANT, "num_layers": 2}, 1),
    "equivariant transformer on forces, in chunks": ("equivariant_transformer", {"num_layers": 5}, 2),
}
"""Cases with second derivatives."""
STAGES |= WITH_FORCES


def compare_stages(kind: str, changes: dict[str, Any], chunks: int, mesh: Mesh, **heads: Any) -> dict[str, Any]:
    """Return relative errors of two stages, and the share of weights that the larger one holds."""
    graphs = crystals(12) if heads == {"heads": [STRESS]} else GRAPHS
    model, targets, parts, _, whole = one_rank(configuration(kind, changes, **heads), 3, graphs)
    with torch.no_grad():
        expected = model(parts[0])
    pipeline = make_pipeline(model, mesh, chunks, torch.device("cpu"))
    assert pipeline is not None
    parameters: Any = SimpleNamespace(in_use=lambda use: nullcontext(), expect_sum=lambda: None)
    unit = torch.ones(len(targets))
    executor = SharedSteps(model=model, parameters=parameters, targets=targets, pipeline=pipeline)
    [*executor.gradient([(part, unit) for part in parts], len(parts))]
    own = {name: weight.grad for name, weight in model.named_parameters()}
    assert not [name for name, one in own.items() if one is None and whole[name].any()]
    predictions, _ = executor.predict(parts[0])
    errors = errors_of({name: one for name, one in own.items() if one is not None}, whole)
    names = torch.tensor(mesh.ranks.numbers(*(name in own for name in whole)))
    share = sum(one.numel() for one in model.parameters()) / sum(one.numel() for one in whole.values())
    gradient, share = mesh.ranks.largest(max(errors.values()), share)
    differences = [float((one.mean - expected[name].mean).abs().max()) for name, one in predictions.items()]
    held = bool((names.sum(0) == 1).all())
    return {"gradient": gradient, "predictions": max(differences, default=0.0), "held once": held, "share": share}


def heads_of(name: str) -> dict[str, Any]:
    """Return heads of a case of stages."""
    return {"heads": [STRESS]} if "stress" in name else {} if name in WITH_FORCES else {"heads": WITHOUT_FORCES}


def check_derivatives(mesh: Mesh) -> None:
    """Raise where an operation is not differentiated right, once and twice."""
    group = mesh.group("tensor")
    assert group is not None
    torch.manual_seed(0)
    values = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    channels = Channels(group=group, size=2, rank=mesh.ranks.rank)

    def network(inputs: Tensor, *ways: str) -> Tensor:
        """Whole to whole, by other arrays between; the factors are those of this rank."""
        first = channels.along(inputs, ("copy", "cut") if ways[0] == "copy" else ("own",))
        factors = torch.arange(1.0, 5.0, dtype=torch.float64).chunk(2)[channels.rank]
        middle = (first * factors).sin()
        if ways[1] == "gather":
            return channels.along(middle, ("gather",))
        return channels.along(middle @ torch.ones(2, 3, dtype=torch.float64) * factors.sum(), ("reduce",))

    for entry in ("copy", "own"):
        for end in ("gather", "reduce"):
            assert torch.autograd.gradcheck(lambda x, e=entry, f=end: network(x, e, f), values)
            assert torch.autograd.gradgradcheck(lambda x, e=entry, f=end: network(x, e, f), values)


def main() -> int:
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    with join_ranks(out.parent) as ranks:
        mesh = make_mesh(ParallelSettings(tensor=2), ranks)
        check_derivatives(mesh)
        result = {name: compare(kind, changes, mesh) for name, (kind, changes) in CASES.items()}
        mesh = make_mesh(ParallelSettings(pipeline=2), ranks)
        result["stages"] = {name: compare_stages(*case, mesh, **heads_of(name)) for name, case in STAGES.items()}
        if ranks.first:
            out.write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    leave(main())
