"""Roll-outs: every member on its own predictions as inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hydragnn.base.errors import InputError, nearest, print_note
from hydragnn.datasets.settings import LAST, OBSERVED, TIME_SPAN
from hydragnn.datasets.sources.base import LEAD
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.texts import FILE, FOLDER
from hydragnn.models import ModelDescription, TrainedModel


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rollout:
    """Courses of the members, by the input that they predict."""

    courses: Mapping[str, Tensor]
    """``[members, steps, items, *shape]`` in the unit of the field, float64; the first step is the first prediction."""
    weights: Mapping[str, Tensor]
    """Weights ``[members]`` by input; they sum to 1."""
    constant: tuple[str, ...]
    """Inputs that stayed what they were at the beginning."""
    factors: Mapping[str, Tensor]
    """Factors ``[steps]`` on the spread, see ``scaled``."""
    domain: tuple[str, ...]
    """Reasons why graphs are outside the training domain at the beginning; empty for others."""
    lead_times: tuple[float, ...] = ()
    """Time from the beginning to every step, where graphs have one ``lead_time``; else empty."""
    lead_unit: str = ""

    def mean(self, name: str) -> Float[Tensor, "steps items *shape"]:
        """Return the weighted mean of the members."""
        return torch.einsum("m,m...->...", self.weights[name], self.courses[name])

    def spread(self, name: str) -> Float[Tensor, "steps items *shape"]:
        """Return the deviation among members, if truth is like one more.

        That is sqrt((1 + sum w^2) / (1 - sum w^2) sum w (x - mean)^2), the square root of (n + 1) / n times the unbiased variance for n equal weights
        (Fortin et al. 2014, doi:10.1175/JHM-D-14-0008.1). InputError for one member.
        """
        weights = self.weights[name]
        if int((weights > 0).sum()) < 2:
            raise InputError("one model has no spread; roll out an ensemble of two or more with weights above 0")
        away = (self.courses[name] - self.mean(name)).square()
        room = (1 + weights.square().sum()) / (1 - weights.square().sum())
        spread = (room * torch.einsum("m,m...->...", weights, away)).sqrt()
        factors = self.factors.get(name)
        return spread if factors is None else spread * factors.view(-1, *[1] * (spread.ndim - 1))

    def scaled(self, factors: Mapping[str, Tensor]) -> "Rollout":
        """Return the roll-out with a spread times ``spread_factors`` of others."""
        for name, values in factors.items():
            if name not in self.courses or len(values) != self.courses[name].shape[1]:
                raise InputError(
                    f"{len(values)} factors of {name}; give one per step of {', '.join(self.courses)}: {self.steps}"
                )
        return replace(self, factors={**self.factors, **factors})

    @property
    def steps(self) -> int:
        """Steps of the courses."""
        return next(iter(self.courses.values())).shape[1]


def rollout(
    model: Ensemble, graphs: Any, steps: int, *, feedback: Mapping[str, str] | None = None, later: Sequence[Any] = ()
) -> Rollout:
    """Roll every member out, each on its own predictions.

    ``graphs`` is what the model takes. ``feedback`` names the prediction that becomes each input; absent: heads with ``correction_of`` do. Other inputs
    stay constant, and ``constant`` names them, or are those of ``later``: graphs of each step after the first. Windows of readings need these; the first
    value of a prediction is then the newest of the next window. Later readings of other windows are not used: they are gaps, which have the last value of
    the first graph, unless the build file lists them as ``known``. InputError for fields that do not fit, and where a course is no longer finite.
    """
    if steps < 1:
        raise InputError(f"{steps} steps; roll out at least 1")
    batch, members = model.graphs(graphs), model.members
    sources = checked_feedback(members[0].model.description, feedback)
    batches = [batch, *map(model.graphs, later)] if later else [batch] * steps
    if len(batches) != steps:
        raise InputError(f"later has graphs of {len(later)} steps; give those of {steps - 1}, after the first")
    check_order(batches)
    check_windows(members[0].model.description, batches, sources)
    for name, target in sources.items():
        if target in model.manifest.simple.fitted:
            raise InputError(
                f"a simple predictor is a member for {target}, and only models roll out; take a run of it, or build it by hydragnn.ensemble.build_ensemble with by_field=False"
            )
        if name not in batch.fields or not bool(batch.present(name).all()):
            raise InputError(f"graphs lack {name}, from which a roll-out begins; add it, or leave it out of feedback")
    courses = [course_of(member.model, member.name, batches, sources) for member in members]
    weights = {name: torch.from_numpy(model.weights_of(target)) for name, target in sources.items()}
    domain = model.predict(batch).domain
    if outside := list(filter(None, domain)):
        which = f"{len(outside)} of {len(domain)} graphs are outside the training domain"
        print_note(f"{which} where the roll-out begins: {outside[0]}")
    lead = batch[LEAD].double().unique().tolist() if LEAD in batch.graphs else []
    return Rollout(
        courses={name: torch.stack([course[name] for course in courses]) for name in sources},
        weights=weights,
        constant=tuple(
            name
            for name in members[0].model.inputs
            if name not in sources and (not later or name + LAST in batch.fields)
        ),
        factors={},
        domain=domain,
        lead_times=tuple(lead[0] * step for step in range(1, steps + 1)) if len(lead) == 1 else (),
        lead_unit=batch.fields[LEAD].unit if len(lead) == 1 else "",
    )


def checked_feedback(description: ModelDescription, feedback: Mapping[str, str] | None) -> dict[str, str]:
    """Return the prediction of every input; InputError where they differ."""
    if feedback is None:
        corrected = {head.corrected_input: head.field for head in description.heads if head.corrected_input}
        window = {name: name.removesuffix(LAST) for name in corrected}
        feedback = {window[n] if window[n] + OBSERVED in description.inputs else n: one for n, one in corrected.items()}
    if not feedback:
        raise InputError(
            "no prediction becomes an input; say which in feedback, or train heads with correction_of = an input"
        )
    targets = {target.name: target.field for target in description.targets}
    for name, target in feedback.items():
        if name not in description.inputs or target not in targets:
            what, names = (name, description.inputs) if name not in description.inputs else (target, targets)
            raise InputError(f"feedback: the model has no {what} there; {nearest(what, list(names))}")
        one, other = description.fields[name], targets[target]
        shape = one.shape if name + OBSERVED not in description.inputs else other.shape  # windows have any length
        if (one.on, shape, one.classes, one.unit) != (other.on, other.shape, other.classes, other.unit):
            raise InputError(
                f"feedback: {target} is a {other.on} field of shape {other.shape} in {other.unit or 'no unit'}, and {name} a {one.on} field of "
                f"shape {one.shape} in {one.unit or 'no unit'}; train them alike"
            )
        if one.classes:
            raise InputError(f"feedback: {name} is a class, and a roll-out has numbers; leave it out")
    return dict(feedback)


def check_order(batches: Sequence[GraphBatch]) -> None:
    """Raise InputError unless every step has the graphs of the first, in its order."""
    first = batches[0]
    for step, one in enumerate(batches[1:], start=2):
        same = torch.equal(one.node_offsets, first.node_offsets)
        for key in {FILE, FOLDER} & {*first.texts} & {*one.texts}:
            same = same and one.texts[key].values == first.texts[key].values
        if not same:
            raise InputError(f"later: graphs of step {step} are not those of step 1; give the same graphs in one order")


def check_windows(description: ModelDescription, batches: Sequence[GraphBatch], feedback: Mapping[str, str]) -> None:
    """Raise InputError unless windows of readings are one step apart."""
    spans = [batch.graphs.get(TIME_SPAN, torch.zeros(0, 2)) for batch in batches]
    for name in [one for one in feedback if one + OBSERVED in description.inputs and len(batches) > 1]:
        length = description.fields[name].width + description.fields[feedback[name]].width - 1  # if no step is left out
        step = (spans[0][:, 1:] - spans[0][:, :1]) / length
        same = len(step) and {span.shape for span in spans} == {spans[0].shape}
        if not same or not all(torch.allclose(span - spans[0], k * step, rtol=1e-3) for k, span in enumerate(spans)):
            raise InputError(
                f"{name} is a window of readings; give later = the graphs of the next steps, of a store with ahead = 1, 2, ... without holes"
            )


def course_of(
    model: TrainedModel, member: str, batches: Sequence[GraphBatch], feedback: Mapping[str, str]
) -> dict[str, Tensor]:
    """Return the course ``[steps, items, *shape]`` of one member by input."""
    values_of_steps: dict[str, list[Tensor]] = {name: [] for name in feedback}
    changed: dict[str, Tensor] = {}
    windows = [one for one in model.inputs if {one + LAST, one + OBSERVED} <= {*batches[0].fields}]
    for step, graphs in enumerate(batches):
        batch = graphs.with_fields(changed)
        predictions = model.predict(batch)
        for name, target in feedback.items():
            value, observed = predictions[target].tensors()["mean"].detach(), name + OBSERVED
            value = value[:, :1] if observed in model.inputs else value
            if not bool(value.isfinite().all()):
                raise InputError(
                    f"member {member}: {name} is no longer finite after {step + 1} steps; take fewer steps"
                )
            values_of_steps[name].append(value.double())
            changed[name] = value.to(batch[name].dtype)
            if observed in model.inputs:
                changed[name + LAST] = changed[name].expand_as(batch[name + LAST])
                changed[name] = torch.cat([batch[name][:, 1:], changed[name]], dim=1)
                flags = batch[observed]  # what no sensor ever observed stays so
                changed[observed] = torch.cat([flags[:, 1:], flags.amax(dim=1, keepdim=True)], dim=1)
        for name in {*windows} - {*feedback}:  # a gap from the first graph on, as in a store that ends there
            flags, newest = batch[name + OBSERVED], batch[name][:, -1:]
            changed[name + OBSERVED] = torch.cat([flags[:, 1:], torch.zeros_like(flags[:, :1])], dim=1)
            changed |= {name: torch.cat([batch[name][:, 1:], newest], dim=1), name + LAST: batch[name + LAST]}
    return {name: torch.stack(values) for name, values in values_of_steps.items()}


def spread_factors(
    rollouts: Sequence[Rollout], truths: Sequence[Mapping[str, Tensor]], nominal: float | None = None
) -> dict[str, Tensor]:
    """Return root mean squares of errors over those of spreads, by step.

    With ``nominal``, they are quantiles of errors over spreads: so many truths are then nearer to the mean than the scaled spread. They calibrate the spread of other roll-outs (``Rollout.scaled``), if these graphs trained no member. Missing truths (NaN) count nowhere.
    """
    if not rollouts or len(rollouts) != len(truths) or not 0 < (0.5 if nominal is None else nominal) < 1:
        counts = f"{len(rollouts)} roll-outs, {len(truths)} truths, nominal {nominal}"
        raise InputError(f"{counts}; give a truth for each, and a share between 0 and 1")
    for one, truth in zip(rollouts, truths):
        for name, course in one.courses.items():
            if (shape := truth.get(name, torch.empty(0)).shape) != course.shape[1:]:
                expected = [*course.shape[1:]]
                raise InputError(f"the truth of {name} has shape {[*shape]}; give that of a course, {expected}")
    factors = {}
    for name in rollouts[0].courses:
        pairs = [(one.mean(name) - truth[name], one.spread(name)) for one, truth in zip(rollouts, truths)]
        errors, spreads = (torch.cat([part.flatten(1) for part in parts], dim=1) for parts in zip(*pairs))
        spreads = spreads.where(errors.isfinite(), torch.nan)
        ratios = (errors.square().nanmean(1) / spreads.square().nanmean(1)).sqrt()
        factors[name] = ratios if nominal is None else (errors.abs() / spreads).nanquantile(nominal, dim=1)
    return factors
