"""Calculators of ASE as members, with the units and zeros of labels."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import PropertyNotImplementedError
from ase.data import chemical_symbols
from jaxtyping import Float, Int

from hydragnn.base.errors import InputError, Interrupted
from hydragnn.base.imports import function_named
from hydragnn.datasets import GraphStore, make_split
from hydragnn.datasets.split import species_counts
from hydragnn.ensemble.foreign_entry import ForeignEntry, Probe
from hydragnn.ensemble.manifest import Manifest, MemberEntry
from hydragnn.ensemble.members import Member, Outcome, Potential, outcome_without_states
from hydragnn.ensemble.module import atoms_of
from hydragnn.ensemble.properties import factors_of, properties_of
from hydragnn.ensemble.structures import training_attributes
from hydragnn.graphs.batch import GraphBatch, volumes
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

    InputError where one has another shape or is not finite, or the calculator ends the program.
    """
    atoms = atoms.copy()
    getattr(calculator, "reset", lambda: None)()
    atoms.calc = calculator
    try:
        results: dict[str, Any] = {"energy": atoms.get_potential_energy()}
        with suppress(PropertyNotImplementedError):
            results["forces"] = np.array(calculator.get_property("forces", atoms))
        with suppress(PropertyNotImplementedError):
            if atoms.pbc.all() and atoms.cell.rank == 3:
                results["stress"] = atoms.get_stress(voigt=False, apply_constraint=False)  # of 6 or 3 x 3 numbers
    except SystemExit as error:
        raise InputError(f"the calculator ended the program ({error}); mend it") from error
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
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{where}: {reference} failed ({words}); it takes no arguments") from error
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
        graphs, volume = unbatch(batch.to("cpu")), volumes(batch).tolist()
        _ = self.calculator
        parts, reasons = [], []
        for graph, own in zip(graphs, volume, strict=True):
            try:
                values, reason = self.values(graph, has_volume=own > 0), ""
            except Interrupted:
                raise
            except Exception as error:  # whatever that program raises
                words = " ".join(f"{error}".split()) or type(error).__name__
                values, reason = {}, words if isinstance(error, InputError) else f"{type(error).__name__}: {words}"
            parts.append(values)
            reasons.append(reason)
        predictions: dict[str, Distribution] = {}
        for target in self.targets:
            blanks = [Point.blank(target.field, graph.num_items(target.field.on)).mean.double() for graph in graphs]
            rows = [torch.from_numpy(one[target.name]) if one else blank for one, blank in zip(parts, blanks)]
            predictions[target.name] = Point(mean=torch.cat(rows))
        return outcome_without_states(self.targets, batch, predictions, reasons)

    def values(self, graph: GraphBatch, *, has_volume: bool) -> dict[str, Float[Array, "items *shape"]]:
        """Return the results for one graph, by target and in its unit."""
        atoms = atoms_of(graph)
        results, references = results_of(atoms, self.calculator), self.entry.energies
        if not has_volume:
            results["stress"] = np.zeros((3, 3))  # of which nothing is known later
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
    numbers, species, counts = aligning_graphs(store, make_split(store, host.config.split).train, energy.field.name)
    names = [*dict.fromkeys([ATOMIC_NUMBERS, energy.field.name, *host.model.inputs])]
    differences, structures = [], []
    for number in numbers:
        graph = store.read(np.array([number]), names)
        try:
            own = potential.values(graph, has_volume=bool(volumes(graph)[0] > 0))[energy.name]
        except (InputError, Interrupted):
            raise
        except Exception as error:  # whatever that program raises
            words = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(f"{reference} failed at training graph {number} ({words}); leave it out") from error
        differences.append(float(graph[energy.field.name].double().item() - own.item()))
        structures.append(bare(atoms_of(graph)))
    if not np.isfinite(differences).all():
        raise InputError(f"{reference} gave an energy that is not finite for a training graph; leave it out")
    atoms, shifts = counts.sum(axis=1), np.array(differences) * potential.factors["energy"]
    fitted, *_ = np.linalg.lstsq(counts / atoms[:, None], shifts / atoms, rcond=None)
    residual = float(np.sqrt(np.mean(((shifts - counts @ fitted) / atoms) ** 2)))
    smallest = min(structures, key=len)
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
    )
    return foreign_member(name, entry, host, 0.0, store.attributes), sentence


def bare(atoms: Atoms) -> Atoms:
    """Return a structure without fields."""
    return Atoms(atoms.numbers, atoms.positions, cell=atoms.cell, pbc=atoms.pbc)


def aligning_graphs(
    store: GraphStore, train: Int[Array, " train"], energy: str
) -> tuple[list[int], Int[Array, " species"], Int[Array, "graphs species"]]:
    """Return labelled training graphs by a fixed seed, elements, and counts."""
    counts, species = species_counts(store)
    labelled = np.sort(train)[store.column(energy).present[np.sort(train)]]
    labelled = labelled[counts[labelled].any(axis=1)]
    if not len(labelled):
        raise InputError(f"no training graph has a label of {energy}, and reference energies of a calculator need some")
    numbers = graphs_for_fit(counts, labelled)
    used = counts[numbers].any(axis=0)
    return numbers, species[used], counts[numbers][:, used]


def graphs_for_fit(counts: Int[Array, "graphs species"], labelled: Int[Array, " labelled"]) -> list[int]:
    """Return ``ALIGNING`` of these graphs, and one of every further independent composition."""
    order = np.random.default_rng(0).permutation(labelled)
    numbers: list[int] = order[:ALIGNING].tolist()
    _, first = np.unique(counts[order], axis=0, return_index=True)
    every, rank = np.linalg.matrix_rank(counts[order[first]]), np.linalg.matrix_rank(counts[numbers])
    for number in order[np.sort(first)].tolist():
        if rank == every:
            break
        if np.linalg.matrix_rank(counts[[*numbers, number]]) > rank:
            numbers, rank = [*numbers, number], rank + 1
    return numbers
