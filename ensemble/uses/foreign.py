"""Calculators of ASE as baselines and labellers."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
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
from hydragnn.ensemble.estimates.moments import Array
from hydragnn.ensemble.members.member import Member, MemberOutcome
from hydragnn.ensemble.members.outputs import MemberOutputs, labels_of
from hydragnn.ensemble.reading.module import atoms_of
from hydragnn.ensemble.reading.structures import factors_of, properties_of
from hydragnn.ensemble.uses.foreign_trial import check_calculator, unit_of
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.models import Distribution, Point

ALIGNING = 200
"""Training graphs that reference energies are fitted on, at least one of every independent composition."""


def results_of(atoms: Atoms, calculator: Any) -> dict[str, Any]:
    """Return energy, forces and stress of one structure, computed anew.

    A stress is asked for where a head has one: with a periodic axis and a volume. A calculator that has none raises PropertyNotImplementedError.
    InputError where a stress fails otherwise, a result has another shape or is not finite, or the calculator changes the structure or ends the program.
    """
    original, atoms = atoms, atoms.copy()
    atoms.set_constraint()  # which may change energies, and no label has
    getattr(calculator, "reset", lambda: None)()
    atoms.calc = calculator
    try:
        results: dict[str, Any] = {"energy": atoms.get_potential_energy()}
        with suppress(PropertyNotImplementedError):
            results["forces"] = np.array(calculator.get_property("forces", atoms))
        if atoms.pbc.any() and atoms.cell.rank == 3:
            try:
                results["stress"] = atoms.get_stress(voigt=False, apply_constraint=False)  # of 6 or 3 x 3 numbers
            except PropertyNotImplementedError:
                pass
            except Exception as error:  # whatever that program raises
                raise InputError(
                    f"the calculator fails at the stress of {atoms.symbols} ({words_of(error)}); let it raise ASE's "
                    "PropertyNotImplementedError where it has none"
                ) from error
    except SystemExit as error:
        raise InputError(f"the calculator ended the program ({error}); mend it") from error
    if atoms != original:
        raise InputError("the calculator changes the structure; let it compute a copy")
    shapes = {"energy": (), "forces": (len(atoms), 3), "stress": (3, 3)}
    for name, value in results.items():
        if np.shape(value) != shapes[name] or not np.isfinite(value).all():
            shape, expected = np.shape(value), shapes[name]
            what = "is not finite" if shape == expected else f"has shape {shape}, not {expected}"
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


class Baseline:
    """A calculator of ASE that is compared with an ensemble.

    Energies have the zeros of labels: a reference energy per element is added, which a fit on training graphs gave.
    """

    def __init__(self, name: str, reference: str, run: Member, attributes: Mapping[str, Any]) -> None:
        """Raise InputError for targets that a calculator does not have."""
        self.names, self.reference, self.targets = (name,), reference, run.targets
        self.properties, self.factors = properties_of(run.targets), factors_of(run.targets, attributes)
        others = [target.name for target in run.targets if target.name not in self.properties.values()]
        spread = [target.name for target in run.targets if target.distribution is not Point]
        if others or spread:
            problem = f"predict {others[0]}" if others else f"give {spread[0]} a variance"
            fault = f"baseline {name} is a calculator with an energy, forces and stress, and the runs also {problem}"
            raise InputError(f"{fault}; choose runs that do not")
        self.inputs = [*dict.fromkeys([ATOMIC_NUMBERS, *run.model.inputs])]
        self.calculator = new_calculator(reference, f"baseline {name}")
        self.energies: dict[str, float] = {}
        """Reference energy of each element in eV, which is added to the calculator's."""

    def weights_of(self, field: str) -> Float[Array, " members"]:
        """Return the weight of the only member."""
        return np.ones(1)

    def values(self, graph: GraphBatch) -> dict[str, Float[Array, "items *shape"]]:
        """Return the results for one graph, by target and in its unit."""
        atoms = atoms_of(graph)
        results = results_of(atoms, self.calculator)
        if not (atoms.pbc.all() and atoms.cell.rank == 3):
            results.setdefault("stress", np.full((3, 3), np.nan))
        unknown = sorted({symbol for symbol in atoms.symbols if symbol not in self.energies}) if self.energies else []
        if unknown:
            raise InputError(f"{self.reference} has no reference energy of {unknown[0]}, which no training graph has")
        lacking = [what for what in self.properties if what not in results]
        if lacking:
            raise InputError(f"{self.reference} gives no {lacking[0]} of {atoms.symbols}")
        results["energy"] += sum(self.energies.get(symbol, 0.0) for symbol in atoms.symbols)
        shapes = {target.name: target.field.shape for target in self.targets}
        return {
            name: np.asarray(results[what], dtype=np.float64).reshape(-1, *shapes[name]) / self.factors[what]
            for what, name in self.properties.items()
        }

    def outputs(self, store: GraphStore, graphs: Int[Array, " graphs"]) -> MemberOutputs:
        """Predict these graphs; NaN and a reason where one is refused."""
        fields = [*dict.fromkeys([*self.inputs, *(target.field.name for target in self.targets)])]
        labels: dict[str, list[Array]] = {target.name: [] for target in self.targets}
        rows: dict[str, list[Array]] = {target.name: [] for target in self.targets}
        reasons, sizes, started = [""] * len(graphs), store.sizes(), perf_counter()
        for position, number in enumerate(graphs):
            graph, own = store.read(np.array([number]), fields), dict[str, Array]()
            with as_note("", partial(reasons.__setitem__, position)):  # whatever that program raises
                own = self.values(graph)
            for target in self.targets:
                labels[target.name].append(labels_of(graph, target))
                rows[target.name].append(own.get(target.name, np.full_like(labels[target.name][-1], np.nan)))
        predictions: dict[str, Distribution] = {
            name: Point(mean=torch.from_numpy(np.concatenate(values))) for name, values in rows.items()
        }
        nodes = sizes.nodes[graphs]
        outcome = MemberOutcome(
            predictions=predictions,
            reasons=tuple(reasons),
            distances=np.full((len(graphs), 3), np.nan),
            node_distances=np.full(nodes.sum(), np.nan),
        )
        return MemberOutputs(
            graphs=graphs,
            nodes_per_graph=nodes,
            edges_per_graph=sizes.edges[graphs],
            outcomes=(outcome,),
            labels={name: np.concatenate(values) for name, values in labels.items()},
            seconds=(perf_counter() - started,),
        )


def aligned_baseline(name: str, reference: str, run: Member, store: GraphStore) -> tuple[Baseline, str]:
    """Return a calculator with reference energies, and a sentence.

    Differences of energies per atom on the training graphs of ``run`` are fitted by least squares; calibration and test graphs have no part in it.
    InputError where the calculator fails.
    """
    baseline = Baseline(name, reference, run, store.attributes)
    energy = next(target for target in run.targets if target.name == baseline.properties["energy"])
    species, counts, order = aligning_graphs(store, make_split(store, run.config.split).train, energy.field.name)
    forces = baseline.properties.get("forces", "")
    fields = [*dict.fromkeys([*baseline.inputs, energy.field.name, *filter(None, [forces])])]
    shifts, structures, refused, pairs = dict[int, float](), dict[int, Atoms](), dict[int, str](), list[Array]()
    while todo := [one for one in graphs_for_fit(counts, order) if one not in shifts]:
        graphs = {number: store.read(np.array([number]), fields) for number in todo}
        structures |= {number: atoms_of(graph) for number, graph in graphs.items()}
        if not shifts:
            results = partial(results_of, calculator=baseline.calculator)
            note = check_calculator(reference, results, [*structures.values()])
        for number, graph in graphs.items():
            with as_note("", partial(refused.__setitem__, number)):  # whatever that program raises
                own = baseline.values(graph)
                shifts[number] = float(graph[energy.field.name].double().item() - own[energy.name].item())
                pairs += [np.stack([own[forces].ravel(), graph[forces].double().numpy().ravel()])] if forces else []
        order = order[~np.isin(order, [*refused])]
        if len(refused) > len(shifts):
            problem = f"{reference} {few_refusals(refused)}; these are more than half of {len(refused) + len(shifts)}"
            raise InputError(f"{problem}; take another calculator")
    check_scale(reference, pairs)
    numbers = sorted(shifts)
    species, counts = species[used := counts[numbers].any(axis=0)], counts[numbers][:, used]
    atoms, values = counts.sum(axis=1), np.array([shifts[one] for one in numbers]) * baseline.factors["energy"]
    fitted, *_ = np.linalg.lstsq(counts / atoms[:, None], values / atoms, rcond=None)
    residual = float(np.sqrt(np.mean(((values - counts @ fitted) / atoms) ** 2)))
    baseline.energies = {chemical_symbols[number]: float(one) for number, one in zip(species, fitted)}
    symbols = ", ".join(f"{symbol} {one:.4g}" for symbol, one in baseline.energies.items())
    sentence = (
        f"{name}: reference energies (eV) {symbols} fitted on {len(numbers)} training graphs; its energies then differ from labels by "
        f"{1000 * residual:.3g} meV/atom (root mean square)"
        f"{f'; it {few_refusals(refused)}' if refused else ''}{note and '; '}{note}"
    )
    return baseline, sentence


def check_scale(reference: str, pairs: Sequence[Array]) -> None:
    """Raise InputError for forces in another unit than those of labels."""
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


def aligning_graphs(
    store: GraphStore, train: Int[Array, " train"], energy: str
) -> tuple[Int[Array, " species"], Int[Array, "graphs species"], Int[Array, " labelled"]]:
    """Return elements, their counts, and labelled training graphs in random order."""
    counts, species = species_counts(store)
    labelled = np.sort(train)[store.column(energy).present[np.sort(train)]]
    labelled = labelled[counts[labelled].any(axis=1)]
    if not len(labelled):
        raise InputError(f"no training graph has a label of {energy}, and reference energies of a calculator need some")
    return species, counts, np.random.default_rng(0).permutation(labelled)


def graphs_for_fit(counts: Int[Array, "graphs species"], order: Int[Array, " labelled"]) -> list[int]:
    """Return the first graphs, and one of every further independent composition."""
    numbers: list[int] = order[:ALIGNING].tolist()
    _, first = np.unique(counts[order], axis=0, return_index=True)
    every, rank = np.linalg.matrix_rank(counts[order[first]]), np.linalg.matrix_rank(counts[numbers])
    for number in order[np.sort(first)].tolist():
        if rank == every:
            break
        if np.linalg.matrix_rank(counts[[*numbers, number]]) > rank:
            numbers, rank = [*numbers, number], rank + 1
    return numbers
