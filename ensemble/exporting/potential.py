"""Members as one function of plain tensors, in eV and Angstrom."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from ase.data import chemical_symbols
from torch import Tensor, nn
from torch.nn.functional import pad

from hydragnn.base.errors import InputError
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.members.member import Member
from hydragnn.ensemble.reading.module import value_of
from hydragnn.ensemble.reading.structures import reads_atoms
from hydragnn.ensemble.uses.calculator import EnsembleCalculator
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.graphs.topology import Topology
from hydragnn.kernels.segment_order import SegmentOrder, remember_order
from hydragnn.models import GraphModel

ELEMENTS = 119
RESULTS = ("energy", "forces", "stress")
INPUTS = ("positions", "species", "cells", "edges", "images", "owners")
"""Arguments of a potential: float64 ``[atoms, 3]``, int64 ``[atoms]``, float64 ``[structures, 3, 3]`` (rows are vectors, zero where open), int64
``[2, edges]`` (neighbour, centre), float64 ``[edges, 3]`` (whole cell vectors added to the neighbour), int64 ``[atoms]`` (structure; ascending)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportFacts:
    """Facts that an exported file states."""

    names: Mapping[str, str]
    """Field of every property of ASE."""
    factors: Mapping[str, float]
    species: tuple[int, ...]
    """Elements that training held."""
    cutoff: float
    dtype: str
    members: int
    identity: str

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        units = {"energy": "eV", "forces": "eV/Angstrom", "stress": "eV/Angstrom^3"}
        return {
            "format": "hydragnn-potential-1",
            "length": "Angstrom",
            "results": {name: units[name] for name in RESULTS if name in self.names},
            "inputs": list(INPUTS),
            "species": list(self.species),
            "symbols": [chemical_symbols[number] for number in self.species],
            "cutoff": self.cutoff,
            "dtype": self.dtype,
            "members": self.members,
            "model": self.identity,
            "domain": "elements in species; others give NaN, and distances are not checked",
        }


def facts_of(ensemble: Ensemble) -> ExportFacts:
    """Return the facts of a model; InputError where it cannot be exported."""
    if not reads_atoms(ensemble.manifest):
        raise InputError(
            f"{ensemble.names[0]} does not read atoms in three dimensions, and exports take elements, positions and cells; use hydragnn predict"
        )
    others = [field.name for field in ensemble.inputs if field.name != ATOMIC_NUMBERS]
    if others:
        problem = f"the model reads {', '.join(others)} beside elements and positions, which exports do not carry"
        raise InputError(f"{problem}; train one without")
    potential, structures = EnsembleCalculator(ensemble, "record"), ensemble.structures
    if structures.max_neighbours is not None:
        raise InputError(
            f"the model was trained on the nearest {structures.max_neighbours} neighbours of each atom, and other programs give all within the "
            "cutoff; build the store without max_neighbours"
        )
    for name in set(potential.names.values()) & set(ensemble.manifest.simple.fitted):
        raise InputError(f"a simple predictor is a member for {name}, and exports carry models; export a run of it")
    dtypes = {str(member.model.dtype).removeprefix("torch.") for member in ensemble.members}
    return ExportFacts(
        names=potential.names,
        factors=potential.factors,
        species=tuple(sorted(set.intersection(*(_species(member) for member in ensemble.members)))),
        cutoff=structures.cutoff,
        dtype=" and ".join(sorted(dtypes)),
        members=len(ensemble.members),
        identity=ensemble.digest,
    )


def _species(member: Member) -> set[int]:
    """Return the elements that a member's training held."""
    limits, references = member.model.description.close_range, member.model.normalisation.references
    sets = [set(values) for values in references.values()] + ([set(limits.species)] if limits else [])
    return set.intersection(*sets) if sets else set(range(1, ELEMENTS))


class MemberPart(nn.Module):
    """One member, in physical units."""

    references: Tensor
    doubts: Tensor

    def __init__(self, member: Member, facts: ExportFacts) -> None:
        super().__init__()
        trained = member.model
        description = trained.model.description
        attention = description.model.global_attention
        pairs = attention is not None and attention.has_pairs
        if description.model.pooling is not None or description.architecture.attends or pairs:
            raise InputError(
                f"member {member.name} cannot be exported: it pools or attends, with sizes that depend on numbers"
            )
        if not trained.model.description.edges or not isinstance(trained.model, GraphModel):
            raise InputError(f"member {member.name} has no edges, so it is no potential; leave it out of the ensemble")
        self.model = copy.deepcopy(trained.model).cpu()
        self.names, self.dtype = facts.names, trained.dtype
        for what, name in facts.names.items():
            field, scale = trained.fields[name], trained.normalisation.scales.get(name)
            plain = (torch.zeros(field.shape, dtype=torch.float64), torch.ones(field.shape, dtype=torch.float64))
            values = plain if scale is None else scale.tensors(field, torch.device("cpu"))
            for part, own in zip(("mean", "std"), values):
                self.register_buffer(f"{what}_{part}", own * facts.factors[what])
        table = torch.full((ELEMENTS,), torch.nan, dtype=torch.float64)
        references = trained.normalisation.references.get(facts.names["energy"], {})
        for number in facts.species:
            table[number] = references.get(number, 0.0) * facts.factors["energy"]
        self.register_buffer("references", table)
        self.register_buffer("doubts", 0.0 * table)  # NaN where unknown, in all results and their derivatives

    def forward(self, exact: GraphBatch, *, derivatives: bool) -> dict[str, Tensor]:
        """Return results by name; without ``derivatives`` an energy that is differentiable."""
        vectors = exact.edge_shifts.to(self.dtype)
        batch = replace(exact, positions=exact.positions.to(self.dtype), edge_shifts=vectors)
        batch._derived.update(exact._derived)  # nothing that follows from positions
        if derivatives:
            predictions = self.model(batch)
        else:
            graph = self.model.message_graph(batch, vectors)
            states, heads = self.model.encode(batch, graph), self.model.description.heads
            number = next(place for place, head in enumerate(heads) if head.field == self.names["energy"])
            predictions = {self.names["energy"]: self.model.heads[number](states, graph, batch)}
        results: dict[str, Tensor] = {}
        for what, name in self.names.items():
            if name in predictions:
                values = value_of(predictions[name]).to(torch.float64)
                results[what] = values * getattr(self, f"{what}_std") + getattr(self, f"{what}_mean")
        zeros = self.references.new_zeros(batch.cell.shape[0])
        owners, species = batch.owner("node"), batch[ATOMIC_NUMBERS]
        sums = zeros.index_add(0, owners, self.references.index_select(0, species))
        factor = zeros.index_add(0, owners, self.doubts.index_select(0, species)) + 1
        results["energy"] = results["energy"].flatten() * factor + sums
        if "forces" in results:
            results["forces"] = results["forces"] * factor.index_select(0, owners)[:, None]
        if "stress" in results:
            results["stress"] = results["stress"] * factor[:, None, None]
        return results


class PlainPotential(nn.Module):
    """Weighted mean of the members, and how far they lie apart.

    Two atoms of a structure of their own go with every batch and come out with none, so that traced functions meet no size of 0 or 1.
    """

    shares: Tensor

    def __init__(self, ensemble: Ensemble, facts: ExportFacts, *, derivatives: bool = True) -> None:
        super().__init__()
        self.derivatives, self.company, self.apart = derivatives, facts.species[0], 0.9 * facts.cutoff
        self.depth = max(member.model.description.model.num_layers for member in ensemble.members)
        self.results = [name for name in RESULTS if name in facts.names] if derivatives else ["energy"]
        self.fields = ensemble.members[0].model.model.description.input_fields
        self.parts = nn.ModuleList(MemberPart(member, facts) for member in ensemble.members)
        shares = [ensemble.weights_of(facts.names[name]) for name in self.results]
        self.register_buffer("shares", torch.tensor(np.stack(shares)))  # [results, members]

    def batch_of_vectors(
        self, vectors: Tensor, species: Tensor, cells: Tensor, edges: Tensor, owners: Tensor
    ) -> GraphBatch:
        """Return the batch of these edge vectors, with all that derives from edges."""
        atoms, structures = species.shape[0], cells.shape[0]
        pair, two = torch.tensor([[0, 1], [1, 0]]), torch.arange(2)
        between = torch.tensor([[self.apart, 0.0, 0.0], [-self.apart, 0.0, 0.0]], dtype=vectors.dtype)
        ends = torch.cat([edges, pair + atoms], dim=1)
        order = ends[1].argsort(stable=True)
        senders, receivers = ends[0].index_select(0, order), ends[1].index_select(0, order)
        owner = torch.cat([owners, structures + 0 * two])
        nodes, graphs = owner.new_zeros(atoms + 2), owner.new_zeros(structures + 1)
        ones, each = torch.ones_like(senders), torch.ones_like(owner)
        of_edge = owner.index_select(0, receivers)
        cell = torch.cat([cells, torch.zeros_like(cells[:1])])
        by_sender, degrees = senders.argsort(stable=True), nodes.index_add(0, receivers, ones)
        nodes_per_graph, edges_per_graph = graphs.index_add(0, owner, each), graphs.index_add(0, of_edge, ones)
        topology = Topology.square(senders, receivers, atoms + 2)
        topology._derived.update(
            by_sender=by_sender,
            sorted_senders=senders.index_select(0, by_sender),
            degrees=degrees,
            row_offsets=pad(degrees.cumsum(0), (1, 0)),
            column_offsets=pad(nodes.index_add(0, senders, ones).cumsum(0), (1, 0)),
        )
        batch = GraphBatch(
            positions=vectors.new_zeros(atoms + 2, 3),
            topology=topology,
            edge_shifts=torch.cat([vectors, between]).index_select(0, order),
            cell=cell,
            periodic=torch.ones_like(cell[:, 0], dtype=torch.bool),
            node_offsets=pad(nodes_per_graph.cumsum(0), (1, 0)),
            edge_offsets=pad(edges_per_graph.cumsum(0), (1, 0)),
            fields={field.name: field for field in self.fields},
            nodes={ATOMIC_NUMBERS: torch.cat([species, self.company + 0 * two])},
        )
        batch._derived.update(
            {
                ("counts", "node"): nodes_per_graph,
                ("counts", "edge"): edges_per_graph,
                ("owner", "node"): owner,
                ("owner", "edge"): of_edge,
                ("volume", "graph"): (cell[:, 0] * torch.linalg.cross(cell[:, 1], cell[:, 2])).sum(1).abs(),
                ("reverse", "edge"): senders,
            }
        )
        offsets = topology.row_offsets, batch.node_offsets, batch.edge_offsets
        for owners_of, ends in zip((topology.receivers, owner, of_edge), offsets):  # which nobody has to sort
            remember_order(owners_of, ends.shape[0] - 1, SegmentOrder(None, owners_of, ends, None))
        return batch

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the means of results, then their standard deviations over the members.

        ``tensors`` are ``INPUTS``; without derivatives those of ``batch_of_vectors``.
        """
        atoms, structures = tensors[1].shape[0], tensors[2].shape[0]  # without those that are added
        if self.derivatives:
            positions, species, cells, edges, images, owners = tensors
            of_atoms = cells.index_select(0, owners)  # all, so that a structure that is not there is an error
            shifts = (images.unsqueeze(1) @ of_atoms.index_select(0, edges[1])).squeeze(1)
            tensors = positions[edges[0]] + shifts - positions[edges[1]], species, cells, edges, owners
        batch = self.batch_of_vectors(*tensors)
        every = [part(batch, derivatives=self.derivatives) for part in self.parts]
        means: list[Tensor] = []
        spreads: list[Tensor] = []
        for number, name in enumerate(self.results):
            members = torch.stack([one[name] for one in every])[:, : atoms if name == "forces" else structures]
            share = self.shares[number].view(-1, *[1] * (members.dim() - 1))
            means.append((share * members).sum(0))
            spreads.append((share * (members - means[-1]).square()).sum(0).sqrt())
        return (*means, *spreads)
