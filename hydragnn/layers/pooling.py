"""Layers on coarser levels of a graph, and the way back."""

from collections.abc import Collection, Iterator, Sequence

from torch import nn

from hydragnn.layers.message_graph import Coarser, MessageGraph, States


class WayBack(nn.Module):
    """Return from a coarser level to the finer one.

    h_i <- h_i + W h_c: the state of a node's cluster is added to its state before pooling.

    There is a matrix W for every degree, on channels alone, so that vectors turn with the graph. An edge's message is changed by as much as that of the
    coarser edge which stands for it was on the coarser level, as multigrid corrects (Brandt 1977, doi:10.1090/S0025-5718-1977-0431719-X, section 5):
    m_e <- m_e + (m'_c - m_c), with no weights.
    """

    def __init__(self, channels: int, degrees: Collection[int]) -> None:
        super().__init__()
        self.maps = nn.ModuleDict(
            {str(degree): nn.Linear(channels, channels, bias=degree == 0) for degree in sorted({0, *degrees})}
        )

    def forward(self, states: States, previous: States, coarser: Coarser) -> States:
        """States of the finer level."""
        mapped = {key: self.maps[str(key)](value) for key, value in states.items() if str(key) in self.maps}
        changed = {key: value - coarser.pooled_edges(previous[key]) for key, value in states.items() if key < 0}
        update = coarser.unpooled_states({**states, **mapped, **changed})
        return {
            **previous,
            **{degree: previous[degree] + value if degree in previous else value for degree, value in update.items()},
        }


class GraphUNet(nn.Module):
    """Layers, each on one level: down to the coarsest and back.

    As Gao and Ji 2019 (arXiv:1905.05178, section 3.3).
    Going down a cluster has the mean state of its nodes; coming back, ``WayBack``. Deviates from the paper: clusters are given with the
    graph and not learned, means stand for the nodes instead of a few of them, and states are added where they come back to.
    """

    def __init__(self, layers: Sequence[nn.Module], levels: int, channels: int, degrees: Collection[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.schedule = v_cycle(len(layers), levels)
        self.ways_back = nn.ModuleList(WayBack(channels, degrees) for _ in range(levels))

    def forward(self, states: States, graph: MessageGraph) -> States:
        """States of the nodes of the graph itself."""
        for new_states, _ in self.visits(states, graph):
            states = new_states
        return states

    def of_every_layer(self, states: States, graph: MessageGraph) -> list[States]:
        """Return the states of every layer, projected to the original nodes."""
        of_layers = []
        for new_states, way in self.visits(states, graph):
            for coarser in reversed(way):
                new_states = coarser.unpooled_states(new_states)
            of_layers.append(new_states)
        return of_layers

    def visits(self, states: States, graph: MessageGraph) -> Iterator[tuple[States, list[Coarser]]]:
        """Yield the states after each layer, and the levels down to it."""
        way: list[tuple[States, Coarser]] = []  # of the finer levels, what waits there
        for number, (layer, level) in enumerate(zip(self.layers, self.schedule), start=1):
            while len(way) < level:
                finer = way[-1][1].graph if way else graph
                coarser = finer.coarser
                way.append((states, coarser))
                states = coarser.pooled_states(states)
            while len(way) > level:
                states = self.back(states, way)
            states = layer(states, way[-1][1].graph if way else graph)
            while way and number == len(self.layers):
                states = self.back(states, way)
            yield states, [coarser for _, coarser in way]

    def back(self, states: States, way: list[tuple[States, Coarser]]) -> States:
        """Return the states of the next finer level."""
        previous, coarser = way.pop()
        return self.ways_back[len(way)](states, previous, coarser)


def v_cycle(layers: int, levels: int) -> tuple[int, ...]:
    """Return the level of each layer, down to the coarsest and back.

    Levels have equally many layers as far as possible.

    >>> v_cycle(5, 2), v_cycle(3, 2), v_cycle(4, 1), v_cycle(2, 1)
    ((0, 1, 2, 1, 0), (0, 2, 0), (0, 1, 1, 0), (0, 1))
    """
    if layers == 2:
        return (0, levels)  # the graph itself comes last where nothing is learned any more but the way back
    middle = (layers - 1) / 2
    return tuple(min(levels, int((levels + 1) * (1 - abs(k - middle) / middle) + 1e-9)) for k in range(layers))
