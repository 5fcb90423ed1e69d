"""Graphs from atoms, made as they were made for training."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as member
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ase import Atoms

from hydragnn.architectures import ArchitectureSettings, GeometricSettings
from hydragnn.base.errors import InputError
from hydragnn.datasets import CoarseningSettings, Make
from hydragnn.datasets.manifest import cutoff_of
from hydragnn.datasets.sources.atoms_text import ATOMS, atoms_text
from hydragnn.datasets.sources.base import MakerOfMany, groups_of_makers, pieces_of
from hydragnn.datasets.sources.registry import settings_of_rule
from hydragnn.ensemble.manifest import Manifest
from hydragnn.graphs.atomic import from_ase, value_on
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.encodings import ENCODINGS, with_encodings
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field
from hydragnn.graphs.levels import is_levels
from hydragnn.graphs.problems import cell_problem
from hydragnn.graphs.search import completed_cell
from hydragnn.graphs.skin import SkinList
from hydragnn.graphs.texts import NAME, name_among, naming
from hydragnn.graphs.together import from_ase_together
from hydragnn.graphs.units import CLOSE, LENGTH_UNIT, in_ase_units, knows_length, length_in_angstrom
from hydragnn.graphs.validate import TURNS, into_cell
from hydragnn.models import Target
from hydragnn.runs.cutoff import ROUNDING

if TYPE_CHECKING:
    from hydragnn.ensemble.ensemble import Ensemble


@dataclass(frozen=True, kw_only=True, slots=True)
class Structures:
    """The rule that turns atoms into graphs."""

    cutoff: float
    """Largest length of an edge, in Angstrom."""
    max_neighbours: int | None
    """Nearest neighbours kept at every atom; None keeps all within the cutoff."""
    fields: tuple[Field, ...]
    """Inputs of members beside atomic numbers, by name in ``atoms.info`` and ``atoms.arrays``."""
    keys: Mapping[str, str] = member(default_factory=dict)
    """Other names of these fields in files like those of training; values under the field's own name are in its unit."""
    scales: Mapping[str, float] = member(default_factory=dict)
    """Factors on the values in such files."""
    encodings: Mapping[str, int] = member(default_factory=dict)
    """Structural encodings among the inputs, made anew for every structure: numbers per node by name."""
    coarsening: CoarseningSettings | None = None
    """Rule of levels, where members pool."""

    def graph(self, atoms: Atoms, name: str) -> GraphBatch:
        """Return the graph of one structure."""
        keys = {field.name: self.key(atoms, field) for field in self.fields}
        graph = from_ase(
            atoms, self.cutoff, fields=self.fields, keys=keys, max_neighbours=self.max_neighbours, name=name
        )
        return self._completed(graph, keys)

    def moved(self, graph: GraphBatch, atoms: Atoms, name: str, neighbours: SkinList) -> GraphBatch:
        """Return the graph of a structure that moved since the given one.

        Elements, periodic axes and fields are the same, and no number depends on which way the graph was made.
        """
        device, positions = neighbours.device, np.asarray(atoms.positions, dtype=np.float64)
        box, periodic = np.asarray(atoms.cell.array, dtype=np.float64), np.asarray(atoms.pbc, dtype=bool)
        cell, flags = torch.from_numpy(box.copy()), torch.from_numpy(periodic.copy())
        if not np.isfinite(positions).all() or cell_problem(cell, flags):
            return self.graph(atoms, name)  # which says what is wrong
        completed = completed_cell(box, periodic, name)
        points = torch.from_numpy(positions.copy()).to(device)
        topology, shifts = neighbours.edges(positions, completed, periodic, self.cutoff, name=name, places=points)
        if periodic.any() and np.abs(positions).max() >= TURNS * np.abs(box).max():
            ends = topology.senders, topology.receivers
            points, shifts = into_cell(points, *ends, shifts, cell.to(device), flags.to(device))
        return replace(
            graph if graph.device == device else graph.to(device),
            positions=points,
            topology=topology,
            edge_shifts=shifts,
            cell=cell.to(device)[None],
            edge_offsets=torch.tensor([0, topology.num_edges], device=device),
        )

    def graphs(self, structures: Sequence[Atoms]) -> GraphBatch | None:
        """Return the graphs of several structures; None to make them singly."""
        keys = {field.name: self.key(structures[0], field) for field in self.fields}
        if any(self.key(atoms, field) != keys[field.name] for field in self.fields for atoms in structures):
            return None
        batch = from_ase_together(
            structures, self.cutoff, fields=self.fields, keys=keys, max_neighbours=self.max_neighbours
        )
        return None if batch is None else self._completed(batch, keys)

    def _completed(self, graph: GraphBatch, keys: Mapping[str, str]) -> GraphBatch:
        """Return graphs in the units of training, with structural encodings and levels."""
        scales = {one: scale for one, scale in self.scales.items() if keys[one] == self.keys.get(one, one)}
        if scales:
            scaled = {one: (graph[one].double() * scale).to(graph[one].dtype) for one, scale in scales.items()}
            graph = graph.with_fields(scaled)
        graph = with_encodings(graph, self.encodings)
        return graph if self.coarsening is None else self.coarsening.applied(graph)

    def key(self, atoms: Atoms, field: Field) -> str:
        """Return the name of a field in a structure."""
        key = self.keys.get(field.name, field.name)
        is_present = value_on(atoms, field, key) is not None or key in getattr(atoms.calc, "results", {})
        return key if is_present or value_on(atoms, field, field.name) is None else field.name

    def makers(
        self, frames: Iterable[Atoms | InputError], first: int = 0, source: str = "", *, keep: bool = False
    ) -> Iterator[Make]:
        """Give a maker for each structure, or for the error of one that could not be read.

        A graph has the name of its structure, else ``source`` and number; with ``keep`` it keeps all entries of its structure.
        """
        for number, atoms in enumerate(frames, start=first):
            texts = {NAME: f"{source}#{number}" if source else ""}
            if isinstance(atoms, Atoms):
                texts = {NAME: name_among(atoms.info) or texts[NAME]}
                texts |= {ATOMS: atoms_text(atoms)} if keep else {}
            yield MakerOfMany(self._named, (atoms, number, texts), len(atoms) if isinstance(atoms, Atoms) else 0)

    def _named(self, items: Sequence[tuple[Atoms | InputError, int, Mapping[str, str]]]) -> GraphBatch | None:
        """Return graphs with their texts; None to make them singly."""
        (first, number, names), *more = items
        if more:
            structures = [atoms for atoms, *_ in items if isinstance(atoms, Atoms)]
            batch = self.graphs(structures) if len(structures) == len(items) else None
            return None if batch is None else batch.with_texts({key: [own[key] for *_, own in items] for key in names})
        with naming(texts := {key: [text] for key, text in names.items()}):
            if isinstance(first, InputError):
                raise first
            return self.graph(first, f"structure {number}").with_texts(texts)


class MovingStructure:
    """Graphs of a moving structure, made anew only where necessary."""

    def __init__(self, structures: Structures, device: torch.device | str = "cpu") -> None:
        """Begin without a structure; ``device`` keeps its neighbours."""
        self.structures, self.neighbours = structures, SkinList(device=device)
        self._last: tuple[GraphBatch, Atoms] | None = None

    def graph(self, atoms: Atoms, name: str) -> GraphBatch:
        """Return the graph, with new geometry alone for the same elements."""
        last = self._last
        if last is not None and np.array_equal(last[1].numbers, atoms.numbers) and (last[1].pbc == atoms.pbc).all():
            graph = self.structures.moved(last[0], atoms, name, self.neighbours)
        else:
            graph = self.structures.graph(atoms, name)
        rule = self.structures
        only_edges = rule.max_neighbours is None and not rule.encodings and rule.coarsening is None
        self._last = (graph, atoms) if only_edges else None  # else more follows from positions
        return graph

    def forget(self) -> None:
        """Make the next graph anew, as where fields have changed."""
        self._last = None


def reads_atoms(manifest: Manifest) -> bool:
    """Return True where the ensemble reads atomic numbers in three dimensions."""
    return manifest.dim == 3 and ATOMIC_NUMBERS in {field.name for field in manifest.inputs}


def structures_for(ensemble: "Ensemble") -> Structures:
    """Return the rule that made the training graphs of all members.

    All members were trained on one store, so they share its cutoff, and shorter cutoffs of single members act inside their
    models as they did in training. Where the store's cutoff is not known, it is the largest cutoff of a member. InputError
    where the ensemble is not about atoms.
    """
    manifest, members = ensemble.manifest, ensemble.members
    if not reads_atoms(manifest):
        raise InputError(
            "this ensemble does not read atomic numbers in three dimensions, and nothing says how files become its graphs; give "
            "it a store, or a BUILD.toml (docs/data.md)"
        )
    store_attributes = ensemble.training_attributes
    if store_attributes.get("source") != "ase" and length_in_angstrom(store_attributes) != 1.0:
        raise InputError(
            f"the positions of the training data are in {store_attributes[LENGTH_UNIT]}, and those of structure files in Angstrom; give a store, "
            "or a BUILD.toml, of graphs like those of training"
        )
    if transform := ensemble.training_transform:
        problem = f"graphs of the training store were changed by {transform}, which is for files"
        raise InputError(f"{problem}; give a store, or a BUILD.toml with this transform")
    rule = store_attributes.get("build")
    models = [member.model.description.model for member in members]
    of_members = [getattr(model, "cutoff", None) or 0.0 for model in models]
    cutoff = store_attributes["cutoff"] if "cutoff" in store_attributes else max(of_members)
    if not cutoff:
        raise InputError(
            "neither the training store nor a member has a cutoff, so edges are unknown; give a store instead"
        )
    others = [field for field in manifest.inputs if field.name not in {ATOMIC_NUMBERS, *ENCODINGS}]
    coarsening: CoarseningSettings | None = None
    if any(map(is_levels, others)):
        table = rule.get("coarsening") if isinstance(rule, Mapping) else None
        if table is None:
            fault = "members pool, and the training store does not say how its levels were made"
            raise InputError(f"{fault}; give a store, or a BUILD.toml")
        coarsening = CoarseningSettings.parse(table, "the training store")
    declared: list[Any] = []
    if isinstance(rule, Mapping) and rule.get("kind") == "ase":
        names = {field.name for field in others}
        settings = settings_of_rule(rule, Path("structures"), "the training store")
        declared = [field for field in settings.fields if field.name in names]
    return Structures(
        keys={field.name: field.keys[0] for field in declared if field.keys[0] != field.name},
        scales={field.name: field.scale for field in declared if field.scale != 1.0},
        cutoff=float(cutoff),
        max_neighbours=store_attributes.get("max_neighbours", getattr(models[0], "max_neighbours", None)),
        fields=tuple(field for field in others if not is_levels(field)),
        encodings={field.name: field.width for field in manifest.inputs if field.name in ENCODINGS},
        coarsening=coarsening,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Unbuilt:
    """Reason why a graph could not be made, with its texts."""

    reason: str
    texts: Mapping[str, str] = member(default_factory=dict)


def made_graphs(makers: Iterable[Make], first: int = 0) -> tuple[list[GraphBatch], list[int], dict[int, Unbuilt]]:
    """Return the graphs that can be made, their numbers, and the failures."""
    graphs: list[GraphBatch] = []
    numbers: list[int] = []
    failures: dict[int, Unbuilt] = {}
    place = first
    for some, batch in chain.from_iterable(map(pieces_of, groups_of_makers(makers))):
        if batch is not None:
            graphs.append(batch)
            numbers += range(place, place + len(some))
        for number, make in enumerate(some if batch is None else (), start=place):
            try:
                graphs.append(make())
                numbers.append(number)
            except InputError as error:
                failures[number] = Unbuilt(reason=str(error), texts=error.texts)
        place += len(some)
    return graphs, numbers, failures


def check_edges(
    settings: Iterable[ArchitectureSettings], training: Mapping[str, Any], store_attributes: Mapping[str, Any]
) -> None:
    """Raise InputError where edges of a store end earlier than in training.

    ``settings`` are those of the members. A larger cutoff is as good where every member's messages end smoothly before it. Nothing is known of edges that come from no cutoff.
    """
    trained, cutoff = cutoff_of(training), cutoff_of(store_attributes)
    if trained is None or cutoff is None:
        return
    for name in ("max_neighbours", "cutoff"):
        in_training, now = training.get(name), store_attributes.get(name)
        if in_training != now and not (name == "cutoff" and all(_reaches(one, trained, cutoff) for one in settings)):
            raise InputError(
                f"the store was built with {_said(name, now)}, the graphs of training with {_said(name, in_training)}, so that nodes have other "
                "neighbours than members learned from; build it in the same way (hydragnn predict makes such graphs of files by itself)"
            )


def check_lengths(training: Mapping[str, Any], store_attributes: Mapping[str, Any]) -> None:
    """Raise InputError where positions are in another unit than in training.

    A built store that names none is in Angstrom. Nothing is known where training names none, and of units of one's own, such as the
    height of a plate.
    """
    if not knows_length(training) or not (LENGTH_UNIT in store_attributes or "source" in store_attributes):
        return
    in_training, now = (str(attributes.get(LENGTH_UNIT, "Angstrom")) for attributes in (training, store_attributes))
    try:
        other = (
            in_training != now
            and abs(length_in_angstrom(training) / length_in_angstrom(store_attributes) - 1.0) > CLOSE
        )
    except InputError:
        return
    if other:
        problem = f"the positions of the store are in {now}, those of training in {in_training}"
        raise InputError(f"{problem}; build it in {in_training}, or name its unit under [attributes] (length_unit)")


def _reaches(settings: ArchitectureSettings, trained: float, cutoff: float) -> bool:
    """Return True where edges up to ``cutoff`` suffice for members."""
    own = getattr(settings, "cutoff", None) or trained
    smooth = isinstance(settings, GeometricSettings) and settings.envelope != "none" and not settings.kinks
    least, most = (own, float("inf")) if smooth else (trained, trained)
    return least <= cutoff * ROUNDING and cutoff <= most * ROUNDING


def _said(name: str, value: Any) -> str:
    return f"{name} = {value:g}" if value is not None else f"no {name}"


def properties_of(targets: Sequence[Target]) -> dict[str, str]:
    """Return the targets that are ASE's properties; InputError without an energy."""
    source = next((target.source for target in targets if target.derivative == "forces"), "energy")
    energy = next((target for target in targets if target.field.name == source), None)
    if energy is None or energy.field.on != "graph" or energy.field.width != 1 or energy.field.classes:
        raise InputError(
            "the ensemble predicts no energy, so it cannot be a calculator; train a head with forces, or named energy"
        )
    derived: dict[str, str] = {target.derivative: target.name for target in targets if target.source == source}
    return {"energy": energy.name, **derived}


def factors_of(targets: Sequence[Target], attributes: Mapping[str, Any]) -> dict[str, float]:
    """Return ASE's units per unit of each property; InputError for unknown units.

    ``attributes`` are those of the training store. A property without a unit fits the others, and is in ASE's where none has one.
    """
    if length_in_angstrom(attributes) != 1.0:
        raise InputError(
            "the positions of the training data are not in Angstrom, and those of ASE are; build the store in Angstrom"
        )
    fields, names = {target.name: target.field for target in targets}, properties_of(targets)
    units = {what: fields[name].unit for what, name in names.items()}
    factor_of = {what: in_ase_units(unit, what, f"field {names[what]}") for what, unit in units.items() if unit}
    return {what: factor_of.get(what, next(iter(factor_of.values()), 1.0)) for what in units}
