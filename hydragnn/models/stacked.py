"""Several models of one shape as one, with stacked weights."""

import copy
from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from hydragnn.architectures import Architecture, architectures
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.graphs.joining import repeated
from hydragnn.graphs.padding import REAL, is_padded
from hydragnn.graphs.topology import tiled
from hydragnn.kernels import Pairs, pairs_of
from hydragnn.layers import MessageGraph, RadialFilters
from hydragnn.layers.stacked import STACKED, NotStackable
from hydragnn.models.branched import BranchView
from hydragnn.models.graph_model import PAIRS, GraphModel


def forms_of(model: GraphModel) -> Mapping[type[nn.Module], type[nn.Module]]:
    """Return the stacked forms of all layers that own weights."""
    encoder = type(model.encoder)
    return {**STACKED, **encoder.stacked} if issubclass(encoder, Architecture) else STACKED


class StackedModel(GraphModel):
    """A model whose layers are stacked."""

    def message_graph(
        self, batch: GraphBatch, vectors: Tensor | None, of_pairs: Tensor | None = None, *, derived_once: bool = False
    ) -> MessageGraph:
        """Return the message graph, with the batch's pairs of edges."""
        graph = super().message_graph(batch, vectors, of_pairs, derived_once=derived_once)
        graph.cache["pairs"] = batch._derived.get(PAIRS)
        return graph


class StackedView(StackedModel, BranchView):
    """A branch of a model whose layers are stacked."""


STACKED_MODELS: Mapping[type[nn.Module], type[StackedModel]] = {GraphModel: StackedModel, BranchView: StackedView}
"""Models that have a stacked form, and the form."""


def copies_of(batch: GraphBatch, copies: int) -> GraphBatch:
    """Return copies of a batch, one per member, with their pairs."""
    whole = repeated(batch, copies)
    if is_padded(batch):
        whole._derived[REAL] = batch._derived[REAL]
    pairs = pairs_of(edge_vectors(batch), batch.topology) if batch.dim else None
    if pairs is not None:
        whole._derived[PAIRS] = Pairs(
            first=tiled(pairs.first, copies, batch.num_edges), pair=tiled(pairs.pair, copies, len(pairs.first))
        )
    return whole


def stacked_copy(model: GraphModel, weights: Mapping[str, Tensor]) -> StackedModel:
    """Return a copy with weights ``[members, ...]`` and layers that take them."""
    result = copy.deepcopy(model)
    forms = forms_of(model)
    for module in result.modules():
        stacked = forms.get(type(module))
        if stacked is not None:  # another class of the same object: names, buffers and order of layers stay
            object.__setattr__(module, "__class__", stacked)
        if isinstance(module, RadialFilters):
            module.tables = ()  # of one member's filters
    object.__setattr__(result, "__class__", STACKED_MODELS[type(model)])
    assert isinstance(result, StackedModel)
    for name, weight in weights.items():
        path, _, leaf = name.rpartition(".")
        setattr(result.get_submodule(path), leaf, nn.Parameter(weight))
    return result


def check_alike(models: Sequence[GraphModel]) -> None:
    """Raise NotStackable unless the models are alike and stackable."""
    first = models[0]
    if type(first) not in STACKED_MODELS:
        raise NotStackable(f"models of class {type(first).__name__} have no stacked form")
    if any(layout_of(model) != layout_of(first) for model in models):
        raise NotStackable("models of different shapes are computed one after the other")
    check_layers(first)
    constants = dict(first.named_buffers())
    if any(not torch.equal(value, constants[name]) for model in models for name, value in model.named_buffers()):
        raise NotStackable("models with different constants are computed one after the other")


def layout_of(model: GraphModel) -> tuple[object, ...]:
    """Return what models of one shape share.

    Trunks of equal branches may differ in weights, by what other branches ask of them.
    """
    tensors = chain(model.named_parameters(), model.named_buffers())
    return type(model), model.description, [(name, value.shape) for name, value in tensors]


def check_layers(model: GraphModel) -> None:
    """Raise NotStackable for layers without stacked form."""
    settings = model.description.model
    attends, sees = settings.global_attention is not None or settings.pooling is not None, model.encoder.sees
    if attends or "edge_kinds" in sees or type(model.encoder) not in architectures().values():
        raise NotStackable(f"the layers of {settings.kind} are not known to work on several models at once")
    forms = forms_of(model)
    for module in model.modules():
        if next(module.parameters(recurse=False), None) is not None and type(module) not in forms:
            raise NotStackable(f"weights of {type(module).__name__} have no stacked form")


def inputs_of(model: GraphModel) -> set[str]:
    """Return the names of the fields that layers read."""
    description = model.description
    return {field.name for field in description.input_fields} | (description.fields.keys() & {ATOMIC_NUMBERS})


def of_inputs(batch: GraphBatch, inputs: set[str]) -> GraphBatch:
    """The batch with its input fields alone."""
    return batch.with_fields(drop=[name for name in batch.fields if name not in inputs])
