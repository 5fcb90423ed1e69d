"""Models of the public HydraGNN give the outputs that its own code wrote beside their checkpoints."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hydragnn.base.errors import InputError
from hydragnn.frozen import FrozenGraph, FrozenModel, FrozenSettings, build, of_branch
from hydragnn.frozen.kinds import KINDS
from hydragnn.frozen.model import NodeNetworks
from hydragnn.frozen.settings import ARITHMETIC
from tests.hydragnn.frozen.folders import Outputs, batches, config_of, folders, in_precision, joined, weights_of

Config = dict[str, Any]
Weights = dict[str, Tensor]

CLOSE = {torch.float32: 1e-6, torch.float64: 1e-10}
"""Largest difference, in parts of the largest value of an output."""
COARSE = {"MACE_opt_cheb_agnesi": 4e-6, "MACE_v4_mlip": 4e-6}
"""The same in float32 where the writer's own forces are 2e-6 off those in float64."""


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_outputs_are_those_of_the_writer(folder: Path) -> None:
    config, weights = config_of(folder), joined(weights_of(folder))
    settings = FrozenSettings.from_config(config, weights)
    seen = 0
    for graph, expected in batches(folder):
        for dtype, outputs in expected.items():
            for name, values in computed(settings, weights, in_precision(graph, dtype), dtype).items():
                close = COARSE.get(folder.name, CLOSE[dtype]) if dtype is torch.float32 else CLOSE[dtype]
                assert relative(values, outputs[name]) < close, (dtype, name)
                seen += 1
    assert seen


@pytest.mark.parametrize(
    "name", ["GIN_v2_convhead", "EGNN_v3_lengths", "EGNN_gfm2024_m61", "EGNN_v4_crystals", "EGNN_v4_convhead"]
)
def test_arithmetic_of_today_with_old_weights(name: str, real_data: Path) -> None:
    folder = real_data / "hydragnn-generations" / name
    weights = weights_of(folder)[0]
    settings = FrozenSettings.from_config(config_of(folder), weights)
    flags = {flag: "main" in kinds.get(settings.kind, kinds.get("*", ())) for flag, kinds in ARITHMETIC.items()}
    today = settings.model_copy(update=flags)
    (graph, expected), *_ = batches(folder, "today")
    for output, values in computed(today, weights, in_precision(graph, torch.float64), torch.float64).items():
        assert relative(values, expected[torch.float64][output]) < CLOSE[torch.float64], output


GENERATIONS = {
    "v2.0.0": "v2.0",
    "v3.0": "v3.0",
    "Predictive_GFM_2024": "2024",
    "sc25": "v4.0",
    "v4.0": "v4.0",
    "v5.0": "v5.0",
    "c0b6c534": "v5.0",
    "main": "main",
    "pr527": "variables",
}
"""Generation by the tag of the code that wrote a folder."""


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_keys_tell_the_generation(folder: Path) -> None:
    meta = folder / "meta.json"
    tag = json.loads(meta.read_text())["tag"] if meta.exists() else "main"
    config, weights = config_of(folder), weights_of(folder)[0]
    settings = FrozenSettings.from_config(config, weights)
    assert settings.generation == GENERATIONS[tag]
    assert settings.evidence
    for name in ("input_dim", "output_dim", "output_type", "edge_dim", "pna_deg"):  # v2.0 did not write them
        config["NeuralNetwork"]["Architecture"].pop(name, None)
    derived = FrozenSettings.from_config(config, weights)
    assert derived == settings.model_copy(update={"pna_deg": derived.pna_deg})


def small_gin() -> tuple[Config, Weights]:
    """Configuration and weights of a GIN with one head of a graph."""
    architecture = {
        "mpnn_type": "GIN",
        "hidden_dim": 4,
        "num_conv_layers": 1,
        "input_dim": 1,
        "output_dim": [1],
        "output_type": ["graph"],
        "max_neighbours": 3,
        "output_heads": {
            "graph": [
                {
                    "type": "branch-0",
                    "architecture": {
                        "num_sharedlayers": 1,
                        "dim_sharedlayers": 3,
                        "num_headlayers": 1,
                        "dim_headlayers": [2],
                    },
                }
            ]
        },
    }
    network = {
        "Architecture": architecture,
        "Variables_of_interest": {"type": ["graph"], "output_dim": [1], "input_node_features": [0]},
    }
    config = {"NeuralNetwork": network}
    module = KINDS["GIN"](FrozenSettings.from_config(config, {"branch-0": torch.ones(4)}))
    return config, {f"module.{name}": torch.ones_like(one) for name, one in module.state_dict().items() if one.dim()}


@pytest.mark.parametrize("layers", [1, 0])
def test_the_small_one_is_read_and_has_a_first_layer(layers: int) -> None:
    config, weights = small_gin()
    (head,) = config["NeuralNetwork"]["Architecture"]["output_heads"]["graph"]
    head["architecture"] |= {"num_sharedlayers": layers, "num_headlayers": layers}
    assert build(FrozenSettings.from_config(config, weights), weights).settings.generation == "v4.0+"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_dim": 10**9}, "hidden_dim = 1000000000, which is no size in the checkpoint"),
        ({"num_conv_layers": 10**9}, "num_conv_layers = 1000000000"),
        ({"hidden_dim": -4}, "hidden_dim = -4"),
        ({"hidden_dim": "wide"}, "hidden_dim"),
        ({"hidden_dim": 5}, "other sizes than in config.json: config.json and checkpoint are of different"),
        ({"num_conv_layers": 2}, "lacks 9 tensors, the first graph_convs.1.module_0.eps"),
        ({"output_dim": [1, 1]}, "no configuration of the public HydraGNN"),
        ({"output_heads": None}, "KeyError 'output_heads'"),
        ({"mpnn_type": "GCN"}, "kind"),
        ({"activation_function": "gelu"}, '"gelu" has no function (suffered silent failure 10); one of relu'),
        ({"graph_pooling": "median"}, 'graph_pooling = "median" has no function'),
        ({"mpnn_type": "MFC", "max_neighbours": 10**9}, "max_neighbours = 1000000000"),
        ({"mpnn_type": "SchNet"}, "num_gaussians is missing, which SchNet needs"),
        ({"mpnn_type": "SchNet", "num_gaussians": 1, "num_filters": 4}, "num_gaussians = 1, where SchNet needs 2"),
        ({"mpnn_type": "SchNet", "num_gaussians": 10**10}, "num_gaussians = 10000000000, which is no size in"),
        ({"mpnn_type": "PAINN", "radius": -1.0}, "radius = -1.0, where PAINN needs 0.001 at least"),
        ({"mpnn_type": "PNAEq", "pna_deg": [0, 0]}, "pna_deg are no numbers of nodes by their degree"),
        (
            {"mpnn_type": "GAT", "use_graph_attr_conditioning": True, "graph_attr_conditioning_mode": "concat_node"},
            "draws new weights in every forward",
        ),
        (
            {"use_graph_attr_conditioning": True, "graph_attr_conditioning_mode": "film"},
            "no weights of graph_attr_conditioning_mode = film",
        ),
    ],
)
def test_what_has_no_function_is_refused(changes: Config, words: str) -> None:
    config, weights = small_gin()
    config["NeuralNetwork"]["Architecture"].update(changes)
    with pytest.raises(InputError) as refusal:
        build(FrozenSettings.from_config(config, weights), weights)
    assert words in str(refusal.value)


OLD: Config = {"mpnn_type": None, "model_type": "GIN"}


@pytest.mark.parametrize(
    ("changes", "training", "derived"),
    [
        ({"graph_pooling": "add"}, {}, {"graph_pooling": "add", "generation": "v4.0+"}),
        ({"graph_pooling": "add", **OLD}, {}, {"graph_pooling": "mean", "generation": "v3.0"}),
        ({"enable_interatomic_potential": True, **OLD}, {}, {"interatomic": False}),
        ({"global_attn_engine": "GPS", **OLD}, {}, {"global_attn_engine": None}),
        ({"use_graph_attr_conditioning": True, **OLD}, {}, {"conditioning": None}),
        ({**OLD, "model_type": "SchNet", "edge_features": ["lengths"]}, {}, {"edge_dim": 0}),
        ({"model_type": "GIN"}, {}, {"generation": "v4.0+"}),
        ({"enable_interatomic_potential": False}, {}, {"generation": "v5.0"}),
        ({}, {"precision": "fp32"}, {"generation": "v5.0"}),
        ({}, {"compute_grad_energy": True}, {"generation": "v4.0", "interatomic": True}),
        ({}, {"compute_grad_energy": True, "precision": "fp32"}, {"generation": "v5.0", "interatomic": False}),
        ({}, {"compute_grad_energy": True, "global_attn_redraw_interval": 9}, {"generation": "main"}),
        ({"num_conv_layers": 0}, {}, {"num_conv_layers": 1}),
        ({"mpnn_type": "GAT"}, {}, {"num_conv_layers": 2}),
    ],
)
def test_settings_are_those_that_the_version_read(changes: Config, training: Config, derived: Config) -> None:
    config, weights = small_gin()
    network = config["NeuralNetwork"]
    network["Architecture"] = {key: one for key, one in (network["Architecture"] | changes).items() if one is not None}
    if changes.get("model_type"):
        (head,) = network["Architecture"]["output_heads"]["graph"]
        network["Architecture"]["output_heads"] = {"graph": head["architecture"]}
    network["Training"] = training
    settings = FrozenSettings.from_config(config, weights)
    assert {name: getattr(settings, name) for name in derived} == derived


@pytest.mark.parametrize(
    ("generation", "kind"), [("v2.0", "SchNet"), ("v3.0", "PNAPlus"), ("v3.0", "PAINN"), ("2024", "MACE")]
)
def test_arithmetic_without_a_file_is_refused(generation: str, kind: str) -> None:
    sizes = {"hidden_dim": 1, "num_conv_layers": 1, "input_dim": 1}
    settings = FrozenSettings.model_validate({"kind": kind, "generation": generation, "heads": (), **sizes})
    with pytest.raises(InputError, match=f"arithmetic of {kind} in {generation} is not known"):
        settings.check({"weight": torch.zeros(1)})


@pytest.mark.parametrize("config", [None, [], {}, {"NeuralNetwork": 3}, {"NeuralNetwork": {"Architecture": {}}}])
def test_other_files_are_no_configurations(config: Config) -> None:
    with pytest.raises(InputError, match=r"config.json is no configuration of the public HydraGNN"):
        FrozenSettings.from_config(config, small_gin()[1])


def test_every_place_in_a_graph_has_its_network() -> None:
    networks = NodeNetworks([nn.Sequential(nn.Linear(1, 1, bias=False)) for _ in range(2)], nn.ReLU())
    networks.load_state_dict({"mlp.0.0.weight": torch.tensor([[1.0]]), "mlp.1.0.weight": torch.tensor([[2.0]])})
    assert networks(torch.ones(4, 1), torch.tensor([0, 0, 1, 1])).flatten().tolist() == [1, 2, 1, 2]
    for owners in ([0, 0, 0, 0], [0, 0, 0, 1]):
        with pytest.raises(InputError, match="for each of 2 nodes"):
            networks(torch.ones(4, 1), torch.tensor(owners))


def test_shards_of_one_rank_are_named() -> None:
    config, weights = small_gin()
    parts = {name: tensor[: -(-len(tensor) // 2)] for name, tensor in weights.items()}
    with pytest.raises(InputError, match="suffered silent failure 4"):
        build(FrozenSettings.from_config(config, parts), parts)


def computed(settings: FrozenSettings, weights: Weights, graph: FrozenGraph, dtype: torch.dtype) -> Outputs:
    """Outputs by the names of the files, each graph's and node's of its own branch."""
    branches = graph.extra.get("branch", torch.zeros(graph.num_graphs).long())
    names = [*settings.graph_heads] or ["branch-0"]
    results: Outputs = {}
    for name in names:
        model = build(*of_branch(settings, weights, name), dtype)
        for output, values in outputs_of(model, graph).items():
            own = (branches if len(values) == len(branches) else branches[graph.batch]) == int(name[7:])
            own = own.view(-1, *[1] * (values.dim() - 1)) | (len(names) == 1)
            results[output] = torch.where(own, values, results.get(output, values))
    return results


def outputs_of(model: FrozenModel, graph: FrozenGraph) -> Outputs:
    results = {}
    for number, (mean, variance) in enumerate(model(graph)):
        results[f"head{number}"] = mean
        if variance is not None:
            results[f"head{number}.var"] = variance
    if model.settings.interatomic:
        pos = graph.pos.clone().requires_grad_()
        results["energy"] = model.energy(replace(graph, pos=pos))
        (gradient,) = torch.autograd.grad(results["energy"].sum(), pos)
        results["forces"] = -gradient
    return {name: values.detach() for name, values in results.items()}


def relative(values: Tensor, expected: Tensor) -> float:
    return float((values - expected).abs().max() / expected.abs().max())
