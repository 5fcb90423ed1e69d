"""Models under check, laws of committees, and findings of all laws with their page."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from jaxtyping import Int

from hydragnn.base.errors import InputError
from hydragnn.base.places import absent_store
from hydragnn.conformance.law import DoesNotApply, Figures, Values, Verdict, gaps
from hydragnn.conformance.structures import LAWS, RATTLE, law
from hydragnn.datasets import open_store
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.estimates.calibration.numbers import turning_axes
from hydragnn.ensemble.estimates.moments import Array
from hydragnn.ensemble.estimates.predictions import Predictions, estimates_of
from hydragnn.ensemble.members.member import outcome
from hydragnn.ensemble.members.screening import simple_predictions, without_screening
from hydragnn.ensemble.prediction.rules import structures_in
from hydragnn.ensemble.reading.module import atoms_of
from hydragnn.ensemble.uses.calculator import EnsembleCalculator
from hydragnn.ensemble.uses.foreign import results_of
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.joining import concatenate, unbatch
from hydragnn.models import Number

FEW = 3
"""Structures of a store or a file; a law takes its worst."""
SMALL = 64
"""Nodes of the largest graph drawn, if there are so small ones: force constants of six atoms take 72 predictions."""
FARTHEST = 12.0
"""Angstrom, the cutoff of calculators, which do not say theirs; published potentials have shorter ones."""


class Results(dict[str, Any]):
    """Results of a structure by name."""

    def __missing__(self, name: str) -> Any:
        """Raise DoesNotApply for a result that is not predicted."""
        raise DoesNotApply(f"there is no prediction of {name}")


def values_of(predictions: Predictions) -> dict[str, Values]:
    """Return members and uncertainties of all fields."""
    values = {}
    for name, one in predictions.fields.items():
        values[name] = Values(np.moveaxis(one.members, 0, 1), one.field.on, one.field.parity, 1e-9)
        values[f"uncertainty of {name}"] = Values(one[one.doubt_name], one.field.on, "scalar", 1e-9)
    return values


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """Anything that predicts, and what it is asked for."""

    name: str
    new_calculator: Callable[[], Any] | None
    """A calculator of ASE without a past; None for a model without energies of atoms."""
    frames: Sequence[Atoms] = ()
    cutoff: float = FARTHEST
    ensemble: Ensemble | None = None
    """A model of ours in double precision."""
    single: Ensemble | None = None
    """The same in its own precision."""
    graphs: GraphBatch | None = None

    @cached_property
    def calculator(self) -> Any:
        """Return a calculator that is used again."""
        return self.fresh()

    def fresh(self) -> Any:
        """Return a calculator without a past; DoesNotApply without energies."""
        if self.new_calculator is None:
            raise DoesNotApply("the model predicts no energies of atoms")
        return self.new_calculator()

    def alone(self, atoms: Atoms, calculator: Any = None) -> Results:
        """Return results of one structure, by default without a past."""
        return Results(results_of(atoms, self.fresh() if calculator is None else calculator))

    def predicted(self, graphs: GraphBatch) -> dict[str, Values]:
        """Return members and uncertainties of all fields."""
        return values_of(self.ours[0].predict(graphs))

    @property
    def ours(self) -> tuple[Ensemble, GraphBatch]:
        """Return model and graphs; DoesNotApply for a calculator of others."""
        if self.ensemble is None or self.graphs is None:
            raise DoesNotApply("it is about fields and members of a model of this program")
        return self.ensemble, self.graphs

    def structures(self, rattle: float = 0.0) -> Iterator[tuple[str, Atoms]]:
        """Yield the structures by name, displaced at random; DoesNotApply without energies."""
        _ = self.calculator
        for number, frame in enumerate(self.frames):
            atoms = frame.copy()
            if rattle:
                atoms.rattle(rattle, seed=1)
            yield f"structure {number} ({atoms.symbols})", atoms

    def results(self, frames: Sequence[Atoms]) -> list[Results]:
        """Return energy, forces and stress; our models compute one batch."""
        calculator = self.calculator
        if self.ensemble is None:
            return [self.alone(self._in_a_cell(atoms), calculator) for atoms in frames]
        predictions, results = self.ensemble.predict(frames), [Results() for _ in frames]
        rows = np.cumsum(predictions.nodes_per_graph)[:-1]
        for name, field in calculator.names.items():
            means = predictions[field]["mean"] * calculator.factors[name]
            for result, own in zip(results, np.split(means, rows) if name == "forces" else means):
                if np.isfinite(own).any() or name != "stress":
                    result[name] = own.item() if name == "energy" else own
        return results

    @cached_property
    def only_periodic(self) -> bool:
        """Return True if a calculator needs a cell, as many of crystals."""
        pair = Atoms(self.frames[0].numbers[[0, 0]], [[0, 0, 0], [2, 0, 0]])
        try:
            self.alone(pair, self.calculator)
        except Exception:  # whatever that program raises
            return True
        return False

    def _in_a_cell(self, atoms: Atoms) -> Atoms:
        """Return a molecule in vacuum, if the calculator needs a cell."""
        if atoms.pbc.any() or not self.only_periodic:
            return atoms
        atoms = atoms.copy()
        atoms.center(vacuum=self.cutoff)
        atoms.pbc = True
        return atoms


def calculator_subject(name: str, factory: Callable[[], Any], structures: Path, seed: int = 0) -> Subject:
    """Return a calculator of ASE with structures of a file."""
    return Subject(name=name, new_calculator=factory, frames=_of_file(structures, seed))


def model_subject(folder: Path, structures: Path | None = None, *, branch: str = "", seed: int = 0) -> Subject:
    """Return a model with structures of a file or its store.

    Laws are checked in double precision, where a broken one is not hidden by rounding.
    """
    ensemble, single = (Ensemble.load(folder, dtype=dtype, branch=branch) for dtype in (torch.float64, None))
    frames = None if structures is None else _of_file(structures, seed)
    if frames is not None:
        graphs = [ensemble.structures.graph(atoms, f"structure {number}") for number, atoms in enumerate(frames)]
        for status in ensemble.predict(frames).status:
            if status != "ok":
                raise InputError(f"{structures} has a structure that cannot be predicted: {status}; give others")
    else:
        path = ensemble.members[0].config.data.store
        if (absent := absent_store(path)) is not None:
            raise InputError(f"the training store {absent} is not there; give --structures FILE, or put it back")
        store = open_store(path)
        graphs = unbatch(store.read(_drawn(store.sizes().nodes, seed), ensemble.needed(store)))
    facts: Mapping[str, Any] = {"ensemble": ensemble, "single": single, "graphs": concatenate(graphs)}
    try:
        rule = EnsembleCalculator(ensemble).structures
    except InputError:  # no energy, or no atoms: laws of fields remain
        return Subject(name=str(folder), new_calculator=None, **facts)
    frames = [atoms_of(graph) for graph in graphs] if frames is None else frames
    return Subject(
        name=str(folder),
        new_calculator=lambda: EnsembleCalculator(ensemble, outside="record"),
        frames=frames,
        cutoff=rule.cutoff,
        **facts,
    )


def _of_file(path: Path, seed: int) -> list[Atoms]:
    frames = structures_in(path)
    return [frames[number] for number in _drawn(np.array([len(one) for one in frames]), seed)]


def _drawn(nodes: Int[Array, " graphs"], seed: int) -> Int[Array, " few"]:
    """Return numbers of a few graphs, no large one if possible."""
    small = np.flatnonzero((nodes <= max(SMALL, nodes.min())) & (nodes > 0))
    return np.sort(np.random.default_rng(seed).choice(small, min(FEW, len(small)), replace=False))


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
        axes = turning_axes(one.field)
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
