"""A trained model that speaks physical units: normalise, predict, denormalise."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.base.imports import allow_code as _allow_code
from hydragnn.base.places import as_path
from hydragnn.datasets.normalisation import Normalisation, normalise, reference_sums
from hydragnn.datasets.views import without_edges
from hydragnn.graphs.batch import GraphBatch, graph_label
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field
from hydragnn.graphs.units import CLOSE, unit_factor
from hydragnn.layers import RadialFilters, tables_of
from hydragnn.models.description import ModelDescription
from hydragnn.models.distributions import Distribution
from hydragnn.models.executor import Eager, Recorded
from hydragnn.models.graph_model import GraphModel
from hydragnn.models.replay import NotRecordable, recorder_on, replays_of
from hydragnn.models.saving import load_graph_model
from hydragnn.models.target import Target


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TrainedModel:
    """A model with its normalisation; it predicts in units of the data."""

    model: GraphModel
    normalisation: Normalisation
    executor: Eager
    """Computes predictions by the model, or by a copy with tables."""

    @property
    def description(self) -> ModelDescription:
        """Return what the model is."""
        return self.model.description

    @property
    def fields(self) -> Mapping[str, Field]:
        """Meanings of all inputs and targets by name."""
        return self.description.fields

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the fields that a batch must bring."""
        return self.description.inputs

    @property
    def targets(self) -> tuple[Target, ...]:
        """Return the targets."""
        return self.description.targets

    @property
    def device(self) -> torch.device:
        """Return the device of the weights."""
        return self.executor.device

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of the weights."""
        return self.model.node_inputs.origin.dtype

    def predict(self, batch: GraphBatch) -> dict[str, Distribution]:
        """Predict every target in physical units; InputError for missing inputs."""
        return self.predict_with_states(batch)[0]

    def predict_with_states(self, batch: GraphBatch) -> tuple[dict[str, Distribution], Float[Tensor, "nodes channels"]]:
        """The same, and what ``states`` gives."""
        batch = self.seen(batch)
        if self.executor.model.training:  # asked first: setting the mode of all layers takes as long as computing some
            self.executor.model.eval()
        predictions, states = self.executor.predict(self.normalised(batch))
        return {
            target.name: denormalise(predictions[target.name], target.field, self.normalisation, batch)
            for target in self.targets
        }, states

    def states(self, batch: GraphBatch) -> Float[Tensor, "nodes channels"]:
        """Return final states of all nodes, unscaled; InputError without an input."""
        inputs, model = self.normalised(self.seen(batch)).to(self.device), self.executor.model.eval()
        with torch.no_grad():
            return model.encode(inputs, model.message_graph(inputs, model.edge_vectors(inputs)))[0]

    def replayed(self) -> "TrainedModel":
        """Return the model with predictions recorded once per size of batches.

        It pays for many batches of few sizes, such as steps of dynamics. The model as it is where the device or the model has no such graphs.
        """
        try:
            replays = replays_of(self.model, recorder_on(self.device))
        except NotRecordable:
            return self
        return replace(self, executor=Recorded(**vars(self.executor), replays=replays))

    def tabulated(self) -> "TrainedModel":
        """Return the model with tabulated filters, equal to rounding."""
        return replace(self, executor=Eager(model=tabulated(self.model)))

    @property
    def alike(self) -> tuple[object, ...]:
        """Return what models share that differ in weights only."""
        return self.description, self.dtype, self.device, type(self.executor)

    def seen(self, batch: GraphBatch) -> GraphBatch:
        """Return the batch with the model's inputs; InputError for missing ones."""
        visible = batch if self.description.edges else without_edges(batch)
        self.check(visible)
        return visible

    def normalised(self, batch: GraphBatch) -> GraphBatch:
        """Return the normalised batch in the model's dtype, on its device unless the executor brings it there."""
        self.model.levels(batch)  # which the batch keeps, for other members that see it
        of_inputs = {name: scale for name, scale in self.normalisation.scales.items() if name in self.inputs}
        inputs = normalise(batch, replace(self.normalisation, scales=of_inputs, references={}))
        return inputs.to(None if self.executor.from_host else self.device, self.dtype)

    def check(self, batch: GraphBatch) -> None:
        """Raise InputError unless the batch has all the model's inputs."""
        if batch.dim != self.description.dim:
            raise InputError(
                f"the graphs have dimension {batch.dim}, but the model was trained on dimension {self.description.dim}"
            )
        for name in (*self.inputs, *((ATOMIC_NUMBERS,) if self.normalisation.references else ())):
            actual, optional = batch.fields.get(name), name in self.description.optional_inputs
            if actual is None and optional:
                continue
            if actual is None:
                raise InputError(f"the graphs have no field {name}, which the model reads; add it")
            if name in batch.masks and not optional and not bool(batch.masks[name].all()):
                missing = int((~batch.masks[name]).nonzero()[0])
                raise InputError(f"graph {missing} has no {name}, which the model reads; add it or leave the graph out")
            expected = self.fields.get(name)
            if expected is not None:
                check_meaning(batch, expected)
        statistics = self.description.statistics
        for name, ends in (statistics.ranges if statistics is not None else {}).items():
            _check_range(batch, name, *ends)


def denormalise(
    prediction: Distribution, field: Field, normalisation: Normalisation, batch: GraphBatch
) -> Distribution:
    """Return a prediction in the field's unit, in float64.

    ``batch`` is the raw one (references need its nodes).
    """
    device = batch.positions.device
    prediction = prediction.to(device, torch.float64)
    if field.name in normalisation.scales:
        prediction = prediction.denormalise(*normalisation.scales[field.name].tensors(field, device))
    if field.name in normalisation.references:
        sums = reference_sums(normalisation, field.name, batch)
        prediction = prediction.shift_by(sums.reshape(-1, *(1 for _ in field.shape)))
    return prediction


def load_model(
    folder: Path | str,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    branch: str = "",
    *,
    allow_code: Sequence[str] = (),
) -> TrainedModel:
    """Return the saved model of a folder, ready to predict.

    The model may be a class of the modules in ``allow_code``. InputError where files are missing, damaged, from a newer version or
    do not fit together, or there is no such branch.
    """
    _allow_code(allow_code)
    model, normalisation = load_graph_model(as_path(folder), branch)
    model.to(device=device, dtype=dtype).eval().requires_grad_(False)
    return TrainedModel(model=model, normalisation=normalisation, executor=Eager(model=model))


def tabulated(model: GraphModel) -> GraphModel:
    """Return the model with tables for filters, where they help.

    The same numbers but for rounding, and forces are the derivative of the energy that tables give. For fixed weights in single precision on a CPU, where reading a
    row of a table takes less time than computing it; elsewhere the networks serve.
    """
    parameter, basis = next(model.parameters()), model.encoder.basis
    if parameter.dtype != torch.float32 or not parameter.is_cpu or basis is None or basis.envelope == "none":
        return model
    if basis.transform is not None:  # filters are functions of the atoms at both ends, too
        return model
    if model.edge_inputs.width or model.description.model.pooling is not None:  # edges of coarser levels are longer
        return model
    exact = copy.deepcopy(model.encoder).double().requires_grad_(False)
    assert exact.basis is not None
    result = copy.deepcopy(model)
    for name, part in result.encoder.named_modules():
        if isinstance(part, RadialFilters):
            of_part = exact.get_submodule(name)
            assert isinstance(of_part, RadialFilters)
            part.tables = tables_of(of_part, exact.basis, parameter.dtype)
    return result


def check_meaning(batch: GraphBatch, expected: Field) -> None:
    """Raise InputError where a field of the batch means another one."""
    actual = batch.fields[expected.name]
    if (actual.on, actual.shape) != (expected.on, expected.shape):
        raise InputError(
            f"field {actual.name} lies on {actual.on} with shape {actual.shape}, but the model was trained with "
            f"{expected.on} and shape {expected.shape}"
        )
    if actual.unit and expected.unit and actual.unit != expected.unit:
        factor = unit_factor(actual.unit, expected.unit)
        if factor is None or abs(factor - 1) > CLOSE:
            by = "" if factor is None else f", by scale = {factor:.8g} in its build file"
            problem = f"field {actual.name} is in {actual.unit}, but the model was trained in {expected.unit}"
            raise InputError(f"{problem}; convert the values{by}")
    values = batch[actual.name]
    if expected.classes and values.numel() and not (0 <= int(values.min()) <= int(values.max()) < expected.classes):
        raise InputError(
            f"field {actual.name} holds {int(values.min())} to {int(values.max())}, but the model knows classes 0 to "
            f"{expected.classes - 1}"
        )


def _check_range(batch: GraphBatch, name: str, low: float, high: float) -> None:
    """Raise InputError for a value of a graph beyond those of training."""
    values, room = batch[name].double(), CLOSE * max(abs(low), abs(high))  # float32 holds seven digits
    beyond = ((values < low - room) | (values > high + room)).nonzero()
    if len(beyond):
        value = float(values.flatten()[int(beyond[0])])
        raise InputError(
            f"{graph_label(batch, int(beyond[0, 0]))} has {name} = {value:.6g}, and the model was trained from {low:.6g} to {high:.6g}; "
            "roll out in shorter steps, or train on such values"
        )
