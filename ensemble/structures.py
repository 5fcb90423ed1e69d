"""Graphs from atoms, made as they were made for training."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as member
from typing import Any

from ase import Atoms

from hydragnn.datasets import open_store
from hydragnn.ensemble.manifest import Manifest
from hydragnn.ensemble.members import Member
from hydragnn.errors import InputError
from hydragnn.graphs.atomic import from_ase
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.encodings import ENCODINGS, with_encodings
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field


@dataclass(frozen=True, kw_only=True, slots=True)
class Structures:
    """The rule that turns atoms into graphs."""

    cutoff: float
    """Largest length of an edge, in Angstrom."""
    max_neighbours: int | None
    """Nearest neighbours kept at every atom; None keeps all within the cutoff."""
    fields: tuple[Field, ...]
    """What members read beside atomic numbers; found under their names in ``atoms.info`` and ``atoms.arrays``."""
    encodings: Mapping[str, int] = member(default_factory=dict)
    """Structural encodings that members read, made anew for every structure: numbers per node by name."""

    def graph(self, atoms: Atoms, name: str) -> GraphBatch:
        """The graph of one structure; InputError where it cannot be built."""
        graph = from_ase(atoms, self.cutoff, fields=self.fields, max_neighbours=self.max_neighbours, name=name)
        return with_encodings(graph, self.encodings)


def structures_for(members: Sequence[Member], manifest: Manifest) -> Structures:
    """The rule by which the training graphs were made, shared by all members.

    All members were trained on one store, so they share its cutoff, and shorter cutoffs of single members act inside their
    models as they did in training. Where the store's cutoff is not known, it is the largest cutoff of a member. InputError
    where the ensemble is not about atoms.
    """
    if manifest.dim != 3 or ATOMIC_NUMBERS not in {field.name for field in manifest.inputs}:
        raise InputError(
            "this ensemble does not read atomic numbers in three dimensions; give it a store instead of structures"
        )
    known = manifest.data["attributes"] if "attributes" in manifest.data else _store_attributes(members[0])
    return Structures(
        cutoff=float(known["cutoff"] if "cutoff" in known else _largest_cutoff(members)),
        max_neighbours=known.get("max_neighbours"),
        fields=tuple(field for field in manifest.inputs if field.name not in {ATOMIC_NUMBERS, *ENCODINGS}),
        encodings={field.name: field.width for field in manifest.inputs if field.name in ENCODINGS},
    )


def _largest_cutoff(members: Sequence[Member]) -> float:
    cutoffs = [cutoff for member in members if (cutoff := getattr(member.model.settings, "cutoff", None))]
    if not cutoffs:
        raise InputError(
            "neither the training store nor a member has a cutoff, so edges are unknown; give a store instead"
        )
    return float(max(cutoffs))


def graphs_from_atoms(
    frames: Iterable[Atoms], rule: Structures, first: int = 0
) -> tuple[list[tuple[int, GraphBatch]], dict[int, str]]:
    """The graphs of all structures with their numbers from ``first`` on, and why the others could not be built."""
    graphs: list[tuple[int, GraphBatch]] = []
    failures: dict[int, str] = {}
    for number, atoms in enumerate(frames, start=first):
        try:
            graphs.append((number, rule.graph(atoms, name=f"structure {number}")))
        except InputError as error:
            failures[number] = str(error)
    return graphs, failures


def _store_attributes(member: Member) -> Mapping[str, Any]:
    """What the training store says about itself, if it is still where the run found it."""
    path = member.config.data.store
    return open_store(path).attributes if path.exists() else {}
