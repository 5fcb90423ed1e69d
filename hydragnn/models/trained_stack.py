"""Trained models of one shape that predict a batch as one."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from hydragnn.architectures import Architecture, architectures
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS, Location
from hydragnn.graphs.joining import concatenate
from hydragnn.graphs.validate import graph_from_arrays
from hydragnn.layers import RadialFilters
from hydragnn.layers.stacked import STACKED, NotStackable
from hydragnn.models.branched import BranchView
from hydragnn.models.description import ModelDescription
from hydragnn.models.distributions import Distribution, Point
from hydragnn.models.executor import Eager, Recorded, copies_of
from hydragnn.models.graph_model import GraphModel
from hydragnn.models.replay import replays_of
from hydragnn.models.trained import TrainedModel, denormalise


def forms_of(model: GraphModel) -> Mapping[type[nn.Module], type[nn.Module]]:
    """Return the stacked forms of all layers that own weights."""
    encoder = type(model.encoder)
    return {**STACKED, **encoder.stacked} if issubclass(encoder, Architecture) else STACKED


def stacked_copy(model: GraphModel, weights: Mapping[str, Tensor]) -> GraphModel:
    """Return a copy with weights ``[members, ...]`` and layers that take them."""
    result = copy.deepcopy(model)
    forms = forms_of(model)
    for module in result.modules():
        stacked = forms.get(type(module))
        if stacked is not None:  # another class of the same object: names, buffers and order of layers stay
            object.__setattr__(module, "__class__", stacked)
        if isinstance(module, RadialFilters):
            module.tables = ()  # of one member's filters
    for name, weight in weights.items():
        path, _, leaf = name.rpartition(".")
        setattr(result.get_submodule(path), leaf, nn.Parameter(weight))
    return result


def check_alike(models: Sequence[GraphModel]) -> None:
    """Raise NotStackable unless the models are alike and stackable."""
    first = models[0]

    def layout(model: GraphModel) -> tuple[object, ...]:
        # not the weights: trunks of equal branches may differ in some, by what other branches ask of them
        tensors = chain(model.named_parameters(), model.named_buffers())
        return type(model), model.description, [(name, value.shape) for name, value in tensors]

    if type(first) not in (GraphModel, BranchView):
        raise NotStackable(f"models of class {type(first).__name__} have no stacked form")
    if any(layout(model) != layout(first) for model in models):
        raise NotStackable("models of different shapes are computed one after the other")
    settings, forms = first.description.model, forms_of(first)
    attends = (
        settings.global_attention is not None or settings.pooling is not None or "edge_kinds" in first.encoder.sees
    )
    if attends or type(first.encoder) not in architectures().values():
        raise NotStackable(f"the layers of {settings.kind} are not known to work on several models at once")
    for module in first.modules():
        if next(module.parameters(recurse=False), None) is not None and type(module) not in forms:
            raise NotStackable(f"weights of {type(module).__name__} have no stacked form")
    constants = dict(first.named_buffers())
    if any(not torch.equal(value, constants[name]) for model in models for name, value in model.named_buffers()):
        raise NotStackable("models with different constants are computed one after the other")


class TrainedStack:
    """Models of one shape, each predicting as it would alone, to rounding."""

    def __init__(self, models: Sequence[TrainedModel]) -> None:
        """Stack the weights; NotStackable for models that cannot be computed as one."""
        first = models[0]
        if any(model.alike != first.alike for model in models):
            raise NotStackable("models of different shapes are computed one after the other")
        if type(first.executor) not in (Eager, Recorded):
            raise NotStackable("other ranks have parts of these models")
        if not first.model.description.edges:
            raise NotStackable("models without edges are computed one after the other")
        check_alike([model.model for model in models])
        names = [name for name, _ in first.model.named_parameters()]
        weights = {name: torch.stack([one.model.get_parameter(name) for one in models]) for name in names}
        self.model = stacked_copy(first.model, weights).eval().requires_grad_(False)
        described = first.model.description
        self.inputs = {one.name for one in described.input_fields} | (described.fields.keys() & {ATOMIC_NUMBERS})
        scales = [{name: one.normalisation.scales.get(name) for name in self.inputs} for one in models]
        self.share_inputs = all(of_model == scales[0] for of_model in scales)
        self.executor = Eager(model=self.model, copies=len(models))
        self.check(models)
        if isinstance(first.executor, Recorded) and self.share_inputs:
            replays = replays_of(first.model, first.executor.replays.record)
            self.executor = Recorded(**vars(self.executor), replays=replays)
        self.members = [replace(one, executor=self.executor) for one in models]

    def check(self, models: Sequence[TrainedModel]) -> None:
        """Raise NotStackable unless members and stack agree to rounding, on a batch."""
        first, count = models[0], len(models)
        try:
            batch = random_batch(first.model.description, first.dtype).to(first.device)
            ours, states = self.executor.predict(batch)
        except Exception as error:  # whatever a user's layers may raise on rows of several members
            raise NotStackable(f"as one they raise {error!r}") from error
        for number in (0, count - 1):
            theirs, exact = Eager(model=models[number].executor.model.eval()).predict(batch)
            pairs = {name: (part(ours[name], number, count), theirs[name]) for name in theirs}
            pairs["states"] = (part(Point(mean=states), number, count), Point(mean=exact))
            for name, (one, other) in pairs.items():
                values = other.tensors()
                for what, value in one.tensors().items():
                    share = float((value - values[what]).norm() / values[what].norm().clamp_min(1e-30))
                    if not share <= torch.finfo(value.dtype).eps ** 0.5:
                        raise NotStackable(f"as one, {name} ({what}) would be wrong by {share:.1e}")

    def predict_with_states(
        self, batch: GraphBatch
    ) -> list[tuple[dict[str, Distribution], Float[Tensor, "nodes channels"]]]:
        """Return what each model predicts in physical units, with its states."""
        batch, count = self.members[0].seen(batch), len(self.members)
        if self.share_inputs:
            predictions, states = self.executor.predict(self.inputs_of(self.members[0], batch))
        else:
            inputs = [self.inputs_of(member, batch) for member in self.members]
            predictions, states = Eager(model=self.model).predict(self.joined(inputs))
        # once for all, not tensor by tensor of every member
        predictions = {name: one.to(batch.device, torch.float64) for name, one in predictions.items()}

        def of_member(number: int) -> dict[str, Distribution]:
            own: dict[str, Distribution] = {}
            for target in self.members[number].targets:
                rows = part(predictions[target.name], number, count, batch.num_items(target.field.on))
                own[target.name] = denormalise(rows, target.field, self.members[number].normalisation, batch)
            return own

        states = states.unflatten(0, (count, -1))[:, : batch.num_nodes]
        return [(of_member(number), states[number]) for number in range(count)]

    def inputs_of(self, member: TrainedModel, batch: GraphBatch) -> GraphBatch:
        """Return the batch with a member's normalised inputs alone."""
        inputs = member.normalised(batch)
        return inputs.with_fields(drop=[name for name in inputs.fields if name not in self.inputs])

    def joined(self, inputs: Sequence[GraphBatch]) -> GraphBatch:
        """Return what members see of a batch as one."""
        whole = copies_of(inputs[0], len(inputs))
        numbers = [name for name in self.inputs if not whole.fields[name].classes]
        return whole.with_fields({name: torch.cat([one[name] for one in inputs]) for name in numbers})


def part(whole: Distribution, number: int, count: int, rows: int | None = None) -> Distribution:
    """Return one member's rows of a prediction of all, without padding."""
    return whole.mapped(lambda values: values.unflatten(0, (count, -1))[number, :rows])


def random_batch(description: ModelDescription, dtype: torch.dtype) -> GraphBatch:
    """Return a fixed random batch of three graphs of five nodes.

    Edges have lengths up to the cutoff, those of close range from its limits, since a repulsion would hide all else.
    It means nothing: edges have no reverse, and ``reverse_edges`` is any permutation.
    """
    random, dim, limits = np.random.default_rng(0), description.dim, description.close_range
    extent = getattr(description.model, "cutoff", None) or 1.0
    shortest = [length / limits.angstrom for *_, length in limits.shortest] if limits else []
    least = min(max([0.1 * extent, *shortest]), 0.8 * extent)
    senders, receivers = (~np.eye(5, dtype=bool)).nonzero()

    def values_on(location: Location, items: int) -> dict[str, NDArray[Any]]:
        values = {}
        for field in (one for one in description.input_fields if one.on == location):
            shape = (items, *field.shape)
            classes = np.array(limits.species) if limits and field.name == ATOMIC_NUMBERS else field.classes
            values[field.name] = random.choice(classes, shape) if field.classes else random.normal(size=shape)
        return values

    def graph() -> GraphBatch:
        positions, ways = random.uniform(0, extent / 2, (5, dim)), random.normal(size=(len(senders), dim))
        lengths = random.uniform(least, extent, (len(senders), 1))
        vectors = lengths * ways / np.linalg.norm(ways, axis=1, keepdims=True)
        return graph_from_arrays(
            positions if dim else None,
            senders,
            receivers,
            fields=description.input_fields,
            nodes=values_on("node", 5),
            edges=values_on("edge", len(senders)),
            graphs={name: values[0] for name, values in values_on("graph", 1).items()},
            edge_shifts=vectors - (positions[receivers] - positions[senders]) if dim else None,
            cell=extent * (np.eye(dim) + random.uniform(0, 0.25, (dim, dim))) if dim else None,
            periodic=bool(dim),
        )

    batch = concatenate([graph() for _ in range(3)]).to(dtype=dtype)
    batch._derived["reverse", "edge"] = torch.from_numpy(random.permutation(batch.num_edges))
    return batch
