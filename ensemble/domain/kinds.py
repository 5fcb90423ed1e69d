"""Kinds of nodes, edges and graphs that training never showed; exact."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from hydragnn.ensemble.domain.detector import Channel, Detector
from hydragnn.ensemble.domain.stored import Stored
from hydragnn.ensemble.domain.view import Array, GraphView, Numbers
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Kinds:
    """Per field of classes those that occurred."""

    name: ClassVar[str] = "kinds"

    kinds_of: Mapping[str, Numbers]

    @property
    def channels(self) -> tuple[Channel, ...]:
        """One per field."""
        return tuple(Channel(slack=0.1, exact=True) for _ in self.kinds_of)

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """1 for a graph with an unknown kind, else 0."""
        result = np.zeros((len(view), len(self.kinds_of)))
        for channel, name in enumerate(self.kinds_of):
            items, owners = _items(view.batch, name)
            result[owners[~np.isin(items, self.kinds_of[name])], channel] = 1.0
        return result

    def reason(self, view: GraphView, graph: int, channel: int, value: float) -> str:
        """The kinds that are not known."""
        name = list(self.kinds_of)[channel]
        items, owners = _items(view.batch, name)
        unknown = np.setdiff1d(items[owners == graph], self.kinds_of[name])
        listed = ", ".join(str(kind) for kind in unknown[:5].tolist()) + (", ..." if len(unknown) > 5 else "")
        return f"{name} {listed} {'is' if len(unknown) == 1 else 'are'} not in the training data"

    def settings(self) -> dict[str, Any]:
        """The fields in their order."""
        return {"fields": list(self.kinds_of)}

    def tensors(self) -> dict[str, Array]:
        """The kinds that occurred."""
        return {name: kinds_of.astype(np.float64) for name, kinds_of in self.kinds_of.items()}

    @classmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "Kinds":
        """Return the detector with these tensors.

        ValueError, KeyError or TypeError where they do not fit the graphs.

        ValueError, KeyError or TypeError where they do not fit the graphs.
        """
        return cls(kinds_of={name: stored.kinds(name, name) for name in settings["fields"]})


class KindsFit:
    """Notes which kinds occur."""

    def __init__(self, inputs: Sequence[Field]) -> None:
        """Of fields of classes."""
        self._known: dict[str, set[int]] = {field.name: set() for field in inputs if field.classes}

    def show(self, view: GraphView) -> None:
        """Note the kinds of some graphs."""
        for name, kinds_of in self._known.items():
            kinds_of.update(np.unique(_items(view.batch, name)[0]).tolist())

    def detectors(self) -> list[Detector]:
        """The kinds that occurred, where there are any at all."""
        kinds_of = {name: np.array(sorted(kinds), dtype=np.int64) for name, kinds in self._known.items() if kinds}
        return [Kinds(kinds_of=kinds_of)] if kinds_of else []


def _items(batch: GraphBatch, name: str) -> tuple[Numbers, Numbers]:
    """Return the classes of a field with their graphs."""
    if name not in batch.fields:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    field = batch.fields[name]
    of_items = batch.owner(field.on)
    is_present = batch.present(name)[of_items].numpy()
    owners = np.repeat(of_items.numpy()[is_present], field.width)
    return batch[name].reshape(-1, field.width).numpy()[is_present].reshape(-1), owners
