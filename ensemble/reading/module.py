"""Models as modules of torch, and graphs as they read them."""

import copy
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from ase import Atoms
from torch import Tensor, nn

from hydragnn.base.errors import InputError, print_note
from hydragnn.datasets import Make, is_graph_store
from hydragnn.datasets.build import makers_of
from hydragnn.datasets.manifest import cutoff_of
from hydragnn.datasets.sources.base import BuildSettings, ObjectsBuild
from hydragnn.datasets.sources.registry import for_prediction, settings_of_rule
from hydragnn.ensemble.members.screening import simple_predictions, without_screening
from hydragnn.ensemble.reading.structures import reads_atoms
from hydragnn.graphs.atomic import ATOMIC_NUMBERS_FIELD
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.graphs.hetero import homogeneous, is_hetero
from hydragnn.graphs.network import edge_ends
from hydragnn.graphs.objects import graphs_in, library_of
from hydragnn.graphs.pyg import MARK, edges_of, from_pyg
from hydragnn.models import Categorical, Distribution, GraphModel, TrainedModel
from hydragnn.models.executor import Eager
from hydragnn.models.trained import denormalise

if TYPE_CHECKING:
    from hydragnn.ensemble.ensemble import Ensemble


note_once = cache(print_note)


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
        self.models = nn.ModuleList(copy.deepcopy(one.model.model).requires_grad_() for one in ensemble.members)

    def forward(self, source: Any) -> dict[str, Tensor]:
        """Return what the members predict by field; gradients reach the parameters.

        ``source`` is what ``Ensemble.graphs`` takes.
        """
        items = [] if isinstance(source, GraphBatch) or is_graph_store(source) else [*graphs_in(source)]
        batch, targets = self.ensemble.graphs(items or source), self.ensemble.targets
        simple = simple_predictions(self.ensemble.manifest.simple, targets, without_screening(batch))
        values = {name: value_of(one) * self.weights[name][-1] for name, one in simple.items()}
        for number, (member, model) in enumerate(zip(self.ensemble.members, self.models, strict=True)):
            assert isinstance(model, GraphModel)
            trained = TrainedModel(model=model, normalisation=member.model.normalisation, executor=Eager(model=model))
            visible = trained.seen(batch)
            predictions = model(trained.normalised(visible))
            for target in targets:
                name = target.name
                one = denormalise(predictions[name], target.field, trained.normalisation, visible)
                share = value_of(one) * self.weights[name][number]
                values[name] = values[name].to(share) + share if name in values else share
        for name in [target.name for target in targets if items and target.field.on == "edge"]:
            values[name] = values[name][rows_as_given(items, batch.counts("edge").tolist())]
        classes = {target.name for target in targets if target.distribution is Categorical}
        return {name: (value.log() if name in classes else value).to(trained.dtype) for name, value in values.items()}


def rows_as_given(items: Sequence[Any], counts: Sequence[int]) -> Tensor:
    """Return the rows of edges, which graphs have by receiver, in the order of each item.

    Relations of a ``HeteroData`` follow by name; reverses of undirected edges of networkx come last.
    """
    rows = [torch.zeros(0, dtype=torch.int64)]
    for one, count in zip(items, counts, strict=True):
        data, receivers = homogeneous(one, (), {}, (), one, "the data")[0] if is_hetero(one) else one, rows[0]
        if is_pyg(data):
            receivers = edges_of(data, "the data")[1]
        elif library_of(one) == "networkx":
            receivers = torch.from_numpy(edge_ends(one)[:, 1].copy())
        given = len(receivers) == count  # others failed, or had no edges
        order = torch.argsort(torch.argsort(receivers, stable=True)) if given else torch.arange(count)
        rows.append(order + sum(map(len, rows)))
    return torch.cat(rows)


def makers_of_items(ensemble: "Ensemble", items: Sequence[Any]) -> Sequence[Make]:
    """Return makers for graphs of one library; InputError for anything else."""
    if not items:
        raise InputError("there is no structure to predict; give at least one")
    libraries = {library_of(one) for one in items}
    if libraries == {"ase"}:
        return list(ensemble.structures.makers(items))
    if libraries not in ({"networkx"}, {"torch_geometric"}):
        kinds = " and ".join(sorted({kind_of(one) for one in items}))
        raise InputError(
            "a model takes graphs, a store, atoms, graphs of torch_geometric or networkx, or lists of one kind of them, not "
            f"{kinds}; of a file use predict"
        )
    (library,) = libraries
    ensemble.check_transform("", f"graphs of {library}'s {type(items[0]).__name__}")
    rule = ensemble.training_attributes.get("build")
    if isinstance(rule, Mapping) and rule.get("kind") == {"torch_geometric": "pyg"}.get(library, library):
        names = {ATOMIC_NUMBERS, *(field.name for field in ensemble.inputs)}
        settings = for_prediction(settings_of_rule(rule, Path("data"), "the training store"), names)
        scaled = [f"{field.name} by {field.scale:g}" for field in settings.fields if field.scale != 1.0]
        if scaled and library == "torch_geometric":
            note_once(f"Data are scaled as in training ({', '.join(scaled)}), and those of to_pyg taken as they are")
        makers = makers_of(cast(ObjectsBuild, settings).of_objects(items))
        return [_by_rule(ensemble, settings, *one) for one in zip(makers, items, range(len(items)))]
    if not all(map(is_pyg, items)):
        raise InputError(
            f"the training store was not built of graphs like {kind_of(items[0])}; give graphs like those, or a store"
        )
    # positions of those with edges
    counts = [0 if one.get("pos") is None or one.get("edge_index") is None else len(one.pos) for one in items]
    largest = int(np.argmax(counts))
    _check_edges(ensemble, items[largest], largest)  # small ones have the same edges by several rules
    return [partial(_from_pyg, ensemble, data, number) for number, data in enumerate(items)]


def _by_rule(ensemble: "Ensemble", settings: BuildSettings, make: Make, data: Any, number: int) -> Make:
    """Return the maker, or one for names and units of the store."""
    keys = {field.keys[0] for field in settings.fields if not field.optional}
    if not is_pyg(data) or (MARK not in data and keys <= {*data.keys()} and _has_edges(ensemble, data)):
        return make
    if MARK not in data and any(field.scale != 1.0 for field in settings.fields):
        names = ", ".join(sorted({*keys, "edge_index"}))
        raise InputError(f"graph {number} has not all of {names}; give data like those of training, or store.to_pyg()")
    return partial(_from_pyg, ensemble, data, number)


def _has_edges(ensemble: "Ensemble", data: Any) -> bool:
    """Return True where data have the edges that members read."""
    reads = any(one.model.description.edges for one in ensemble.members)
    return not reads or data.get("edge_index") is not None or data.get("_idx_i") is not None


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
    if _has_edges(ensemble, data):
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
    """Return True for a ``Data`` of torch_geometric."""
    return library_of(value) == "torch_geometric" and not is_hetero(value)


def kind_of(value: Any) -> str:
    """Return words for an item of a list."""
    return f"{type(value).__module__.partition('.')[0]}'s {type(value).__name__}".removeprefix("builtins's ")
