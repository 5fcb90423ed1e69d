"""Checkpoints of the public HydraGNN, and its networks put together again around layers of ours that have its weights.

What stands around its layers is written anew here, from what its configurations say: batch norm and activation after every layer, pooling,
shared networks and heads, of several branches.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hydragnn.architectures.painn import Directions, PaiNNUpdate, TanhNetwork, directions_of
from hydragnn.kernels import Topology
from hydragnn.layers import MessageGraph
from tests.parity.rows import Bench, Pairs, Row

Graphs = Mapping[str, Tensor]
Weights = dict[str, Tensor]
Convolution = Callable[[int, Tensor], Tensor]
"""The states after a layer, by its number, of those before it."""
Network = Callable[[Graphs], Convolution]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "silu": nn.functional.silu,
    "selu": torch.selu,
    "elu": nn.functional.elu,
    "lrelu_01": nn.LeakyReLU(0.1),
    "lrelu_025": nn.LeakyReLU(0.25),
    "lrelu_05": nn.LeakyReLU(0.5),
}


class Activation(nn.Module):
    """That of a checkpoint, in the place of one of ours."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@dataclass(frozen=True)
class Checkpoint:
    """What a folder of ``shared/data/hydragnn/ckpt`` holds, in float64."""

    folder: Path

    @classmethod
    def of(cls, bench: Bench, name: str) -> "Checkpoint":
        return cls(bench.real_data() / "hydragnn" / "ckpt" / name)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Its ``Architecture``."""
        config: dict[str, Any] = json.loads((self.folder / "config.json").read_text())
        return config["NeuralNetwork"]["Architecture"]  # type: ignore[no-any-return]

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """All tensors, without what wrappers put before their names."""
        arrays = numbers_in(self.folder / "state_dict.npz")
        return {re.sub(r"^module\.(model\.)?", "", name): tensor for name, tensor in arrays.items()}

    def batches(self) -> Iterator[tuple[Graphs, Graphs]]:
        """Every batch of graphs, with what HydraGNN predicted for it in float64; energies may be differentiated."""
        arrays = numbers_in(self.folder / "graphs_predictions.npz")
        for number in itertools.count():
            graphs = under(arrays, f"g{number}.")
            if not graphs:
                return
            expected = under(arrays, f"pred{number}.fp64.")
            positions = graphs["pos"].clone().requires_grad_("energy" in expected)
            yield {**expected, **graphs, "pos": positions}, expected

    def of_layer(self, number: int, module: int = 0) -> dict[str, Tensor]:
        """The weights of one module of a layer."""
        return under(self.weights, f"graph_convs.{number}.module_{module}.")

    @property
    def activation(self) -> Callable[[Tensor], Tensor]:
        """That between layers and in heads."""
        return ACTIVATIONS[self.settings["activation_function"]]

    def final_states(self, graphs: Graphs, convolution: Convolution, *, activates: bool) -> Tensor:
        """States after all layers, each with its batch norm, where it has one, conditioning and activation, unless the layer ``activates`` itself."""
        states = graphs["x"]
        for number in range(self.settings["num_conv_layers"]):
            states = convolution(number, states)
            states = self._conditioned(states, graphs)
            norm = under(self.weights, f"feature_layers.{number}.module.")
            if norm:
                scale = norm["weight"] / (norm["running_var"] + 1e-5).sqrt()
                states = (states - norm["running_mean"]) * scale + norm["bias"]
            states = states if activates else self.activation(states)
        return states

    def _conditioned(self, states: Tensor, graphs: Graphs) -> Tensor:
        """By the attributes of graphs, where there are any: FiLM, or a linear map of states and attributes side by side, the same after every layer."""
        mode = self.settings.get("graph_attr_conditioning_mode")
        if mode is None:
            return states
        attributes = graphs["graph_attr"].view(len(graphs["ptr"]) - 1, -1)
        if mode == "concat_node":
            joined = torch.cat([states, attributes.index_select(0, graphs["batch"])], dim=1)
            return nn.functional.linear(joined, *under(self.weights, "graph_concat_projector.").values())
        condition = network(under(self.weights, "graph_conditioner."), attributes, self.activation)
        scale, shift = condition.index_select(0, graphs["batch"]).chunk(2, dim=1)
        return states * (1 + torch.tanh(scale)) + shift

    def outputs(self, graphs: Graphs, states: Tensor) -> dict[str, Tensor]:
        """What every head says of final states, by the names of ``batches``; heads with layers of their own are left out."""
        names = graphs.get("dataset_name", torch.zeros(len(graphs["ptr"]) - 1, dtype=torch.int64)).flatten().long()
        outputs = {}
        for number, kind in enumerate(self.settings["output_type"]):
            per_branch = []
            for branch in range(int(names.max()) + 1):
                weights = under(self.weights, f"heads_NN.{number}.branch-{branch}.")
                if kind == "graph":
                    shared = under(self.weights, f"graph_shared.branch-{branch}.")
                    inputs = network(shared, self._pooled(graphs, states), self.activation)
                    inputs = self.activation(inputs) if shared else inputs
                elif any(name.startswith("mlp.0.") for name in weights):
                    weights, inputs = under(weights, "mlp.0."), states
                else:
                    break
                per_branch.append(network(weights, inputs, self.activation))
            if per_branch:
                of_row = names if kind == "graph" else names.index_select(0, graphs["batch"])
                stacked = torch.stack(per_branch)  # [branches, rows, numbers]
                outputs[f"head{number}"] = stacked[of_row, torch.arange(stacked.shape[1])]
        return outputs

    def _pooled(self, graphs: Graphs, states: Tensor) -> Tensor:
        parts = states.split(graphs["ptr"].diff().tolist())
        pool = self.settings.get("graph_pooling") or "mean"
        pools = {"mean": lambda x: x.mean(0), "max": lambda x: x.amax(0)}
        return torch.stack([pools.get(pool, lambda x: x.sum(0))(part) for part in parts])


def network(weights: Mapping[str, Tensor], inputs: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """Linear maps by the numbers in their names, with the activation between them."""
    numbers = sorted({int(name.split(".")[0]) for name in weights})
    for place, number in enumerate(numbers):
        inputs = nn.functional.linear(inputs, weights[f"{number}.weight"], weights.get(f"{number}.bias"))
        inputs = activation(inputs) if place < len(numbers) - 1 else inputs
    return inputs


def message_graph(graphs: Graphs, receivers: int, *, edges: Tensor | None = None, **more: Any) -> MessageGraph:
    """The graphs as our layers see them; ``receivers`` is the row of its edge index in which they stand.

    Vectors point from receiver to sender; ``edges`` are others than those of the graphs, without periodic images.
    """
    index = (graphs["edge_index"] if edges is None else edges).long()
    order = index[receivers].argsort(stable=True)
    shifts = graphs.get("edge_shifts") if edges is None else None
    receiver, sender = index[receivers][order], index[1 - receivers][order]
    vectors = graphs["pos"].index_select(0, sender) - graphs["pos"].index_select(0, receiver)
    if shifts is not None:  # from the first to the second row
        vectors = vectors + shifts[order] * (1 if receivers == 0 else -1)
    topology = Topology.square(sender, receiver, len(graphs["x"]))
    nodes: Any = {"owner": graphs["batch"].long(), "nodes_per_graph": graphs["ptr"].diff()}
    return MessageGraph(topology=topology, vectors=vectors, **nodes, **more)


def put(module: nn.Module | None, weight: Tensor, bias: Tensor | None = None) -> None:
    """Weights into a linear map of ours; what the map is wider than they are is zero."""
    assert isinstance(module, nn.Linear)
    with torch.no_grad():
        module.weight.zero_()[: weight.shape[0], : weight.shape[1]] = weight
        if module.bias is not None:
            module.bias.zero_()
        if bias is not None:
            module.bias[: len(bias)] = bias


def put_all(weights: Weights, modules: Mapping[str, nn.Module | None]) -> None:
    """Give modules the weights, and biases if any, of these names."""
    for name, module in modules.items():
        put(module, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def filled(columns: Tensor, width: int) -> Tensor:
    """The columns, and zeros up to so many."""
    return torch.cat([columns, columns.new_zeros(len(columns), width - columns.shape[1])], dim=1)


def numbers_in(path: Path) -> dict[str, Tensor]:
    """Arrays of a file; real numbers in float64."""
    with np.load(path) as arrays:
        tensors = {name: torch.from_numpy(arrays[name]) for name in arrays}
    return {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def their_directions(graph: MessageGraph, form: Directions) -> Tensor:
    """Ours, of unit vectors r / (|r| + 1e-9)."""
    lengths = graph.lengths.unsqueeze(-1)
    return directions_of(graph, form) * lengths / (lengths + 1e-9)


Layer = Callable[[dict[int, Tensor], MessageGraph], Mapping[int, Tensor]]


def chained(graph_of: Callable[[Graphs], MessageGraph], layer_of: Callable[[int, int], Layer]) -> Network:
    """Layers, by number and width of what comes into them, on one graph; states of other degrees are handed on."""

    def convolutions(graphs: Graphs) -> Convolution:
        graph, others = graph_of(graphs), dict[int, Tensor]()

        def convolution(number: int, states: Tensor) -> Tensor:
            new = layer_of(number, states.shape[1])({0: states, **others}, graph)
            others.update({degree: values for degree, values in new.items() if degree})
            return new[0]

        return convolution

    return convolutions


def filled_up(layer: nn.Module, width: int) -> Layer:
    """Return the layer for scalars that are narrower than it is."""
    return lambda states, graph: layer({**states, 0: filled(states[0], width)}, graph)  # type: ignore[no-any-return]


def blind(graphs: Graphs) -> MessageGraph:
    """Return edges without geometry."""
    return replace(message_graph(graphs, receivers=1), vectors=None)


def tanh_network(checkpoint: "Checkpoint", number: int) -> TanhNetwork:
    """Ours with the weights of what comes after their layer, which may be wider than what comes into it."""
    scalars, vectors = checkpoint.of_layer(number, 2), checkpoint.of_layer(number, 3)
    network = TanhNetwork(len(scalars["0.bias"]), vectors=bool(vectors))
    width = scalars["0.weight"].shape[1]
    network.scalars[0] = nn.Linear(width, len(scalars["0.bias"]))
    put_all(scalars, {"0": network.scalars[0], "2": network.scalars[2]})
    if vectors:
        network.vectors = nn.Linear(width, len(vectors["weight"]), bias=False)
        put(network.vectors, vectors["weight"])
    return network


def update_of(weights: dict[str, Tensor]) -> PaiNNUpdate:
    """Ours with the weights of an update of vectors, of which it takes lengths as they are; its gates are in another order."""
    left, right = (weights[f"update_{name}.weight"] for name in ("U" if "update_U.weight" in weights else "X", "V"))
    channels = len(left)
    update = PaiNNUpdate(channels, last=len(weights["update_mlp.2.bias"]) == 2 * channels)
    update.norm = {"smooth": False, "floor": 0.0}
    put(update.mix, torch.cat([left, right]))
    norms, scalars = weights["update_mlp.0.weight"].chunk(2, dim=1)
    put(update.gates[0], torch.cat([scalars, norms], dim=1), weights["update_mlp.0.bias"])
    # theirs: of vectors, unless it is the last, of the product, of scalars
    gates = [torch.cat([*reversed(weights[f"update_mlp.2.{name}"].split(channels))]) for name in ("weight", "bias")]
    put(update.gates[2], *gates)
    return update


def row_of(what: str, seen: str, pairs: Callable[[Bench, str], Pairs], prefix: str, checkpoints: str) -> Row:
    return Row(what, "public HydraGNN", seen, pairs, [(f"{prefix}_{name}",) for name in checkpoints.split()], 5e-11)


def compared(checkpoint: Checkpoint, convolutions: Network, *, activates: bool = False) -> Pairs:
    """Yield all predictions; layers may have the activation after them, too."""
    for graphs, expected in checkpoint.batches():
        states = checkpoint.final_states(graphs, convolutions(graphs), activates=activates)
        yield from agree(checkpoint.outputs(graphs, states), graphs, expected)


def agree(outputs: Mapping[str, Tensor], graphs: Graphs, expected: Graphs) -> Pairs:
    """Yield every head's predictions and, where energies have them, forces."""
    assert outputs
    for name, values in outputs.items():
        if f"{name}.var" in expected:  # the root of a variance stands beside every number
            values, roots = values.chunk(2, dim=1)
            yield roots.square(), expected[f"{name}.var"]
        yield values, expected[name]
    if "energy" in expected:
        total = outputs["head0"]
        if len(total) == len(graphs["x"]):
            total = total.new_zeros(len(expected["energy"]), 1).index_add(0, graphs["batch"], total)
        yield total.flatten(), expected["energy"]
        (gradient,) = torch.autograd.grad(total.sum(), graphs["pos"])
        yield -gradient, expected["forces"]
