"""Models as modules of torch, and graphs as they read them."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ase import Atoms
from torch import Tensor, nn

from hydragnn.base.errors import InputError
from hydragnn.datasets import GraphStore, Make
from hydragnn.datasets.manifest import cutoff_of
from hydragnn.ensemble.reading.structures import reads_atoms
from hydragnn.graphs.atomic import ATOMIC_NUMBERS_FIELD
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.graphs.pyg import from_pyg
from hydragnn.models import Categorical, Distribution, GraphModel
from hydragnn.models.trained import denormalise

if TYPE_CHECKING:
    from hydragnn.ensemble.ensemble import Ensemble


class TrainableEnsemble(nn.Module):
    """Members as one module of torch, whose parameters are copies of theirs.

    A call gives the weighted mean of the members by field, in its unit and in the dtype of the parameters; of classes the logarithms of
    probabilities.
    """

    def __init__(self, ensemble: "Ensemble") -> None:
        """Copy the members, with their weights by field."""
        super().__init__()
        self.ensemble = ensemble
        self.weights = {target.name: ensemble.weights_of(target.name).tolist() for target in ensemble.targets}
        # what predicts may have tables in place of filters, which have no gradients
        self.models = nn.ModuleList(
            copy.deepcopy(one.model.model if one.model.exact is None else one.model.exact).requires_grad_()
            for one in ensemble.members
        )

    def forward(self, source: Any) -> dict[str, Tensor]:
        """Return what the members predict by field; gradients reach the parameters.

        ``source`` is what ``Ensemble.graphs`` takes.
        """
        batch, targets = self.ensemble.graphs(source), self.ensemble.targets
        values: dict[str, Tensor] = {}
        for number, (member, model) in enumerate(zip(self.ensemble.members, self.models, strict=True)):
            assert isinstance(model, GraphModel)
            dtype = next(model.parameters()).dtype
            trained = replace(member.model, model=model, dtype=dtype, function=None, exact=None)
            visible = trained.seen(batch)
            predictions = model(trained.normalised(visible))
            for target in targets:
                name = target.name
                one = denormalise(predictions[name], target.field, trained.normalisation, visible)
                share = value_of(one) * self.weights[name][number]
                values[name] = values[name] + share if name in values else share
        classes = {target.name for target in targets if target.distribution is Categorical}
        return {name: (value.log() if name in classes else value).to(dtype) for name, value in values.items()}


def makers_of_items(ensemble: "Ensemble", items: Sequence[Any], source: Any) -> Sequence[Make]:
    """Return a maker for each structure or ``Data``; InputError for anything else."""
    if isinstance(source, list | tuple) and not items:
        raise InputError("there is no structure to predict; give at least one")
    if items and all(isinstance(one, Atoms) for one in items):
        return list(ensemble.structures.makers(items))
    if items and all(map(is_pyg, items)):
        ensemble.check_transform("", "graphs of torch_geometric's Data")
        # positions of those with edges
        counts = [0 if one.get("pos") is None or one.get("edge_index") is None else len(one.pos) for one in items]
        largest = int(np.argmax(counts))
        _check_edges(ensemble, items[largest], largest)  # small ones have the same edges by several rules
        return [partial(_from_pyg, ensemble, data, number) for number, data in enumerate(items)]
    raise InputError(
        f"a model takes graphs, a store, atoms, torch_geometric's Data or lists of them, not {kind_of(source)}; of a file use predict"
    )


def _from_pyg(ensemble: "Ensemble", data: Any, number: int) -> GraphBatch:
    """Return the graph of a ``Data``; atoms may lack edges."""
    fields = {field.name: field for field in ensemble.inputs}
    if any(member.model.normalisation.references for member in ensemble.members):
        fields.setdefault(ATOMIC_NUMBERS, ATOMIC_NUMBERS_FIELD)
    if ATOMIC_NUMBERS in fields and ATOMIC_NUMBERS not in data and "z" in data:
        data = copy.copy(data)
        data.atomic_numbers = data.z
    attributes = ensemble.training_attributes
    name = f"graph {number}"
    if data.get("edge_index") is not None or not any(one.model.description.edges for one in ensemble.members):
        return from_pyg(data, fields.values(), cutoff=cutoff_of(attributes), name=name)
    if not reads_atoms(ensemble.manifest) or data.get("pos") is None:
        raise InputError(f"{name}: the data has no edge_index, and the model reads edges; add them as in training")
    return ensemble.structures.graph(atoms_of(from_pyg(data, fields.values(), name=name)), name)


def _check_edges(ensemble: "Ensemble", data: Any, number: int) -> None:
    """Raise InputError where atoms have other edges than training's rule gives."""
    attributes = ensemble.training_attributes
    cutoff, by_rule = cutoff_of(attributes), attributes.get("source", "ase") == "ase"
    if data.get("edge_index") is None or cutoff is None or not (by_rule and reads_atoms(ensemble.manifest)):
        return
    given = _from_pyg(ensemble, data, number)
    expected = ensemble.structures.graph(atoms_of(given), f"graph {number}")
    if given.num_edges != expected.num_edges:
        raise InputError(
            f"graph {number} of torch_geometric's Data has {given.num_edges} edges, and those of training (cutoff = {cutoff:g}) would be "
            f"{expected.num_edges}; leave edge_index out, and edges are made as in training"
        )


def value_of(prediction: Distribution) -> Tensor:
    """Return the mean, or probabilities of classes."""
    return prediction.probabilities if isinstance(prediction, Categorical) else prediction.tensors()["mean"]


def atoms_of(graph: GraphBatch) -> Atoms:
    """Return the structure of a graph with its fields; InputError for planes."""
    if graph.dim != 3:
        raise InputError(f"the positions have {graph.dim} coordinates, and those of atoms 3; add the third")
    numbers, cell, flags = graph[ATOMIC_NUMBERS].numpy(), graph.cell[0].numpy(), graph.periodic[0].numpy()
    atoms = Atoms(numbers, graph.positions.numpy(), cell=cell, pbc=flags)
    for name, field in graph.fields.items():
        values = graph[name].numpy()
        if field.on == "graph":
            atoms.info[name] = values[0]
        elif field.on == "node" and name != ATOMIC_NUMBERS:
            atoms.arrays[name] = values
    return atoms


def is_pyg(value: Any) -> bool:
    """Return True for a ``Data`` of torch_geometric, whose batches are some."""
    names = {f"{one.__module__.partition('.')[0]}.{one.__name__}" for one in type(value).__mro__}
    return "torch_geometric.Data" in names


def listed(source: Any) -> list[Any]:
    """Return the graphs or structures in a list or a dataset."""
    if is_pyg(source):
        return source.to_data_list() if hasattr(source, "to_data_list") and hasattr(source, "num_graphs") else [source]
    if isinstance(source, Atoms):
        return [source]
    if isinstance(source, GraphStore):
        return [source[:]] if hasattr(source, "__getitem__") else []
    if isinstance(source, list | tuple | Iterator):
        return [one for item in source for one in (listed(item) if is_pyg(item) else [item])]
    sized: Callable[[], int] | None = getattr(source, "__len__", None)
    if sized is not None and hasattr(source, "__getitem__") and isinstance(source, torch.utils.data.Dataset):
        return [source[number] for number in range(sized())]
    return []


def kind_of(source: Any) -> str:
    """Return words for an argument that is no graphs."""
    several = isinstance(source, list | tuple)
    usable = (Atoms, GraphBatch)
    first = next((one for one in source if not (isinstance(one, usable) or is_pyg(one))), None) if several else source
    if several and first is None:
        return "a list of several kinds of them"
    package = type(first).__module__.partition(".")[0]
    return f"{package}'s {type(first).__name__}".removeprefix("builtins's ")
