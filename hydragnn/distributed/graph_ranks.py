"""Ranks that share graphs: cuts and exchanges."""

import io
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from hydragnn.base.clock import phase
from hydragnn.base.errors import InputError, Interrupted, SaidByFirst
from hydragnn.distributed.launch import Launch
from hydragnn.distributed.mesh import Mesh
from hydragnn.distributed.ranks import Ranks, own_gpu, process_group
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.cutting import Partition, cut_nodes, part_of_rank
from hydragnn.graphs.field import Location
from hydragnn.graphs.halo import Peers
from hydragnn.graphs.topology import Topology
from hydragnn.kernels import Pairs, pairs_of
from hydragnn.models import GraphModel
from hydragnn.models.executor import Eager
from hydragnn.models.graph_model import PAIRS, Predicted

REMEMBERED = 256
"""Cuts by METIS that are kept, since epochs show the same graphs again."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GraphRanks:
    """Peers of this rank in a group of processes of its own.

    Sums of gradients run in another group, so that their order and that of these exchanges need not agree.
    """

    rank: int
    size: int
    group: dist.ProcessGroup

    @phase("collectives")
    def swap(self, rows: Tensor, sent: tuple[int, ...], received: tuple[int, ...]) -> Tensor:
        """Send rows, and return those that arrive."""
        arrived = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(arrived, rows, list(received), list(sent), group=self.group)
        return arrived

    @phase("collectives")
    def total(self, values: Tensor) -> Tensor:
        """Return the sum over all peers."""
        result = values.clone()
        dist.all_reduce(result, group=self.group)
        return result


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Cutter:
    """Function from a batch to this rank's part of it."""

    peers: Peers
    node_cost: int = 8
    partition: Partition | None = None
    _cuts: OrderedDict[int, Tensor] = field(default_factory=OrderedDict, init=False)

    def __call__(self, batch: GraphBatch) -> GraphBatch:
        """Return the part, with the pairs of its edges."""
        rank_of_node = self.cut(batch)
        part = part_of_rank(batch, rank_of_node, self.peers)
        pairs = pairs_of(edge_vectors(batch), batch.topology) if batch.dim and part.num_edges else None
        if pairs is not None:
            own = pairs.pair[rank_of_node.index_select(0, batch.receivers) == self.peers.rank]
            present, pair = own.unique(return_inverse=True)  # without some reverses
            first = torch.full_like(present, len(pair)).scatter_reduce(0, pair, torch.arange(len(pair)), "amin")
            part._derived[PAIRS] = Pairs(first=first, pair=pair)
        return part

    def cut(self, batch: GraphBatch) -> Tensor:
        """Return the rank of every node; slow cuts are remembered."""
        if self.partition is None:
            return cut_nodes(batch, self.peers.size, self.node_cost)
        key = zlib.crc32(batch.senders.numpy().data, zlib.crc32(batch.receivers.numpy().data, batch.num_nodes))
        if key not in self._cuts:
            self._cuts[key] = cut_nodes(batch, self.peers.size, self.node_cost, self.partition).to(torch.int16)
            if len(self._cuts) > REMEMBERED:
                self._cuts.popitem(last=False)
        return self._cuts[key].to(torch.int64)


@torch.no_grad()
def shared_prediction(model: GraphModel, batch: GraphBatch, cutter: Cutter) -> Predicted:
    """Return predictions and states of a whole batch on every rank; collective."""
    device = next(model.parameters()).device
    part = cutter(batch).to(device)
    halo, own_edges = part.halo, cutter.cut(batch).index_select(0, batch.receivers) == cutter.peers.rank
    assert halo is not None
    every = torch.ones(part.num_edges, dtype=torch.bool, device=device)
    rows = {"node": (halo.numbers, halo.owned), "edge": (own_edges.nonzero().squeeze(1).to(device), every)}

    def gathered(values: Tensor, location: Location) -> Tensor:
        numbers, own = rows[location]
        whole = values.new_zeros(batch.num_items(location), *values.shape[1:])
        return cutter.peers.total(whole.index_copy(0, numbers[own], values[own]))

    predictions, states = Eager(model=model).predict(part)
    locations = {target.name: target.field.on for target in model.description.targets}
    whole = {
        name: value if locations[name] == "graph" else value.mapped(partial(gathered, location=locations[name]))
        for name, value in predictions.items()
    }
    return whole, gathered(states, "node")


def metis(edges: Any, costs: NDArray[np.int64], parts: int) -> NDArray[np.int64]:
    """Return a partition by METIS (Karypis and Kumar 1998, doi:10.1137/S1064827595287997)."""
    import pymetis

    partition = pymetis.part_graph(parts, pymetis.CSRAdjacency(edges.indptr, edges.indices), vweights=costs)
    return np.asarray(partition[1], dtype=np.int64)


def make_cutter(mesh: Mesh, node_cost: int) -> Cutter:
    """Return the cutter, by METIS where all ranks have it; collective."""
    peers = GraphRanks(rank=mesh.coordinate("graph"), size=mesh.size("graph"), group=mesh.new_group("graph"))
    partition = None if mesh.ranks.any(find_spec("pymetis") is None) else metis
    return Cutter(peers=peers, node_cost=node_cost, partition=partition)


IDLE = timedelta(days=20)
"""Time that ranks wait for a batch; a first rank that died is noticed at once."""
DONE, FAILED = -1, -2
"""In place of a model's number: the prediction has ended."""

STRUCTURE = ("positions", "edge_shifts", "cell", "periodic", "node_offsets", "edge_offsets", "senders", "receivers")
VALUES = ("nodes", "edges", "graphs", "masks")


class GraphGroup:
    """Ranks that share every batch, seen from one of them.

    The first rank has the batches and the results. The others hold the same models, and compute their parts of what it sends.
    """

    def __init__(self, mesh: Mesh, store: dist.Store) -> None:
        """Make the group along the axis ``graph``; collective."""
        self.store = store
        self.cutter: Cutter = make_cutter(mesh, 8)
        self.first = mesh.members("graph")[0]
        self.is_first = mesh.coordinate("graph") == 0
        self._orders = mesh.new_group("graph", backend="gloo", timeout=IDLE)
        self._is_computing = False

    def follow(self, model_of: Callable[[int], GraphModel]) -> None:
        """Compute parts until the first rank ends; SaidByFirst if it failed."""
        while (order := self.send())[0] >= 0:
            model = model_of(order[0])
            self.part(model, unpacked(order[1], model))
        if order[0] == FAILED:
            raise SaidByFirst("the first rank has failed")

    def end(self, number: int) -> None:
        """Let the others end, unless they compute."""
        if not self._is_computing:
            with suppress(RuntimeError):  # one is gone, and the rest with it
                self.send(number)

    def part(self, model: GraphModel, batch: GraphBatch) -> Predicted:
        """Compute this rank's part; return the whole. Interrupted where it fails."""
        self._is_computing = True
        try:
            cutter = replace(self.cutter, node_cost=model.description.architecture.node_cost)
            result = shared_prediction(model, batch, cutter)
        except (InputError, MemoryError, torch.OutOfMemoryError) as error:
            problem = f"a rank could not compute its part of a batch: {error}"
            raise Interrupted(f"{problem}; let more ranks share a graph, then add --resume") from error
        self._is_computing = False
        return result

    def send(self, number: int = 0, batch: bytes = b"") -> tuple[int, bytes]:
        """Return the first rank's number of a model and its batch, as bytes."""
        header = torch.tensor([number, len(batch)])
        dist.broadcast(header, self.first, group=self._orders)
        number, size = header.tolist()
        if not size:
            return number, b""
        content = torch.frombuffer(bytearray(batch or size), dtype=torch.uint8)
        dist.broadcast(content, self.first, group=self._orders)
        return number, content.numpy().tobytes()


@dataclass(frozen=True, kw_only=True, eq=False)
class Shared(Eager):
    """Executor of the first of the ranks that share every batch."""

    from_host: ClassVar[bool] = True
    group: GraphGroup
    number: int
    """Position of the model among those of all ranks."""

    def predict(self, batch: GraphBatch) -> Predicted:
        """Return predictions that all ranks compute parts of."""
        self.group.send(self.number, packed(batch))
        return self.group.part(self.model, batch)


def packed(batch: GraphBatch) -> bytes:
    """Return the tensors of a batch, without what no model reads."""
    tensors = {name: getattr(batch, name) for name in STRUCTURE} | {at: dict(getattr(batch, at)) for at in VALUES}
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
    if torch.cuda.is_available():
        torch.cuda.set_device(own_gpu(launch.local_rank))
    with process_group(launch, folder, backend) as met:
        launch = met.launch
        ranks = Ranks(rank=launch.rank, size=launch.size, local_rank=launch.local_rank)
        group = GraphGroup(Mesh(ranks=ranks, sizes=(launch.size // size, 1, 1, size, 1)), met.store)
        ranks.wait()
        yield group
