"""Two ranks that share channels: every architecture's losses and gradients, beside those of the whole model.

Run by ``test_channels.py``: ``splitting.py OUT.json``.
"""

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from hydragnn.architectures import architectures
from hydragnn.config import RunConfig
from hydragnn.distributed import join_ranks, leave
from hydragnn.distributed.channels import Channels, split_channels
from hydragnn.distributed.mesh import Mesh, make_mesh
from hydragnn.distributed.pipeline import Shared, make_pipeline
from hydragnn.models import GraphModel
from hydragnn.parallel import ParallelSettings
from hydragnn.training.loss import loss_sums
from tests.hydragnn.training.conftest import CHARGE, ENERGY, MODELS, WITHOUT_FORCES, assembled
from tests.hydragnn.training.worker import clusters

MULTIHEAD = {"global_attention": {"kind": "multihead", "heads": 2}}
LINEAR = {"global_attention": {"kind": "linear", "heads": 2}}
EQUIVARIANT = {"global_attention": {"kind": "equivariant", "heads": 2}}
BLIND = ("gin", "relational", "sage", "mfc")
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, {}) for kind in sorted(architectures())},
    "painn as in the public HydraGNN": ("painn", {"tanh_networks": True, "directions": "over_length"}),
    "painn beside attention": ("painn", {**MULTIHEAD, "dropout": 0.25}),
    "schnet beside linear attention": ("schnet", {**LINEAR, "dropout": 0.25}),
    "mace beside equivariant attention": ("mace", EQUIVARIANT),
    "mace with filters of nodes": ("mace", {"node_filters": True, "dropout": 0.25}),
    "equivariant transformer, computed twice": ("equivariant_transformer", {"checkpoint_activations": True}),
    "field tokens with angles": ("field_tokens", {"angles": 2}),
    "moving schnet": ("schnet", {"moving_coordinates": True}),
}


def configuration(kind: str, changes: dict[str, Any], **more: Any) -> RunConfig:
    inputs = ["atomic_numbers", "relation"] if kind == "relational" else ["atomic_numbers"]
    forces = kind not in BLIND
    table = {
        "data": {"store": "in memory", "inputs": inputs},
        "split": {"train": 0.7, "valid": 0.2},
        "batch": {"max_graphs": 6},
        "model": {"kind": kind, **MODELS[kind], **changes},
        "heads": [ENERGY, CHARGE] if forces else WITHOUT_FORCES,
        "train": {"epochs": 1, "learning_rate": 0.005, "precision": "fp64"},
        **more,
    }
    return RunConfig.parse(json.loads(json.dumps(table)))


def gradients(model: GraphModel, batch: Any, targets: Any) -> tuple[float, dict[str, Tensor]]:
    """Return the summed losses of a batch, forces among them, and all gradients."""
    torch.manual_seed(3)
    sums = loss_sums(targets, model(batch), batch)
    names = dict(model.named_parameters())
    found = torch.autograd.grad(sums.sum(), list(names.values()), allow_unused=True)
    whole = [torch.zeros_like(weight) if one is None else one for weight, one in zip(names.values(), found)]
    return float(sums.detach().sum()), dict(zip(names, whole))


def compare(kind: str, changes: dict[str, Any], mesh: Mesh) -> dict[str, Any]:
    """Return relative errors of losses and gradients, and the share of weights that a rank holds."""
    store = clusters(12, related=True)
    run = assembled(configuration(kind, changes), store)
    model, batch = run.state.model, next(iter(run.data.epoch(0))).parts[0]
    loss, whole = gradients(model, batch, run.data.targets)
    for weight in model.parameters():
        weight.data, weight.grad = weight.data.clone(), None
    pieces = split_channels(model, mesh)
    own_loss, own = gradients(model, batch, run.data.targets)
    errors = {name: float((pieces[name].of(one) - own[name]).abs().max()) for name, one in whole.items()}
    scale = max(float(one.abs().max()) for one in whole.values())
    sizes = [sum(one.numel() for one in of.values()) for of in (own, whole)]
    replicated = torch.cat([one.flatten() for name, one in own.items() if pieces[name].is_whole])
    return {
        "loss": abs(own_loss / loss - 1),
        "gradient": max(errors.values()) / scale,
        "worst": max(errors, key=errors.__getitem__),
        "share": sizes[0] / sizes[1],
        "same bits": bool(torch.equal(*mesh.ranks.gather(replicated))),
    }


STAGES: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, {}) for kind in ("field_tokens", "relational", "schnet")},
    "painn beside attention": ("painn", {**MULTIHEAD, "num_layers": 3}),
    "mace of three layers, computed twice": ("mace", {"checkpoint_activations": True, "num_layers": 3}),
    "moving egnn": ("egnn", {"moving_coordinates": True, "num_layers": 4}),
}
CHUNKS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"{kind} in chunks": (kind, {"num_layers": 4}) for kind in sorted(architectures())},
    "painn beside attention in chunks": ("painn", {**MULTIHEAD, "num_layers": 5}),
    "mace computed twice in chunks": ("mace", {"checkpoint_activations": True, "num_layers": 4}),
    "moving egnn in chunks": ("egnn", {"moving_coordinates": True, "num_layers": 5}),
}
"""Each rank has two."""


def compare_stages(kind: str, changes: dict[str, Any], mesh: Mesh, chunks: int = 1) -> dict[str, Any]:
    """Return relative errors of losses and gradients of two stages, and the share of weights that the larger one holds."""
    store = clusters(12, related=True)
    config = configuration(kind, changes, heads=WITHOUT_FORCES)
    run = assembled(config, store, parts=3)
    model, parts = run.state.model, next(iter(run.data.epoch(0))).parts
    assert len(parts) == 3
    for weight in model.parameters():
        weight.data, weight.grad = weight.data.clone(), None
    torch.stack([loss_sums(run.data.targets, model(part), part).sum() for part in parts]).sum().backward()
    whole = {name: weight.grad for name, weight in model.named_parameters()}
    with torch.no_grad():
        expected = model(parts[0])
    for weight in model.parameters():
        weight.grad = None
    pipeline = make_pipeline(model, mesh, chunks, torch.device("cpu"))
    assert pipeline is not None
    parameters: Any = SimpleNamespace(in_use=lambda use: nullcontext(), expect_sum=lambda: None)
    targets, unit = run.data.targets, torch.ones(len(run.data.targets))
    executor = Shared(
        model=model, parameters=parameters, targets=targets, device=torch.device("cpu"), pipeline=pipeline
    )
    [*executor.gradient([(part, unit) for part in parts], len(parts))]
    own = {name: weight.grad for name, weight in model.named_parameters()}
    with torch.no_grad():
        found = executor.predict(parts[0])
    scale = max(float(one.abs().max()) for one in whole.values() if one is not None)
    errors = [abs(float((one - own[name]).abs().max())) for name, one in whole.items() if own.get(name) is not None]
    names = mesh.ranks.gather(torch.tensor([float(name in own) for name in whole]))
    sizes = [sum(one.numel() for one in of if one is not None) for of in (model.parameters(), whole.values())]
    missing = [n for n, one in whole.items() if one is not None and n in own and own[n] is None]
    assert not missing, missing
    return {
        "gradient": float(mesh.ranks.gather(torch.tensor(max(errors), dtype=torch.float64)).max()) / scale,
        "predictions": max((float((one.mean - expected[n].mean).abs().max()) for n, one in found.items()), default=0.0),
        "held once": bool((names.sum(0) == 1).all()),
        "share": float(mesh.ranks.gather(torch.tensor(sizes[0] / sizes[1])).max()),
    }


def check_derivatives(mesh: Mesh) -> None:
    """Raise where an operation is not differentiated right, once and twice."""
    group = mesh.group("tensor")
    assert group is not None
    torch.manual_seed(0)
    values = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
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
        result["stages"] = {name: compare_stages(kind, changes, mesh) for name, (kind, changes) in STAGES.items()}
        result["stages"] |= {name: compare_stages(kind, changes, mesh, 2) for name, (kind, changes) in CHUNKS.items()}
        if ranks.first:
            out.write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    leave(main())
