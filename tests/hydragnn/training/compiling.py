"""A process that traces and compiles models; started by the tests, since shapes are not checked in it: sizes are symbols there.

``python compiling.py traced|compiled KIND ...`` prints, for every architecture, how far values and gradients are from those of
the model itself, as JSON; ``sums`` which operations add atomically in a step that is traced as on a GPU; ``trap`` what is wrong where detach nodes stay. ``runs FOLDER TABLE.json [--traced] [--broken] [--resume] [--until N]`` trains.

The long rows, of all architectures as traced (two minutes), and as compiled and in single precision too (about a quarter of an hour):
``python tests/hydragnn/training/compiling.py traced`` and ``python tests/hydragnn/training/compiling.py compiled``
"""

import argparse
import importlib.util
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._inductor.decomposition import select_decomp_table
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from hydragnn.architectures import architecture_of, architectures
from hydragnn.conformance.atomics import unordered
from hydragnn.conformance.cases import CORNERS, FORCES, INPUTS, SCALARS, STRESS, make_graph, make_model, small_settings
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.joining import concatenate
from hydragnn.kernels.family import taken_for
from hydragnn.models import (
    CompiledModel,
    GraphModel,
    build_model,
    compiled,
    compiled_model,
    degree_statistics,
    parse_head,
)
from hydragnn.models.compiler import mended_compiler

HEADS: dict[str, dict[str, Any]] = {
    "energy": {"kind": "energy", "field": "energy"},
    "charge": {"kind": "scalar", "field": "charge", "hidden_dims": [], "total": 0},
}


def batches() -> dict[str, GraphBatch]:
    """Batches of several sizes and corners; one has a field that no model reads."""
    several = {f"{number} graphs": concatenate([make_graph(s, 3 + s) for s in range(number)]) for number in (2, 3, 5)}
    extra = Field(name="note", on="node")
    noted = several["3 graphs"].with_fields({"note": torch.zeros(several["3 graphs"].num_nodes)}, fields=[extra])
    return {**several, "noted": noted, **{name: make() for name, make in CORNERS.items()}}


def small_model(kind: str, dtype: torch.dtype, num_layers: int = 1) -> GraphModel:
    """A model with few channels that gives energies, charges and, where it can, forces and stress."""
    sees = architecture_of(kind).sees_positions()
    derivatives = {"forces": "forces", "stress": "stress"} if sees else {}
    heads = [parse_head({**HEADS["energy"], **derivatives}), parse_head(HEADS["charge"])]
    fields = [*INPUTS, *SCALARS, *((FORCES, STRESS) if sees else ())]
    width = 8 if kind == "equivariant_transformer" else 4  # which has eight heads
    settings = small_settings(kind, num_layers=num_layers, hidden_dim=width)
    inputs = ["species", "relation"] if kind == "relational" else ["species"]
    statistics = degree_statistics([make_graph(1, 5)])
    return build_model(settings, heads, fields, inputs=inputs, dim=3, seed=0, statistics=statistics).to(dtype)


def numbers(predict: Any, model: GraphModel, batch: GraphBatch) -> tuple[Tensor, Tensor]:
    """All values, and the gradient of a weighted sum of them in all weights."""
    predictions = predict(batch)
    values = torch.cat([part.flatten() for one in predictions.values() for part in one.tensors().values()])
    weights = torch.arange(len(values), dtype=values.dtype).cos()
    gradients = torch.autograd.grad(
        (values * weights).sum(), list(model.parameters()), allow_unused=True, materialize_grads=True
    )
    return values.detach(), torch.cat([one.flatten() for one in gradients])


def difference(one: CompiledModel, dtype: torch.dtype) -> dict[str, list[float]]:
    """The largest errors of values and gradients, relative to their size, over all batches."""
    result = {}
    for name, batch in batches().items():
        batch = batch.to(dtype=dtype)
        pairs = zip(numbers(one, one.model, batch), numbers(one.model, one.model, batch))
        result[name] = [float((a - b).norm() / b.norm().clamp_min(1e-300)) for a, b in pairs]
    return result


def step_on_a_gpu(kind: str, autocast: Any, dtype: torch.dtype) -> GraphModule:
    """Return predictions and gradient as one graph, traced as on a GPU and taken apart as a compiler does."""
    model = small_model(kind, dtype).train()
    fields, count = model.description.input_fields, len(list(model.parameters()))
    batch = compiled.random_batch(fields, 3, 9.0, compiled.SIZES, dtype)
    with taken_for("cpu", "cuda"), mended_compiler():
        traced = compiled.traced_model(model, fields, batch, autocast).module

        def step(*arguments: Tensor) -> list[Tensor]:
            weights = [weight.detach().requires_grad_() for weight in arguments[:count]]
            values = [value for value in traced(*weights, *arguments[count:]) if value.requires_grad]
            ones = [torch.ones_like(value) for value in values]
            gradients = torch.autograd.grad(values, weights, ones, allow_unused=True)
            return [*(value.detach() for value in values), *(one for one in gradients if one is not None)]

        given = [node.meta["val"] for node in traced.graph.find_nodes(op="placeholder")]
        with given[0].fake_mode, enable_python_dispatcher(), torch.enable_grad():
            module = make_fx(step, decomposition_table=select_decomp_table())(*given)
    compiled.remove_detach(module.graph)
    module.graph.eliminate_dead_code()
    return module


def sums(kinds: list[str]) -> dict[str, Any]:
    """Atomic operations and our own operators in a step as on a GPU, by architecture and arithmetic.

    Of architectures that are named, only the first in fp64 too: what is traced in bf16 has the same sums, and casts around them.
    """
    result = {}
    for kind in kinds or list(architectures()):
        ways: dict[str, tuple[Any, torch.dtype]] = {"bf16": (in_half_precision, torch.float32)}
        if not kinds or kind == kinds[0]:
            ways["fp64"] = (nullcontext, torch.float64)
        for name, (autocast, dtype) in ways.items():
            atomic, ours = [], set()
            for node in step_on_a_gpu(kind, autocast, dtype).graph.nodes:
                if not isinstance(node.target, OpOverload):
                    continue
                inputs = [one.meta.get("val") if isinstance(one, Node) else one for one in node.args]
                atomic += [str(node)] if unordered(node.target._opname, inputs, node.kwargs) else []
                if node.target.namespace == "hydragnn":
                    tensors = [one.dtype for one in inputs if isinstance(one, Tensor) and one.is_floating_point()]
                    ours |= {f"{node.target._opname} {one}" for one in tensors}
            result[f"{kind} {name}"] = {"atomic": atomic, "ours": sorted(ours)}
    return result


def in_half_precision() -> torch.autocast:
    """The arithmetic of ``precision = "bf16"``."""
    return torch.autocast("cpu", dtype=torch.bfloat16)


def trap() -> dict[str, float]:
    """How wrong values and gradients of a traced model are where detach nodes are left in it."""
    model = small_model("painn", torch.float64)
    flat = compiled.flat_tensors(model.description.input_fields)
    batch = compiled.random_batch(model.description.input_fields, 3, 9.0, compiled.SIZES, torch.float64)
    traced = compiled.traced_model(model, model.description.input_fields, batch, nullcontext, strip=False)
    left = CompiledModel(
        model=model, flat=flat, traced=traced, training=traced.module, evaluation=traced.module, seconds=0.0
    )
    (values, gradient), (true_values, true_gradient) = numbers(left, model, batch), numbers(model, model, batch)
    try:
        compiled.check_equal(left, batch, nullcontext, training=True)
        refused = 0.0
    except compiled.NotCompiled:
        refused = 1.0
    return {
        "values": float((values - true_values).norm() / true_values.norm()),
        "gradient": float((gradient - true_gradient).norm() / true_gradient.norm()),
        "refused": refused,
    }


def traced_only() -> None:
    """Take what was traced as it is, without a compiler."""
    compiled.compiled_function = lambda module: module


def broken() -> None:
    """Let no function be compiled, as on a node whose disk is full."""

    def fail(module: object) -> object:
        raise OSError("No space left on device")

    compiled.compiled_function = fail


def parity(how: str, kinds: list[str], single: bool, layers: int) -> dict[str, Any]:
    """Errors by architecture and batch, and how many functions were compiled for all batches."""
    result = {}
    for kind in kinds or list(architectures()):
        if how == "traced":
            traced_only()
            model = make_model(kind) if kind == "painn" else small_model(kind, torch.float64)  # all heads once
            result[kind] = difference(compiled_model(model), torch.float64)
        from torch._dynamo.utils import counters

        dtypes = (torch.float32,) if single else (torch.float64, torch.float32)
        for dtype in dtypes if how == "compiled" else ():
            counters.clear()
            one = compiled_model(small_model(kind, dtype, layers))
            result[f"{kind} {dtype}"] = {**difference(one, dtype), "functions": counters["stats"]["unique_graphs"]}
    return result


def runs(folder: Path, table: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Train a run; gives what its record says."""
    from hydragnn.config import parse_config
    from hydragnn.runs import train

    spec = importlib.util.spec_from_file_location("training_worker", Path(__file__).with_name("worker.py"))
    assert spec and spec.loader
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)
    if options.traced:
        traced_only()
    if options.broken:
        broken()
    store, config = worker.clusters(40), parse_config(json.loads(table.read_text()))
    stores = store if len(config.branches) == 1 else dict.fromkeys([one.name for one in config.branches], store)
    how = {"until": options.until, "resume": options.resume, "micro_batches": options.micro_batches}
    record = train(config, folder, store=stores, **how)
    return {
        "compiled": record.compiled,
        "notes": record.notes,
        "curves": record.curves,
        "cost": record.cost.compile_seconds,
    }


def main() -> None:
    """Print one JSON value."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("traced", "compiled", "sums", "trap", "runs"))
    parser.add_argument("words", nargs="*")
    parser.add_argument("--single", action="store_true", help="compile for single precision alone")
    parser.add_argument("--layers", type=int, default=1, help="of the models that are compiled")
    parser.add_argument("--traced", action="store_true")
    parser.add_argument("--broken", action="store_true", help="compile nothing")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--until", type=int)
    parser.add_argument("--micro-batches", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "runs":
        result: Any = runs(Path(options.words[0]), Path(options.words[1]), options)
    elif options.what == "sums":
        result = sums(options.words)
    else:
        result = (
            trap() if options.what == "trap" else parity(options.what, options.words, options.single, options.layers)
        )
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
