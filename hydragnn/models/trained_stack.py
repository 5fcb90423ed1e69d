"""Trained models of one shape that predict a batch as one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Location
from hydragnn.layers.stacked import NotStackable
from hydragnn.models.distributions import Distribution, Point
from hydragnn.models.prediction import Predicted, eager_prediction
from hydragnn.models.random_batch import random_batch
from hydragnn.models.replay import ReplayedPrediction, brings_sizes
from hydragnn.models.stacked import check_alike, copies_of, inputs_of, of_inputs, stacked_copy
from hydragnn.models.trained import TrainedModel, denormalise

SIZES: Mapping[Location, int] = {"node": 12, "edge": 60, "graph": 3}
"""Of the batch on which a stack is compared with its first and last member."""


class TrainedStack:
    """Models of one shape, each predicting as it would alone, to rounding."""

    def __init__(self, models: Sequence[TrainedModel]) -> None:
        """Stack the weights; NotStackable for models that cannot be computed as one."""
        first = self.first = models[0]
        if any(model.alike != first.alike for model in models):
            raise NotStackable("models of different shapes are computed one after the other")
        if not first.model.description.edges:
            raise NotStackable("models without edges are computed one after the other")
        check_alike([model.model for model in models])
        self.normalisations = [one.normalisation for one in models]
        names = [name for name, _ in first.model.named_parameters()]
        weights = {name: torch.stack([one.model.get_parameter(name) for one in models]) for name in names}
        self.model = stacked_copy(first.model, weights).eval().requires_grad_(False)
        self.inputs = inputs_of(first.model)
        scales = [{name: one.normalisation.scales.get(name) for name in self.inputs} for one in models]
        self.share_inputs = all(of_model == scales[0] for of_model in scales)
        self.function: ReplayedPrediction | None = None
        self.check(models)
        if isinstance(first.function, ReplayedPrediction) and self.share_inputs and not brings_sizes(first.model):
            self.function = ReplayedPrediction(first.model, first.function.record, self.of_one, len(models))

    def check(self, models: Sequence[TrainedModel]) -> None:
        """Raise NotStackable unless members and stack agree to rounding, on a batch."""
        first, extent = self.first, getattr(self.first.settings, "cutoff", None) or 1.0
        described = first.model.description
        batch = random_batch(described.input_fields, first.dim, extent, SIZES, first.dtype, described.close_range)
        batch = batch.to(first.device)
        try:
            ours, states = eager_prediction(self.model, self.joined([batch]))
        except Exception as error:  # whatever a user's layers may raise on rows of several members
            raise NotStackable(f"as one they raise {error!r}") from error
        count = len(models)
        for number in (0, count - 1):
            theirs, exact = eager_prediction(models[number].model, batch)
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
        return self.results(batch, self.compute(self.prepare(batch)))

    def prepare(self, batch: GraphBatch) -> GraphBatch:
        """Return the normalised inputs of all members; of one where replayed."""
        batch = self.first.seen(batch)
        scales = self.normalisations[:1] if self.share_inputs else self.normalisations
        models = [replace(self.first, normalisation=one) for one in scales]
        inputs = [of_inputs(model.normalised(batch), self.inputs) for model in models]
        return self.joined(inputs) if self.function is None else inputs[0]

    def compute(self, inputs: GraphBatch) -> Predicted:
        """Return normalised predictions and states of all members, without waiting."""
        return eager_prediction(self.model, inputs) if self.function is None else self.function(inputs)

    def of_one(self, inputs: GraphBatch) -> Predicted:
        """Return what ``compute`` gives, from inputs that members share."""
        return eager_prediction(self.model, self.joined([inputs]))

    def results(
        self, batch: GraphBatch, predicted: Predicted
    ) -> list[tuple[dict[str, Distribution], Float[Tensor, "nodes_of_one channels"]]]:
        """Return the predictions of each member in physical units, with its states."""
        predictions, states = predicted
        # once for all, not tensor by tensor of every member
        predictions = {name: one.to(batch.device, torch.float64) for name, one in predictions.items()}
        own = {target.name: batch.num_items(target.field.on) for target in self.first.targets}
        count = len(self.normalisations)
        return [
            (
                {
                    target.name: denormalise(
                        part(predictions[target.name], number, count, own[target.name]),
                        target.field,
                        normalisation,
                        batch,
                    )
                    for target in self.first.targets
                },
                states.unflatten(0, (count, -1))[number, : batch.num_nodes],
            )
            for number, normalisation in enumerate(self.normalisations)
        ]

    def joined(self, inputs: Sequence[GraphBatch]) -> GraphBatch:
        """Return all members' normalised inputs as one batch on their device."""
        inputs = [one.to(self.first.device) for one in inputs]
        whole = copies_of(inputs[0], len(self.normalisations))
        if len(inputs) > 1:
            numbers = [name for name in self.inputs if not whole.fields[name].classes]
            whole = whole.with_fields({name: torch.cat([one[name] for one in inputs]) for name in numbers})
        return whole


def part(whole: Distribution, number: int, count: int, rows: int | None = None) -> Distribution:
    """Return one member's rows of a prediction of all, without padding."""
    return whole.mapped(lambda values: values.unflatten(0, (count, -1))[number, :rows])
