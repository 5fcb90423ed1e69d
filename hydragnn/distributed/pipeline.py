"""Pipeline: every rank computes chunks of consecutive layers; states travel.

The stages of ``torch.distributed.pipelining`` exchange tensors of fixed shapes, and graphs have other sizes in every batch.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hydragnn.base.clock import phase
from hydragnn.base.errors import InputError
from hydragnn.distributed.mesh import Mesh
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.kernels import first_derivatives
from hydragnn.layers import Checkpointed, MessageGraph, States
from hydragnn.models import BranchedModel, Distribution, GraphModel, Point
from hydragnn.models.graph_model import Predicted, energy_derivatives, energy_seed, gradients_of, tied
from hydragnn.training.executor import EagerSteps, Part


class Action(NamedTuple):
    """Pass of one sweep of one chunk for one micro-batch."""

    sweep: int
    """Even ones lead from inputs to heads, odd ones back."""
    chunk: int
    """Number among the chunks of this rank, from the inputs on."""
    number: int


def stage_schedule(stage: int, stages: int, chunks: int, micro_batches: int) -> list[Action]:
    """Return the actions of a stage in their order.

    That is the interleaved schedule 1F1B of Narayanan et al. 2021, arXiv:2104.04473, section 2.2; with one chunk it is 1F1B. Micro-batches go
    through the chunks in rounds of ``stages`` or more, so that any number of them will do. All stages send and receive in one order.

    >>> [f"{'fb'[sweep]}{number}" for sweep, _, number in stage_schedule(0, stages=2, chunks=1, micro_batches=3)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    """
    count = max(1, micro_batches // stages)
    ends = [-(-micro_batches * number // count) for number in range(count + 1)]
    rounds = [range(first, last) for first, last in pairwise(ends)]
    forward = [Action(0, chunk, number) for one in rounds for chunk in range(chunks) for number in one]
    backward = [Action(1, chunk, number) for one in rounds for chunk in reversed(range(chunks)) for number in one]
    behind = stages - 1 - stage
    # forward passes that are ahead of backward ones: until the first loss, and while it comes back
    ahead = behind if chunks == 1 else (chunks - 1) * len(rounds[0]) + 2 * behind
    pairs = zip(forward[ahead:], backward)
    return [*forward[:ahead], *(one for pair in pairs for one in pair), *backward[max(0, len(forward) - ahead) :]]


STATES, ADJOINTS, TANGENTS, GRADIENTS = range(4)
"""Sweeps with forces: states, derivatives of the energy, gradients by these and those."""
COSTS = (1, 2, 2, 4)
"""Time of a chunk in each sweep, roughly."""


def force_schedule(stages: int, chunks: int, micro_batches: int, most: int) -> tuple[list[list[Action]], int]:
    """Return all stages' actions with derivatives of energies, and their time.

    On a simulated clock, a stage takes what has arrived first, of the last sweep. No more micro-batches than ``most`` are on their way.

    >>> [f"{'satg'[sweep]}{number}" for sweep, _, number in force_schedule(stages=2, chunks=1, micro_batches=2, most=2)[0][1]]
    ['s0', 'a0', 's1', 'a1', 't0', 'g0', 't1', 'g1']
    """
    pieces, count = stages * chunks, min(most, micro_batches)
    path = [(sweep, one if sweep % 2 == 0 else pieces - 1 - one) for sweep in range(4) for one in range(pieces)]
    inside, clocks = 2, [0] * stages  # beside messages that wrap around or not
    orders: list[list[Action]] = [[] for _ in range(stages)]
    queues = {(0, STATES, inside): [(0, 0, number) for number in range(count)]}
    while any(queues.values()):
        begin, _, key = min((max(clocks[key[0]], one[0][0]), -one[0][1], key) for key, one in queues.items() if one)
        _, step, number = queues[key].pop(0)
        (sweep, piece), stage = path[step], key[0]
        clocks[stage] = begin + COSTS[sweep]
        orders[stage].append(Action(sweep, piece // stages, number))
        if step + 1 < len(path):
            sweep, following = path[step + 1]
            to = following % stages
            way = inside if following == piece else int((to < stage) == (sweep % 2 == 0))
            queues.setdefault((to, sweep, way), []).append((clocks[stage], step + 1, number))
        elif count < micro_batches:
            queues[0, STATES, inside].append((clocks[stage], 0, count))
            count += 1
    return orders, max(clocks)


Travellers = dict[str, Tensor]
"""States by layer and degree, and what layers share, by name."""

Predictions = dict[str, Distribution]

HEADER = 2**15
"""Bytes of a page of names and shapes of what travels."""


class Absent(nn.Module):
    """A part of the model that another stage holds."""

    def forward(self, *arguments: object) -> None:
        """Return nothing."""


def make_pipeline(model: nn.Module, mesh: Mesh, chunks: int, device: torch.device) -> "Pipeline | None":
    """Return this rank's stage and drop other layers; None without; collective."""
    group = mesh.group("pipeline")
    if group is None:
        return None
    assert isinstance(model, GraphModel | BranchedModel)
    views = model.views if isinstance(model, BranchedModel) else [model]
    sweeps = 4 if any(one.description.has_derivatives for one in views) else 2
    links = {(n, wraps): mesh.new_group("pipeline") for wraps in {False, chunks > 1} for n in range(sweeps)}
    return Pipeline(chunks=keep_stage(model, mesh, chunks), group=group, links=links, device=device)


def keep_stage(model: GraphModel | BranchedModel, mesh: Mesh, chunks: int) -> list[range]:
    """Remove what other stages hold; return the own chunks of layers."""
    trunk, *views = (model.trunk, *model.views) if isinstance(model, BranchedModel) else (model,)
    weights = [id(weight) for _, weight in model.named_parameters(remove_duplicate=False)]
    if len(weights) > len(set(weights)):
        raise InputError(
            f"parallel.pipeline: parts of model {trunk.description.model.kind} share weights, of which stages would have copies; use shard or tensor"
        )
    if buffers := model.state_dict().keys() - {name for name, _ in model.named_parameters()}:
        raise InputError(
            f"parallel.pipeline: model {trunk.description.model.kind} saves {min(buffers)} beside its weights, which stages do not; use shard or tensor"
        )
    stage, last = mesh.coordinate("pipeline"), mesh.size("pipeline") - 1
    encoder, count = trunk.encoder, len(trunk.encoder.layers)
    pieces = chunks * (last + 1)
    ends = [count * number // pieces for number in range(pieces + 1)]
    own = [range(ends[number], ends[number + 1]) for number in range(stage, pieces, last + 1)]
    for number in set(range(count)).difference(*own):
        encoder.layers[number] = Absent()
    for name, part in [*encoder.named_children()]:
        is_here = stage == (0 if name in encoder.embeds else last)
        if name != "layers" and not is_here and any(True for _ in part.parameters()):
            setattr(encoder, name, Absent())
    edges_have_weights = any(True for _ in trunk.edge_inputs.parameters())
    for one in [trunk, *views]:
        if stage:
            one.node_inputs, one.condition_inputs = Absent(), None  # type: ignore[assignment]
            if edges_have_weights:
                one.edge_inputs = Absent()  # type: ignore[assignment]
        if stage < last:
            one.heads, one.pooled_condition = nn.ModuleList(), None
    if stage < last:
        model.heads = nn.ModuleList()
    return own


@dataclass(kw_only=True, slots=True, eq=False)
class Passage:
    """Micro-batch in a chunk: what came, and what was computed from it."""

    arrivals: Travellers
    adjoints: Travellers = field(default_factory=dict)
    """Derivatives of energies by ``departures``, and forces and stress so far."""
    tangents: Travellers = field(default_factory=dict)
    """Gradients of the loss by ``replies``."""
    graph: MessageGraph | None = None
    vectors: Sequence[Tensor] = ()
    departures: Travellers = field(default_factory=dict)
    predictions: Predictions = field(default_factory=dict)
    replies: Travellers = field(default_factory=dict)
    """Tensors that go back with the adjoints."""
    seed: int | None = None
    """Seed of random numbers of what is computed again."""

    def forget(self) -> None:
        """Drop what can be computed again."""
        self.graph, self.vectors, self.departures, self.predictions, self.replies = None, (), {}, {}, {}


@dataclass(kw_only=True, slots=True, eq=False)
class Pipeline:
    """This rank's stage, and its messages to others."""

    chunks: Sequence[range]
    """Layers of each."""
    group: dist.ProcessGroup
    links: Mapping[tuple[int, bool], dist.ProcessGroup]
    """Groups of the same ranks by sweep, and by whether messages wrap around.

    Messages of one never wait for those of another."""
    device: torch.device
    pending: list[tuple[dist.Work, Tensor]] = field(default_factory=list)

    @property
    def stage(self) -> int:
        """Return the position of this rank's layers."""
        return dist.get_rank(self.group)

    @property
    def stages(self) -> int:
        """Return the number of ranks with layers."""
        return dist.get_world_size(self.group)

    def is_first(self, chunk: int) -> bool:
        """Return True for the chunk behind the inputs."""
        return self.stage == chunk == 0

    def is_last(self, chunk: int) -> bool:
        """Return True for the chunk before the heads."""
        return self.stage == self.stages - 1 and chunk == len(self.chunks) - 1

    @phase("forward")
    def compute(self, model: GraphModel, batch: GraphBatch, chunk: int, one: Passage, *, once: bool = False) -> None:
        """Compute states and predictions; ``once``: derivatives are final values."""
        has_forces = model.description.has_derivatives
        devices = [self.device] if self.device.type == "cuda" else []
        with ExitStack() as stack:
            if one.seed is not None:
                stack.enter_context(torch.random.fork_rng(devices))
                torch.manual_seed(one.seed)
            if has_forces:
                one.vectors = [edge_vectors(edges).detach().requires_grad_() for edges in model.edge_sets(batch)]
            else:
                stack.enter_context(first_derivatives())
            vectors: Sequence[Tensor | None] = one.vectors or [model.edge_vectors(batch)]
            earlier, graph = from_travellers(one.arrivals, model.message_graph(batch, *vectors, derived_once=once))
            if model.description.model.checkpoint_activations and not has_forces:
                graph.prepare()
            states = earlier[-1] if earlier else model.encoder.embed(model.node_inputs(batch), graph)
            layers = [model.encoder.layers[number] for number in self.chunks[chunk]]
            if has_forces:  # chunks are computed again, not layers
                layers = [each.layer if isinstance(each, Checkpointed) else each for each in layers]
            of_layers, one.graph = model.after_layers(states, layers, graph, earlier), graph
            if self.is_last(chunk):
                final = model.final_states(of_layers, graph)
                heads = zip(model.description.heads, model.heads)
                one.predictions = tied({settings.field: head(final, graph, batch) for settings, head in heads}, graph)
                return
        departures = {f"{n} {degree}": own for n, states in enumerate(of_layers) for degree, own in states.items()}
        # the first stage may make edge features from weights
        has_weights = isinstance(model.edge_inputs, Absent) or any(True for _ in model.edge_inputs.parameters())
        shared = {"condition": graph.condition, "edge_features": graph.edge_features if has_weights else None}
        departures |= {name: own for name, own in shared.items() if own is not None}
        one.departures = self.tied(departures, graph)

    @phase("backward")
    def differentiate(self, model: GraphModel, batch: GraphBatch, chunk: int, one: Passage, *, recorded: bool) -> None:
        """Compute adjoints of what was received, and forces and stress so far.

        Chunks see positions through edge vectors of their own, so forces and stress are sums over chunks, which go along.
        """
        assert one.graph is not None
        halo, sets = one.graph.halo, model.edge_sets(batch)
        of_states = {name: state for name, state in one.arrivals.items() if state.requires_grad}
        inputs = [*of_states.values(), *one.vectors]
        for head in (head for head in model.description.heads if head.derivatives):
            if self.is_last(chunk):
                energy = one.predictions[head.field].tensors()["mean"]
                pairs = [(energy, energy_seed(energy, halo))]
            else:
                adjoints = {name: one.adjoints.get(f"{head.field} {name}") for name in one.departures}
                pairs = [(one.departures[name], adjoint) for name, adjoint in adjoints.items() if adjoint is not None]
            gradients = gradients_of(pairs, inputs, differentiable=recorded, halo=halo)
            one.replies |= {f"{head.field} {name}": own for name, own in zip(of_states, gradients)}
            for what, own in energy_derivatives(head, gradients[len(of_states) :], one.vectors, sets, halo).items():
                name = f"{head.field} {what}"
                one.replies[name] = own + one.adjoints[name] if name in one.adjoints else own
        one.replies = self.tied(one.replies, one.graph)

    def tied(self, travellers: Travellers, graph: MessageGraph) -> Travellers:
        """Return states whose gradients pass through all exchanges."""
        return travellers if graph.halo is None else {name: graph.halo.tied(one) for name, one in travellers.items()}

    def derivatives(self, model: GraphModel, one: Passage) -> dict[str, Point]:
        """Return forces and stress of the first chunk as leaves."""
        names = [name for head in model.description.heads for name in head.derivatives.values()]
        return {name: Point(mean=leaf) for name, leaf in zip(names, as_leaves(one.replies).values(), strict=True)}

    @phase("backward")
    def backward(self, chunk: int, one: Passage, loss: Tensor | None) -> None:
        """Differentiate all that was sent, or the loss; send gradients back."""
        gradients = {} if self.is_last(chunk) else self.receive(GRADIENTS if one.replies else 1)
        pairs = [(one.departures[name], gradient) for name, gradient in gradients.items()]
        pairs += [(one.replies[name], gradient) for name, gradient in one.tangents.items()]
        pairs = [pair for pair in pairs if pair[0].requires_grad]  # not where the first stage is frozen
        ends, seeds = [end for end, _ in pairs], [seed for _, seed in pairs]
        if loss is not None and loss.requires_grad:
            ends, seeds = [*ends, loss], [*seeds, torch.ones_like(loss)]
        if ends:
            torch.autograd.backward(ends, seeds)
        if not self.is_first(chunk):
            own = {name: torch.zeros_like(x) if x.grad is None else x.grad for name, x in one.arrivals.items()}
            self.send(own, GRADIENTS if one.replies else 1)

    def link(self, step: int, sweep: int) -> tuple[dist.ProcessGroup, int]:
        """Return group and number of the stage ``step`` further."""
        stage = self.stage + (-step if sweep % 2 else step)
        return self.links[sweep, not 0 <= stage < self.stages], stage % self.stages

    def send(self, travellers: Mapping[str, Tensor], sweep: int) -> None:
        """Start to send names, shapes and numbers."""
        group, stage = self.link(1, sweep)
        text = json.dumps({name: (list(one.shape), str(one.dtype)) for name, one in travellers.items()}).encode()
        text = text.ljust((len(text) // HEADER + 1) * HEADER, b"\0")  # the last page ends with 0
        pages = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(self.device).split(HEADER)
        wide = widest([one.dtype for one in travellers.values()])
        numbers = torch.cat([one.detach().flatten().to(wide) for one in travellers.values()])
        self.pending = [pair for pair in self.pending if not pair[0].is_completed()]
        for tensor in (*pages, numbers):
            work = dist.isend(tensor, group=group, group_dst=stage)
            assert work is not None
            self.pending.append((work, tensor))

    @phase("collectives")
    def receive(self, sweep: int) -> Travellers:
        """Wait for a message of the stage before in a sweep."""
        group, stage = self.link(-1, sweep)
        text, page = b"", torch.empty(HEADER, dtype=torch.uint8, device=self.device)
        while not text.endswith(b"\0"):
            dist.recv(page, group=group, group_src=stage)
            text += bytes(page.cpu().numpy())
        shapes = json.loads(text.rstrip(b"\0"))
        dtypes = [getattr(torch, dtype.removeprefix("torch.")) for _, dtype in shapes.values()]
        sizes = [prod(shape) for shape, _ in shapes.values()]
        numbers = torch.empty(sum(sizes), dtype=widest(dtypes), device=self.device)
        dist.recv(numbers, group=group, group_src=stage)
        parts = zip(shapes.items(), numbers.split(sizes), dtypes)
        return {name: part.view(shape).to(dtype) for (name, (shape, _)), part, dtype in parts}

    @phase("collectives")
    def finish(self) -> None:
        """Wait until all is sent."""
        for work, _ in self.pending:
            work.wait()
        self.pending.clear()


def as_leaves(travellers: Travellers) -> Travellers:
    """Return tensors by which autograd differentiates."""
    return {name: one.detach().requires_grad_() for name, one in travellers.items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedSteps(EagerSteps):
    """Executor of a rank that has some of the layers.

    Without forces there are two sweeps. With them, each message of ``ADJOINTS`` holds derivatives of energies, and ``TANGENTS`` and ``GRADIENTS``
    are the backward passes through its sweep and that of ``STATES``: the gradients of a loss of both. With
    ``checkpoint_activations``, a chunk keeps what came, and computes all else anew in every sweep.
    """

    pipeline: Pipeline

    @property
    def derives(self) -> bool:
        """Return True where energies are differentiated."""
        return self.model.description.has_derivatives

    @property
    def repeats(self) -> bool:
        """Return True where chunks compute anew in every sweep."""
        return self.derives and self.model.description.model.checkpoint_activations

    def gradient(self, parts: Sequence[Part], counted: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Add gradients by the schedule; yield errors and loss, on all stages."""
        stages, values = self.pipeline, torch.zeros(len(self.targets) + 1, dtype=torch.float64, device=self.device)
        sizes, most = (stages.stages, len(stages.chunks), len(parts)), len(parts) if self.repeats else 2 * stages.stages
        order = force_schedule(*sizes, most)[0][stages.stage] if self.derives else stage_schedule(stages.stage, *sizes)
        waiting: dict[tuple[int, int], Passage] = {}
        losses: dict[int, Tensor] = {}

        def add_loss(predictions: Predictions, number: int) -> Tensor:
            sums, total = self.loss(predictions, *parts[number])
            if number < counted:
                values.add_(torch.cat([sums.detach(), total.detach().unsqueeze(0)]))
            return total

        with self.arithmetic(), self.parameters.in_use((self.branch, len(parts))):
            for position, (sweep, chunk, number) in enumerate(order, start=1):
                batch = parts[number][0]
                if sweep == STATES:
                    waiting[chunk, number] = self.states(batch, chunk)
                    if stages.is_last(chunk) and not self.derives:
                        losses[number] = add_loss(self.by_target(waiting[chunk, number].predictions), number)
                    continue
                one = waiting[chunk, number]
                if self.derives and sweep == ADJOINTS:
                    self.adjoints(batch, chunk, one)
                    if stages.is_first(chunk):
                        derivatives = stages.derivatives(self.model, one)
                        total = add_loss(self.by_target(derivatives), number)
                        leaves = [prediction.mean for prediction in derivatives.values()]
                        slopes = torch.autograd.grad(total, leaves, materialize_grads=True)
                        one.tangents = dict(zip(one.replies, slopes))  # nothing else goes back from here
                    if self.repeats:
                        one.forget()
                elif self.derives and sweep == TANGENTS:
                    self.tangents(batch, chunk, one)
                else:
                    if self.repeats:
                        self.again(batch, chunk, one)
                    if self.derives and stages.is_last(chunk):
                        losses[number] = add_loss(self.by_target(one.predictions), number)
                    if position == len(order):
                        self.expect_sum()
                    stages.backward(chunk, one, losses.pop(number, None))
                    del waiting[chunk, number]
                    if chunk == 0:
                        batch.forget_derived()
            stages.finish()
        dist.all_reduce(values, group=stages.group)
        yield values[:-1], values[-1]

    def states(self, batch: GraphBatch, chunk: int) -> Passage:
        """Receive, compute and send states of a micro-batch."""
        stages = self.pipeline
        one = Passage(arrivals={} if stages.is_first(chunk) else as_leaves(stages.receive(STATES)))
        if self.repeats:
            one.seed = int(torch.randint(2**62, ()))
        if self.repeats and stages.is_last(chunk):
            return one
        with self.autocast(), torch.set_grad_enabled(torch.is_grad_enabled() and not self.repeats):
            stages.compute(self.model, batch, chunk, one)
        if not stages.is_last(chunk):
            stages.send(one.departures, STATES)
        if self.repeats:
            one.forget()
        return one

    def adjoints(self, batch: GraphBatch, chunk: int, one: Passage) -> None:
        """Receive, compute and send derivatives of energies."""
        stages = self.pipeline
        if not stages.is_last(chunk):
            one.adjoints = as_leaves(stages.receive(ADJOINTS))
        with self.autocast():
            if self.repeats:
                stages.compute(self.model, batch, chunk, one)
            stages.differentiate(self.model, batch, chunk, one, recorded=not self.repeats)
        if not stages.is_first(chunk):
            stages.send(one.replies, ADJOINTS)

    def tangents(self, batch: GraphBatch, chunk: int, one: Passage) -> None:
        """Receive, compute and send gradients of the loss by the adjoints."""
        stages = self.pipeline
        if not stages.is_first(chunk):
            one.tangents = stages.receive(TANGENTS)
        if stages.is_last(chunk):
            return
        if self.repeats:
            self.again(batch, chunk, one)
        pairs = [(one.replies[name], seed) for name, seed in one.tangents.items()]
        own = gradients_of(pairs, list(one.adjoints.values()), differentiable=False, halo=None)
        stages.send(dict(zip(one.adjoints, own)), TANGENTS)
        if self.repeats:
            one.forget()

    def again(self, batch: GraphBatch, chunk: int, one: Passage) -> None:
        """Compute states and adjoints of a micro-batch anew."""
        with self.autocast():
            self.pipeline.compute(self.model, batch, chunk, one)
            self.pipeline.differentiate(self.model, batch, chunk, one, recorded=True)

    def by_target(self, predictions: Mapping[str, Distribution]) -> Predictions:
        """Return predictions by the names of targets."""
        targets = self.model.description.targets
        return {target.name: predictions[target.field.name] for target in targets if target.field.name in predictions}

    def predict(self, batch: GraphBatch) -> Predicted:
        """Return predictions of this stage, and no states.

        The last stage has those of heads, and the first one derivatives."""
        stages, chunks, passages = self.pipeline, range(len(self.pipeline.chunks)), list[Passage]()
        predictions: Predictions = {}
        with (
            self.parameters.in_use(self.branch),
            self.arithmetic(),
            self.autocast(),
            torch.set_grad_enabled(self.derives),
        ):
            for chunk in chunks:
                one = Passage(arrivals={} if stages.is_first(chunk) else stages.receive(STATES))
                one.arrivals = as_leaves(one.arrivals) if self.derives else one.arrivals
                stages.compute(self.model, batch, chunk, one, once=self.derives)
                predictions |= one.predictions
                if not stages.is_last(chunk):
                    stages.send(one.departures, STATES)
                passages.append(one)
            for chunk in reversed(chunks if self.derives else ()):
                one = passages.pop()
                one.adjoints = {} if stages.is_last(chunk) else stages.receive(ADJOINTS)
                stages.differentiate(self.model, batch, chunk, one, recorded=False)
                if stages.is_first(chunk):
                    predictions |= stages.derivatives(self.model, one)
                else:
                    stages.send(one.replies, ADJOINTS)
            stages.finish()
        return {name: one.detach() for name, one in self.by_target(predictions).items()}, batch.positions[:0]


def widest(dtypes: Sequence[torch.dtype]) -> torch.dtype:
    """Return the type in which numbers of all these types travel."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def from_travellers(travellers: Travellers, graph: MessageGraph) -> tuple[list[States], MessageGraph]:
    """Return states by layer, and the graph with what came."""
    of_layers: dict[str, States] = {}
    for name, one in travellers.items():
        number, _, degree = name.partition(" ")
        if degree:
            of_layers.setdefault(number, {})[int(degree)] = one
    if not travellers:
        return [], graph
    condition, features = (travellers.get(name, getattr(graph, name)) for name in ("condition", "edge_features"))
    whole = replace(graph, condition=condition, edge_features=features)
    whole.cache.update(graph.cache)  # which has nothing but topology yet
    return list(of_layers.values()), whole
