"""Calculators of ASE as members, with the units and zeros of labels."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import PropertyNotImplementedError
from ase.data import chemical_symbols
from jaxtyping import Float, Int

from hydragnn.base.errors import InputError, as_note, words_of
from hydragnn.base.imports import function_named
from hydragnn.datasets import GraphStore, make_split
from hydragnn.datasets.split import species_counts
from hydragnn.ensemble.foreign_entry import ForeignEntry, Probe
from hydragnn.ensemble.foreign_trial import check_calculator, unit_of
from hydragnn.ensemble.manifest import Manifest, MemberEntry
from hydragnn.ensemble.members import Member, Outcome, Potential, outcome_without_states
from hydragnn.ensemble.module import atoms_of
from hydragnn.ensemble.properties import factors_of, properties_of
from hydragnn.ensemble.structures import training_attributes
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.graphs.joining import unbatch
from hydragnn.models import Distribution, Point, Target

ALIGNING = 200
"""Training graphs that reference energies are fitted on, at least one of every independent composition."""
SAME = 1e-3
"""eV per atom by which the energy of the probe may differ: single precision on other machines stays below a tenth of it."""

Array = np.ndarray


def results_of(atoms: Atoms, calculator: Any) -> dict[str, Any]:
    """Return energy, forces and stress of one structure, computed anew.

    A stress is asked for where a head has one: with a periodic axis and a volume. Not all programs have it of slabs.
    InputError where one has another shape or is not finite, or the calculator changes the structure or ends the program.
    """
    original, atoms = atoms, atoms.copy()
    atoms.set_constraint()  # which may change energies, and no label has
    getattr(calculator, "reset", lambda: None)()
    atoms.calc = calculator
    try:
        results: dict[str, Any] = {"energy": atoms.get_potential_energy()}
        with suppress(PropertyNotImplementedError):
            results["forces"] = np.array(calculator.get_property("forces", atoms))
        with suppress(PropertyNotImplementedError, *(() if atoms.pbc.all() else (Exception,))):
            if atoms.pbc.any() and atoms.cell.rank == 3:
                results["stress"] = atoms.get_stress(voigt=False, apply_constraint=False)  # of 6 or 3 x 3 numbers
    except SystemExit as error:
        raise InputError(f"the calculator ended the program ({error}); mend it") from error
    if atoms != original:
        raise InputError("the calculator changes the structure; let it compute a copy")
    shapes = {"energy": (), "forces": (len(atoms), 3), "stress": (3, 3)}
    for name, value in results.items():
        if np.shape(value) != shapes[name] or not np.isfinite(value).all():
            what = (
                "is not finite"
                if np.shape(value) == shapes[name]
                else f"has shape {np.shape(value)}, not {shapes[name]}"
            )
            raise InputError(f"{name} of the calculator {what}; mend the calculator or leave the structure out")
    return results | {"energy": float(results["energy"])}


def new_calculator(reference: str, where: str) -> Any:
    """Return a calculator by an allowed function; InputError where it makes none."""
    factory = function_named(reference, where=where, noun="calculator")
    try:
        calculator = factory()
    except (Exception, SystemExit) as error:  # whatever that program raises
        raise InputError(f"{where}: {reference} failed ({words_of(error)}); it takes no arguments") from error
    if not hasattr(calculator, "get_property"):
        raise InputError(f"{where}: {reference} gave a {type(calculator).__name__}, which is no calculator of ASE")
    return calculator


class Calculating(Potential):
    """A calculator of ASE that predicts the targets of an ensemble.

    Energies have the zeros of labels: a reference energy per element is added, which a fit on training graphs gave.
    """

    def __init__(
        self, name: str, entry: ForeignEntry, targets: Sequence[Target], attributes: Mapping[str, Any]
    ) -> None:
        """Raise InputError for targets that a calculator does not have."""
        self.name, self._entry, self.targets = name, entry, targets
        self.names, self.factors = properties_of(targets), factors_of(targets, attributes)
        others = [target.name for target in targets if target.name not in self.names.values()]
        spread = [target.name for target in targets if target.distribution is not Point]
        if others or spread:
            problem = f"predict {others[0]}" if others else f"give {spread[0]} a variance"
            raise InputError(
                f"member {name} is a calculator with an energy, forces and stress, and the runs also {problem}; choose runs that do not"
            )

    @property
    def entry(self) -> ForeignEntry:
        """Return the function, reference energies and probe."""
        return self._entry

    @cached_property
    def calculator(self) -> Any:
        """Return the calculator; InputError for another than in the fit."""
        calculator = new_calculator(self.entry.reference, f"member {self.name}")
        if self.entry.probe:
            atoms, expected = self.entry.probe.atoms, self.entry.probe.energy
            energy = results_of(atoms, calculator)["energy"]
            if not abs(energy - expected) <= SAME * len(atoms):
                raise InputError(
                    f"member {self.name}: {self.entry.reference} is another potential than when the ensemble was built (its energy of {atoms.symbols} "
                    f"was {expected:.6g} eV and is {energy:.6g}); install that version, or build the ensemble again"
                )
        return calculator

    def outcome(self, member: Member, batch: GraphBatch) -> Outcome:
        """Return predictions for a batch, one structure after the other."""
        graphs, _ = unbatch(batch.to("cpu")), self.calculator
        parts, reasons = [dict[str, Array]() for _ in graphs], [""] * len(graphs)
        for place, graph in enumerate(graphs):
            with as_note("", partial(reasons.__setitem__, place)):  # whatever that program raises
                parts[place] = self.values(graph)
        predictions: dict[str, Distribution] = {}
        for target in self.targets:
            blanks = [Point.blank(target.field, graph.num_items(target.field.on)).mean.double() for graph in graphs]
            rows = [torch.from_numpy(one[target.name]) if one else blank for one, blank in zip(parts, blanks)]
            predictions[target.name] = Point(mean=torch.cat(rows))
        numbers = {name: one.mapped(torch.nan_to_num) for name, one in predictions.items()}  # a stress may be undefined
        outcome = outcome_without_states(self.targets, batch, numbers, reasons)
        blank = {name: one.blank_items(~predictions[name].finite()) for name, one in outcome.predictions.items()}
        return replace(outcome, predictions=blank)

    def values(self, graph: GraphBatch) -> dict[str, Float[Array, "items *shape"]]:
        """Return the results for one graph, by target and in its unit."""
        atoms = atoms_of(graph)
        results, references = results_of(atoms, self.calculator), self.entry.energies
        if not (atoms.pbc.all() and atoms.cell.rank == 3):
            results.setdefault("stress", np.full((3, 3), np.nan))
        unknown = sorted({symbol for symbol in atoms.symbols if symbol not in references}) if references else []
        if unknown:
            raise InputError(
                f"{self.entry.reference} has no reference energy of {unknown[0]}, which no training graph has"
            )
        lacking = [what for what in self.names if what not in results]
        if lacking:
            raise InputError(f"{self.entry.reference} gives no {lacking[0]} of {atoms.symbols}")
        results["energy"] += sum(references.get(symbol, 0.0) for symbol in atoms.symbols)
        fields = {target.name: target.field for target in self.targets}
        return {
            name: np.asarray(results[what], dtype=np.float64).reshape(-1, *fields[name].shape) / self.factors[what]
            for what, name in self.names.items()
        }


def foreign_member(
    name: str, entry: ForeignEntry, host: Member, weight: float, attributes: Mapping[str, Any]
) -> Member:
    """Return a calculator as a member with the targets of ``host``."""
    potential = Calculating(name, entry, host.targets, attributes)
    return replace(host, name=name, weight=weight, latent=None, potential=potential, number=0, company=None)


def foreign_loader(
    entry: MemberEntry, host: Callable[[], Member], manifest: Manifest, where: str
) -> Callable[[], Member]:
    """Return a function that loads a foreign member.

    InputError where its module is not allowed.
    """
    assert entry.foreign is not None
    function_named(entry.foreign.reference, where=f"{where}: member {entry.name}", noun="calculator")

    def load() -> Member:
        member, description = host(), entry.foreign
        assert description is not None
        return foreign_member(entry.name, description, member, entry.weight, training_attributes([member], manifest))

    return load


def aligned_member(name: str, reference: str, host: Member, store: GraphStore) -> tuple[Member, str]:
    """Return a calculator as a member with reference energies, and a sentence.

    Differences of energies per atom on the training graphs of ``host`` are fitted by least squares; calibration and test graphs have no part in it.
    InputError where the calculator fails.
    """
    member = foreign_member(name, ForeignEntry(reference=reference), host, 0.0, store.attributes)
    potential = member.potential
    assert isinstance(potential, Calculating)
    energy = next(target for target in host.targets if target.name == potential.names["energy"])
    species, counts, order = aligning_graphs(store, make_split(store, host.config.split).train, energy.field.name)
    names = [*dict.fromkeys([ATOMIC_NUMBERS, energy.field.name, *host.model.inputs])]
    forces = potential.names.get("forces", "")
    names = [*dict.fromkeys([ATOMIC_NUMBERS, energy.field.name, *host.model.inputs, *filter(None, [forces])])]
    shifts, structures, refused, pairs = dict[int, float](), dict[int, Atoms](), dict[int, str](), list[Array]()
    while todo := [one for one in graphs_for_fit(counts, order) if one not in shifts]:
        graphs = {number: store.read(np.array([number]), names) for number in todo}
        structures |= {number: atoms_of(graph) for number, graph in graphs.items()}
        if not shifts:
            note = check_calculator(
                reference, partial(results_of, calculator=potential.calculator), [*structures.values()]
            )
        for number, graph in graphs.items():
            with as_note("", partial(refused.__setitem__, number)):  # whatever that program raises
                own = potential.values(graph)
                shifts[number] = float(graph[energy.field.name].double().item() - own[energy.name].item())
                pairs += [np.stack([own[forces].ravel(), graph[forces].double().numpy().ravel()])] if forces else []
        order = order[~np.isin(order, [*refused])]
        if len(refused) > len(shifts):
            raise InputError(
                f"{reference} {few_refusals(refused)}; these are more than half of {len(refused) + len(shifts)}; take another calculator"
            )
    check_scale(reference, pairs)
    numbers = sorted(shifts)
    species, counts = species[used := counts[numbers].any(axis=0)], counts[numbers][:, used]
    atoms, values = counts.sum(axis=1), np.array([shifts[one] for one in numbers]) * potential.factors["energy"]
    fitted, *_ = np.linalg.lstsq(counts / atoms[:, None], values / atoms, rcond=None)
    residual = float(np.sqrt(np.mean(((values - counts @ fitted) / atoms) ** 2)))
    smallest = bare(min((structures[number] for number in numbers), key=len))
    facts = {key: smallest.todict()[key].tolist() for key in ("numbers", "positions", "cell", "pbc")}
    entry = ForeignEntry(
        reference=reference,
        energies={chemical_symbols[number]: float(one) for number, one in zip(species, fitted)},
        probe=Probe(**facts, energy=results_of(smallest, potential.calculator)["energy"]),
    )
    symbols = ", ".join(f"{symbol} {one:.4g}" for symbol, one in entry.energies.items())
    sentence = (
        f"{name}: reference energies (eV) {symbols} fitted on {len(numbers)} training graphs; its energies then differ from labels by "
        f"{1000 * residual:.3g} meV/atom (root mean square)"
        f"{f'; it {few_refusals(refused)}' if refused else ''}{note and '; '}{note}"
    )
    return foreign_member(name, entry, host, 0.0, store.attributes), sentence


def check_scale(reference: str, pairs: Sequence[Array]) -> None:
    """Raise InputError for forces along those of labels with another length: energies in their unit hide it."""
    own, labels = np.concatenate(pairs, axis=1) if pairs else np.zeros((2, 0))
    own, labels = own[finite := np.isfinite(labels)], labels[finite]
    alike = np.linalg.norm(own) * np.linalg.norm(labels)
    factor = float(own @ labels / max(labels @ labels, 1e-12))
    if abs(own @ labels) > 0.9 * alike > 0 and not 0.5 < factor < 2:
        what = f"its forces are {factor:.4g} times those of the labels{unit_of(factor, 'forces', {})}"
        raise InputError(f"{reference} cannot be taken: {what}; convert its energy too, in your function")


def few_refusals(refused: Mapping[Any, str]) -> str:
    """Return how many structures were refused, with the first.

    >>> few_refusals({3: "isolated atom"})
    'refuses 1 structures, which are left out: 3 (isolated atom)'
    """
    first = ", ".join(f"{number} ({words})" for number, words in [*refused.items()][:3])
    return f"refuses {len(refused)} structures, which are left out: {first}{', ...' * (len(refused) > 3)}"


def bare(atoms: Atoms) -> Atoms:
    """Return a structure without fields."""
    return Atoms(atoms.numbers, atoms.positions, cell=atoms.cell, pbc=atoms.pbc)


def aligning_graphs(
    store: GraphStore, train: Int[Array, " train"], energy: str
) -> tuple[Int[Array, " species"], Int[Array, "graphs species"], Int[Array, " labelled"]]:
    """Return elements, their counts in all graphs, and labelled training graphs in an order by a fixed seed."""
    counts, species = species_counts(store)
    labelled = np.sort(train)[store.column(energy).present[np.sort(train)]]
    labelled = labelled[counts[labelled].any(axis=1)]
    if not len(labelled):
        raise InputError(f"no training graph has a label of {energy}, and reference energies of a calculator need some")
    return species, counts, np.random.default_rng(0).permutation(labelled)


def graphs_for_fit(counts: Int[Array, "graphs species"], order: Int[Array, " labelled"]) -> list[int]:
    """Return the first ``ALIGNING`` of these graphs, and one of every further independent composition."""
    numbers: list[int] = order[:ALIGNING].tolist()
    _, first = np.unique(counts[order], axis=0, return_index=True)
    every, rank = np.linalg.matrix_rank(counts[order[first]]), np.linalg.matrix_rank(counts[numbers])
    for number in order[np.sort(first)].tolist():
        if rank == every:
            break
        if np.linalg.matrix_rank(counts[[*numbers, number]]) > rank:
            numbers, rank = [*numbers, number], rank + 1
    return numbers
