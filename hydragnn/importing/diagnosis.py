"""Diagnosis: failures of the public HydraGNN that a run suffered."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal

import torch
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.frozen import FrozenGraph, FrozenSettings
from hydragnn.frozen.kinds import EMBEDDING
from hydragnn.frozen.settings import ACTIVATIONS, FAILURE, OLD
from hydragnn.importing.checkpoints import Checkpoint
from hydragnn.importing.variables import Source

Verdict = Literal["suffered", "not suffered", "cannot be told"]
LATE = re.compile(r"(module\.)?(model\.)?graph_(conditioner|concat_projector|pool_projector)\.")
"""Names of networks that are made in the first forward pass."""
OF_CONFIGURATION = (1, *range(6, 14), 19, 20, 22, 27, 28)
"""Failures that a configuration alone may decide."""
CLOSE, SMALL = 1e-4, 1e-5
"""Relative rounding of stored lengths, and of outputs."""
CLEAR = 2
"""Ratio of errors, to others and to those of the mean, that tells which columns a model was trained on."""
ROTATION = torch.tensor([[0.36, 0.48, -0.8], [-0.8, 0.6, 0.0], [0.48, 0.64, 0.6]], dtype=torch.float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Failure of the public code, with verdict, evidence and size."""

    number: int
    name: str
    verdict: Verdict
    evidence: str
    size: str = ""


Answer = bool | str | tuple[Verdict, str] | tuple[Verdict, str, str]
"""Evidence of suffering, nothing, or verdict with evidence and size."""
Rule = Callable[["Case"], Answer]
RULES: dict[int, tuple[str, str, Sequence[str], bool, Rule]] = {}
"""Name, evidence of health, kinds, need of data, and rule, by number."""


def rule(number: int, name: str, otherwise: str, *kinds: str, data: bool = False) -> Callable[[Rule], Rule]:
    """Register the rule of a failure."""

    def add(function: Rule) -> Rule:
        RULES[number] = name, otherwise, kinds, data, function
        return function

    return add


@dataclass(frozen=True, kw_only=True)
class Case:
    """Files of one model, with a rule for every failure."""

    source: Source
    settings: FrozenSettings
    module: Any
    """Frozen model; None of a configuration alone."""
    checkpoint: Checkpoint
    file: str
    """Name of the checkpoint."""
    epochs: Sequence[int] = ()
    """Epochs in the names of checkpoints in its folder."""
    logged: Sequence[float] | None = None
    """Validation losses beside it; None where nothing tells that there were none."""
    began: Mapping[str, bool]
    """Parameters by name: True for the numbers that they began with."""
    format: str = ""
    """Format of the data beside the model: bp, pickle or raw; empty without."""
    graph: Any = None
    """First graphs of these data, as the model's code saw them; None without."""
    alone: Sequence[FrozenGraph] = ()
    """These graphs one by one, for models that mix them."""
    labels: Sequence[Tensor | None] = ()
    """Targets of these graphs by output, in the writer's units."""
    tests: int = 0
    """First of these graphs that are of the test part."""
    parts: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Marks of all graphs of the data by part, equal for equal graphs."""
    fitted_on_all: bool | None = None
    """Scales fit all parts, not training alone; None without scales."""

    architecture = property(attrgetter("source.architecture"))
    training = property(attrgetter("source.training"))
    networks = property(attrgetter("source.networks"))
    branches = property(attrgetter("source.branches"))
    steps = property(attrgetter("checkpoint.steps"))

    def shifts(self) -> bool:
        """Return True where an edge of the data crosses a periodic boundary."""
        shifts = self.graph.edge_shifts
        return shifts is not None and bool((shifts != 0).any())

    def outputs(self, graph: FrozenGraph | None = None, *flags: str) -> list[Tensor]:
        """Return means, or energies and forces; without these old flags."""
        module, graph = self.module, graph or self.graph
        if flags:
            settings = self.settings.model_copy(update=dict.fromkeys(flags, False))
            module = type(module)(settings).to(next(module.parameters()).dtype)
            module.load_state_dict(self.module.state_dict())
        if not self.settings.interatomic:
            with torch.no_grad():
                return [mean for mean, _ in module(graph)]
        moving = replace(graph, pos=graph.pos.detach().requires_grad_())
        energy = module.energy(moving)
        forces = torch.autograd.grad(energy.sum(), moving.pos, allow_unused=True)[0]
        return [energy.detach(), torch.zeros_like(graph.pos) if forces is None else -forces]

    def measured(self, evidence: str, *flags: str, other: Any = None, arithmetic: str = "with the right") -> Answer:
        """Return a failure with its size, unless rounding explains it."""
        if self.graph is None:
            return evidence
        own, other = self.outputs(), other or self.outputs(None, *flags)
        change = largest_change(own, other)
        if change <= SMALL:
            return "not suffered", f"{evidence}; outputs stay as they are"
        text = f"outputs change by up to {change:.2g} of the largest"
        for number, (writer, right) in self.errors(own, other, self.tests).items():
            text += f"; output {number}: mean absolute error on {self.tests} test graphs {writer:.4g}, {arithmetic} arithmetic {right:.4g}"
        return "suffered", evidence, text

    def errors(self, own: list[Tensor], other: list[Tensor], graphs: int) -> dict[int, list[float]]:
        """Return mean absolute errors of two lists of outputs, by number."""
        result, chosen = dict[int, list[float]](), self.graph.batch < graphs  # [nodes]
        for number, (label, *pair) in enumerate(zip(self.labels, own, other)):
            if label is not None and graphs:
                rows = chosen if len(label) == len(chosen) else slice(graphs)
                result[number] = [float((one.reshape(label.shape) - label)[rows].abs().mean()) for one in pair]
        return result

    @rule(1, "attention mixes the graphs of a batch", "no attention of GPS")
    def _mixed_attention(self) -> Answer:
        evidence = 'global_attn_engine = "GPS": each prediction depends on the other graphs of its batch'
        if self.training.get("batch_size") == 1:
            return "not suffered", "batch_size = 1: no batch had another graph"
        if len(self.alone) < 2:
            return self.settings.global_attn_engine == "GPS" and evidence
        alone = [self.outputs(graph) for graph in self.alone]
        return self.measured(evidence, other=[torch.cat(parts) for parts in zip(*alone, strict=True)])

    @rule(2, "networks of graph attributes are never trained", "no graph attributes")
    def _conditioning(self) -> Answer:
        if not self.settings.conditioning:
            return False
        if drawn := [name for name, equal in self.began.items() if equal and LATE.match(name)]:
            return f"{', '.join(drawn)} are still the numbers that seed 0 draws"
        parameters = len({id(one) for one in self.module.parameters()})
        if self.branches == 1 and (self.checkpoint.optimized or 0) >= parameters:
            return "not suffered", f"the optimizer knows all {parameters} parameters: the run was continued from a file"
        return "its networks are made in the first forward pass, after the optimizer"

    @rule(3, "predictions with random parameters, since names do not fit", "its code for inference finds all names")
    def _not_strict(self) -> Answer:
        names, scripts = self.checkpoint.weights, self.settings.generation not in (*OLD, "v4.0")  # they are of 2026
        lost = [name for name in names if scripts and (name.startswith("module.") or LATE.match(name))]
        if lost and self.settings.generation == "v4.0+":
            evidence = "scripts for inference lose names that begin with module.; v4.0 had none"
            return "cannot be told", f"{evidence}, and no key tells the version"
        return bool(lost) and f"its scripts for inference skip {len(lost)} of {len(names)} names, as {lost[0]}"

    @rule(5, "task-parallel training leaves embeddings and frequencies as they began", "there are none")
    def _task_parallel(self) -> Answer:
        heads = [equal for name, equal in self.began.items() if "heads_NN" in name]
        if heads and all(heads):
            return f"nothing was trained: all {len(heads)} tensors of heads are the numbers that seed 0 draws"
        own = [name for name in self.began if EMBEDDING.match(name)]
        if equal := [name for name in own if self.began[name]]:
            return f"{', '.join(equal)} are still the numbers that they began with, and heads were trained"
        if own and "_branch" in self.file and self.training.get("continue"):
            return "cannot be told", f"{own[0]} may have the numbers of the file that this run was continued from"
        return bool(own) and ("not suffered", f"{own[0]} was trained: it began otherwise")

    @rule(6, "SchNet ignores periodic images and the edges of the data", "no periodic boundaries", "SchNet")
    def _rebuilt(self) -> Answer:
        own = "SchNet builds its own graph, without images, in every layer"
        if self.settings.global_attn_engine == "GPS" or self.settings.edge_dim:
            evidence = "with edge features or GPS it reads the edges, and sets their shifts to zero"
            unknown: Answer = "cannot be told", f"{evidence}, if there are any"
            return unknown if self.graph is None else self.shifts() and evidence
        periodic = self.graph is not None or bool(self.architecture.get("periodic_boundary_conditions"))
        return periodic and self.measured(own, "rebuilt_graph")

    @rule(7, "of several branches with node heads alone one is trained", "one branch, or heads on graphs in each")
    def _node_branches(self) -> Answer:
        return len(self.networks("node")) > 1 >= len(self.networks("graph")) and "others have node heads alone"

    @rule(8, "convolutional node heads fail in two branches", "one branch, or no convolutional node heads")
    def _conv_branches(self) -> Answer:
        types = [one.get("type") for one in self.networks("node")]
        return types.count("conv") > 1 and "they lie in several branches"

    @rule(9, "the loss of energies in double precision is computed in single", "no interatomic potential in double")
    def _single_loss(self) -> Answer:
        precision = str(self.training.get("precision")).lower()
        double = precision in ("fp64", "float64", "double") and self.settings.interatomic
        return double and f"precision = {precision} with an interatomic potential"

    @rule(10, "an unknown activation or loss becomes None", "activation and loss are there")
    def _unknown(self) -> Answer:
        loss, activation = self.source.loss, self.settings.activation_function
        if activation not in ACTIVATIONS:  # of a configuration alone, as in 13 and 27: checkpoints are refused
            return f"activation_function = {activation}"
        return loss not in ("mse", "mae", "rmse", "GaussianNLLLoss") and f"loss_function_type = {loss}"

    @rule(11, "a configuration without an optimizer fails", "Training has an Optimizer")
    def _no_optimizer(self) -> Answer:
        return not self.training.get("Optimizer") and "Training has no Optimizer"

    @rule(12, "its loaders of raw files fail on periodic graphs and descriptors", "no such files")
    def _loaders(self) -> Answer:
        dataset = self.source.dataset
        form, bad = dataset.get("format"), ["Descriptors"] * bool(dataset.get("Descriptors"))
        if form != "CFG" or self.settings.generation not in OLD:
            bad += ["periodic_boundary_conditions"] * bool(self.architecture.get("periodic_boundary_conditions"))
        if not bad or form not in ("LSMS", "unit_test", "CFG", "XYZ") or self.format in ("bp", "pickle"):
            return False
        evidence = f"{' and '.join(bad)} with raw files ({form})"
        return evidence if self.format else ("cannot be told", f"{evidence}, none of which lies here")

    @rule(13, "MACE uses the first correlation of a list, and its Gaussian loss fails", "no list of several", "MACE")
    def _correlation(self) -> Answer:
        correlation = self.architecture.get("correlation")
        if self.settings.variance:
            return "loss_function_type = GaussianNLLLoss"
        return isinstance(correlation, list) and len(set(correlation)) > 1 and f"correlation = {correlation}"

    @rule(14, "PaiNN gives NaN where two nodes coincide", "no edge of length zero made weights NaN", "PAINN")
    def _coincident(self) -> Answer:
        return self.graph is not None and number_of(self.graph.lengths() == 0, "have length zero")

    @rule(15, "pickled sets choose their columns twice", "the data are not pickled")
    def _twice(self) -> Answer:
        variables = self.source.section("NeuralNetwork", "Variables_of_interest")
        columns, levels = variables.get("input_node_features") or [], variables.get("type") or []
        graphs = [index for index, level in zip(variables.get("output_index") or [], levels) if level == "graph"]
        if self.format in ("bp", "raw"):
            return False
        if any(column >= len(columns) for column in columns):
            return "not suffered", f"choosing columns {columns} twice fails, and this run did not"
        if columns == [*range(len(columns))] and graphs == [*range(len(graphs))]:
            return "not suffered", "choosing the first columns twice gives the same columns"
        if self.graph is not None and graphs == [*range(len(levels))]:
            twice = self.outputs(replace(self.graph, x=self.graph.x[:, columns]))
            pairs = self.errors(self.outputs(), twice, self.graph.num_graphs).values()
            once, again = (sum(errors) for errors in zip(*pairs)) if pairs else (0.0, 0.0)
            spread = sum(float((one - one.mean(0)).abs().mean()) for one in self.labels if one is not None)
            evidence = f"mean absolute errors are {once:.3g} with columns {columns} chosen once, and {again:.3g} twice"
            if min(once, again) * CLEAR < min(max(once, again), spread):  # it fits the columns that it was trained on
                return ("not suffered", evidence) if once < again else f"{evidence}; the imported run chooses them once"
        return "cannot be told", "a script decides whether pickled data are loaded at once, which chooses twice"

    @rule(16, "random edges and larger radii where a node is alone", "there is no radius or no edge", data=True)
    def _random_edges(self) -> Answer:
        radius, graph, lengths = self.settings.radius, self.graph, self.graph.lengths().flatten()
        if not radius or not lengths.numel():
            return False
        long, near = lengths > radius * (1 + CLOSE), torch.zeros(len(graph.x), dtype=torch.bool)
        near[graph.edge_index[:, ~long].flatten()] = True
        with_lone = torch.isin(graph.batch[graph.edge_index[0]], graph.batch[~near])  # of edges
        most = f"up to {float(lengths.max()):.4g}, the radius is {radius}"
        found = number_of(long & with_lone, f"are longer than the radius, where a node has none within it: {most}")
        if found and (long & ~with_lone).any():
            return "cannot be told", f"edges are longer than the radius also where no node is alone: {most}"
        return found or ("not suffered", f"no edge beyond the radius lies in a graph with a lone node: {most}")

    @rule(17, "nodes sum at the other end of edges that were cut off", "none was", "EGNN", "PAINN", "PNAEq", data=True)
    def _wrong_end(self) -> Answer:
        graph: FrozenGraph = self.graph
        shifts = torch.zeros(graph.edge_index.shape[1], 3) if graph.edge_shifts is None else graph.edge_shifts
        ends, images = graph.edge_index.T.tolist(), (shifts.double() / 1e-3).round().long().tolist()
        there = {(a, b, *image) for (a, b), image in zip(ends, images)}
        one_way = [(b, a, *(-one for one in image)) not in there for (a, b), image in zip(ends, images)]
        evidence = number_of(torch.tensor(one_way), "have no reverse, since max_neighbours cut it off")
        turned = replace(graph, edge_index=graph.edge_index.flip(0), edge_shifts=-shifts)
        return bool(evidence) and self.measured(evidence, other=self.outputs(turned))

    @rule(18, "test graphs leave traces in training", "no graph in two parts, no scale beyond training", data=True)
    def _leak(self) -> Answer:
        twice = sum(len({*self.parts[a]} & {*self.parts[b]}) for a in self.parts for b in self.parts if a < b)
        if twice or self.fitted_on_all:
            return f"{twice} graphs lie in two parts" if twice else "minimum and maximum are those of all parts"
        return not self.parts and ("cannot be told", "the set is not divided into parts")

    @rule(19, "two tables number the data sets and contradict each other", "one branch, so no number of a set is read")
    def _numbers(self) -> Answer:
        count = self.branches
        if count > 14:
            return f"{count} branches are of the table of its scripts; that of the package ends at 14"
        return count > 1 and ("cannot be told", f"{count} branches; no file says which table numbered the sets")

    @rule(20, "a variable of the environment turns off checkpoints and early stopping", "none is asked for")
    def _environment(self) -> Answer:
        keys = [key for key in ("Checkpoint", "EarlyStopping", "CheckRemainingTime") if self.training.get(key)]
        if early := [epoch for epoch in self.epochs if epoch + 1 < (self.training.get("num_epoch") or 0)]:
            return "not suffered", f"a checkpoint of epoch {early[0]} was written before the last epoch"
        if keys and self.logged:
            return "not suffered", f"{len(self.logged)} validation losses are logged"
        logs = self.settings.generation not in OLD  # which log none
        if keys and self.logged is not None and not self.epochs and logs:
            last = -(-len(self.parts.get("trainset", ())) // (self.training.get("batch_size") or 1))
            if "Checkpoint" in keys and not 0 < self.steps == last * (self.training.get("num_epoch") or 0):
                evidence = f"event files end before the {self.steps} steps of the checkpoint, as in a killed run"
                return "cannot be told", evidence
            return f"{', '.join(keys)} did not act: event files have no loss, so that HYDRAGNN_VALTEST was 0"
        return bool(keys) and ("cannot be told", f"{', '.join(keys)}: no file keeps HYDRAGNN_VALTEST")

    @rule(21, "means are not weighted, surplus batches are dropped", "all parts are whole batches", data=True)
    def _means(self) -> Answer:
        size, parts, own = self.training.get("batch_size") or 1, self.parts, re.search(r"_epoch_(\d+)", self.file)
        odd = [f"{name} ({len(graphs)})" for name, graphs in parts.items() if len(graphs) % size]
        known = f"{', '.join(odd)} are no whole batches of {size}" if parts else "the set is not divided into parts"
        planned = 0 if self.training.get("Checkpoint") else self.training.get("num_epoch") or 0
        epochs = 1 + int(own[1]) if own else 1 + max(self.epochs) if self.epochs else planned
        alone = -(-len(parts.get("trainset", ())) // size) * epochs  # steps of one rank
        if odd and 0 < self.steps == alone:
            return "not suffered", f"one rank took all {alone} steps"
        if odd and 0 < self.steps < alone:
            return f"{known}, and several ranks had them"
        return bool(odd or not parts) and ("cannot be told", f"{known}; no file says how many ranks there were")

    @rule(22, "initial bias, batch norms on CPUs and dropout cannot be set", "none of them acts")
    def _settings(self) -> Answer:
        fails = self.settings.generation not in OLD and self.architecture.get("initial_bias") is not None
        bad = ["initial_bias, which fails"] * fails
        bad += ["SyncBatchNorm, which CPUs ignore"] * bool(self.architecture.get("SyncBatchNorm"))
        drops = self.settings.kind == "GAT" or self.settings.global_attn_engine == "GPS"
        return " and ".join(bad + ["a dropout of .25 that no key changes"] * drops)

    @rule(23, "an empty part of an ADIOS file is unreadable", "no ADIOS file, or no part is empty", data=True)
    def _empty(self) -> Answer:
        empty = [name for name, graphs in self.parts.items() if not len(graphs)]
        return self.format == "bp" and bool(empty) and f"{', '.join(empty)} has no graphs"

    @rule(24, "vectors have a bias, so that outputs turn with the crystal", "no linear map of vectors has a bias")
    def _vector_bias(self) -> Answer:
        evidence = "the checkpoint holds update_U.bias or update_X.bias"
        if not self.settings.vector_biases or self.graph is None:
            return self.settings.vector_biases and evidence
        graph, turn = self.graph, ROTATION.to(self.graph.pos.dtype)
        shifts = None if graph.edge_shifts is None else graph.edge_shifts @ turn.T
        own, turned = self.outputs(), self.outputs(replace(graph, pos=graph.pos @ turn.T, edge_shifts=shifts))
        if self.settings.interatomic:
            turned[1] = turned[1] @ turn
        verdict: Verdict = "suffered" if (change := largest_change(own, turned)) > SMALL else "not suffered"
        return verdict, evidence, f"a rotation changes outputs by up to {change:.2g} of the largest"

    @rule(25, "shifts of periodic edges are set to zero", "this version honours shifts, or no edge has one")
    def _zero_shifts(self) -> Answer:
        evidence = f"{self.settings.kind} of {self.settings.generation} sets shifts to zero"
        unknown = self.settings.kind == "EGNN" and self.settings.generation == "v4.0+"
        if not (unknown or self.settings.zero_shifts) or (self.graph is not None and not self.shifts()):
            return False
        if unknown:
            return "cannot be told", "EGNN of v4.0 sets shifts to zero, unlike later ones, and no key tells the version"
        if self.graph is None:
            return "cannot be told", f"{evidence}, if any edge has one"
        return self.measured(f"{evidence}, and edges cross periodic boundaries", "zero_shifts")

    @rule(26, "today's code reads the file as another function", "its edges see distances, as today")
    def _squares(self) -> Answer:
        settings, flags = self.settings, ("squared_distances", "reversed_steps", "zero_shifts")
        how = "sees squared distances" if settings.squared_distances else "moves nodes the other way"
        moves = settings.reversed_steps and settings.equivariance and settings.num_conv_layers > 1
        evidence = f"{settings.kind} of {settings.generation} {how}, unlike today's"
        return (settings.squared_distances or moves) and self.measured(evidence, *flags, arithmetic="with today's")

    @rule(4, "a checkpoint of shards holds those of one rank", "every tensor is there, in its full size")
    def _shards(self) -> Answer:
        return False  # such files are refused, with this number

    @rule(27, "a network of graph attributes is drawn anew in every pass", "its network is kept, or there is none")
    def _drawn_anew(self) -> Answer:
        return self.settings.draws_anew and "GAT with graph_attr_conditioning_mode = concat_node"

    @rule(28, "hidden layers of convolutional node heads do nothing", "all layers act, or there are none")
    def _idle_layers(self) -> Answer:
        evidence = "convolutional node heads of v2.0: their last layer alone acts, on the encoder's output"
        idle = self.settings.last_conv_layer_only and any(one.get("type") == "conv" for one in self.networks("node"))
        return idle and self.measured(evidence, "last_conv_layer_only")

    @rule(29, "self edges make gradients NaN", "no self edge made weights NaN", "EGNN")
    def _self_edges(self) -> Answer:
        old = self.settings.equivariance and self.settings.generation in OLD and self.graph is not None
        return old and number_of(self.graph.edge_index[0] == self.graph.edge_index[1], "join a node with itself")


def diagnose(case: Case, numbers: Sequence[int] = range(1, 30)) -> list[Finding]:
    """Return the findings of failures by their numbers."""
    findings, kind = [], case.settings.kind
    for number in numbers:
        name, otherwise, kinds, data, function = RULES[number]
        if kinds and kind not in kinds:
            answer: Answer = "not suffered", f"{kind} is not {' or '.join(kinds)}"
        elif data and case.graph is None:
            answer = "cannot be told", "no set of its graphs lies beside the checkpoint"
        else:
            answer = function(case) or ("not suffered", otherwise)
        verdict, evidence, *size = answer if isinstance(answer, tuple) else ("suffered", str(answer))
        findings.append(Finding(number=number, name=name, verdict=verdict, evidence=evidence, size="".join(size)))
    return findings


def diagnose_configuration(source: Source) -> Iterator[str]:
    """Yield sentences on failures that a configuration alone decides."""
    try:  # with two attributes of graphs, as in the published sets
        settings = FrozenSettings.unchecked(source.table, {"graph_concat_projector.weight": torch.zeros(1, 3)})
    except InputError as error:
        yield f"of failures nothing is told: {error}"
        return
    files: Any = {"module": None, "checkpoint": Checkpoint({}, None, 0), "file": "", "began": {}}
    case = Case(source=source, settings=settings, **files)
    for one in diagnose(case, OF_CONFIGURATION):
        if one.verdict == "suffered":
            yield f"{FAILURE} {one.number}: {one.name} ({one.evidence})"


def largest_change(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    """Return the largest relative difference of two lists of outputs."""
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a.numel()]
    return max((float((a - b).abs().max() / a.abs().max().clamp_min(1e-300)) for a, b in pairs), default=0.0)


def number_of(edges: Tensor, what: str) -> str:
    """Return how many edges are marked; nothing for none."""
    count = int(edges.sum())
    return f"{count} of {edges.numel()} edges of the first graphs {what}" if count else ""
