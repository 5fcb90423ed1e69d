"""Functions of batches, recorded as graphs of the device and replayed."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hydragnn.base.errors import print_note
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.padding import Shape, as_padded, is_padded, padded, padded_size
from hydragnn.kernels.counting import Counter as Work
from hydragnn.kernels.counting import open_counters
from hydragnn.layers.attention import GraphAttention
from hydragnn.layers.size_buckets import padded_buckets
from hydragnn.models.graph_model import BUCKETS, GraphModel
from hydragnn.models.heads.modules import EdgeHead, IndexedNodeHead

Recorder = Callable[[Callable[[], Any]], tuple[Callable[[], object], Any]]
"""Function of a function: what repeats its computation in place, and its result."""
USES = 2
"""Batches of a size that are computed as they are before one is recorded, which takes as long as three: some sizes come once or twice."""


MOST = 128
"""Recordings that are kept; each has a batch of its own on the device, and a graph of a thousand kernels."""
LATER = 1000
"""Uses after which a size that could not be recorded is tried again."""


class NotRecordable(Exception):
    """A function cannot be replayed; the message says why."""


class NoWaiting(TorchDispatchMode):
    """Mode that refuses what no recording can hold.

    Values and sizes that the device alone knows, and copies from the host.
    """

    WAITING = frozenset(
        {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive"}
        | {"equal", "is_nonzero"}
    )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        sized = name != "repeat_interleave" or kwargs.get("output_size") is not None
        by_mask = name in ("index", "index_put", "index_put_") and any(
            isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if name in self.WAITING or not sized or by_mask:
            raise NotRecordable(f"{name} makes the host wait")
        result = func(*args, **kwargs)
        if name in ("_to_copy", "copy_"):
            ends = [*args, result]
            if len({value.device.type for value in ends if isinstance(value, Tensor)}) > 1:
                raise NotRecordable(f"{name} takes numbers from the host")
        return result


class GraphRecorder:
    """Recorder of a GPU's work as a graph of CUDA or HIP."""

    def __init__(self, device: torch.device) -> None:
        """All recordings share one pool of memory: one runs at a time."""
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.prepared = False

    def __call__(self, run: Callable[[], Any]) -> tuple[Callable[[], object], Any]:
        """Return the replay and the tensors that it writes."""
        computing = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(computing)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            if not self.prepared:
                with NoWaiting():
                    run()  # libraries prepare what they need on this stream
                self.prepared = True
            # ``torch.cuda.graph`` would first give all free memory back to the driver, which takes longer than the rest
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")  # other threads may ask for memory
            try:
                result = run()
            finally:
                graph.capture_end()
        computing.wait_stream(self.stream)
        return graph.replay, result


def recorder_on(device: torch.device) -> Recorder:
    """Return what records on a device; NotRecordable where nothing does."""
    if device.type != "cuda":
        raise NotRecordable(f"there are none on {device.type}")
    return GraphRecorder(device)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Recording:
    """A function of one size of batches, recorded."""

    inputs: list[Tensor]
    replay: Callable[[], object]
    result: Any
    work: Work


def replays_of(model: GraphModel, record: Recorder, shapes: Sequence[Shape] = ()) -> "Replays":
    """Return the replays of a model's functions, with nothing recorded yet."""
    if model.description.model.checkpoint_activations and has_dropout(model):
        raise NotRecordable("with model.checkpoint_activations dropout is drawn twice")
    if model.description.model.pooling is not None:
        raise NotRecordable("the data decide how many clusters model.pooling has")
    if any(isinstance(part, IndexedNodeHead) for part in model.modules()):
        raise NotRecordable("a head with per_index has no network for nodes that pad a batch")
    return Replays(record=record, device=next(model.parameters()).device, pad=padding_of(model, shapes))


def has_dropout(model: nn.Module) -> bool:
    """Return True where a step draws numbers."""
    return any(isinstance(part, nn.Dropout) and part.p > 0 for part in model.modules())


def padding_of(model: GraphModel, shapes: Sequence[Shape] = ()) -> Callable[[GraphBatch], GraphBatch]:
    """Return what pads batches for a model.

    They bring all whose sizes the data decide, so that the host waits for none: reverse edges, volumes, pairs and buckets of attention.
    """
    description, parts = model.description, [*model.modules()]
    settings = description.model
    attention = settings.global_attention
    buckets = any(isinstance(part, GraphAttention) for part in parts)
    options: dict[str, Any] = {
        "shapes": shapes,
        "extent": getattr(settings, "cutoff", None) or 1.0,
        "volume": any("stress" in head.derivatives for head in description.heads),
        "reverse": any(isinstance(part, EdgeHead) and part.symmetry for part in parts),
        "pairs": [attention.cutoff] if attention and attention.has_pairs else [],
    }

    def pad(batch: GraphBatch) -> GraphBatch:
        if is_padded(batch):
            return batch
        result = padded(batch, **options)
        if buckets:
            result._derived[BUCKETS] = padded_buckets(batch.counts("node"), result.num_nodes, padded_size)
        return result

    return pad


@dataclass(kw_only=True, slots=True, eq=False)
class Replays:
    """Functions of batches, recorded when a size has come a few times.

    Every batch is padded, recorded or not, so that bits do not depend on what came before.
    """

    record: Recorder
    device: torch.device
    pad: Callable[[GraphBatch], GraphBatch]
    lenient: tuple[type[Exception], ...] = (RuntimeError,)
    """Errors of a recording after which its size is computed as it is, for lack of memory above all."""
    ended: bool = False
    recordings: dict[Any, Recording] = field(default_factory=dict)
    uses: Counter[Any] = field(default_factory=Counter)

    def __call__(self, what: Any, function: Callable[..., Any], batch: GraphBatch, *tensors: Tensor) -> Any:
        """Return ``function`` of the padded batch and the tensors.

        ``what`` names the function. The next call of any function may overwrite the result.
        """
        batch = as_padded(self.pad(batch))
        inputs = [*batch.tensors(), *tensors]
        names = *batch.nodes, *batch.edges, *batch.graphs, *batch.masks, *batch._derived, *batch.topology.index_arrays
        long = batch.topology.long_ends()  # kernels of long rows are launched where there may be any
        key = (what, torch.is_grad_enabled(), names, long, *((value.shape, value.dtype) for value in inputs))
        if key not in self.recordings and not self.can_record(key, function, batch, tensors):
            return function(batch.to(self.device), *tensors)
        recording = self.recordings[key] = self.recordings.pop(key)  # the last used one comes last
        copy_all(recording.inputs, inputs)
        recording.replay()
        if open_counters:
            open_counters[-1].add(what[0], lambda: recording.work.totals)
        return recording.result

    def can_record(
        self, key: Any, function: Callable[..., Any], batch: GraphBatch, tensors: tuple[Tensor, ...]
    ) -> bool:
        """Record a size that has come often enough; return False otherwise."""
        self.uses[key] += 1
        if self.uses[key] <= USES:
            return False
        while len(self.recordings) >= MOST:  # the least recently used one goes
            oldest = next(iter(self.recordings))
            del self.recordings[oldest], self.uses[oldest]
        try:
            self.recordings[key] = self.recorded(function, batch, tensors)
        except self.lenient as error:
            print_note(f"batches of a size are not replayed for now: {error}")
            self.recordings.clear()  # which gives memory back, if that was what there is too little of
            self.uses[key] = -LATER
            return False
        return True

    def recorded(self, function: Callable[..., Any], batch: GraphBatch, tensors: tuple[Tensor, ...]) -> Recording:
        """Return the recording of a function for batches of this size.

        Its tensors are zero meanwhile, so that weights of losses add nothing to a gradient.
        """
        resident = batch.mapped(lambda one: one.to(self.device, copy=True))
        others, work = [torch.zeros_like(one) for one in tensors], Work()

        def run() -> Any:
            # tensors of their own: orders of edges are remembered by tensor, and must not outlive its numbers
            work.by_op.clear()
            with work:
                return function(resident.mapped(Tensor.detach), *others)

        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            replay, result = self.record(run)
        return Recording(inputs=[*resident.tensors(), *others], replay=replay, result=result, work=work)


def copy_all(into: list[Tensor], inputs: list[Tensor]) -> None:
    """Copy tensors by few calls where all lie on one device."""
    if inputs[0].device != into[0].device:
        for one, other in zip(into, inputs, strict=True):
            one.copy_(other)
        return
    for dtype in dict.fromkeys(value.dtype for value in into):
        pairs = [(one, other) for one, other in zip(into, inputs, strict=True) if one.dtype == dtype]
        torch._foreach_copy_([one for one, _ in pairs], [other for _, other in pairs])
