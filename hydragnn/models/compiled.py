"""Models as one compiled function: predictions, derivatives and gradient.

A model is traced once, on a batch that stands for all, with its weights and the tensors of a batch as arguments and their
numbers of nodes, edges and graphs as symbols. What comes out is compiled before the first step, so that nothing about it
depends on the data: the same run gives the same bits wherever it is resumed. What cannot be compiled raises ``NotCompiled``.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx import Graph, GraphModule, Node

from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import LOCATIONS, Field, Location
from hydragnn.kernels import operators
from hydragnn.models.compiler import mended_compiler
from hydragnn.models.description import ModelDescription
from hydragnn.models.distributions import Distribution
from hydragnn.models.flat_batch import FlatTensor, batch_from_flat, flat_tensors, random_batch
from hydragnn.models.graph_model import GraphModel

SIZES: Mapping[Location, int] = {"node": 331, "edge": 4999, "graph": 17}
"""Of the batch on which models are traced: far from each other and from any number of channels, so that each is a symbol of its own."""

LEAST = 2
"""Items of every kind that a batch needs to be computed as compiled: compilers take sizes of 0 and 1 for constants."""


Function = Callable[..., tuple[Tensor, ...]]
Autocast = Callable[[], AbstractContextManager[object]]


class NotCompiled(Exception):
    """A model cannot be compiled here; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Traced:
    """A model as a graph of tensor operations, in training or not."""

    module: GraphModule
    """Takes the weights, then the tensors named in ``tensors``."""
    tensors: tuple[str, ...]
    outputs: tuple[tuple[str, type[Distribution], tuple[str, ...]], ...]
    """Name, kind and tensors of every prediction, in the order in which they come out."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CompiledModel:
    """Compiled predictions of a model; tiny batches use the model itself."""

    model: GraphModel
    flat: Mapping[str, FlatTensor]
    traced: Traced
    training: Function
    evaluation: Function
    """The same function, unless the model computes something else in training."""
    seconds: float
    """What tracing and compiling took."""

    def __call__(self, batch: GraphBatch) -> dict[str, Distribution]:
        """Predict by field name, differentiable where gradients are recorded."""
        if min(batch.num_items(location) for location in LOCATIONS) < LEAST:
            predictions: dict[str, Distribution] = self.model(batch)
            return predictions
        recording = torch.is_grad_enabled()
        function = self.training if self.model.encoder.training else self.evaluation
        tensors = [self.flat[name].read(batch) for name in self.traced.tensors]
        # casts are part of what was traced
        # and nothing more is compiled: a batch of a size that the compiler set apart is computed as it was traced
        with (
            torch.enable_grad(),
            torch.autocast(batch.device.type, enabled=False),
            torch.compiler.set_stance("eager_on_recompile"),
        ):
            values = iter(function(*ordered_weights(self.model), *tensors))
        return {
            name: kind(**{part: value if recording else value.detach() for part, value in zip(parts, values)})
            for name, kind, parts in self.traced.outputs
        }


def compiled_model(model: GraphModel, autocast: Autocast = nullcontext) -> CompiledModel:
    """Return a compiled function that was compared with the model.

    NotCompiled where there is none.
    Weights stay where they are, and may move. ``autocast`` is the arithmetic in which it will be called.
    """
    start, mode = time.perf_counter(), model.training
    description = model.description
    if description.model.checkpoint_activations:
        raise NotCompiled("model.checkpoint_activations computes layers twice, which a compiled step does not")
    of_known_sizes(description)
    parameter = next(model.parameters())
    extent = getattr(description.model, "cutoff", None) or 1.0
    batch = random_batch(
        description.input_fields, description.dim, extent, SIZES, parameter.dtype, description.close_range
    ).to(parameter.device)
    flat = flat_tensors(description.input_fields)
    try:
        with mended_compiler():
            traced = {
                training: traced_model(model.train(training), description.input_fields, batch, autocast)
                for training in (True, False)
            }
            same = traced[True].module.code == traced[False].module.code
            functions = {True: compiled_function(traced[True].module)}
            functions[False] = functions[True] if same else compiled_function(traced[False].module)
            result = CompiledModel(
                model=model,
                flat=flat,
                traced=traced[True],
                training=functions[True],
                evaluation=functions[False],
                seconds=0.0,
            )
            tensors = [flat[name].read(batch) for name in result.traced.tensors]
            for training in (True,) if same else (True, False):
                with torch.random.fork_rng(devices=[]), torch.enable_grad():
                    functions[training](*ordered_weights(model), *tensors)  # compiles
                check_equal(result, batch, autocast, training=training)
    except NotCompiled:
        raise
    except Exception as error:  # whatever a compiler and a user's architecture may raise
        raise NotCompiled(first_line(error)) from error
    finally:
        model.train(mode)
    object.__setattr__(result, "seconds", time.perf_counter() - start)
    return result


def of_known_sizes(description: ModelDescription) -> None:
    """Raise NotCompiled for models that pool or attend to pairs."""
    attention = description.model.global_attention
    if description.model.pooling is not None:
        raise NotCompiled(
            "coarser levels have as many nodes and edges as the data say, which is not known before a step"
        )
    if description.architecture.attends:
        raise NotCompiled(
            "attention computes graphs of similar sizes together, and how many these are is not known before a step"
        )
    if attention is not None and attention.has_pairs:
        raise NotCompiled("equivariant attention has as many pairs as positions say, which is not known before a step")


def traced_model(
    model: nn.Module,
    fields: Sequence[Field],
    batch: GraphBatch,
    autocast: Autocast,
    *,
    strip: bool = True,
    recording: bool = True,
) -> Traced:
    """Return the model traced for batches of any size, or NotCompiled.

    ``fields`` are its inputs. ``strip``: without nodes that detach. Those of tracing itself (values kept for a derivative) would hide the way from weights
    to forces, and forces would come out right with gradients that are wrong. ``recording``: for gradients in the weights; without,
    as a model computes where nobody wants any.
    """
    from torch._dispatch.python import enable_python_dispatcher
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    flat, shapes = flat_tensors(fields), ShapeEnv()
    outputs: list[tuple[str, type[Distribution], tuple[str, ...]]] = []

    def function(*arguments: Tensor) -> tuple[Tensor, ...]:
        weights, tensors = dict(zip(names, arguments)), dict(zip(flat, arguments[len(names) :]))
        with autocast():
            # no tying: a module with two names would get its second substitute back at the end
            predictions = functional_call(model, weights, (batch_from_flat(tensors, fields),), tie_weights=False)
        outputs[:] = [(name, type(value), tuple(value.tensors())) for name, value in predictions.items()]
        return tuple(part for value in predictions.values() for part in value.tensors().values())

    mode = FakeTensorMode(shape_env=shapes)
    arguments = [mode.from_tensor(weight, static_shapes=True) for weight in ordered_weights(model)]
    for tensor in (entry.read(batch) for entry in flat.values()):
        sizes = [DimDynamic.DUCK, *[DimDynamic.STATIC] * (tensor.dim() - 1)]
        arguments.append(mode.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes)))
    with mode, enable_python_dispatcher(), operators(), torch.set_grad_enabled(recording):
        module = make_fx(function)(*arguments)
    if shapes.guards:
        raise NotCompiled(f"it computes batches of other sizes in another way ({shapes.guards[0].expr})")
    if strip:
        remove_detach(module.graph)
    unused = _remove_unused(module.graph, len(names))
    module.recompile()
    used = [name for number, name in enumerate(flat) if number not in unused]
    return Traced(module=module, tensors=tuple(used), outputs=tuple(outputs))


def remove_detach(graph: Graph) -> None:
    """Take all nodes that detach out of a graph, in place."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)


def _remove_unused(graph: Graph, weights: int) -> set[int]:
    """Remove unused code; return the positions of the dropped arguments."""
    graph.eliminate_dead_code()
    arguments = graph.find_nodes(op="placeholder")
    for node in graph.nodes:
        for written in _written(node):
            if written in arguments:
                raise NotCompiled("it changes its buffers as it computes")
    unused = {number for number, node in enumerate(arguments[weights:]) if not node.users}
    for number in unused:
        graph.erase_node(arguments[weights + number])
    return unused


def _written(node: Node) -> Iterator[object]:
    """The arguments that an operation writes to."""
    schema = getattr(node.target, "_schema", None)
    for declared, argument in zip(schema.arguments if schema else (), node.args):
        if declared.alias_info is not None and declared.alias_info.is_write:
            yield argument


def options_on(device: str) -> dict[str, Any]:
    """Return the compiler's options for a kind of device."""
    return {
        # a few large files where there would be one per loop, each with seconds of headers; kernels in Triton have none
        "cpp_wrapper": device == "cpu",
        "cpp.threads": 1,  # several threads would add in any order, and the last bits with them
        "fallback_random": True,  # dropout draws what it draws in a step that is not compiled
    }


def compiled_function(module: GraphModule) -> Function:
    """Return the module, to be compiled at its first call."""
    first, *_ = module.graph.find_nodes(op="placeholder")
    options = options_on(first.meta["val"].device.type)
    function: Function = torch.compile(module, dynamic=True, fullgraph=True, options=options)
    return function


def check_equal(compiled: CompiledModel, batch: GraphBatch, autocast: Autocast, *, training: bool) -> None:
    """Raise NotCompiled unless both ways give the same numbers.

    The tolerance is the root of the arithmetic's step: rounding stays far below, and a gradient that misses one of its ways is wrong by
    much of its size.
    """
    compiled.model.train(training)
    with autocast():
        probe = torch.ones(2, 2, device=batch.device, dtype=batch.positions.dtype)
        tolerance = torch.finfo((probe @ probe).dtype).eps ** 0.5
    with torch.random.fork_rng(devices=[]):
        numbers = []
        for predict in (compiled.model, compiled):
            torch.manual_seed(0)
            with autocast():
                predictions = predict(batch)
            numbers.append(_with_gradient(predictions, compiled.model))
    for name, ours in numbers[1].items():
        error = float((ours - numbers[0][name]).norm() / numbers[0][name].norm().clamp_min(1e-30))
        if not error <= tolerance:
            raise NotCompiled(f"its {name} would be wrong by {error:.1e}")


def _with_gradient(predictions: Mapping[str, Distribution], model: GraphModel) -> dict[str, Tensor]:
    """Return all predictions, and the gradient of their sum."""
    parts = {
        f"{name} ({part})": values.double()
        for name, prediction in predictions.items()
        for part, values in prediction.tensors().items()
    }
    total = torch.stack(
        [(v * torch.arange(v.numel(), device=v.device).cos().view_as(v)).sum() for v in parts.values()]
    ).sum()
    weights = list(model.parameters())
    gradients = torch.autograd.grad(total, weights, allow_unused=True, materialize_grads=True)
    gradient = torch.cat([one.flatten().double() for one in gradients])
    return {**{name: values.detach() for name, values in parts.items()}, "gradient": gradient}


def ordered_weights(model: nn.Module) -> list[Tensor]:
    """Return parameters and buffers in the order of traced functions."""
    return [*model.parameters(), *model.buffers()]


def first_line(error: Exception) -> str:
    """Return an error's message as one line of 200 characters."""
    lines: Sequence[str] = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]
