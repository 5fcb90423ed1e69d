"""Pairs of reverse edges, which share functions of their length."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels.cpu import forms as cpu
from hydragnn.kernels.family import ANYWHERE, Form, form_on
from hydragnn.kernels.per_receiver import SUM_FORMS, SUMS


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pairs:
    """Pairs of reverse edges: edge ``e`` belongs to ``pair[e]``."""

    first: Int[Tensor, " items"]
    """The first edge of every pair."""
    pair: Int[Tensor, " edges"]

    def spread(self, values: Float[Tensor, "items *features"]) -> Float[Tensor, "edges *features"]:
        """Return the value of each edge's pair."""
        return SUMS("spread", (values,), (self.pair, self.first.shape[0]))


def pairs_of(vectors: Float[Tensor, "edges dim"], topology: Topology) -> Pairs | None:
    """Return the pairs of edges with opposite vectors.

    Periodic images are told apart. Returns None if an edge has no reverse. They are sought on a CPU alone, and where the compiled
    kernels are: elsewhere the search costs more than it saves.
    """
    result: Any = form_on(PAIRING, vectors.device.type)(vectors.detach(), topology)
    return None if result is None else Pairs(first=result[0], pair=result[1])


def reads_weights(form: Form, place: int) -> Form:
    """Return a form that expands shared weights at position ``place``."""

    def read(*inputs: Any) -> Tensor:
        pair, weight = inputs[-1].pair, inputs[place]
        if pair is None or weight is None:
            return form(*inputs)
        return form(*inputs[:place], weight.index_select(0, pair), *inputs[place + 1 :])

    return read


def gives_weights(form: Form, place: int) -> Form:
    """Return a form that sums weights over each pair."""

    def give(*inputs: Any, **options: Any) -> Tensor:
        value, topology = form(*inputs, **options), inputs[place]
        if topology.pair is None:
            return value
        return form_on(SUM_FORMS, value.device.type)(value, (topology.pair, topology.num_pairs))

    return give


PAIRING: Mapping[str, Any] = {ANYWHERE: lambda vectors, topology: None, "cpu": cpu.pair_edges}
