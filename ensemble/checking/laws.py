"""Laws of committees: precision, copies, units and spread."""

from itertools import combinations
from typing import Any

import numpy as np
import torch

from hydragnn.conformance.law import DoesNotApply, gaps
from hydragnn.conformance.structures import RATTLE, Seen, law
from hydragnn.ensemble.checking.subject import Subject, values_of
from hydragnn.ensemble.members import outcome
from hydragnn.ensemble.predictions import estimates_of
from hydragnn.ensemble.uncertainty import Array
from hydragnn.models import Number


@law("precision")
def _precision(subject: Subject) -> Seen:
    ensemble, graphs = subject.ours
    assert subject.single is not None
    what = [atoms for _, atoms in subject.structures(RATTLE)] if subject.new_calculator else graphs
    own, double = (values_of(one.predict(what)) for one in (subject.single, ensemble))
    yield from gaps(own, double, "graphs")


def _difference(one: Array, other: Array) -> float:
    """Return the largest difference over the largest value."""
    finite = np.isfinite(one) & np.isfinite(other)
    return float(np.abs(one - other)[finite].max(initial=0.0) / max(1e-12, np.abs(one[finite]).max(initial=0.0)))


@law("no copies")
def _copies(subject: Subject) -> Seen:
    ensemble, graphs = subject.ours
    fields = {name: one.members for name, one in ensemble.predict(graphs).fields.items()}
    for (a, name), (b, other) in combinations(enumerate(ensemble.names), 2):
        yield max(_difference(one[a], one[b]) for one in fields.values()), f"members {name} and {other}"
    for (name, one), (other, two) in combinations(fields.items(), 2):
        if one.shape == two.shape:
            yield _difference(one, two), f"heads {name} and {other}"


def _raw(subject: Subject, factor: float = 1.0) -> dict[str, Any]:
    """Return estimates without calibration from members times a factor."""
    ensemble, graphs = subject.ours
    if len(ensemble.members) == 1:
        raise DoesNotApply("there is one member")
    outcomes, estimates = [outcome(member, graphs).predictions for member in ensemble.members], {}
    for target in ensemble.targets:
        members = [one[target.name] for one in outcomes]
        scaled = [one.scale_by(torch.tensor(factor).double()) for one in members if isinstance(one, Number)]
        if scaled:
            weights, owners = ensemble.weights_of(target.name), graphs.owner(target.field.on)
            nodes = graphs.counts("node")[owners].numpy()
            estimates[target.name] = estimates_of(target).of(target, scaled, weights, None, nodes)
    return estimates


@law("change of units")
def _units(subject: Subject) -> Seen:
    doubled = _raw(subject, 2.0)
    for name, one in _raw(subject).items():
        yield _difference(4 * one.std**2, doubled[name].std ** 2), name
    if subject.new_calculator is not None and subject.ensemble is not None:
        calculator, (name, atoms) = subject.calculator, next(subject.structures())
        subject.alone(atoms, calculator)
        predictions = subject.ensemble.predict([atoms])
        for what, field in calculator.names.items():
            expected = predictions[field]["std"] * calculator.factors[what]
            if what != "stress" and np.isfinite(expected).all():
                yield _difference(expected.ravel(), np.ravel(calculator.results[f"{what}_std"])), f"{what} of {name}"


@law("spread of members")
def _spread(subject: Subject) -> Seen:
    for name, one in _raw(subject).items():
        weights = subject.ours[0].weights_of(name)
        second = np.tensordot(weights, (one.members - np.tensordot(weights, one.members, axes=1)) ** 2, axes=1)
        axes = {"scalar": (), "vector": (-1,), "tensor": (-2, -1)}[one.field.parity]
        yield _difference(np.broadcast_to(second.mean(axis=axes, keepdims=True), second.shape), one.epistemic**2), name
