"""Scales in which models see and predict fields."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from dataclasses import field as member
from typing import Any

import numpy as np
import torch
from ase.data import chemical_symbols
from jaxtyping import Float
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.graphs.batch import GraphBatch, graph_label
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field

ELEMENTS = 119  # atomic numbers are below


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """Scale of a field: normalised = (value - mean) / std per component."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def tensors(self, field: Field, device: torch.device) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
        """Mean and std in the field's shape, float64."""
        mean = torch.tensor(self.mean, dtype=torch.float64, device=device).reshape(field.shape)
        return mean, torch.tensor(self.std, dtype=torch.float64, device=device).reshape(field.shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class Normalisation:
    """Scales by field name, and reference values per atomic number.

    An energy, its forces and its stress share one std, so that forces stay minus the gradient of the energy; that of labels in
    other units (GPa beside eV and Angstrom) is multiplied by the factor between them.
    """

    scales: Mapping[str, Scale] = member(default_factory=dict)
    references: Mapping[str, Mapping[int, float]] = member(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; ``normalisation_from_json`` gives the same object back."""
        return {
            "scales": {name: asdict(scale) for name, scale in self.scales.items()},
            "references": {name: {str(z): value for z, value in by.items()} for name, by in self.references.items()},
        }


def normalisation_from_json(value: dict[str, Any]) -> Normalisation:
    """The object that ``Normalisation.to_json`` wrote; InputError where it is damaged."""
    try:
        scales = {
            name: Scale(mean=tuple(map(float, scale["mean"])), std=tuple(map(float, scale["std"])))
            for name, scale in value["scales"].items()
        }
        references = {name: {int(z): float(e) for z, e in by.items()} for name, by in value["references"].items()}
        numbers = [number for scale in scales.values() for number in (*scale.mean, *scale.std)]
        numbers += [energy for by in references.values() for energy in by.values()]
        if not all(map(math.isfinite, numbers)) or not all(0 <= z < ELEMENTS for by in references.values() for z in by):
            raise ValueError("a scale or a reference that is not finite, or of no element")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"the normalisation is damaged ({error!r}); train the model again") from error
    return Normalisation(scales=scales, references=references)


def check_widths(normalisation: Normalisation, fields: Mapping[str, Field]) -> None:
    """ValueError for a scale with another number of components than its field."""
    for name, scale in normalisation.scales.items():
        if name in fields and (len(scale.mean), len(scale.std)) != (fields[name].width, fields[name].width):
            raise ValueError(f"the scale of {name} has {len(scale.mean)} means and {len(scale.std)} stds")


def normalise(batch: GraphBatch, normalisation: Normalisation) -> GraphBatch:
    """Return the batch with scaled fields in normalised units, float64.

    Absent values stay zero. InputError where a field with references meets an element without one.
    """
    changed: dict[str, Tensor] = {}
    for name, scale in normalisation.scales.items():
        if name not in batch.fields:
            continue
        field = batch.fields[name]
        values = batch[name].to(torch.float64)
        if name in normalisation.references:
            sums = reference_sums(normalisation, name, batch)
            values = values - sums.reshape(-1, *(1 for _ in field.shape))
        mean, std = scale.tensors(field, values.device)
        values = (values - mean) / std
        present = batch.present_items(name)
        if present is not None:
            values = values * present.reshape(-1, *(1 for _ in field.shape))
        changed[name] = values
    return batch.with_fields(changed)


def reference_sums(normalisation: Normalisation, name: str, batch: GraphBatch) -> Float[Tensor, " graphs"]:
    """Return each graph's sum of reference values, zero without references.

    InputError where a node's atomic number has no reference, since the training part did not hold it.
    """
    sums = torch.zeros(batch.num_graphs, dtype=torch.float64, device=batch.device)
    if name not in normalisation.references:
        return sums
    values = np.full(ELEMENTS, np.nan)
    values[list(normalisation.references[name])] = list(normalisation.references[name].values())
    per_node = torch.from_numpy(values).to(sums.device).index_select(0, batch[ATOMIC_NUMBERS])
    unknown = per_node.isnan()
    if bool(unknown.any()):
        node = int(unknown.nonzero()[0])
        graph = int(batch.owner("node")[node])
        label = graph_label(batch, graph) + ("" if batch.names is not None and batch.names[graph] else " of the batch")
        raise no_reference(label, int(batch[ATOMIC_NUMBERS][node]), name)
    return torch.segment_reduce(per_node, "sum", lengths=batch.counts("node"), unsafe=True, initial=0.0)


def no_reference(graph: str, number: int, field: str) -> InputError:
    """Return the error for an element that has no reference value."""
    return InputError(
        f"{graph} has atomic number {number} ({chemical_symbols[number]}), for which {field} has no reference value; train on data that "
        "holds this element, or give its energy in the references of the head"
    )
