"""Trained models of one shape that predict a batch as one."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.architectures import Architecture, architectures
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.layers import GatedProducts, RadialFilters
from hydragnn.layers.stacked import STACKED, NotStackable
from hydragnn.models.branched import BranchView
from hydragnn.models.distributions import Distribution
from hydragnn.models.executor import Eager, Recorded, copies_of
from hydragnn.models.graph_model import GraphModel
from hydragnn.models.replay import replays_of
from hydragnn.models.trained import TrainedModel, denormalise

OURS = ("hydragnn.", "torch.")
"""Packages whose modules are known to work on rows of several models; tests compare all of them."""


def forms_of(model: GraphModel) -> Mapping[type[nn.Module], type[nn.Module]]:
    """Return the stacked forms of all layers that own weights."""
    encoder = type(model.encoder)
    return {**STACKED, **encoder.stacked} if issubclass(encoder, Architecture) else STACKED


def stacked_copy(model: GraphModel, weights: Mapping[str, Tensor]) -> GraphModel:
    """Return a copy with weights ``[members, ...]`` and layers that take them."""
    result = copy.deepcopy(model)
    forms = forms_of(model)
    for module in result.modules():
        if stacked := forms.get(type(module)):
            # another class of the same object: names, buffers and order of layers stay
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
    joins = settings.global_attention is not None or settings.pooling is not None
    if joins or "edge_kinds" in first.encoder.sees or type(first.encoder) not in architectures().values():
        raise NotStackable(f"the layers of {settings.kind} are not known to work on several models at once")
    for module in first.modules():
        if not type(module).__module__.startswith(OURS):
            raise NotStackable(f"{type(module).__name__} is of another package")
        if isinstance(module, GatedProducts):
            raise NotStackable("products of vectors read weights of one model")
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
        if isinstance(first.executor, Recorded) and self.share_inputs:
            replays = replays_of(first.model, first.executor.replays.record)
            self.executor = Recorded(**vars(self.executor), replays=replays)
        self.members = [replace(one, executor=self.executor) for one in models]

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

        results = []
        for number, (member, own) in enumerate(zip(self.members, states.unflatten(0, (count, -1)))):
            values: dict[str, Distribution] = {}
            for target in member.targets:
                rows = part(predictions[target.name], number, count, batch.num_items(target.field.on))
                values[target.name] = denormalise(rows, target.field, member.normalisation, batch)
            results.append((values, own[: batch.num_nodes]))
        return results

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
