"""Pipeline: every rank computes chunks of consecutive layers; states travel.

The stages of ``torch.distributed.pipelining`` exchange tensors of fixed shapes, and graphs have other sizes in every batch.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
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
from hydragnn.graphs.batch import GraphBatch
from hydragnn.kernels import first_derivatives
from hydragnn.layers import MessageGraph, States
from hydragnn.models import BranchedModel, Distribution, GraphModel
from hydragnn.models.graph_model import Predicted, tied
from hydragnn.training.executor import EagerSteps, Part


class Action(NamedTuple):
    """Forward or backward pass of one chunk for one micro-batch."""

    back: bool
    chunk: int
    """Number among the chunks of this rank, from the inputs on."""
    number: int


def stage_schedule(stage: int, stages: int, chunks: int, micro_batches: int) -> list[Action]:
    """Return the actions of a stage in their order.

    That is the interleaved schedule 1F1B of Narayanan et al. 2021, arXiv:2104.04473, section 2.2; with one chunk it is 1F1B. Micro-batches go
    through the chunks in rounds of ``stages`` or more, so that any number of them will do. All stages send and receive in one order.

    >>> [f"{'b' if back else 'f'}{number}" for back, _, number in stage_schedule(0, stages=2, chunks=1, micro_batches=3)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    """
    count = max(1, micro_batches // stages)
    ends = [-(-micro_batches * number // count) for number in range(count + 1)]
    rounds = [range(first, last) for first, last in pairwise(ends)]
    forward = [Action(False, chunk, number) for one in rounds for chunk in range(chunks) for number in one]
    backward = [Action(True, chunk, number) for one in rounds for chunk in reversed(range(chunks)) for number in one]
    behind = stages - 1 - stage
    # forward passes that are ahead of backward ones: until the first loss, and while it comes back
    ahead = behind if chunks == 1 else (chunks - 1) * len(rounds[0]) + 2 * behind
    pairs = zip(forward[ahead:], backward)
    return [*forward[:ahead], *(one for pair in pairs for one in pair), *backward[max(0, len(forward) - ahead) :]]


Travellers = dict[str, Tensor]
"""States by layer and degree, and what layers share, by name."""

Predictions = dict[str, Distribution]

HEADER = 2**15
"""Bytes for names and shapes of what travels."""


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
    links = {link: mesh.new_group("pipeline") for link in LINKS[: 4 if chunks > 1 else 2]}
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
    parts = {
        name for name, part in encoder.named_children() if name != "layers" and any(True for _ in part.parameters())
    }
    for name in parts:
        if stage != (0 if name in encoder.embeds else last):
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


LINKS = ((False, False), (True, False), (False, True), (True, True))
"""Kinds of messages: going back or not, and between the last stage and the first or not."""


@dataclass(kw_only=True, slots=True, eq=False)
class Pipeline:
    """This rank's stage, and its messages to others."""

    chunks: Sequence[range]
    """Layers of each."""
    group: dist.ProcessGroup
    links: Mapping[tuple[bool, bool], dist.ProcessGroup]
    """Groups of the same ranks for each of ``LINKS``: messages of one never wait for those of another."""
    device: torch.device
    sent: list[tuple[dist.Work, Tensor]] = field(default_factory=list)

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
    def forward(self, model: GraphModel, batch: GraphBatch, chunk: int) -> tuple[Travellers, Travellers, Predictions]:
        """Receive, compute and send; return what came, what went, and predictions."""
        received = {} if self.is_first(chunk) else self.receive()
        with first_derivatives():
            graph = model.message_graph(batch, model.edge_vectors(batch))
            earlier, graph = from_travellers(received, graph)
            if model.description.model.checkpoint_activations:
                graph.prepare()
            states = earlier[-1] if earlier else model.encoder.embed(model.node_inputs(batch), graph)
            layers = [model.encoder.layers[number] for number in self.chunks[chunk]]
            of_layers = model.after_layers(states, layers, graph, earlier)
            if self.is_last(chunk):
                final = model.final_states(of_layers, graph)
                heads = zip(model.description.heads, model.heads)
                by_field = {settings.field: head(final, graph, batch) for settings, head in heads}
                by_name = {target.name: by_field[target.field.name] for target in model.description.targets}
                return received, {}, tied(by_name, graph)
        travellers = to_travellers(of_layers, graph, edges_travel(model))
        if graph.halo is not None:
            travellers = {name: graph.halo.tied(one) for name, one in travellers.items()}
        self.send(travellers)
        return received, travellers, {}

    @phase("backward")
    def backward(self, chunk: int, received: Travellers, ends: Sequence[Tensor]) -> None:
        """Differentiate what was sent, or the loss; send gradients back."""
        gradients = [None] if self.is_last(chunk) else list(self.receive(back=True).values())
        pairs = [(end, one) for end, one in zip(ends, gradients, strict=True) if end.requires_grad]
        if pairs:  # not where the first stage is frozen
            torch.autograd.backward([end for end, _ in pairs], [one for _, one in pairs])
        if not self.is_first(chunk):
            own = {name: torch.zeros_like(one) if one.grad is None else one.grad for name, one in received.items()}
            self.send(own, back=True)

    def link(self, step: int, *, back: bool) -> tuple[dist.ProcessGroup, int]:
        """Return group and number of the stage so many ``step`` further."""
        stage = self.stage + step
        return self.links[back, not 0 <= stage < self.stages], stage % self.stages

    def send(self, travellers: Mapping[str, Tensor], *, back: bool = False) -> None:
        """Start to send names, shapes and numbers."""
        group, stage = self.link(-1 if back else 1, back=back)
        shapes = {name: (list(one.shape), str(one.dtype)) for name, one in travellers.items()}
        text = json.dumps(shapes).encode().ljust(HEADER)
        assert len(text) == HEADER
        header = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(self.device)
        wide = widest([one.dtype for one in travellers.values()])
        numbers = torch.cat([one.detach().flatten().to(wide) for one in travellers.values()])
        for tensor in (header, numbers):
            work = dist.isend(tensor, group=group, group_dst=stage)
            assert work is not None
            self.sent.append((work, tensor))

    @phase("collectives")
    def receive(self, *, back: bool = False) -> Travellers:
        """Wait for states of the stage before, or gradients of the next."""
        group, stage = self.link(1 if back else -1, back=back)
        header = torch.empty(HEADER, dtype=torch.uint8, device=self.device)
        dist.recv(header, group=group, group_src=stage)
        shapes = json.loads(bytes(header.cpu().numpy()))
        dtypes = [getattr(torch, dtype.removeprefix("torch.")) for _, dtype in shapes.values()]
        sizes = [prod(shape) for shape, _ in shapes.values()]
        numbers = torch.empty(sum(sizes), dtype=widest(dtypes), device=self.device)
        dist.recv(numbers, group=group, group_src=stage)
        parts = zip(shapes.items(), numbers.split(sizes), dtypes)
        leaves = {name: part.view(shape).to(dtype) for (name, (shape, _)), part, dtype in parts}
        return {name: leaf.requires_grad_(not back and torch.is_grad_enabled()) for name, leaf in leaves.items()}

    @phase("collectives")
    def finish(self) -> None:
        """Wait until all is sent."""
        for work, _ in self.sent:
            work.wait()
        self.sent.clear()


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedSteps(EagerSteps):
    """Executor of a rank that has some of the layers."""

    pipeline: Pipeline

    def gradient(self, parts: Sequence[Part], counted: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Add gradients by ``stage_schedule``; yield errors and loss, on all stages."""
        stages, values = self.pipeline, torch.zeros(len(self.targets) + 1, dtype=torch.float64, device=self.device)
        order = stage_schedule(stages.stage, stages.stages, len(stages.chunks), len(parts))
        waiting: dict[tuple[int, int], tuple[Travellers, list[Tensor]]] = {}
        with self.arithmetic(), self.parameters.in_use((self.branch, len(parts))):
            for position, (back, chunk, number) in enumerate(order, start=1):
                batch, scale = parts[number]
                if back:
                    if position == len(order):
                        self.expect_sum()
                    stages.backward(chunk, *waiting.pop((chunk, number)))
                    if chunk == 0:
                        batch.forget_derived()
                    continue
                with self.autocast():
                    received, sent, predictions = stages.forward(self.model, batch, chunk)
                ends = [*sent.values()]
                if stages.is_last(chunk):
                    sums, total = self.loss(predictions, batch, scale)
                    ends = [total]
                    if number < counted:
                        values.add_(torch.cat([sums.detach(), total.detach().unsqueeze(0)]))
                waiting[chunk, number] = received, ends
            stages.finish()
        dist.all_reduce(values, group=stages.group)
        yield values[:-1], values[-1]

    def predict(self, batch: GraphBatch) -> Predicted:
        """Return predictions on the last stage, nothing on others, and no states."""
        with self.parameters.in_use(self.branch), self.arithmetic(), self.autocast():
            for chunk in range(len(self.pipeline.chunks)):
                _, _, predictions = self.pipeline.forward(self.model, batch, chunk)
            self.pipeline.finish()
        return predictions, batch.positions[:0]


def widest(dtypes: Sequence[torch.dtype]) -> torch.dtype:
    """Return the type in which numbers of all these types travel."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def edges_travel(model: GraphModel) -> bool:
    """Return True where the first stage makes edge features from weights."""
    return isinstance(model.edge_inputs, Absent) or any(True for _ in model.edge_inputs.parameters())


def to_travellers(of_layers: Sequence[States], graph: MessageGraph, edges_travel: bool) -> Travellers:
    """Return states, and what the graph has from weights, by name."""
    named = {f"{n} {degree}": one for n, states in enumerate(of_layers) for degree, one in states.items()}
    shared = {"condition": graph.condition, "edge_features": graph.edge_features if edges_travel else None}
    return named | {name: one for name, one in shared.items() if one is not None}


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
