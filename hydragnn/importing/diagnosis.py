"""Diagnosis: failures of the public HydraGNN that a run suffered."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from hydragnn.frozen import FrozenGraph, FrozenModel, FrozenSettings
from hydragnn.frozen.settings import ACTIVATIONS

Verdict = Literal["suffered", "not suffered", "cannot be told"]
Format = Literal["bp", "pickle", "raw"]
LOSSES = ("mse", "mae", "rmse", "GaussianNLLLoss")
"""Losses that the public code computes."""
CLOSE = 1e-4
"""Relative difference of lengths that were stored in single precision."""
SMALL = 1e-5
"""Relative change of outputs that rounding explains."""
ROTATION = torch.tensor([[0.36, 0.48, -0.8], [-0.8, 0.6, 0.0], [0.48, 0.64, 0.6]], dtype=torch.float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Failure of the public code, with verdict, evidence and size."""

    number: int
    name: str
    verdict: Verdict
    evidence: str
    size: str = ""


@dataclass(frozen=True, kw_only=True)
class Set:
    """Set of graphs that a run was trained on."""

    format: Format
    parts: Mapping[str, Sequence[Any]]
    """Marks of all graphs by part, equal for equal graphs."""
    graph: FrozenGraph
    """First graphs, as the model's code saw them."""
    labels: Sequence[Tensor | None] = ()
    """Targets of these graphs by output, in the writer's units."""
    tests: int = 0
    """First of these graphs that are of the test part."""
    fitted_on_all: bool | None = None
    """Scales fit all parts, not training alone; None without scales."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Files of one model of the public HydraGNN."""

    config: Mapping[str, Any]
    names: Sequence[str]
    """Names of tensors in the checkpoint."""
    file: str
    """Name of the checkpoint."""
    settings: FrozenSettings | None = None
    """None where no settings can be read from the configuration."""
    module: FrozenModel | None = None
    """None where the file has no function."""
    optimized: int | None = None
    """Parameters that the optimizer in the checkpoint knows; None without one."""
    data: Set | None = None

    @property
    def architecture(self) -> Mapping[str, Any]:
        """Return the section ``Architecture``."""
        return self.config["NeuralNetwork"]["Architecture"]

    @property
    def training(self) -> Mapping[str, Any]:
        """Return the section ``Training``."""
        return self.config["NeuralNetwork"].get("Training") or {}

    @property
    def kind(self) -> str:
        """Return the name of the architecture there."""
        return str(self.architecture.get("mpnn_type") or self.architecture.get("model_type"))

    def branches(self, level: str) -> Mapping[str, Mapping[str, Any]]:
        """Return networks of heads on graphs or nodes, by branch."""
        heads = (self.architecture.get("output_heads") or {}).get(level) or []
        return (
            {"branch-0": heads} if isinstance(heads, Mapping) else {one["type"]: one["architecture"] for one in heads}
        )

    @property
    def num_branches(self) -> int:
        """Return the number of branches."""
        return max(len(self.branches("graph")), len(self.branches("node")), 1)


Answer = tuple[Verdict, str] | tuple[Verdict, str, str]
RULES: dict[int, tuple[str, Callable[[Case], Answer]]] = {}
"""Name and rule of every failure, by its number."""


def rule(number: int, name: str) -> Callable[[Callable[[Case], Answer]], Callable[[Case], Answer]]:
    """Register the rule of a failure."""

    def add(function: Callable[[Case], Answer]) -> Callable[[Case], Answer]:
        RULES[number] = name, function
        return function

    return add


def diagnose(case: Case) -> list[Finding]:
    """Return the finding of every failure, in the order of their numbers."""
    findings = []
    for number, (name, function) in sorted(RULES.items()):
        verdict, evidence, *size = function(case)
        findings.append(Finding(number=number, name=name, verdict=verdict, evidence=evidence, size="".join(size)))
    return findings


def either(condition: bool, suffered: str, otherwise: str) -> Answer:
    """Return the verdict that a condition decides."""
    return ("suffered", suffered) if condition else ("not suffered", otherwise)


NO_DATA: Answer = "cannot be told", "no set of graphs lies beside the checkpoint"


# sizes


def outputs(module: FrozenModel, graph: FrozenGraph) -> list[Tensor]:
    """Return all means; energies and forces of an interatomic potential."""
    if not module.settings.interatomic:
        with torch.no_grad():
            return [mean for mean, _ in module(graph)]
    moving = replace(graph, pos=graph.pos.detach().requires_grad_())
    energy = module.energy(moving)
    forces = torch.autograd.grad(energy.sum(), moving.pos, allow_unused=True)[0]
    return [energy.detach(), torch.zeros_like(graph.pos) if forces is None else -forces]


def largest_change(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    """Return the largest relative difference of two lists of outputs."""
    pairs = zip(first, second, strict=True)
    changes = [float((a - b).abs().max() / a.abs().max().clamp_min(1e-300)) for a, b in pairs if a.numel()]
    return max(changes, default=0.0)


def size_of(case: Case, other: list[Tensor], own: list[Tensor] | None = None) -> tuple[float, str]:
    """Return the change of outputs, with the errors of both."""
    assert case.module is not None and case.data is not None
    own = outputs(case.module, case.data.graph) if own is None else own
    change = largest_change(own, other)
    text = f"outputs change by up to {change:.2g} of the largest"
    tested = case.data.graph.batch < case.data.tests  # [nodes]
    for number, (label, a, b) in enumerate(zip(case.data.labels, own, other)):
        if label is not None and case.data.tests:
            rows = tested if len(a) == len(tested) else slice(case.data.tests)
            writer, right = (float((one.reshape(label.shape) - label)[rows].abs().mean()) for one in (a, b))
            text += f"; output {number}: mean absolute error on {case.data.tests} test graphs {writer:.4g}, with the right arithmetic {right:.4g}"
    return change, text


def measured(case: Case, other: list[Tensor], evidence: str) -> Answer:
    """Return that a failure was suffered, unless outputs change by rounding alone."""
    change, text = size_of(case, other)
    stays: Answer = "not suffered", f"{evidence}; outputs stay as they are"
    return stays if change <= SMALL else ("suffered", evidence, text)


def with_arithmetic(case: Case, *flags: str) -> list[Tensor]:
    """Return the outputs with these flags as in today's code."""
    assert case.module is not None and case.data is not None
    module = case.module
    settings = module.settings.model_copy(update=dict.fromkeys(flags, False))
    other = type(module)(settings).to(next(module.parameters()).dtype)
    other.load_state_dict(module.state_dict())
    return outputs(other.eval(), case.data.graph)


def has_shifts(graph: FrozenGraph) -> bool:
    """Return True where an edge crosses a periodic boundary."""
    return graph.edge_shifts is not None and bool((graph.edge_shifts != 0).any())


# what the configuration decides


@rule(1, "attention mixes the graphs of a batch")
def _mixed_attention(case: Case) -> Answer:
    if case.architecture.get("global_attn_engine") != "GPS":
        return "not suffered", "no attention of GPS"
    evidence = 'global_attn_engine = "GPS": each prediction depends on the other graphs of its batch'
    if case.module is None or case.data is None or case.data.graph.num_graphs < 2:
        return "suffered", evidence
    alone = [outputs(case.module, graph) for graph in separate(case.data.graph)]
    apart = [torch.cat(parts) for parts in zip(*alone, strict=True)]
    return "suffered", evidence, size_of(case, apart)[1]


@rule(2, "networks of graph attributes are never trained")
def _conditioning(case: Case) -> Answer:
    if not case.architecture.get("use_graph_attr_conditioning"):
        return "not suffered", "use_graph_attr_conditioning is not set"
    parameters = None if case.module is None else len({id(one) for one in case.module.parameters()})
    optimized = case.optimized if case.num_branches == 1 else None  # others know those of all branches
    if optimized is not None and parameters is not None and optimized >= parameters:
        return "not suffered", f"the optimizer knows all {parameters} parameters: the run was continued from a file"
    known = "" if optimized is None else f"; the optimizer knows {optimized} of {parameters} parameters"
    return "suffered", f"its networks are made in the first forward pass, after the optimizer{known}"


@rule(3, "predictions with random parameters, since names do not fit")
def _not_strict(case: Case) -> Answer:
    prefixed = any(name.startswith("module.") for name in case.names)
    return either(
        prefixed,
        "names begin with module. (written by several ranks, or through DDP): its scripts for inference skip all of them in silence",
        "names have no prefix, so its scripts for inference find them",
    )


@rule(4, "a checkpoint of shards holds those of one rank")
def _shards(case: Case) -> Answer:
    if case.module is not None:
        return "not suffered", "every tensor is there, in its full size"
    return "cannot be told", "the file does not give a model"


@rule(5, "task-parallel training leaves embeddings and frequencies as they began")
def _task_parallel(case: Case) -> Answer:
    if not re.search(r"_branch\d+", case.file):
        return "not suffered", "the file is not one of a task-parallel run (_branchK)"
    if case.module is None:
        return "cannot be told", "the file does not give a model"
    own = [
        name
        for name, _ in case.module.named_parameters()
        if name.startswith(("pos_emb", "node_emb", "node_lin", "edge_emb", "edge_lin", "rel_pos_emb", "node_embedding"))
        or name.endswith("rbf.freq")
    ]
    return either(bool(own), f"task-parallel, with {', '.join(own[:3])}", "the model has no embeddings or frequencies")


@rule(6, "SchNet ignores periodic images and the edges of the data")
def _rebuilt(case: Case) -> Answer:
    architecture = case.architecture
    if case.kind != "SchNet":
        return "not suffered", f"{case.kind} reads the edges of the data"
    if architecture.get("global_attn_engine") or architecture.get("edge_features"):
        if case.data is not None and not has_shifts(case.data.graph):
            return "not suffered", "it reads the edges of the data, of which none crosses a boundary"
        evidence = "with edge features or GPS it reads the edges, and sets their shifts to zero"
        return (
            ("cannot be told", f"{evidence}; without data nothing tells whether any edge has one")
            if case.data is None
            else ("suffered", evidence)
        )
    if case.data is None or case.module is None:
        return either(
            bool(architecture.get("periodic_boundary_conditions")),
            "periodic_boundary_conditions = true, and SchNet builds its own graph, without images, in every layer",
            "no periodic boundary conditions",
        )
    change, text = size_of(case, with_arithmetic(case, "rebuilt_graph"))
    return (
        ("suffered", "SchNet builds its own graph, without images, in every layer", text)
        if change > SMALL
        else ("not suffered", "its own graph has the edges of the data")
    )


@rule(7, "of several branches with node heads alone one is trained")
def _node_branches(case: Case) -> Answer:
    alone = not case.branches("graph") and len(case.branches("node")) > 1
    return either(
        alone,
        f"{len(case.branches('node'))} branches, and all have node heads alone",
        "one branch" if case.num_branches == 1 else "branches have heads on graphs",
    )


@rule(8, "convolutional node heads fail in two branches")
def _conv_branches(case: Case) -> Answer:
    conv = any(one.get("type") == "conv" for one in case.branches("node").values())
    return either(
        conv and len(case.branches("node")) > 1,
        "convolutional node heads in several branches cannot be built there",
        "one branch" if conv else "no convolutional node heads",
    )


@rule(9, "the loss of energies in double precision is computed in single")
def _single_loss(case: Case) -> Answer:
    double = str(case.training.get("precision")) in ("fp64", "float64", "double")
    potential = bool(case.architecture.get("enable_interatomic_potential"))
    return either(
        double and potential,
        f"precision = {case.training.get('precision')} with an interatomic potential",
        "no interatomic potential" if double else "precision is not double",
    )


@rule(10, "an unknown activation or loss becomes None")
def _unknown(case: Case) -> Answer:
    activation = case.architecture.get("activation_function") or "relu"
    loss = case.training.get("loss_function_type") or "mse"
    bad = [f"activation_function = {activation}"] * (activation not in ACTIVATIONS)
    bad += [f"loss_function_type = {loss}"] * (loss not in LOSSES)
    return either(bool(bad), " and ".join(bad), f"{activation} and {loss} are there")


@rule(11, "a configuration without an optimizer fails")
def _no_optimizer(case: Case) -> Answer:
    there = bool(case.training.get("Optimizer"))
    return either(not there, "Training has no Optimizer", "Training has an Optimizer")


@rule(12, "its loaders fail on periodic graphs, descriptors and wide encodings")
def _loaders(case: Case) -> Answer:
    dataset = case.config.get("Dataset") or {}
    raw = dataset.get("format") in ("LSMS", "unit_test", "CFG", "XYZ")
    own = case.data is not None and case.data.format == "raw"
    bad = ["Descriptors"] * bool(dataset.get("Descriptors"))
    bad += ["periodic_boundary_conditions"] * bool(
        raw and own and case.architecture.get("periodic_boundary_conditions")
    )
    if bad:
        return "suffered", f"{' and '.join(bad)} with raw files"
    if raw and case.data is None and case.architecture.get("periodic_boundary_conditions"):
        return (
            "cannot be told",
            "periodic_boundary_conditions with raw files in the configuration, which a script may have replaced",
        )
    return "not suffered", "neither periodic raw files nor descriptors"


@rule(13, "MACE uses the first correlation of a list for all layers, and its Gaussian loss fails")
def _correlation(case: Case) -> Answer:
    correlation = case.architecture.get("correlation")
    differ = isinstance(correlation, list) and len(set(correlation)) > 1
    gaussian = case.training.get("loss_function_type") == "GaussianNLLLoss"
    if case.kind != "MACE":
        return "not suffered", f"{case.kind} is not MACE"
    return either(
        differ or gaussian,
        f"correlation = {correlation}" if differ else "GaussianNLLLoss with MACE",
        "one correlation for all layers, and no GaussianNLLLoss",
    )


@rule(14, "PaiNN gives NaN where two nodes coincide")
def _coincident(case: Case) -> Answer:
    if case.kind != "PAINN":
        return "not suffered", f"{case.kind} is not PaiNN"
    if case.data is None:
        return NO_DATA
    zero = int((case.data.graph.lengths() == 0).sum())
    return either(
        zero > 0, f"{zero} edges of the first graphs have length zero", "no edge of the first graphs has length zero"
    )


@rule(15, "pickled sets choose their columns twice")
def _twice(case: Case) -> Answer:
    if case.data is not None and case.data.format != "pickle":
        return "not suffered", "the data are not pickled"
    variables = case.config["NeuralNetwork"].get("Variables_of_interest") or {}
    columns = variables.get("input_node_features")
    nodes = [i for i, level in zip(variables.get("output_index", []), variables.get("type", [])) if level == "node"]
    if columns is not None and columns == list(range(len(columns))) and not nodes:
        return "not suffered", "choosing the first columns twice gives the same columns"
    if case.data is None:
        return "cannot be told", "nothing tells whether the data were pickled"
    return (
        "cannot be told",
        "pickled data; a script decides whether they were loaded at once (preload), which chooses twice",
    )


@rule(16, "random edges and larger radii where a node is alone")
def _random_edges(case: Case) -> Answer:
    radius = case.architecture.get("radius")
    if case.data is None:
        return NO_DATA
    if not radius or not case.data.graph.edge_index.numel():
        return "not suffered", "there is no radius or no edge"
    graph, lengths = case.data.graph, case.data.graph.lengths().flatten()
    long, near = lengths > radius * (1 + CLOSE), torch.zeros(len(case.data.graph.x), dtype=torch.bool)
    near[graph.edge_index[:, ~long].flatten()] = True
    with_lone = torch.isin(graph.batch[graph.edge_index[0]], graph.batch[~near])  # of edges
    count, most = int((long & with_lone).sum()), f"up to {float(lengths.max()):.4g}, the radius is {radius}"
    return either(
        count > 0,
        f"{count} of {len(lengths)} edges of the first graphs are longer than the radius, where a node has none within it: {most}",
        f"no edge beyond the radius lies in a graph with a lone node: {most}",
    )


@rule(17, "nodes sum at the other end of edges that were cut off")
def _wrong_end(case: Case) -> Answer:
    if case.kind not in ("EGNN", "PAINN", "PNAEq"):
        return "not suffered", f"{case.kind} sums where edges were cut off"
    if case.data is None:
        return NO_DATA
    graph = case.data.graph
    if not (count := one_way_edges(graph)):
        return "not suffered", "each edge of the first graphs has its reverse"
    evidence = f"{count} edges of the first graphs have no reverse, since max_neighbours cut it off"
    if case.module is None:
        return "suffered", evidence
    shifts = None if graph.edge_shifts is None else -graph.edge_shifts
    turned = replace(graph, edge_index=graph.edge_index.flip(0), edge_shifts=shifts)
    return measured(case, outputs(case.module, turned), evidence)


@rule(18, "test graphs leave traces in training")
def _leak(case: Case) -> Answer:
    if case.data is None:
        return NO_DATA
    parts = case.data.parts
    twice = sum(len({*parts[a]} & {*parts[b]}) for a in parts for b in parts if a < b)
    if twice:
        return "suffered", f"{twice} graphs lie in two parts"
    if case.data.fitted_on_all:
        return "suffered", "minimum and maximum are those of all parts, not of training alone"
    if not parts:
        return "cannot be told", "the set is not divided into parts"
    return "not suffered", "no graph lies in two parts, and no scale reaches beyond training"


@rule(19, "two tables number the data sets and contradict each other")
def _numbers(case: Case) -> Answer:
    if case.num_branches == 1:
        return "not suffered", "one branch, so no number of a set is read"
    return "cannot be told", f"{case.num_branches} branches; no file says which of its two tables numbered the sets"


@rule(20, "a variable of the environment turns off checkpoints and early stopping")
def _environment(case: Case) -> Answer:
    keys = [key for key in ("Checkpoint", "EarlyStopping", "CheckRemainingTime") if case.training.get(key)]
    if not keys:
        return "not suffered", "the configuration asks for none of them"
    return "cannot be told", f"{', '.join(keys)} are asked for; no file keeps HYDRAGNN_VALTEST"


@rule(21, "means over ranks and batches are not weighted, surplus batches are dropped")
def _means(case: Case) -> Answer:
    size = case.training.get("batch_size")
    if case.data is None or not case.data.parts or not isinstance(size, int) or size < 1:
        return NO_DATA
    odd = [f"{name} ({len(graphs)})" for name, graphs in case.data.parts.items() if len(graphs) % size]
    if not odd:
        return "not suffered", f"all parts are whole batches of {size}"
    return "cannot be told", f"{', '.join(odd)} are no whole batches of {size}; no file says how many ranks there were"


@rule(22, "initial bias, batch norms on CPUs and dropout cannot be set")
def _settings(case: Case) -> Answer:
    architecture = case.architecture
    bad = ["initial_bias, which fails"] * (architecture.get("initial_bias") is not None)
    bad += ["SyncBatchNorm, which CPUs ignore"] * bool(architecture.get("SyncBatchNorm"))
    dropout = case.kind == "GAT" or architecture.get("global_attn_engine") == "GPS"
    bad += ["a dropout of .25 in GAT and GPS that no key changes"] * dropout
    return either(bool(bad), " and ".join(bad), "none of them acts")


@rule(23, "an empty part of an ADIOS file is unreadable")
def _empty(case: Case) -> Answer:
    if case.data is None:
        return NO_DATA
    if case.data.format != "bp":
        return "not suffered", "the data are no ADIOS file"
    empty = [name for name, graphs in case.data.parts.items() if not len(graphs)]
    return either(bool(empty), f"{', '.join(empty)} has no graphs", "no part is empty")


@rule(24, "vectors have a bias, so that outputs turn with the crystal")
def _vector_bias(case: Case) -> Answer:
    if case.settings is None or not case.settings.vector_biases:
        return "not suffered", "no linear map of vectors has a bias"
    evidence = "the checkpoint holds update_U.bias or update_X.bias"
    if case.module is None or case.data is None:
        return "suffered", evidence
    return (
        "suffered",
        evidence,
        f"a rotation changes outputs by up to {change_by_rotation(case.module, case.data.graph):.2g} of the largest",
    )


@rule(25, "shifts of periodic edges are set to zero")
def _zero_shifts(case: Case) -> Answer:
    if case.settings is None or not case.settings.zero_shifts:
        return "not suffered", "this version honours shifts"
    if case.data is None:
        return "cannot be told", "this version sets shifts to zero; without data nothing tells whether any edge has one"
    if not has_shifts(case.data.graph):
        return "not suffered", "no edge of the first graphs crosses a periodic boundary"
    evidence = f"{case.kind} of {case.settings.generation} sets shifts to zero, and edges cross periodic boundaries"
    return (
        ("suffered", evidence)
        if case.module is None
        else ("suffered", evidence, size_of(case, with_arithmetic(case, "zero_shifts"))[1])
    )


@rule(26, "today's code reads the file as another function: squared distances, old sign")
def _squares(case: Case) -> Answer:
    if case.settings is None or not case.settings.squared_distances:
        return "not suffered", "its edges see distances, as today"
    evidence = f"{case.kind} of {case.settings.generation} sees squared distances, and today's code distances"
    if case.module is None or case.data is None:
        return "suffered", evidence
    _, text = size_of(case, with_arithmetic(case, "squared_distances", "reversed_steps"))
    return "suffered", evidence, text.replace("with the right arithmetic", "read by today's code")


@rule(27, "a network of graph attributes is drawn anew in every pass")
def _drawn_anew(case: Case) -> Answer:
    architecture = case.architecture
    conditioned = bool(architecture.get("use_graph_attr_conditioning"))
    mode = architecture.get("graph_attr_conditioning_mode") or "concat_node"
    return either(
        case.kind == "GAT" and conditioned and mode == "concat_node",
        "GAT with graph attributes by concat_node: two passes differ, and the file has no function",
        "no graph attributes" if not conditioned else f"{case.kind} with {mode} keeps its network",
    )


@rule(28, "hidden layers of convolutional node heads do nothing")
def _idle_layers(case: Case) -> Answer:
    conv = any(one.get("type") == "conv" for one in case.branches("node").values())
    if case.settings is None or not case.settings.last_conv_layer_only:
        return "not suffered", "this version uses all layers of its heads"
    if not conv:
        return "not suffered", "no convolutional node heads"
    evidence = "convolutional node heads of v2.0: their last layer alone acts, on the encoder's output"
    return "suffered", evidence


@rule(29, "self edges make gradients NaN")
def _self_edges(case: Case) -> Answer:
    old = case.settings is not None and case.settings.generation in ("v3.0", "2024")
    if not (case.kind == "EGNN" and case.architecture.get("equivariance") and old):
        return "not suffered", "not EGNN of v3.0 or 2024 with equivariance"
    if case.data is None:
        return NO_DATA
    edges = case.data.graph.edge_index
    count = int((edges[0] == edges[1]).sum())
    return either(
        count > 0, f"{count} edges of the first graphs join a node with itself", "no edge joins a node with itself"
    )


# graphs


def separate(graph: FrozenGraph) -> Iterator[FrozenGraph]:
    """Yield every graph of a batch."""
    owner = graph.batch.index_select(0, graph.edge_index[0]) if graph.edge_index.numel() else graph.edge_index[0]
    counts = torch.bincount(graph.batch, minlength=graph.num_graphs)
    starts = [0, *counts.cumsum(0).tolist()]
    for number, (first, stop) in enumerate(pairwise(starts)):
        edges = owner == number

        def of_edges(values: Tensor | None, edges: Tensor = edges) -> Tensor | None:
            return None if values is None else values[edges]

        yield replace(
            graph,
            x=graph.x[first:stop],
            pos=graph.pos[first:stop],
            batch=graph.batch[first:stop] - number,
            num_graphs=1,
            edge_index=graph.edge_index[:, edges] - first,
            edge_shifts=of_edges(graph.edge_shifts),
            edge_attr=of_edges(graph.edge_attr),
            rel_pe=of_edges(graph.rel_pe),
            pe=None if graph.pe is None else graph.pe[first:stop],
            graph_attr=None if graph.graph_attr is None else graph.graph_attr[number : number + 1],
            branch=None if graph.branch is None else graph.branch[number : number + 1],
        )


def one_way_edges(graph: FrozenGraph) -> int:
    """Return the number of edges without their reverse."""
    shifts = torch.zeros(graph.edge_index.shape[1], 3) if graph.edge_shifts is None else graph.edge_shifts
    rounded = (shifts.double() / 1e-3).round().long()
    ends = graph.edge_index.T
    forward = {(a, b, *s) for (a, b), s in zip(ends.tolist(), rounded.tolist())}
    return sum((b, a, *(-one for one in s)) not in forward for (a, b), s in zip(ends.tolist(), rounded.tolist()))


def change_by_rotation(module: FrozenModel, graph: FrozenGraph) -> float:
    """Return the largest relative change of outputs by a rotation."""
    turn = ROTATION.to(graph.pos.dtype)
    shifts = None if graph.edge_shifts is None else graph.edge_shifts @ turn.T
    own, turned = outputs(module, graph), outputs(module, replace(graph, pos=graph.pos @ turn.T, edge_shifts=shifts))
    if module.settings.interatomic:
        turned[1] = turned[1] @ turn
    return largest_change(own, turned)
