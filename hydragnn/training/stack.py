"""Models of several runs as one, which share memory with it."""

import math
from collections.abc import Sequence
from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor

from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.field import LOCATIONS, Field
from hydragnn.graphs.joining import concatenate
from hydragnn.graphs.topology import Topology
from hydragnn.layers.stacked import NotStackable
from hydragnn.models import Distribution, GraphModel
from hydragnn.models.stacked import check_alike, check_layers, inputs_of, of_inputs, stacked_copy
from hydragnn.training.context import TrainingContext
from hydragnn.training.parameters import FlatParameters
from hydragnn.training.state import TrainState

BEYOND = 10.0
"""Longest edges of a batch that reach beyond the cutoff."""


class Stack:
    """Models of several runs as one, with views of shared memory."""

    def __init__(self, states: Sequence[TrainState]) -> None:
        """Move all weights into one matrix; NotStackable for different shapes."""
        models, parameters = [], []
        for state in states:
            if not isinstance(state.model, GraphModel) or not isinstance(state.parameters, FlatParameters):
                raise NotStackable("at most steps, runs with branches have batches of different branches")
            models.append(state.model)
            parameters.append(state.parameters)
        check_alike(models)
        check_trained(models[0])
        first = parameters[0]
        weights = first.vector.new_zeros(len(models), len(first.vector))
        gradient = torch.zeros_like(weights)
        for number, own in enumerate(parameters):
            own.move_to(weights[number], gradient[number])
        named: dict[str, Tensor] = {}
        self.gradients: list[Tensor] = []
        for name, shape, start in first.layout:
            columns = slice(start, start + math.prod(shape))
            named[name] = weights[:, columns].view(len(models), *shape)
            self.gradients.append(gradient[:, columns].view(len(models), *shape))
        self.model = stacked_copy(models[0], named)
        self.weights = [self.model.get_parameter(name) for name in named]
        self.inputs = inputs_of(models[0])

    def predict(self, batches: Sequence[GraphBatch]) -> list[dict[str, Distribution]]:
        """Predict each model's own batch, in order."""
        whole = side_by_side([of_inputs(batch, self.inputs) for batch in batches])
        sizes = {at: whole.num_items(at) // len(batches) for at in LOCATIONS}
        predictions = self.model(whole)
        targets = {target.name: target.field.on for target in self.model.description.targets}
        return [
            {
                name: predictions[name].rows(slice(number * sizes[on], number * sizes[on] + batch.num_items(on)))
                for name, on in targets.items()
            }
            for number, batch in enumerate(batches)
        ]

    def differentiate(self, loss: Float[Tensor, ""]) -> None:
        """Compute the gradients of all runs from their summed losses."""
        gradients = torch.autograd.grad(loss, self.weights, materialize_grads=True)
        for own, new in zip(self.gradients, gradients):
            own.copy_(new)


def check_trained(model: GraphModel) -> None:
    """Raise NotStackable for a model that cannot be trained in a stack."""
    if model.description.model.dropout:
        raise NotStackable("random numbers of dropout belong to one run; without dropout, runs are trained together")
    check_layers(model)


def stackable(context: TrainingContext) -> bool:
    """Return True where a run's steps may be stacked."""
    return not context.plain_steps and not context.compiled and context.settings.precision not in ("bf16", "tf32")


def side_by_side(batches: Sequence[GraphBatch]) -> GraphBatch:
    """Return the batches end to end, padded to equal sizes.

    >>> from hydragnn.graphs.validate import graph_from_arrays
    >>> pair, triple = (graph_from_arrays(torch.zeros(size, 3), [0, 1], [1, 0]) for size in (2, 3))
    >>> side_by_side([pair, triple]).counts("node")
    tensor([2, 2, 3, 1])
    """
    graphs = max(batch.num_graphs for batch in batches) + 1
    nodes = max(batch.num_nodes - batch.num_graphs for batch in batches) + graphs
    edges = max(batch.num_edges for batch in batches)
    fillers = [
        filler(batch, nodes - batch.num_nodes, edges - batch.num_edges, graphs - batch.num_graphs) for batch in batches
    ]
    return concatenate(list(chain.from_iterable(zip(batches, fillers))))


def filler(like: GraphBatch, nodes: int, edges: int, graphs: int) -> GraphBatch:
    """Return padding graphs, with self-loops beyond any cutoff.

    Sums over hundreds of edges that are near would overflow where layers multiply them, and no factor of zero takes that out of a gradient.
    """
    offsets = torch.arange(nodes - graphs, nodes + 1, device=like.device)
    offsets[0] = 0
    edge_offsets = torch.full_like(offsets, edges)
    edge_offsets[0] = 0
    ends = offsets.new_zeros(edges)
    counts = {"node": nodes, "edge": edges, "graph": graphs}

    def zeros(field: Field) -> Tensor:
        values = like[field.name]
        return values.new_zeros(counts[field.on], *values.shape[1:])

    longest = edge_vectors(like).norm(dim=1).max() if like.num_edges else 1.0
    tensors = {at: {f.name: zeros(f) for f in like.fields.values() if f.on == at} for at in LOCATIONS}
    return GraphBatch(
        positions=like.positions.new_zeros(nodes, like.dim),
        topology=Topology.square(ends, ends, nodes),
        edge_shifts=like.edge_shifts.new_ones(edges, like.dim) * (BEYOND * longest),
        cell=like.cell.new_zeros(graphs, *like.cell.shape[1:]),
        periodic=like.periodic.new_zeros(graphs, *like.periodic.shape[1:]),
        node_offsets=offsets,
        edge_offsets=edge_offsets,
        fields=like.fields,
        nodes=tensors["node"],
        edges=tensors["edge"],
        graphs=tensors["graph"],
    )
