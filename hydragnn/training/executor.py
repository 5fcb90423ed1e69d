"""Executors that compute steps, too."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from hydragnn.base.clock import phase
from hydragnn.graphs.batch import GraphBatch
from hydragnn.models import Distribution, Target
from hydragnn.models.executor import Eager, Recorded
from hydragnn.models.graph_model import Predicted
from hydragnn.training.loss import loss_sums
from hydragnn.training.parameters import FlatParameters

Part = tuple[GraphBatch, Tensor]
"""Batch with the weight of every target over the number of its labels ``[targets]``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EagerSteps(Eager):
    """Executor of a branch that computes every batch anew."""

    parameters: FlatParameters
    targets: tuple[Target, ...]
    branch: int = 0
    precision: str = "fp32"
    unrecorded: str = ""
    """Why steps cannot be recorded; empty where they may be."""

    def gradient(self, parts: Sequence[Part], counted: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Add gradients of parts; yield errors and losses of the ``counted``.

        Other parts keep step with those of peers. The next result may overwrite the one before.
        """
        for number, (batch, scale) in enumerate(parts, start=1):
            if number == len(parts):
                self.expect_sum()
            result = self.add_gradient(batch, scale)
            if number <= counted:
                yield result
            if len(parts) > 1:
                batch.forget_derived()  # so that the next part has the memory

    def expect_sum(self) -> None:
        """Let the sum over ranks begin in the next backward pass."""
        self.parameters.expect_sum()

    @phase("forward")
    def add_gradient(self, batch: GraphBatch, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Add the gradient of one part; return its errors and its loss."""
        with self.arithmetic(), self.parameters.in_use(self.branch):
            with self.autocast():
                predictions = self.model(batch)
            sums, total = self.loss(predictions, batch, scale)
            self.parameters.add_gradient(total)
        return sums.detach(), total.detach()

    def loss(self, predictions: dict[str, Distribution], batch: GraphBatch, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return the errors of a part, and its share of the loss."""
        sums = loss_sums(self.targets, predictions, batch)
        return sums, (sums * scale.to(sums.dtype)).sum()

    def predict(self, batch: GraphBatch) -> Predicted:
        """Return predictions in the model's mode; none where a peer has them."""
        with self.parameters.in_use(self.branch), self.arithmetic(), self.autocast():
            return super().predict(batch)

    def autocast(self) -> AbstractContextManager[object]:
        """bf16 runs under autocast; fp32 and fp64 are what the weights are."""
        if self.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        """Compute products of matrices in TF32, where requested."""
        before = torch.get_float32_matmul_precision()
        if self.precision == "tf32" and self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedSteps(Recorded, EagerSteps):
    """Executor of a branch that replays what it recorded."""

    def expect_sum(self) -> None:
        """Do nothing: a recording of collectives was not seen."""

    @phase("replay")
    def add_gradient(self, batch: GraphBatch, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Replay the gradient of one part."""
        sums, total = self.replays(("gradient", self.model.training), super().add_gradient, batch, scale)
        return sums, total
