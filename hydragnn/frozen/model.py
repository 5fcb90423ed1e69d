"""Skeleton of all kinds: layers, conditioning, pooling and heads.

Modules have the names of the checkpoint after ``kinds.translated``, so that its tensors load strictly.

A kind is a subclass, whose layers hold ``module_0``, ``module_1``... and map ``(inv, equiv, graph)`` to ``(inv, equiv)``.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.base.errors import InputError
from hydragnn.frozen import attention
from hydragnn.frozen.graph import FrozenGraph
from hydragnn.frozen.settings import ACTIVATIONS, POOLS, FrozenSettings, Networks
from hydragnn.graphs.pyg import torch_geometric

GAT_HEADS = 6
AGGREGATORS = ["mean", "min", "max", "std"]
SCALERS = ["identity", "amplification", "attenuation", "linear"]

Output = tuple[Tensor, Tensor | None]
"""Mean and, with GaussianNLLLoss, variance of a head."""


class FrozenModel(nn.Module):
    """Model of the public HydraGNN, in evaluation mode."""

    normed: ClassVar[bool] = False
    """A batch norm follows every layer."""

    def __init__(self, settings: FrozenSettings) -> None:
        super().__init__()
        self.settings = settings
        self.activation_function = ACTIVATIONS[settings.activation_function]()  # one, also where PReLU learns
        self._add_common()
        self.graph_convs, self.feature_layers = nn.ModuleList(), nn.ModuleList()
        inputs = settings.hidden_dim if settings.global_attn_engine else settings.input_dim
        edge_dim = settings.hidden_dim if settings.global_attn_engine == attention.GPS else settings.edge_dim
        channels = [settings.hidden_dim] * settings.num_conv_layers
        for layer, norm in self.layers(inputs, channels, edge_dim, normed=self.normed):
            self.graph_convs.append(attention.wrap(settings, layer, last=len(self.graph_convs) == len(channels) - 1))
            self.feature_layers.append(norm)
        self._add_conditioning()
        self._add_heads()
        self.eval()

    def _add_common(self) -> None:
        for name, module in attention.embeddings(self.settings).items():
            self.add_module(name, module)

    def layers(
        self, inputs: int, channels: list[int], edge_dim: int, *, normed: bool
    ) -> Iterator[tuple[nn.Module, nn.Module]]:
        """Layers of these channels, each with a norm or none behind it."""
        spread = GAT_HEADS if self.settings.kind == "GAT" and not self.settings.global_attn_engine else 1
        for number, width in enumerate(channels):
            last = number == len(channels) - 1
            layer = self._layer(inputs, width, number=number, last=last, edge_dim=edge_dim)
            inputs = width if last else width * spread
            yield layer, torch_geometric("nn").BatchNorm(inputs) if normed else nn.Identity()

    def _layer(self, in_dim: int, out_dim: int, *, number: int, last: bool, edge_dim: int) -> nn.Module:
        raise NotImplementedError

    def _start(self, graph: FrozenGraph) -> tuple[Tensor, Tensor | None, FrozenGraph]:
        graph = attention.embed(self, graph)
        return graph.x, graph.pos, graph

    def _add_conditioning(self) -> None:
        hidden, attributes = self.settings.hidden_dim, self.settings.graph_attributes
        both, middle = hidden + attributes, max(hidden, attributes)
        match self.settings.conditioning:
            case "film":
                self.graph_conditioner = self.network([attributes, middle, 2 * hidden])
            case "concat_node":
                self.graph_concat_projector = nn.Linear(both, hidden)
            case "fuse_pool":
                self.graph_pool_projector = self.network([both, hidden, hidden])

    def _add_heads(self) -> None:
        settings = self.settings
        self.graph_shared, self.heads_NN = nn.ModuleDict(), nn.ModuleList()
        for name, form in settings.graph_heads.items():
            widths = [settings.hidden_dim, *[form.dim_sharedlayers] * form.num_sharedlayers]
            self.graph_shared[name] = self.network(widths, active=True)
        for head in settings.heads:
            width = head.dim * (1 + settings.variance)
            forms, make = settings.graph_heads, self._graph_head
            if head.level == "node":
                forms, make = settings.node_heads, self._node_head
            self.heads_NN.append(nn.ModuleDict({name: make(form, width) for name, form in forms.items()}))

    def network(self, widths: list[int], *, active: bool = False) -> nn.Sequential:
        """Linear maps with the activation between them; ``active``: also at the end."""
        return mlp(widths, self.activation_function, active=active)

    def _graph_head(self, form: Networks, width: int) -> nn.Module:
        return self.network([form.dim_sharedlayers, *form.dim_headlayers[: form.num_headlayers], width])

    def _node_head(self, form: Networks, width: int) -> nn.Module:
        settings = self.settings
        if form.type == "conv":
            channels = [*form.dim_headlayers[: form.num_headlayers], width]
            edge_dim = 0 if settings.kind == "DimeNet" else settings.edge_dim  # whose heads leave edge features out
            pairs = self.layers(settings.hidden_dim, channels, edge_dim, normed=True)
            return nn.ModuleList(itertools.chain.from_iterable(pairs))
        count = 1 if form.type == "mlp" else settings.num_nodes or 0
        widths = [settings.hidden_dim, *form.dim_headlayers, width]
        return NodeNetworks([self.network(widths) for _ in range(count)], self.activation_function)

    def forward(self, graph: FrozenGraph) -> list[Output]:
        """Mean and variance of every head, in the writer's units."""
        if self.settings.zero_shifts:
            graph = replace(graph, edge_shifts=None)
        inv, equiv, graph = self._start(graph)
        for layer, norm in zip(self.graph_convs, self.feature_layers):
            inv, equiv = layer(inv, equiv, graph)
            inv = self.activation_function(norm(self._conditioned(inv, graph)))
        return self._outputs(inv, equiv, graph)

    def energy(self, graph: FrozenGraph) -> Float[Tensor, " graphs"]:
        """Energies of an interatomic potential."""
        values = self(graph)[0][0]
        if self.settings.heads[0].level == "node":
            values = pooled(values, graph, "sum")
        return values.squeeze(1)

    def _conditioned(self, inv: Tensor, graph: FrozenGraph) -> Tensor:
        if self.settings.conditioning == "film":
            scale, shift = self.graph_conditioner(graph.graph_attr).index_select(0, graph.batch).chunk(2, dim=1)
            repeats = inv.shape[1] // scale.shape[1]  # of the heads of GAT
            return inv * (1 + torch.tanh(scale).repeat_interleave(repeats, 1)) + shift.repeat_interleave(repeats, 1)
        if self.settings.conditioning == "concat_node":
            attributes = cast(Tensor, graph.graph_attr).index_select(0, graph.batch)
            return self.graph_concat_projector(torch.cat([inv, attributes], dim=1))
        return inv

    def _outputs(self, inv: Tensor, equiv: Tensor | None, graph: FrozenGraph) -> list[Output]:
        of_graph = pooled(inv, graph, POOLS[self.settings.graph_pooling])
        if self.settings.conditioning == "fuse_pool":
            of_graph = self.graph_pool_projector(torch.cat([of_graph, cast(Tensor, graph.graph_attr)], dim=1))
        outputs: list[Output] = []
        for head, branches in zip(self.settings.heads, cast(Iterable[nn.ModuleDict], self.heads_NN)):
            ((name, network),) = branches.items()
            if head.level == "graph":
                values = network(self.graph_shared[name](of_graph))
            elif isinstance(network, NodeNetworks):
                values = network(inv, graph.batch)
            else:
                values = self._convolved(cast(nn.ModuleList, network), inv, equiv, graph)
            outputs.append((values[:, : head.dim], values[:, head.dim :].square() if self.settings.variance else None))
        return outputs

    def _convolved(self, modules: nn.ModuleList, inv: Tensor, equiv: Tensor | None, graph: FrozenGraph) -> Tensor:
        pairs = list(modules)[-2 if self.settings.last_conv_layer_only else 0 :]
        for layer, norm in zip(pairs[0::2], pairs[1::2]):
            inv, equiv = layer(inv, equiv, graph)
            inv = self.activation_function(norm(inv))
        return inv


class NodeNetworks(nn.Module):
    """Network of all nodes, or one for every place."""

    def __init__(self, networks: list[nn.Sequential], activation: nn.Module) -> None:
        super().__init__()
        self.mlp = nn.ModuleList(networks)
        self.activation_function = activation  # for its key, where it learns

    def forward(self, inv: Tensor, batch: Tensor) -> Tensor:
        """Outputs of all nodes; InputError for graphs of another size."""
        if len(self.mlp) == 1:
            return self.mlp[0](inv)
        if (batch.bincount() != len(self.mlp)).any():
            raise InputError(
                f"the model has a network for each of {len(self.mlp)} nodes (mlp_per_node); give such graphs"
            )
        per_place = [network(inv[place :: len(self.mlp)]) for place, network in enumerate(self.mlp)]
        return torch.stack(per_place, dim=1).flatten(0, 1)


def mlp(widths: Sequence[int], activation: nn.Module, *, active: bool = False) -> nn.Sequential:
    """Linear maps with an activation between them; ``active``: also at the end."""
    pairs = [(nn.Linear(inputs, wide), activation) for inputs, wide in itertools.pairwise(widths)]
    modules = [module for pair in pairs for module in pair]
    return nn.Sequential(*(modules if active else modules[:-1]))


def pooled(inv: Float[Tensor, "nodes width"], graph: FrozenGraph, reduce: str) -> Float[Tensor, "graphs width"]:
    """Reduce the nodes of every graph."""
    zeros = inv.new_zeros(graph.num_graphs, inv.shape[1])
    return zeros.scatter_reduce(0, graph.batch.unsqueeze(1).expand_as(inv), inv, reduce, include_self=False)


def summed(values: Tensor, nodes: Tensor, count: int) -> Tensor:
    """Sums over the edges of every node."""
    return values.new_zeros(count, *values.shape[1:]).index_add(0, nodes, values)


class Statistics(nn.Module):
    """Part that reads statistics of messages, scaled by degrees (arXiv:2004.05718)."""

    def __init__(self, settings: FrozenSettings, width: int, out_dim: int, inputs: int, *more: str) -> None:
        super().__init__()
        scalers, degrees = [*SCALERS, *more], torch.tensor(settings.required("pna_deg"), device="cpu")
        self.aggr_module = torch_geometric("nn.aggr").DegreeScalerAggregation(AGGREGATORS, scalers, degrees)
        post = nn.Linear((4 * len(scalers) + 1) * width, out_dim)
        self.pre_nns = nn.ModuleList([nn.Sequential(nn.Linear(inputs * width, width))])
        self.post_nns = nn.ModuleList([nn.Sequential(post)])

    def read(self, inv: Tensor, messages: Tensor, nodes: Tensor) -> Tensor:
        """Return what nodes make of themselves and of these messages."""
        return self.post_nns[0](torch.cat([inv, self.aggr_module(messages, nodes, dim_size=len(inv))], dim=1))
