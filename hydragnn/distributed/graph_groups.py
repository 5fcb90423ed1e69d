"""Groups of ranks that share every batch of a prediction.

The first rank of a group has the batches and the results. The others hold the same models, and compute their parts of what it sends.
"""

import gc
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from hydragnn.base.errors import InputError, Interrupted, SaidByFirst
from hydragnn.distributed.graph_ranks import Cutter, make_cutter, shared_prediction
from hydragnn.distributed.launch import Launch, on_interfaces
from hydragnn.distributed.meeting import PATIENCE, meet
from hydragnn.distributed.mesh import Mesh
from hydragnn.distributed.ranks import Ranks, check_gpus, own_gpu
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.topology import Topology
from hydragnn.models import GraphModel
from hydragnn.models.prediction import Predicted

IDLE = timedelta(days=20)
"""How long ranks wait for a batch; a first rank that died is noticed at once."""

DONE, FAILED = -1, -2
"""In place of a model's number: the prediction has ended."""

STRUCTURE = ("positions", "edge_shifts", "cell", "periodic", "node_offsets", "edge_offsets", "senders", "receivers")
VALUES = ("nodes", "edges", "graphs", "masks")


class Order(NamedTuple):
    """A batch for the model with this number."""

    number: int
    batch: bytes


class GraphGroup:
    """Ranks that share every batch, seen from one of them."""

    def __init__(self, mesh: Mesh, store: dist.Store) -> None:
        """Make the group along the axis ``graph``; collective."""
        self.store = store
        self.cutter: Cutter = make_cutter(mesh, 8, torch.device("cpu"))
        self.first = mesh.members("graph")[0]
        self.is_first = mesh.coordinate("graph") == 0
        self._orders = mesh.new_group("graph", backend="gloo", timeout=IDLE)
        self._is_computing = False

    def compute(self, number: int, model: GraphModel, batch: GraphBatch) -> Predicted:
        """Return a model's predictions, with all ranks, on the first one.

        Interrupted where this rank fails, since the others wait for it.
        """
        self._send(Order(number, packed(batch)))
        return self._part(model, batch)

    def follow(self, model_of: Callable[[int], GraphModel]) -> None:
        """Compute parts until the first rank ends; SaidByFirst if it failed."""
        while (order := self._receive()).number >= 0:
            model = model_of(order.number)
            self._part(model, unpacked(order.batch, model))
        if order.number == FAILED:
            raise SaidByFirst("the first rank has failed")

    def end(self, number: int) -> None:
        """Let the others end, unless they compute."""
        if not self._is_computing:
            with suppress(RuntimeError):  # one is gone, and the rest with it
                self._send(Order(number, b""))

    def _part(self, model: GraphModel, batch: GraphBatch) -> Predicted:
        self._is_computing = True
        try:
            cutter = replace(self.cutter, node_cost=model.description.architecture.node_cost)
            result = shared_prediction(model, batch, cutter)
        except (InputError, MemoryError, torch.OutOfMemoryError) as error:
            raise Interrupted(
                f"a rank could not compute its part of a batch: {error}; let more ranks share a graph, then add --resume"
            ) from error
        self._is_computing = False
        return result

    def _send(self, order: Order) -> None:
        header = torch.tensor([order.number, len(order.batch)])
        dist.broadcast(header, self.first, group=self._orders)
        if order.batch:
            dist.broadcast(torch.frombuffer(bytearray(order.batch), dtype=torch.uint8), self.first, group=self._orders)

    def _receive(self) -> Order:
        header = torch.zeros(2, dtype=torch.int64)
        dist.broadcast(header, self.first, group=self._orders)
        number, size = header.tolist()
        content = torch.empty(size, dtype=torch.uint8)
        if size:
            dist.broadcast(content, self.first, group=self._orders)
        return Order(number, content.numpy().tobytes())


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SharedPrediction:
    """Predictions of ``model`` that a group of ranks computes together."""

    on_host: ClassVar = True

    model: GraphModel
    number: int
    group: GraphGroup

    def __call__(self, batch: GraphBatch) -> Predicted:
        """Predictions by field name and states, without gradients."""
        return self.group.compute(self.number, self.model, batch)


def packed(batch: GraphBatch) -> bytes:
    """Return the tensors of a batch, without what no model reads."""
    tensors: dict[str, Any] = {name: getattr(batch, name) for name in STRUCTURE}
    tensors |= {at: dict(getattr(batch, at)) for at in VALUES}
    file = io.BytesIO()
    torch.save(tensors, file)
    return file.getvalue()


def unpacked(content: bytes, model: GraphModel) -> GraphBatch:
    """Return a batch for the model."""
    tensors = torch.load(io.BytesIO(content), weights_only=True)
    senders, receivers, positions = tensors.pop("senders"), tensors.pop("receivers"), tensors["positions"]
    fields: dict[str, Tensor] = {**tensors["nodes"], **tensors["edges"], **tensors["graphs"]}
    return GraphBatch(
        topology=Topology.square(senders, receivers, len(positions)),
        fields={field.name: field for field in model.description.input_fields if field.name in fields},
        **tensors,
    )


@contextmanager
def join_graph_group(size: int, launch: Launch, folder: Path) -> Iterator[GraphGroup]:
    """Join one of the groups of ``size`` ranks each; collective."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    met = meet(launch, folder)
    launch = met.launch
    with on_interfaces(met.gloo, met.nccl):
        if torch.cuda.is_available():
            torch.cuda.set_device(own_gpu(launch.local_rank))
            check_gpus(met.store, launch)
        dist.init_process_group(backend, store=met.store, rank=launch.rank, world_size=launch.size, timeout=PATIENCE)
        try:
            ranks = Ranks(rank=launch.rank, size=launch.size, local_rank=launch.local_rank)
            group = GraphGroup(Mesh(ranks=ranks, sizes=(launch.size // size, 1, 1, size, 1)), met.store)
            ranks.wait()
            yield group
        finally:
            gc.collect()
            dist.destroy_process_group()
