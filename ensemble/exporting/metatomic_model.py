"""Potentials as atomistic models of metatomic, which ASE, i-PI and torch-sim read."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Dict, List, Optional  # noqa: UP035, TorchScript knows these

import torch
from metatensor.torch import Labels, TensorBlock, TensorMap
from metatomic.torch import AtomisticModel, ModelCapabilities, ModelMetadata, ModelOutput, NeighborListOptions, System
from torch import Tensor, nn
from torch.fx import GraphModule

from hydragnn.ensemble.exporting.potential import ExportFacts, PlainPotential
from hydragnn.ensemble.exporting.program import SYMBOLIC, example, trace


class MetatomicPotential(nn.Module):
    """Energies of systems, in the language of TorchScript."""

    known: Tensor

    def __init__(self, energies: GraphModule, cutoff: float, species: Sequence[int]) -> None:
        super().__init__()
        self.energies = energies
        self.register_buffer("known", torch.tensor(species))
        self.request = NeighborListOptions(cutoff=cutoff, full_list=True, strict=True, requestor="hydragnn")

    def requested_neighbor_lists(self) -> List[NeighborListOptions]:  # noqa: UP006
        """Return the list of neighbours that systems need."""
        return [self.request]

    def forward(
        self,
        systems: List[System],  # noqa: UP006
        outputs: Dict[str, ModelOutput],  # noqa: UP006
        selected_atoms: Optional[Labels] = None,  # noqa: UP045
    ) -> Dict[str, TensorMap]:  # noqa: UP006
        """Return energies of whole systems."""
        if selected_atoms is not None:
            raise ValueError("this model gives energies of whole systems, and no part of one")
        vectors: List[Tensor] = []  # noqa: UP006
        species: List[Tensor] = []  # noqa: UP006
        edges: List[Tensor] = []  # noqa: UP006
        owners: List[Tensor] = []  # noqa: UP006
        first = 0
        for number, system in enumerate(systems):
            neighbours = system.get_neighbor_list(self.request)
            ends = neighbours.samples.values[:, :2].to(torch.int64)
            edges.append(torch.stack([ends[:, 1], ends[:, 0]]) + first)
            vectors.append(neighbours.values.reshape(-1, 3).to(torch.float64))
            species.append(system.types.to(torch.int64))
            owners.append(torch.full_like(species[number], number))
            first += len(system)
        if not bool(torch.isin(torch.cat(species), self.known).all()):
            raise ValueError("the systems hold elements that training did not hold")
        device = systems[0].positions.device
        cells = torch.zeros(len(systems), 3, 3, dtype=torch.float64, device=device)
        results = self.energies(torch.cat(vectors), torch.cat(species), cells, torch.cat(edges, 1), torch.cat(owners))
        samples = torch.arange(len(systems), dtype=torch.int32, device=device).reshape(-1, 1)
        key = torch.zeros(1, 1, dtype=torch.int32, device=device)
        maps: Dict[str, TensorMap] = {}  # noqa: UP006
        for place, name in enumerate(["energy", "energy_uncertainty"]):
            if name in outputs:
                if outputs[name].sample_kind != "system":
                    raise ValueError("this model gives energies of whole systems, and none of atoms")
                block = TensorBlock(
                    values=results[place].reshape(-1, 1),
                    samples=Labels(["system"], samples),
                    components=torch.jit.annotate(List[Labels], []),  # noqa: UP006
                    properties=Labels([name], key),
                )
                maps[name] = TensorMap(Labels(["_"], key), [block])
        return maps


def atomistic_model(potential: PlainPotential, facts: ExportFacts, words: Mapping[str, Any]) -> AtomisticModel:
    """Return a potential as a model of metatomic."""
    _, species, cells, edges, images, owners = example(potential)
    varying = (SYMBOLIC[4], SYMBOLIC[1], SYMBOLIC[2], SYMBOLIC[3], SYMBOLIC[5])
    energy = scriptable(trace(potential, (images, species, cells, edges, owners), varying, recording=True))
    names = ["energy", "energy_uncertainty"][: 1 + (facts.members > 1)]
    capabilities = ModelCapabilities(
        outputs={name: ModelOutput(quantity="energy", unit="eV", sample_kind="system") for name in names},
        atomic_types=list(facts.species),
        interaction_range=facts.cutoff * potential.depth,
        length_unit="angstrom",
        supported_devices=["cpu"],
        dtype="float64",
    )
    about = ModelMetadata(
        name="HydraGNN Ensemble", description=f"model {facts.identity}", extra={"hydragnn": json.dumps(words)}
    )
    return AtomisticModel(MetatomicPotential(energy, facts.cutoff, facts.species).eval(), about, capabilities)


def scriptable(module: GraphModule) -> GraphModule:
    """Return operations in the form that TorchScript reads."""
    for node in module.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            node.target = node.target.overloadpacket
        node.kwargs = {key: one.type if isinstance(one, torch.device) else one for key, one in node.kwargs.items()}
    module.recompile()
    return module
