"""Attention among all nodes of a graph on batches of graphs of different sizes, beside PyTorch Geometric's dense mask, in turns.

    python -m tests.benchmarks.bench_attention [--rounds 15]

64 channels, 4 heads, one thread, fp32. ``multihead`` has the weights of theirs, ``to_dense_batch`` and ``MultiheadAttention`` as its ``GPSConv`` calls them; a call is forward and backward. ``twice`` is forward
and the gradient of a gradient, as weights learn from forces. Everything that follows from the sizes of graphs is made in every call. Figures are CPU time, medians; ``difference`` is the largest of values and gradients over the largest.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch_geometric.utils import to_dense_batch

from hydragnn.kernels import Topology
from hydragnn.layers import GraphAttention, LinearGraphAttention, MessageGraph
from tests.benchmarks.harness import Figures, in_turns, parser

CHANNELS, HEADS = 64, 4
BATCHES: dict[str, Sequence[int]] = {
    "1 to 64": range(1, 65),
    "8 to 39": range(8, 40),
    "20 to 29, three of each": [*range(20, 30)] * 3,
    "8 molecules of 8 to 14": [12, 14, 14, 12, 12, 13, 14, 8],
    "64 of 32": [32] * 64,
    "one of 1,000": [1000],
}
Step = Callable[[], Sequence[Tensor]]


def graph_of(sizes: Sequence[int], vectors: Tensor | None = None) -> MessageGraph:
    """Graphs of so many nodes; edges play no part."""
    counts, none = torch.tensor(sizes), torch.zeros(0, dtype=torch.int64)
    owner = torch.arange(len(sizes)).repeat_interleave(counts)
    topology = Topology.square(none, none, len(owner))
    return MessageGraph(topology=topology, owner=owner, nodes_per_graph=counts, vectors=vectors)


def steps_of(sizes: Sequence[int]) -> dict[str, Step]:
    """Ours, theirs, and ours where more or less is asked."""
    torch.manual_seed(0)
    theirs, ours = nn.MultiheadAttention(CHANNELS, HEADS, batch_first=True), GraphAttention(CHANNELS, HEADS)
    linear = LinearGraphAttention(CHANNELS, HEADS)
    with torch.no_grad():
        ours.project.weight.copy_(theirs.in_proj_weight)
        ours.project.bias.copy_(theirs.in_proj_bias)
    ours.out.load_state_dict(theirs.out_proj.state_dict())
    graph, vectors = graph_of(sizes), torch.randn(0, 3, requires_grad=True)
    states = torch.randn(graph.num_nodes, CHANNELS, requires_grad=True)
    seed = torch.randn_like(states)

    def once(module: nn.Module, read: Callable[[], Tensor]) -> Sequence[Tensor]:
        value = read()
        return [value, *torch.autograd.grad(value, [states, *module.parameters()], seed)]

    def dense() -> Tensor:
        rows, known = to_dense_batch(states, graph.owner)
        read: Tensor = theirs(rows, rows, rows, key_padding_mask=~known, need_weights=False)[0]
        return read[known]

    def twice() -> Sequence[Tensor]:
        value = ours(states, replace(graph, vectors=vectors))
        (gradient,) = torch.autograd.grad(value, states, seed, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), [ours.project.weight])

    def forces() -> Sequence[Tensor]:
        value = ours(states, replace(graph, vectors=vectors, derived_once=True))
        return torch.autograd.grad(value, states, seed)

    return {
        "ours": lambda: once(ours, lambda: ours(states, replace(graph))),
        "theirs": lambda: once(theirs, dense),
        "linear": lambda: once(linear, lambda: linear(states, replace(graph))),
        "twice": twice,
        "forces": forces,
    }


def main() -> None:
    """Print the table."""
    options = parser(__doc__, rounds=15).parse_args()
    torch.set_num_threads(1)
    milliseconds = dict.fromkeys(
        ("ours, ms", "theirs / ours", "linear, ms", "twice, ms", "predicted forces, ms"), ".2f"
    )
    figures = Figures({"nodes of graphs": "24", **milliseconds, "difference": ".0e"}, options.json)
    for name, sizes in BATCHES.items():
        steps = steps_of(sizes)
        pairs = zip(steps["ours"](), steps["theirs"](), strict=True)
        difference = max(float((a - b).detach().abs().max() / b.detach().abs().max()) for a, b in pairs)
        turns = in_turns(steps, options.rounds, at_least=0.05)
        ours, linear, twice, forces = map(turns.milliseconds, ("ours", "linear", "twice", "forces"))
        figures.add(name, ours, turns.ratio("theirs", "ours"), linear, twice, forces, difference)


if __name__ == "__main__":
    main()
