"""Callback of runs: checkpoints, model, record, TensorBoard, progress."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hydragnn.base.errors import MissingPackageError, as_note
from hydragnn.base.files import write_json
from hydragnn.distributed.ranks import Ranks
from hydragnn.models import BranchedModel, GraphModel, save_branched, save_model
from hydragnn.record import RunRecord, write_record
from hydragnn.runs.assembly import Assembly
from hydragnn.runs.attempt import SECONDS_BETWEEN_BEATS, Heartbeat
from hydragnn.runs.best_weights import best_weights
from hydragnn.runs.checkpoint import save_checkpoint
from hydragnn.runs.folder import identity
from hydragnn.runs.progress import Progress
from hydragnn.runs.signals import Signals
from hydragnn.runs.stopwatch import Stopwatch
from hydragnn.training.state import TrainState


class RunCallback:
    """Callback of a run in a folder; only the first rank writes."""

    def __init__(
        self,
        run: Assembly,
        ranks: Ranks,
        stopwatch: Stopwatch,
        signals: Signals,
        heart: Heartbeat,
        progress: Progress | None,
    ) -> None:
        """Files go where the heart beats."""
        self.record = replace(run.record, attempt=heart.attempt.name)
        self.normalisations = [branch.normalisation for branch in run.data.branches]
        self.folder, self.settings = heart.attempt.folder, run.context.settings
        self.mesh, self.ranks, self.stopwatch, self.signals, self.heart = run.mesh, ranks, stopwatch, signals, heart
        self.progress = progress if ranks.first else None
        self.board: Any = None
        self.exported, self.saved_at, self.written_at = -1, time.monotonic(), 0.0

    def add_note(self, sentence: str) -> None:
        """Put a sentence into the record."""
        if sentence not in self.record.notes:
            self.record = replace(self.record, notes=[*self.record.notes, sentence])

    def begin(self, state: TrainState, steps: int) -> None:
        """Write configuration, model and record before the next step."""
        if self.ranks.first:
            if self.settings.tensorboard:
                self.board = summary_writer(self.folder / "tensorboard", state.epoch)
            write_json(self.folder / "config.json", self.record.config, self.heart.attempt.check)
        self.export(state)
        self.write(state)
        if self.progress:
            self.progress.begin(state.epoch + state.step / max(1, steps), self.settings.epochs)
        self.stopwatch.begin_steps()

    @property
    def interrupted(self) -> bool:
        """Return True once a signal asked this process to stop."""
        return self.signals.received

    def heartbeat(self) -> None:
        """Let the heart beat."""
        self.heart.beat()

    def on_step_end(self, state: TrainState, steps: int, graphs: int, loss: float | None) -> None:
        """Count the graphs and move the bar."""
        epochs = state.epoch + state.step / steps
        self.heart.beat(epochs)
        self.stopwatch.count_step(graphs)
        if self.progress:
            self.progress.step(epochs, loss if self.ranks.size == 1 else None, self.stopwatch.graphs_per_second)

    def on_epoch_end(self, state: TrainState) -> None:
        """Write a due checkpoint and record, and show the epoch."""
        if self.due(state):
            self.save(state)
        if time.monotonic() - self.written_at > self.heart.every:
            self.write(state)
        values = {name: curve[-1] for name, curve in state.curves.items()}
        if self.progress:
            self.progress.epoch(state.epoch, values)
        with as_note("TensorBoard", self.add_note):
            for name, value in values.items() if self.board else ():
                if value is not None:
                    self.board.add_scalar(name, value, state.epoch)
        self.stopwatch.begin_steps()

    def due(self, state: TrainState) -> bool:
        """Return True where a checkpoint is due; the first rank's clock decides."""
        if state.epoch % self.settings.checkpoint_epochs:
            return False
        least = self.heart.every if self.heart.every > SECONDS_BETWEEN_BEATS else 0.0
        late = self.ranks.first and time.monotonic() - self.saved_at >= max(self.settings.checkpoint_seconds, least)
        return bool(self.ranks.sum_in_place(torch.tensor(float(late), device=state.totals.device)) > 0)

    def save(self, state: TrainState) -> None:
        """Write a checkpoint and the best epoch's model."""
        save_checkpoint(self.folder / "checkpoints", state, self.mesh, identity(self.record), self.heart.attempt)
        self.export(state)
        self.saved_at = time.monotonic()

    def export(self, state: TrainState) -> None:
        """Write the best epoch's weights as the model, once; collective."""
        if state.best_epoch == self.exported:
            return
        self.exported = state.best_epoch
        weights = best_weights(state, self.mesh)
        if not self.ranks.first:
            return
        folder, check = self.folder / "model", self.heart.attempt.check
        if isinstance(state.model, BranchedModel):
            save_branched(folder, state.model, self.normalisations, weights, check)
        else:
            assert isinstance(state.model, GraphModel)
            save_model(folder, state.model, self.normalisations[0], weights, check)

    def write(self, state: TrainState, **changes: Any) -> RunRecord:
        """Write the record of the state with ``changes``; return it."""
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
        with as_note("TensorBoard"):
            if self.board:
                self.board.close()
        with as_note("progress"):
            if self.progress:
                self.progress.end(sentence)


def summary_writer(folder: Path, epochs: int) -> Any:
    """Return TensorBoard's writer, which drops values after ``epochs``."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingPackageError("tensorboard", "tensorboard", "train.tensorboard = true") from error
    return SummaryWriter(str(folder), purge_step=epochs + 1)
