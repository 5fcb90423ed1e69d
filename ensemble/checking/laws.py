"""Laws of committees, and findings of all laws with their page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch

from hydragnn.conformance.law import DoesNotApply, Figures, Verdict, gaps
from hydragnn.conformance.structures import LAWS, RATTLE, law
from hydragnn.ensemble.checking.subject import Subject, values_of
from hydragnn.ensemble.estimates.moments import Array
from hydragnn.ensemble.estimates.predictions import estimates_of
from hydragnn.ensemble.members.member import outcome
from hydragnn.ensemble.members.screening import simple_predictions, without_screening
from hydragnn.models import Number


@law("precision")
def _precision(subject: Subject) -> Figures:
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
def _copies(subject: Subject) -> Figures:
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
    simple = simple_predictions(ensemble.manifest.simple, ensemble.targets, without_screening(graphs))
    for target in ensemble.targets:
        members = [one[target.name] for one in (*outcomes, simple) if target.name in one]
        scaled = [one.scale_by(torch.tensor(factor).double()) for one in members if isinstance(one, Number)]
        if scaled:
            weights, owners = ensemble.weights_of(target.name), graphs.owner(target.field.on)
            nodes = graphs.counts("node")[owners].numpy()
            estimates[target.name] = estimates_of(target).of(target, scaled, weights, None, nodes)
    return estimates


@law("change of units")
def _units(subject: Subject) -> Figures:
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
def _spread(subject: Subject) -> Figures:
    for name, one in _raw(subject).items():
        weights = subject.ours[0].weights_of(name)
        second = np.tensordot(weights, (one.members - np.tensordot(weights, one.members, axes=1)) ** 2, axes=1)
        axes = {"scalar": (), "vector": (-1,), "tensor": (-2, -1)}[one.field.parity]
        yield _difference(np.broadcast_to(second.mean(axis=axes, keepdims=True), second.shape), one.epistemic**2), name


TITLE = "# Laws checked"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Verdict and figure of one law for a model."""

    law: str
    verdict: Verdict
    figure: float | None
    limit: str
    where: str
    """Place of the worst figure, or the reason why there is none."""
    meaning: str
    failures: tuple[int, ...]
    """Numbers in the field's table of silent failures."""


def findings_of(subject: Subject, tell: Callable[[str, int, int], None] = lambda *_: None) -> tuple[Finding, ...]:
    """Return a finding for every law; ``tell`` has name and numbers."""
    findings = []
    for number, (name, one) in enumerate(LAWS.items()):
        tell(name, number, len(LAWS))
        verdict, figure, where = one.outcome(subject)
        facts: dict[str, Any] = {"limit": one.bound, "meaning": one.meaning, "failures": one.failures}
        findings.append(Finding(law=name, verdict=verdict, figure=figure, where=" ".join(where.split()), **facts))
    return tuple(findings)


def findings_page(name: str, findings: Sequence[Finding], command: str) -> str:
    """Return the table in Markdown."""
    words = ("passed", "failed", "does not apply")
    counts = ", ".join(f"{sum(one.verdict == word for one in findings)} {word}" for word in words)
    lines = [f"{TITLE}\n\n`{name}`: {counts}. Made by `{command}`.\n"]
    lines += ["| law | verdict | figure | limit | where | what it means | silent failures |", f"|{'---|' * 7}"]
    for one in findings:
        verdict = f"**{one.verdict}**" if one.verdict == "failed" else one.verdict
        figure, failures = shown(one.figure), ", ".join(map(str, one.failures))
        cells = (one.law, verdict, figure, one.limit, one.where, one.meaning, failures)
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def shown(figure: float | None) -> str:
    """Return a figure with three digits, or nothing."""
    return "" if figure is None else f"{figure:.3g}"
