"""Potentials as programs of torch, for any number of atoms."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx import GraphModule

from hydragnn.base.errors import InputError, words_of
from hydragnn.ensemble.exporting.potential import PlainPotential
from hydragnn.kernels import plain_forms

ATOMS, EDGES, STRUCTURES = 23, 61, 5
"""Sizes of the example on which potentials are traced: unlike each other and any width, so that each is a symbol of its own."""


def example(potential: PlainPotential) -> tuple[Tensor, ...]:
    """Return inputs of the right kinds; what they say does not matter."""
    random = torch.Generator().manual_seed(0)
    ends = torch.arange(EDGES) % ATOMS
    return (
        torch.rand(ATOMS, 3, generator=random, dtype=torch.float64),
        torch.full((ATOMS,), potential.company),
        torch.eye(3, dtype=torch.float64).expand(STRUCTURES, 3, 3).contiguous(),
        torch.stack([ends.flip(0), ends]),
        torch.ones(EDGES, 3, dtype=torch.float64),
        torch.arange(ATOMS) * STRUCTURES // ATOMS,
    )


SYMBOLIC = ({0: "atoms"}, {0: "atoms"}, {0: "structures"}, {1: "edges"}, {0: "edges"}, {0: "atoms"})
"""Dimensions of the inputs that vary."""


def trace(
    potential: nn.Module, inputs: Sequence[Tensor], symbolic: Sequence[dict[int, str]], *, recording: bool = False
) -> GraphModule:
    """Return a potential as plain operators, differentiable where ``recording``."""
    from torch._dispatch.python import enable_python_dispatcher
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    tensors = {**dict(potential.named_parameters()), **dict(potential.named_buffers())}
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    arguments = [mode.from_tensor(weight.detach(), static_shapes=True) for weight in tensors.values()]
    for tensor, varying in zip(inputs, symbolic, strict=True):
        sizes = [DimDynamic.DUCK if axis in varying else DimDynamic.STATIC for axis in range(tensor.dim())]
        arguments.append(mode.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes)))

    def function(*tensors_in: Tensor) -> tuple[Tensor, ...]:
        weights = dict(zip(tensors, tensors_in))
        results: tuple[Tensor, ...] = functional_call(potential, weights, tensors_in[len(tensors) :], tie_weights=False)
        return results

    try:
        with mode, enable_python_dispatcher(), plain_forms(), torch.set_grad_enabled(recording):
            module = make_fx(function)(*arguments)
    except InputError:
        raise
    except Exception as error:  # whatever a tracer and a user's architecture may raise
        raise InputError(
            f"the model cannot be exported, since its sizes depend on numbers: {words_of(error):.200}"
        ) from error
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        node.replace_all_uses_with(node.args[0])
        module.graph.erase_node(node)
    for number, (node, weight) in enumerate(zip(module.graph.find_nodes(op="placeholder"), tensors.values())):
        module.register_buffer(f"weight{number}", weight.detach().clone())
        with module.graph.inserting_before(node):
            node.replace_all_uses_with(module.graph.get_attr(f"weight{number}"))
        module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def program_of(potential: PlainPotential) -> torch.export.ExportedProgram:
    """Return a potential as a program of ``torch.export``."""
    inputs = example(potential)
    module = trace(potential, inputs, SYMBOLIC)
    sizes = {name: torch.export.Dim(name, min=0 if name == "edges" else 1) for name in ("atoms", "edges", "structures")}
    shapes = tuple({axis: sizes[name] for axis, name in one.items()} for one in SYMBOLIC)
    with torch.no_grad():
        return torch.export.export(Named(module, inputs), inputs, dynamic_shapes=shapes, strict=False)


class Named(nn.Module):
    """Operations of a trace, with names of the inputs."""

    def __init__(self, module: GraphModule, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.module, self.dtypes = module, [one.dtype for one in inputs]

    def forward(
        self, positions: Tensor, species: Tensor, cells: Tensor, edges: Tensor, images: Tensor, owners: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the results; an error for other dtypes."""
        for tensor, dtype in zip((positions, species, cells, edges, images, owners), self.dtypes):
            torch.ops.aten._assert_tensor_metadata.default(tensor, dtype=dtype)
        results: tuple[Tensor, ...] = self.module(positions, species, cells, edges, images, owners)
        return results
