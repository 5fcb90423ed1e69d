"""Models as modules of torch: physical units, gradients, any kind of graphs."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from ase import Atoms
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.base.errors import InputError
from hydragnn.base.shown import Shown
from hydragnn.datasets import GraphStore, Make
from hydragnn.datasets.manifest import cutoff_of
from hydragnn.ensemble.committee import in_company
from hydragnn.ensemble.manifest import Manifest
from hydragnn.ensemble.members import Member
from hydragnn.ensemble.structures import made_graphs, reads_atoms, structures_for, training_attributes
from hydragnn.graphs.atomic import ATOMIC_NUMBERS_FIELD
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.graphs.joining import concatenate
from hydragnn.graphs.pyg import from_pyg
from hydragnn.models import Categorical, Distribution, GraphModel, TrainedModel
from hydragnn.models.trained import denormalise

State = tuple[list[int], list[tuple[torch.dtype, torch.device]]]
"""Versions of all tensors, and dtype and device of every member."""


class EnsembleModule(nn.Module, Shown):
    """Members as one module of torch, whose parameters are theirs.

    A call gives the weighted mean of the members by field, in its unit and in the dtype of the parameters; of classes the logarithms of
    probabilities. Predictions follow parameters that change, as long as nothing was calibrated with the old ones.
    """

    manifest: Manifest

    def __init__(self, members: Sequence[Member]) -> None:
        super().__init__()
        self._members, _ = in_company(members)
        own = [member.model for member in members]
        # what predicts has no gradients, which would make it slower, and tables where these have filters
        self.models = nn.ModuleList(
            (copy.deepcopy(one.model) if one.exact is None else one.exact).requires_grad_() for one in own
        )
        self._predicted = self._state()
        self._numbers: Tensor | None = None

    def _lend(self) -> None:
        """Keep a copy of the numbers that predict, before anyone can change them."""
        if self.__dict__.get("_numbers", self) is None:
            self._numbers = numbers_of(self._modules["models"])

    def __getattr__(self, name: str) -> Any:
        """Return a submodule or tensor, as torch does."""
        if name == "models":
            self._lend()
        return super().__getattr__(name)

    def named_modules(self, *args: Any, **more: Any) -> Iterator[tuple[str, nn.Module]]:
        """Yield all modules, whose parameters may change from now on."""
        self._lend()
        return super().named_modules(*args, **more)

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the modules inside, whose parameters may change from now on."""
        self._lend()
        return super().named_children()

    def _state(self) -> State:
        tensors = [tensors_of(model) for model in cast(nn.ModuleList, self._modules["models"])]
        return [one._version for own in tensors for one in own], [(own[0].dtype, own[0].device) for own in tensors]

    def _follow(self) -> None:
        """Predict with the parameters of now; InputError for calibrated ensembles.

        Versions alone would not do: ``fused`` optimizers and ``parameter.data`` change numbers without them.
        """
        state, before = self._state(), self._numbers
        now = None if before is None else numbers_of(self._modules["models"])
        changed = state[0] != self._predicted[0] or (
            before is not None and now is not None and not equal_bits(now, before.to(now))
        )
        if state == self._predicted and not changed:
            return
        if changed and (self.manifest.calibration or self.manifest.domain.file_content):
            raise InputError(
                "the parameters of this ensemble were changed, and its intervals and training domain belong to the old ones; call it as a "
                "function (model(graphs)), or load it again"
            )
        members = [
            replace(member, model=frozen(member.model, model)) for member, model in zip(self._members, self.models)
        ]
        self._members, _ = in_company([*members, *self._members[len(members) :]])  # foreign ones are last
        self._predicted, self._numbers = state, now

    @property
    def members(self) -> Sequence[Member]:
        """Return the members, with the parameters of now."""
        self._follow()
        return self._members

    def weights_of(self, field: str) -> Float[np.ndarray, " members"]:
        """Return the weights of members for a field."""
        raise NotImplementedError

    def forward(self, source: Any) -> dict[str, Tensor]:
        """Return what the members predict by field; gradients reach the parameters.

        ``source`` is what ``graphs`` takes.
        """
        batch, targets = self.graphs(source), self.manifest.targets
        values: dict[str, Tensor] = {}
        for number, (member, model) in enumerate(zip(self._members, self.models, strict=True)):
            assert isinstance(model, GraphModel)
            dtype = next(model.parameters()).dtype
            trained = replace(member.model, model=model, dtype=dtype, function=None, exact=None)
            visible = trained.seen(batch)
            predictions = model(trained.normalised(visible))
            for target in targets:
                name = target.name
                one = denormalise(predictions[name], target.field, trained.normalisation, visible)
                share = value_of(one) * float(self.weights_of(name)[number])
                values[name] = values[name] + share if name in values else share
        classes = {target.name for target in targets if issubclass(target.distribution, Categorical)}
        return {name: (value.log() if name in classes else value).to(dtype) for name, value in values.items()}

    def embeddings(self, source: Any) -> Float[Tensor, "nodes channels"]:
        """Return the final states of all nodes, which heads read.

        Channels of several members stand side by side."""
        batch = self.graphs(source)
        return torch.cat([member.model.states(batch) for member in self.members], dim=-1)

    def graphs(self, source: Any) -> GraphBatch:
        """Return graphs as members read them, made as those of training.

        ``source`` is a batch, an ``Atoms``, a ``Data`` or ``Batch`` of torch_geometric, or a list or dataset of one of them.
        InputError for anything else, and for a graph that cannot be made.
        """
        if isinstance(source, GraphBatch):
            return source
        items = listed(source)
        if items and all(isinstance(one, GraphBatch) for one in items):
            return concatenate(items)
        graphs, _, failures = made_graphs(self._makers(items, source))
        for unbuilt in failures.values():
            raise InputError(unbuilt.reason)
        return concatenate(graphs)

    def _makers(self, items: Sequence[Any], source: Any) -> Sequence[Make]:
        """Return a maker for each structure or ``Data``; InputError for anything else."""
        if isinstance(source, list | tuple) and not items:
            raise InputError("there is no structure to predict; give at least one")
        if items and all(isinstance(one, Atoms) for one in items):
            return list(structures_for(self._members, self.manifest).makers(items))
        if items and all(map(is_pyg, items)):
            largest = max(range(len(items)), key=lambda number: number_of_nodes(items[number]))
            self._check_edges(items[largest], largest)  # small ones have the same edges by several rules
            return [partial(self._from_pyg, data, number) for number, data in enumerate(items)]
        raise InputError(
            f"a model takes graphs, a store, atoms, torch_geometric's Data or lists of them, not {kind_of(source)}; of a file use predict"
        )

    def _from_pyg(self, data: Any, number: int) -> GraphBatch:
        """Return the graph of a ``Data``; atoms may lack edges."""
        fields = {field.name: field for field in self.manifest.inputs}
        if any(member.model.normalisation.references for member in self._members):
            fields.setdefault(ATOMIC_NUMBERS, ATOMIC_NUMBERS_FIELD)
        if ATOMIC_NUMBERS in fields and ATOMIC_NUMBERS not in data and "z" in data:
            data = copy.copy(data)
            data.atomic_numbers = data.z
        attributes = training_attributes(self._members, self.manifest)
        name = f"graph {number}"
        if data.get("edge_index") is not None or not any(one.model.model.description.edges for one in self._members):
            return from_pyg(data, fields.values(), cutoff=cutoff_of(attributes), name=name)
        if not reads_atoms(self.manifest) or data.get("pos") is None:
            raise InputError(f"{name}: the data has no edge_index, and the model reads edges; add them as in training")
        return structures_for(self._members, self.manifest).graph(
            atoms_of(from_pyg(data, fields.values(), name=name)), name
        )

    def _check_edges(self, data: Any, number: int) -> None:
        """Raise InputError where atoms have other edges than training's rule gives."""
        attributes = training_attributes(self._members, self.manifest)
        cutoff, by_rule = cutoff_of(attributes), attributes.get("source", "ase") == "ase"
        if data.get("edge_index") is None or cutoff is None or not (by_rule and reads_atoms(self.manifest)):
            return
        given = self._from_pyg(data, number)
        expected = structures_for(self._members, self.manifest).graph(atoms_of(given), f"graph {number}")
        if given.num_edges != expected.num_edges:
            raise InputError(
                f"graph {number} of torch_geometric's Data has {given.num_edges} edges, and those of training (cutoff = {cutoff:g}) would be "
                f"{expected.num_edges}; leave edge_index out, and edges are made as in training"
            )

    def __repr__(self) -> str:
        names = ", ".join(entry.name for entry in self.manifest.members)
        return f"{type(self).__name__}({', '.join(target.name for target in self.manifest.targets)}; of {names})"

    def shown(self) -> Mapping[str, Any]:
        """Return members and fields."""
        targets = [{"field": one.name, "unit": one.field.unit, "on": one.field.on} for one in self.manifest.targets]
        keys = ("status", "epochs", "parameters", "seed")
        members = [
            {"member": entry.name, "weight": entry.weight, **{key: entry.summary.get(key) for key in keys}}
            for entry in self.manifest.members
        ]
        reads = [field.name for field in self.manifest.inputs]
        facts = {"calibrated": ", ".join(self.manifest.calibration) or "no", "reads": reads}
        return {"predicts": targets, **facts, "members": members}


def tensors_of(module: nn.Module) -> list[Tensor]:
    """Return parameters and buffers, which torch itself takes five times as long to find."""
    tensors = [one for one in (*module._parameters.values(), *module._buffers.values()) if one is not None]
    for child in module._modules.values():
        tensors += tensors_of(child) if child is not None else []
    return tensors


def numbers_of(module: nn.Module | None) -> Tensor:
    """Return parameters and buffers, copied into one vector."""
    tensors = [one.detach() for one in tensors_of(module)] if module is not None else []
    return torch.cat([one.reshape(-1).to(tensors[0].device) for one in tensors]) if tensors else torch.zeros(0)


def equal_bits(one: Tensor, other: Tensor) -> bool:
    """Return True for the same bits, where NaN equals itself."""
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def frozen(trained: TrainedModel, model: Any) -> TrainedModel:
    """Return a model that predicts with the parameters that ``model`` has now."""
    own = copy.deepcopy(model).eval().requires_grad_(False)
    return replace(trained, model=own, dtype=next(own.parameters()).dtype, function=None, exact=None).tabulated()


def value_of(prediction: Distribution) -> Tensor:
    """Return the mean, or probabilities of classes."""
    return prediction.probabilities if isinstance(prediction, Categorical) else prediction.tensors()["mean"]


def atoms_of(graph: GraphBatch) -> Atoms:
    """Return the structure of one graph of atoms, with its fields; InputError for a plane."""
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


def number_of_nodes(data: Any) -> int:
    """Return the number of positions; 0 without any, and without edges."""
    positions = data.get("pos")
    return 0 if positions is None or data.get("edge_index") is None else len(positions)


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
