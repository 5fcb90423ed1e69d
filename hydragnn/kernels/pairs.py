"""Edges that are each other's reverse: what is a function of length alone is computed once for both."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels.cpu import forms as cpu
from hydragnn.kernels.family import ANYWHERE, Form, as_operators, form_on
from hydragnn.kernels.per_receiver import SUM_FORMS, SUMS


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pairs:
    """Edge ``e`` belongs to pair ``pair[e]``; a node that is its own neighbour at distance zero is a pair of one edge."""

    first: Int[Tensor, " items"]
    """The first edge of every pair."""
    pair: Int[Tensor, " edges"]

    def spread(self, values: Float[Tensor, "items *features"]) -> Float[Tensor, "edges *features"]:
        """What each edge's pair holds."""
        return SUMS("spread", (values,), (self.pair, self.first.shape[0]))


def pairs_of(vectors: Float[Tensor, "edges dim"], topology: Topology) -> Pairs | None:
    """The pairs of edges j -> i and i -> j whose vectors are opposite, periodic images apart; None where an edge has no reverse.

    They are sought on a CPU alone, and where the compiled kernels are: elsewhere the search costs more than it saves; nor where a graph is traced.
    """
    if as_operators():  # how many there are depends on the numbers
        return None
    found: Any = form_on(PAIRING, vectors.device.type)(vectors.detach(), topology)
    return None if found is None else Pairs(first=found[0], pair=found[1])


def reads_weights(form: Form, place: int) -> Form:
    """A form of one weight per edge, at that place, where edges may share them: each is given that of its pair."""

    def read(*given: Any) -> Tensor:
        pair, weight = given[-1].pair, given[place]
        if pair is None or weight is None:
            return form(*given)
        return form(*given[:place], weight.index_select(0, pair), *given[place + 1 :])

    return read


def gives_weights(form: Form, place: int) -> Form:
    """A form, with its topology at that place, whose value is one weight per edge, where edges may share them: those of a pair are added up."""

    def give(*given: Any, **options: Any) -> Tensor:
        value, topology = form(*given, **options), given[place]
        if topology.pair is None:
            return value
        return form_on(SUM_FORMS, value.device.type)(value, (topology.pair, topology.num_pairs))

    return give


PAIRING: Mapping[str, Any] = {
    ANYWHERE: lambda vectors, topology: None,
    "cpu": cpu.pair_edges,
}
