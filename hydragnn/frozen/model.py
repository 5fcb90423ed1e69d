"""Skeleton of all kinds: layers, conditioning, pooling and heads.

Modules have the names of the checkpoint after ``keys.translated``, so that its tensors load strictly.

A kind is a subclass. Most set ``layer_class``, whose layers hold ``module_0``, ``module_1``... and map
``(inv, equiv, graph)`` to ``(inv, equiv)``.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.base.errors import InputError
from hydragnn.frozen import attention
from hydragnn.frozen.graph import FrozenGraph
from hydragnn.frozen.settings import ACTIVATIONS, POOLS, FrozenSettings, GraphHead, NodeHead

Output = tuple[Tensor, Tensor | None]
"""Mean and, with GaussianNLLLoss, variance of a head."""


class FrozenModel(nn.Module):
    """Model of the public HydraGNN, in evaluation mode."""

    layer_class: ClassVar[type[nn.Module]]
    """Layer(settings, in_dim, out_dim, number=, last=, edge_dim=)."""
    normed: ClassVar[bool] = False
    """A batch norm follows every layer."""

    def __init__(self, settings: FrozenSettings) -> None:
        super().__init__()
        self.settings = settings
        self.activation_function = ACTIVATIONS[settings.activation_function]()  # one, also where PReLU learns
        self.add_common()
        self.graph_convs, self.feature_layers = nn.ModuleList(), nn.ModuleList()
        inputs = settings.hidden_dim if settings.global_attn_engine else settings.input_dim
        channels = [settings.hidden_dim] * settings.num_conv_layers
        for number, (in_dim, out_dim, wide) in enumerate(self.widths(inputs, channels)):
            last = number == len(channels) - 1
            layer = self.layer(in_dim, out_dim, number=number, last=last, edge_dim=attention.edge_width(settings))
            self.graph_convs.append(attention.wrap(settings, layer, last=last))
            self.feature_layers.append(BatchNorm(wide) if self.normed else nn.Identity())
        self.add_conditioning()
        self.add_heads()
        self.register_forward_pre_hook(check_graph)
        self.eval()

    # what kinds change

    def add_common(self) -> None:
        """Add modules that all layers share."""
        for name, module in attention.embeddings(self.settings).items():
            self.add_module(name, module)

    @property
    def spread(self) -> int:
        """Scalars per channel after all layers but the last."""
        return 1

    def widths(self, inputs: int, channels: list[int]) -> Iterator[tuple[int, int, int]]:
        """Scalars into a layer, its channels and the scalars out of it."""
        for number, width in enumerate(channels):
            wide = width if number == len(channels) - 1 else width * self.spread
            yield inputs, width, wide
            inputs = wide

    def layer(self, in_dim: int, out_dim: int, *, number: int, last: bool, edge_dim: int) -> nn.Module:
        """Layer of the encoder or (number -1) of a convolutional node head."""
        return self.layer_class(self.settings, in_dim, out_dim, number=number, last=last, edge_dim=edge_dim)

    def start(self, graph: FrozenGraph) -> tuple[Tensor, Tensor | None, FrozenGraph]:
        """States for the first layer, and the graph for all layers."""
        graph = attention.embed(self, graph)
        return graph.x, graph.pos, graph

    # the same for all but MACE

    def add_conditioning(self) -> None:
        """Add the networks of graph attributes."""
        hidden, attributes = self.settings.hidden_dim, self.settings.graph_attributes
        if self.settings.conditioning == "film":
            middle = max(hidden, attributes)
            self.graph_conditioner = nn.Sequential(
                nn.Linear(attributes, middle), self.activation_function, nn.Linear(middle, 2 * hidden)
            )
        elif self.settings.conditioning == "concat_node":
            self.graph_concat_projector = nn.Linear(hidden + attributes, hidden)
        elif self.settings.conditioning == "fuse_pool":
            self.graph_pool_projector = nn.Sequential(
                nn.Linear(hidden + attributes, hidden), self.activation_function, nn.Linear(hidden, hidden)
            )

    def add_heads(self) -> None:
        """Add the heads."""
        settings = self.settings
        shared = {
            name: self.network([settings.hidden_dim, *[head.dim_sharedlayers] * head.num_sharedlayers], active=True)
            for name, head in settings.graph_heads.items()
        }
        self.graph_shared = nn.ModuleDict(shared)
        self.heads_NN = nn.ModuleList()
        for head in settings.heads:
            width = head.dim * (1 + settings.variance)
            if head.level == "graph":
                graph_heads = {name: self._graph_head(form, width) for name, form in settings.graph_heads.items()}
                self.heads_NN.append(nn.ModuleDict(graph_heads))
            else:
                node_heads = {name: self._node_head(form, width) for name, form in settings.node_heads.items()}
                self.heads_NN.append(nn.ModuleDict(node_heads))

    def network(self, widths: list[int], *, active: bool = False) -> nn.Sequential:
        """Linear maps with the activation between them; ``active``: also at the end."""
        modules: list[nn.Module] = []
        for inputs, wide in itertools.pairwise(widths):
            modules += [nn.Linear(inputs, wide), self.activation_function]
        return nn.Sequential(*(modules if active else modules[:-1]))

    def _graph_head(self, form: GraphHead, width: int) -> nn.Module:
        return self.network([form.dim_sharedlayers, *form.dim_headlayers[: form.num_headlayers], width])

    def _node_head(self, form: NodeHead, width: int) -> nn.Module:
        settings = self.settings
        if form.type == "conv":
            return self._conv_head(form, width)
        count = 1 if form.type == "mlp" else settings.num_nodes or 0
        widths = [settings.hidden_dim, *form.dim_headlayers, width]
        return NodeNetworks([self.network(widths) for _ in range(count)], self.activation_function)

    def _conv_head(self, form: NodeHead, width: int) -> nn.Module:
        channels = [*form.dim_headlayers[: form.num_headlayers], width]
        modules = nn.ModuleList()
        for place, (in_dim, out_dim, wide) in enumerate(self.widths(self.settings.hidden_dim, channels)):
            last = place == len(channels) - 1
            layer = self.layer(in_dim, out_dim, number=-1, last=last, edge_dim=self.settings.edge_dim)
            modules.extend([layer, BatchNorm(wide)])
        return modules

    def forward(self, graph: FrozenGraph) -> list[Output]:
        """Mean and variance of every head, in the writer's units."""
        if self.settings.zero_shifts:
            graph = replace(graph, edge_shifts=None, fixed_vectors=None)
        inv, equiv, graph = self.start(graph)
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
        if self.settings.conditioning is None or graph.graph_attr is None:
            return inv
        if self.settings.conditioning == "film":
            scale, shift = self.graph_conditioner(graph.graph_attr).index_select(0, graph.batch).chunk(2, dim=1)
            repeats = inv.shape[1] // scale.shape[1]  # of the heads of GAT
            return inv * (1 + torch.tanh(scale).repeat_interleave(repeats, 1)) + shift.repeat_interleave(repeats, 1)
        if self.settings.conditioning == "concat_node":
            attributes = graph.graph_attr.index_select(0, graph.batch)
            return self.graph_concat_projector(torch.cat([inv, attributes], dim=1))
        return inv

    def _outputs(self, inv: Tensor, equiv: Tensor | None, graph: FrozenGraph) -> list[Output]:
        of_graph = pooled(inv, graph, POOLS[self.settings.graph_pooling])
        if self.settings.conditioning == "fuse_pool" and graph.graph_attr is not None:
            of_graph = self.graph_pool_projector(torch.cat([of_graph, graph.graph_attr], dim=1))
        branch = self._branch(graph)
        outputs: list[Output] = []
        for head, networks in zip(self.settings.heads, cast(Iterable[nn.ModuleDict], self.heads_NN)):
            owner = branch if head.level == "graph" else branch.index_select(0, graph.batch)
            total = inv.new_zeros(len(owner), head.dim * (1 + self.settings.variance))
            for number in branch.unique().tolist():
                network = networks[f"branch-{number}"]
                if head.level == "graph":
                    values = network(self.graph_shared[f"branch-{number}"](of_graph))
                elif isinstance(network, NodeNetworks):
                    values = network(inv)
                else:
                    values = self._convolved(cast(nn.ModuleList, network), inv, equiv, graph)
                total = torch.where((owner == number).unsqueeze(1), values, total)
            variance = total[:, head.dim :].square() if self.settings.variance else None
            outputs.append((total[:, : head.dim], variance))
        return outputs

    def _branch(self, graph: FrozenGraph) -> Tensor:
        """Branch of every graph: the first where graph heads have none or one."""
        names = list(self.settings.graph_heads) or ["branch-0"]
        if len(names) == 1:
            return graph.batch.new_full((graph.num_graphs,), int(names[0].removeprefix("branch-")))
        branch = graph.batch.new_zeros(graph.num_graphs) if graph.branch is None else graph.branch
        for number in branch.unique().tolist():
            if f"branch-{number}" not in names:
                raise InputError(f"a graph is of branch {number}; this model has {', '.join(names)}")
        return branch

    def _convolved(self, modules: nn.ModuleList, inv: Tensor, equiv: Tensor | None, graph: FrozenGraph) -> Tensor:
        pairs = list(modules)
        if self.settings.last_conv_layer_only:
            pairs = pairs[-2:]
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

    def forward(self, inv: Tensor) -> Tensor:
        """Outputs of all nodes."""
        if len(self.mlp) == 1:
            return self.mlp[0](inv)
        per_place = [network(inv[place :: len(self.mlp)]) for place, network in enumerate(self.mlp)]
        return torch.stack(per_place, dim=1).flatten(0, 1)


class BatchNorm(nn.Module):
    """Batch norm under the name that torch_geometric gives it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.module = nn.BatchNorm1d(width)

    def forward(self, inv: Tensor) -> Tensor:
        """Return normed scalars."""
        return self.module(inv)


def pooled(inv: Float[Tensor, "nodes width"], graph: FrozenGraph, reduce: str) -> Float[Tensor, "graphs width"]:
    """Reduce the nodes of every graph."""
    zeros = inv.new_zeros(graph.num_graphs, inv.shape[1])
    return zeros.scatter_reduce(0, graph.batch.unsqueeze(1).expand_as(inv), inv, reduce, include_self=False)


def check_graph(model: nn.Module, inputs: tuple[FrozenGraph]) -> None:
    """Refuse graphs without the columns that a model reads."""
    settings, graph = cast(FrozenModel, model).settings, inputs[0]
    attributes = settings.graph_attributes if settings.conditioning else 0
    for name, width in (("x", settings.input_dim), ("edge_attr", settings.edge_dim), ("graph_attr", attributes)):
        values = getattr(graph, name)
        columns = 0 if values is None else values.shape[1]
        if width and columns != width:
            raise InputError(f"graphs have {columns} columns of {name}, and this model reads {width}")
