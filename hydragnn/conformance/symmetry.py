"""Promises about turns, mirrors, moves and other orders of nodes.

Cells of a mesh, grains of a section and pixels of an image lie in a plane, where a vector has two components, the cell is an area, and architectures take
other ways (no third axis in harmonics or in antisymmetric tensors). One that works in space alone refuses such graphs in a sentence.
"""

from collections.abc import Callable
from functools import partial

from hydragnn.conformance.cases import CORNERS, make_graph
from hydragnn.conformance.law import Change, Figures, gaps
from hydragnn.conformance.network import SLOPE, Network, force_gaps, predicted, promise, stress_gaps
from hydragnn.conformance.transforms import moved, reordered, turned
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.joining import concatenate
from hydragnn.models import GraphModel

TIGHT = 1e-11  # float64 sums in another order; values are of order 1
Changing = Callable[[GraphBatch], Change]
TURNS: dict[str, Changing] = {"rotation": turned, "reflection": partial(turned, determinant=-1)}


def _followed(model: GraphModel, batch: GraphBatch, change: Changing) -> Figures:
    """Return differences between a changed graph and the graph, changed."""
    one = change(batch)
    return gaps(predicted(model, one.changed), predicted(model, batch), "graphs", one)


@promise(limit=TIGHT)
def nodes_in_another_order_give_the_same_predictions_in_that_order(network: Network) -> Figures:
    return _followed(network.changed(), CORNERS["self loop"](), reordered)


@promise(TURNS, TIGHT)
def predictions_turn_as_their_parity_says(network: Network, turn: Changing) -> Figures:
    return _followed(network.changed(), concatenate([CORNERS["self loop"](), CORNERS["two graphs"]()]), turn)


@promise(limit=TIGHT)
def moving_the_whole_graph_changes_nothing(network: Network) -> Figures:
    return _followed(network.changed(), CORNERS["self loop"](), moved)


@promise({**TURNS, "translation": moved, "permutation": reordered}, TIGHT)
def in_two_dimensions_predictions_follow_turns_mirrors_moves_and_the_order_of_nodes(
    network: Network, change: Changing
) -> Figures:
    batch = concatenate([make_graph(6, 5, self_loop=True, dim=2), make_graph(2, 7, dim=2)])
    return _followed(network.changed(dim=2), batch, change)


@promise(limit=SLOPE)
def in_two_dimensions_forces_and_stress_are_derivatives_of_the_energy(network: Network) -> Figures:
    """Stress is that per area."""
    model, batch = network.changed(dim=2), make_graph(0, 6, dim=2)
    return [*force_gaps(model, batch), *stress_gaps(model, batch)]
