"""Specification of every op, as loops over edges and nodes.

Nothing here is fast, and nothing here shares a line with what it specifies. torch differentiates the loops, so that they
specify the derivatives of every order too.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from hydragnn.graphs.topology import Topology


def edges_of(topology: Topology) -> Iterator[tuple[int, int, int]]:
    """Number, sender and receiver of every edge."""
    yield from zip(range(topology.num_edges), topology.senders.tolist(), topology.receivers.tolist())


def silu(x: Tensor) -> Tensor:
    """y = x / (1 + exp(-x)), number by number."""
    return torch.stack([value / (1 + torch.exp(-value)) for value in x.flatten()] or [x.sum()])[: x.numel()].view(
        x.shape
    )


def weight_of(topology: Topology, edge: int) -> int:
    """The number of an edge's weight."""
    return edge if topology.pair is None else int(topology.pair[edge])


def gather_multiply_sum(x: Tensor, weight: Tensor | None, topology: Topology) -> Tensor:
    """Sum w_e x_j over the edges e = (j -> i)."""
    total = [x.new_zeros(x.shape[1:]) for _ in range(topology.num_rows)]
    for edge, sender, receiver in edges_of(topology):
        total[receiver] = total[receiver] + (
            x[sender] if weight is None else weight[weight_of(topology, edge)] * x[sender]
        )
    return torch.stack(total)


def scatter_multiply_sum(g: Tensor, weight: Tensor | None, topology: Topology) -> Tensor:
    """Sum w_e g_i over the edges e = (j -> i)."""
    total = [g.new_zeros(g.shape[1:]) for _ in range(topology.num_columns)]
    for edge, sender, receiver in edges_of(topology):
        total[sender] = total[sender] + (
            g[receiver] if weight is None else weight[weight_of(topology, edge)] * g[receiver]
        )
    return torch.stack(total)


def edge_product(x: Tensor, g: Tensor, topology: Topology, per: str) -> Tensor:
    """Sum x_ja g_ia over axes a, except those that ``per`` keeps."""
    products = x.new_zeros(
        topology.num_weights, *{"edge": (), "head": (*x.shape[-2:-1], 1), "channel": x.shape[-1:]}[per]
    )
    for edge, sender, receiver in edges_of(topology):
        product = x[sender] * g[receiver]
        if per == "head":
            product = product.reshape(-1, *x.shape[-2:]).sum(0).sum(-1, keepdim=True)
        elif per == "channel":
            product = product.reshape(-1, x.shape[-1]).sum(0)
        place = (torch.tensor(weight_of(topology, edge)),)
        products = products.index_put(place, product.sum() if per == "edge" else product, accumulate=True)
    return products


def gather_add(received: Tensor | None, sent: Tensor, edges: Tensor | None, topology: Topology) -> Tensor:
    """Return g_i + x_j + e_e for e = (j -> i)."""
    result = sent.new_zeros(topology.num_edges, *sent.shape[1:])
    for edge, sender, receiver in edges_of(topology):
        value = sent[sender] if received is None else sent[sender] + received[receiver]
        result = result.index_put(
            (torch.tensor(edge),), value if edges is None else value + edges[weight_of(topology, edge)]
        )
    return result


def outer_sum(messages: Tensor, directions: Tensor, topology: Topology) -> Tensor:
    """Sum m_ec u_ea over the edges e = (j -> i)."""
    total = [messages.new_zeros(directions.shape[1], messages.shape[1]) for _ in range(topology.num_rows)]
    for edge, _, receiver in edges_of(topology):
        total[receiver] = total[receiver] + torch.outer(directions[edge], messages[edge])
    return torch.stack(total)


def activated_sum(messages: Tensor, weights: Tensor, topology: Topology) -> Tensor:
    """Sum w_e silu(m_e) over the edges e = (j -> i)."""
    total = [messages.new_zeros(messages.shape[1:]) for _ in range(topology.num_rows)]
    for edge, _, receiver in edges_of(topology):
        total[receiver] = total[receiver] + weights[edge] * messages[edge] / (1 + torch.exp(-messages[edge]))
    return torch.stack(total)


def power_sums(deviations: Tensor, weights: Tensor, topology: Topology) -> Tensor:
    """Sum w_e f_k(x_e), f = x^2, exp(4 asinh x), exp(-4 asinh x)."""
    total = [deviations.new_zeros(3, *deviations.shape[1:]) for _ in range(topology.num_rows)]
    for edge, _, receiver in edges_of(topology):
        x, grown = deviations[edge], 4 * torch.asinh(deviations[edge])
        total[receiver] = total[receiver] + weights[edge] * torch.stack([x * x, grown.exp(), (-grown).exp()])
    return torch.stack(total, dim=1)


def gather_outer_sum(x: Tensor, weight: Tensor, directions: Tensor, topology: Topology) -> Tensor:
    """Sum w_ec x_jc u_ea over the edges e = (j -> i)."""
    total = [x.new_zeros(directions.shape[1], x.shape[1]) for _ in range(topology.num_rows)]
    for edge, sender, receiver in edges_of(topology):
        total[receiver] = total[receiver] + torch.outer(directions[edge], weight[weight_of(topology, edge)] * x[sender])
    return torch.stack(total)


def along_directions(directions: Tensor, vectors: Tensor, topology: Topology) -> Tensor:
    """y_ec = sum of u_ea v_iac over the axes a."""
    result = vectors.new_zeros(topology.num_edges, vectors.shape[-1])
    for edge, _, receiver in edges_of(topology):
        result = result.index_put((torch.tensor(edge),), directions[edge] @ vectors[receiver])
    return result


def along_channels(messages: Tensor, vectors: Tensor, topology: Topology) -> Tensor:
    """y_ea = sum of m_ec v_iac over the channels c."""
    result = vectors.new_zeros(topology.num_edges, vectors.shape[1])
    for edge, _, receiver in edges_of(topology):
        result = result.index_put((torch.tensor(edge),), vectors[receiver] @ messages[edge])
    return result


def _by_node(
    messages: Tensor, receivers: Tensor, num_nodes: int, reduce: Callable[[list[Tensor]], Tensor], alone: float = 0.0
) -> Tensor:
    """Return ``reduce`` of each node's messages, ``alone`` without any."""
    received: list[list[Tensor]] = [[] for _ in range(num_nodes)]
    for edge, receiver in enumerate(receivers.tolist()):
        received[receiver].append(messages[edge])
    return torch.stack([reduce(mine) if mine else messages.new_full(messages.shape[1:], alone) for mine in received])


def _mean(values: list[Tensor]) -> Tensor:
    return sum(values[1:], values[0]) / len(values)


def _variance(values: list[Tensor]) -> Tensor:
    mean = _mean(values)
    return _mean([(value - mean) ** 2 for value in values])


def _largest(values: list[Tensor]) -> Tensor:
    result = values[0]
    for value in values[1:]:
        result = torch.where(value > result, value, result)  # the first among equals keeps the gradient
    return result


def segment_sum(messages: Tensor, receivers: Tensor, num_nodes: int) -> Tensor:
    """y_i = sum of m_e over the edges that i receives."""
    return _by_node(messages, receivers, num_nodes, lambda mine: sum(mine[1:], mine[0]))


def spread(values: Tensor, owners: Tensor) -> Tensor:
    """y_e = v_i for the owner i of e."""
    rows = [values[owner] for owner in owners.tolist()]
    return torch.stack(rows) if rows else values.new_zeros(0, *values.shape[1:])


def segment_mean(messages: Tensor, receivers: Tensor, num_nodes: int) -> Tensor:
    """Return the mean of received messages; 0 without any."""
    return _by_node(messages, receivers, num_nodes, _mean)


def segment_max(messages: Tensor, receivers: Tensor, num_nodes: int) -> Tensor:
    """Return the largest of received messages; 0 without any."""
    return _by_node(messages, receivers, num_nodes, _largest)


def segment_min(messages: Tensor, receivers: Tensor, num_nodes: int) -> Tensor:
    """Return the smallest of received messages; 0 without any."""
    return -segment_max(-messages, receivers, num_nodes)


def segment_variance(messages: Tensor, receivers: Tensor, num_nodes: int) -> Tensor:
    """Return the mean of (m_e - mean)^2; 0 without any."""
    return _by_node(messages, receivers, num_nodes, _variance)


def segment_std(messages: Tensor, receivers: Tensor, num_nodes: int, floor: float = 1e-5) -> Tensor:
    """y_i = sqrt(variance + floor)."""
    return _by_node(messages, receivers, num_nodes, lambda mine: (_variance(mine) + floor).sqrt(), alone=floor**0.5)


def segment_statistics(
    messages: Tensor, receivers: Tensor, num_nodes: int, floor: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, min, max and std."""
    inputs = (messages, receivers, num_nodes)
    return segment_mean(*inputs), segment_min(*inputs), segment_max(*inputs), segment_std(*inputs, floor)


def segment_softmax(scores: Tensor, receivers: Tensor, num_nodes: int) -> Tensor:
    """Return exp(s_e) / sum of exp(s_f) over edges of one receiver."""
    highest = segment_max(scores.detach(), receivers, num_nodes)
    powers = [(scores[edge] - highest[node]).exp() for edge, node in enumerate(receivers.tolist())]
    if not powers:
        return scores
    sums = segment_sum(torch.stack(powers), receivers, num_nodes)
    return torch.stack([power / sums[node] for power, node in zip(powers, receivers.tolist())])
