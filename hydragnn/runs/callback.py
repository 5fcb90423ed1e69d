"""What happens around the loop: signals, checkpoints, the exported model, the record, curves for TensorBoard, progress."""

import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from hydragnn.config import TrainSettings
from hydragnn.datasets import Normalisation
from hydragnn.distributed.ranks import Ranks
from hydragnn.errors import Interrupted, MissingPackageError
from hydragnn.files import digest
from hydragnn.models import GraphModel, save_model
from hydragnn.record import Cost, RunRecord, write_record
from hydragnn.runs.attempt import Heartbeat
from hydragnn.runs.checkpoint import save_checkpoint
from hydragnn.runs.progress import Progress
from hydragnn.training.state import TrainState

SECONDS_BETWEEN_RECORDS = 1.0
HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Signals:
    """Whether SIGINT, SIGTERM or SIGUSR1 came; a second SIGINT ends the process as usual.

    A second SIGTERM does not, because launchers send several while they wait for their ranks. SIGUSR1 is what schedulers
    send some time before an allocation ends.
    """

    def __init__(self) -> None:
        """Nothing came yet."""
        self.came = False

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Listen for the length of the block; in threads other than the main one nothing is heard."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in HEARD}

        def note(number: int, frame: FrameType | None) -> None:
            self.came = True
            if number == signal.SIGINT:
                signal.signal(number, before[signal.SIGINT])

        for number in before:
            signal.signal(number, note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def interrupted_at_once() -> Iterator[None]:
    """Let SIGTERM and SIGUSR1 raise Interrupted for the length of the block, while there is nothing to save yet."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}

    def leave(number: int, frame: FrameType | None) -> None:
        raise Interrupted(f"stopped by {signal.Signals(number).name} before the first step")

    for number in before:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Stopwatch:
    """Cost of this segment on top of what earlier segments cost."""

    def __init__(self, earlier: Cost, ranks: Ranks, device: torch.device) -> None:
        """Begin now."""
        self.earlier, self.ranks, self.device = earlier, ranks, device
        self.start, self.cpu_start = time.perf_counter(), time.process_time()
        self.graphs, self.training_seconds, self.step_start = 0, 0.0, time.perf_counter()

    def begin_steps(self) -> None:
        """Steps begin now, after validation and checkpoints."""
        self.step_start = time.perf_counter()

    def count_step(self, graphs: int) -> None:
        """A step with this rank's graphs ended."""
        now = time.perf_counter()
        self.graphs += graphs
        self.training_seconds += now - self.step_start
        self.step_start = now

    @property
    def graphs_per_second(self) -> float:
        """Training speed of this segment; ranks are taken to have equal shares."""
        return self.graphs * self.ranks.size / self.training_seconds if self.training_seconds else 0.0

    def cost(self) -> Cost:
        """All segments together; CPU seconds and memory as if every rank were like this one."""
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device) / 2**20
        else:
            unit = 2**20 if sys.platform == "darwin" else 2**10
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
        return Cost(
            seconds=self.earlier.seconds + time.perf_counter() - self.start,
            cpu_seconds=self.earlier.cpu_seconds + (time.process_time() - self.cpu_start) * self.ranks.size,
            peak_memory_mb=max(self.earlier.peak_memory_mb, peak),
            graphs_per_second=self.graphs_per_second or self.earlier.graphs_per_second,
            ranks=self.ranks.size,
            nodes=self.ranks.nodes,
        )


class RunCallback:
    """The callback of a run in a folder; ranks other than the first only take part in checkpoints."""

    def __init__(
        self,
        folder: Path,
        record: RunRecord,
        normalisation: Normalisation,
        ranks: Ranks,
        stopwatch: Stopwatch,
        signals: Signals,
        heart: Heartbeat,
        *,
        settings: TrainSettings,
        progress: Progress | None,
    ) -> None:
        """``record`` is what the record says apart from curves and cost."""
        self.folder, self.record, self.normalisation = folder, record, normalisation
        self.ranks, self.stopwatch, self.signals, self.settings = ranks, stopwatch, signals, settings
        self.heart = heart
        self.progress = progress if ranks.first else None
        board = settings.tensorboard and ranks.first
        self.board: Any = summary_writer(folder / "tensorboard", record.epochs) if board else None
        self.exported, self.saved_at, self.written_at = -1, time.monotonic(), 0.0

    @property
    def interrupted(self) -> bool:
        """Whether a signal came."""
        return self.signals.came

    def heartbeat(self) -> None:
        """Let the heart beat."""
        self.heart.beat()

    def on_step_end(self, state: TrainState, steps: int, graphs: int, loss: float) -> None:
        """Count the graphs and move the bar."""
        epochs = state.epoch + state.step / steps
        self.heart.beat(epochs)
        self.stopwatch.count_step(graphs)
        if self.progress:
            self.progress.step(epochs, loss if self.ranks.size == 1 else None, self.stopwatch.graphs_per_second)

    def on_epoch_end(self, state: TrainState) -> None:
        """Write a checkpoint where one is due, the record now and then, and show the epoch's values."""
        if self.due(state):
            self.save(state)
        if time.monotonic() - self.written_at > SECONDS_BETWEEN_RECORDS:
            self.write(state)
        values = {name: curve[-1] for name, curve in state.curves.items()}
        if self.progress:
            self.progress.epoch(state.epoch, values)
        if self.board:
            for name, value in values.items():
                if value is not None:
                    self.board.add_scalar(name, value, state.epoch)
        self.stopwatch.begin_steps()

    def due(self, state: TrainState) -> bool:
        """Whether it is time for a checkpoint; the first rank's clock decides for all."""
        if state.epoch % self.settings.checkpoint_epochs:
            return False
        late = self.ranks.first and time.monotonic() - self.saved_at >= self.settings.checkpoint_seconds
        return bool(self.ranks.sum_in_place(torch.tensor(float(late), device=state.totals.device)) > 0)

    def save(self, state: TrainState) -> None:
        """Write a checkpoint, and the weights of the best epoch as the model of the run."""
        save_checkpoint(self.folder / "checkpoints", state, self.ranks, identity(self.record), self.heart.attempt)
        self.export(state)
        self.saved_at = time.monotonic()

    def export(self, state: TrainState) -> None:
        """Write the weights of the best epoch as the model of the run, unless they are there already."""
        if not self.ranks.first or state.best_epoch == self.exported:
            return
        assert isinstance(state.model, GraphModel)
        with state.weights.replaced_by(state.best):
            weights = {name: value.detach().clone() for name, value in state.model.state_dict().items()}
        save_model(self.folder / "model", state.model, self.normalisation, weights, self.heart.attempt.check)
        self.exported = state.best_epoch

    def write(self, state: TrainState, **changes: Any) -> RunRecord:
        """Write the record of the state, with ``changes`` such as its status, and give it back."""
        at_best = {name: curve[state.best_epoch] for name, curve in state.curves.items() if state.best_epoch >= 0}
        best = {name: value for name, value in at_best.items() if value is not None}
        self.record = replace(
            self.record,
            epochs=state.epoch,
            curves={name: list(curve) for name, curve in state.curves.items()},
            best=best | {"epoch": state.best_epoch + 1.0} if best else {},
            cost=self.stopwatch.cost(),
            **changes,
        )
        if self.ranks.first:
            write_record(self.record, self.folder, self.heart.attempt.check)
            self.written_at = time.monotonic()
        return self.record

    def close(self, sentence: str) -> None:
        """Say how the run ended and close what is open."""
        if self.board:
            self.board.close()
        if self.progress:
            self.progress.end(sentence)


def identity(record: RunRecord) -> dict[str, Any]:
    """Whose checkpoint it is."""
    return {"configuration_hash": digest(decisive(record.config)), "data_hash": record.data_hash}


INDIFFERENT = {"data": ("store",), "train": ("checkpoint_epochs", "checkpoint_seconds", "tensorboard")}
"""Settings that no result depends on: where the store lies (its content is compared), and what else is written when."""


def decisive(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a configuration that results depend on; two runs that agree in it are one run.

    >>> decisive({"data": {"store": "here.h5", "inputs": None}})
    {'data': {'inputs': None}}
    """
    return {
        section: {key: item for key, item in value.items() if key not in INDIFFERENT.get(section, ())}
        if isinstance(value, dict)
        else value
        for section, value in config.items()
    }


def summary_writer(folder: Path, epochs: int) -> Any:
    """TensorBoard's writer, which forgets what a lost segment wrote after ``epochs``; MissingPackageError without it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingPackageError("tensorboard", "tensorboard", "train.tensorboard = true") from error
    return SummaryWriter(str(folder), purge_step=epochs + 1)
