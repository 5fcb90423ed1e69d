"""Callback of runs: checkpoints, model, record, callbacks of users, progress, cost."""

import copy
import json
import math
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydragnn.base.arguments import usual_modes
from hydragnn.base.clock import Clock, phase
from hydragnn.base.errors import InputError, Interrupted, as_note, nearest, words_of
from hydragnn.base.files import write_json
from hydragnn.callbacks import RunView, StopTraining, TrainingCallback, checked_values
from hydragnn.datasets import Budget, Loader, is_graph_store, open_store
from hydragnn.datasets.manifest import other_rule
from hydragnn.distributed.mesh import Mesh
from hydragnn.distributed.ranks import Ranks
from hydragnn.distributed.sharing import first_ranks_value, texts_of_all
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.models import BranchedModel, Categorical, Distribution, GraphModel, Number, TrainedModel, save_model
from hydragnn.models.executor import Eager
from hydragnn.models.trained import check_meaning
from hydragnn.record import Cost, RunRecord, Usage, write_record
from hydragnn.runs.assembly import Assembly
from hydragnn.runs.attempt import SECONDS_BETWEEN_BEATS, Fenced, Heartbeat, keep_beating
from hydragnn.runs.checkpoint import save_checkpoint
from hydragnn.runs.counting import StepWork
from hydragnn.runs.energy import Meter
from hydragnn.runs.folder import identity
from hydragnn.runs.progress import Progress, annotate
from hydragnn.training.context import Values
from hydragnn.training.data import RunData
from hydragnn.training.state import STOPPED, TrainState

WARM_UP = 2
"""First steps of a segment, which load and allocate.

Their time counts only where there are no others.
"""


def wait_for(device: torch.device) -> None:
    """Wait for a device, unless its work is being recorded."""
    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize(device)


class Stopwatch:
    """Cost of this segment on top of what earlier segments cost."""

    def __init__(self, earlier: Cost, used: Usage, ranks: Ranks, meter: Meter) -> None:
        self.earlier, self.used, self.ranks, self.meter, self.device = earlier, used, ranks, meter, meter.device
        Clock.running = Clock(partial(wait_for, self.device) if self.device.type == "cuda" else None)
        self.others, self.work = list[float](), StepWork()
        self.start, self.cpu_start = time.perf_counter(), time.process_time()
        self.steps = self.graphs = 0
        self.training_seconds, self.step_start = 0.0, time.perf_counter()
        self.ms_per_graph = earlier.ms_per_graph

    def begin_steps(self) -> None:
        """Steps begin now, after validation and checkpoints."""
        self.step_start = time.perf_counter()

    def count_step(self, graphs: int) -> None:
        """A step ended whose batch had so many graphs, over all ranks."""
        now = time.perf_counter()
        self.steps += 1
        if self.steps == WARM_UP + 1:
            self.graphs, self.training_seconds = 0, 0.0
        self.graphs += graphs
        self.training_seconds += now - self.step_start
        self.step_start = now

    def count_validation(self, graphs: int) -> None:
        """A validation of so many graphs, over all ranks, ended now."""
        if graphs:
            own = 1000.0 * (time.perf_counter() - self.step_start) * self.ranks.size / graphs
            self.ms_per_graph = min(own, self.ms_per_graph or own)

    @property
    def seconds(self) -> float:
        """Return the seconds of this segment."""
        return time.perf_counter() - self.start

    @property
    def graphs_per_second(self) -> float:
        """Training speed of this segment's later steps; 0 before the first."""
        return self.graphs / self.training_seconds if self.training_seconds else 0.0

    def share_usage(self) -> None:
        """Add up joules, busy shares and work of other ranks; collective."""
        own = torch.tensor(self.own_usage(), dtype=torch.float64, device=self.ranks.device)
        self.others = (self.ranks.gather(own).sum(0) - own).tolist()

    def own_usage(self) -> list[float]:
        """Return joules, busy share, operations and bytes; NaN where unknown."""
        return [*self.meter.values(), *self.work.totals]

    def usage(self, phases: Mapping[str, float]) -> Usage:
        """Return the use of all segments and ranks."""
        own, before = self.seconds, self.earlier.seconds
        phases = {**phases, "other": own - sum(phases.values())}
        values = self.own_usage()
        others = self.others or [(self.ranks.size - 1) * value for value in values]  # until they meet, as if alike
        joules, busy, *work = (one + other for one, other in zip(values, others, strict=True))
        flops, moved = (0.0 if math.isnan(one) else one for one in work)
        both = ((self.used.busy, before), (busy / self.ranks.size, own))
        shares = [(share, part) for share, part in both if share is not None and not math.isnan(share)]
        sources = [self.meter.counter.source] if self.meter.counter else []
        if before:
            joules += math.nan if self.used.joules is None else self.used.joules
            sources = [*dict.fromkeys([*self.used.energy_source.split("; "), *sources])]
        names = {**self.used.phases, **phases}
        return replace(
            self.used,
            flops=self.used.flops + flops,
            bytes=self.used.bytes + moved,
            phases={name: self.used.phases.get(name, 0.0) + phases.get(name, 0.0) for name in names},
            busy=sum(share * part / sum(part for _, part in shares) for share, part in shares) if shares else None,
            joules=None if math.isnan(joules) else joules,
            energy_source=Usage().energy_source if math.isnan(joules) else "; ".join(sources),
        )

    def cost(self) -> Cost:
        """Return the cost of all segments, as if ranks were alike."""
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device) / 2**20
        else:
            unit = 2**20 if sys.platform == "darwin" else 2**10
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
        return Cost(
            seconds=self.earlier.seconds + self.seconds,
            cpu_seconds=self.earlier.cpu_seconds + (time.process_time() - self.cpu_start) * self.ranks.size,
            peak_memory_mb=max(self.earlier.peak_memory_mb, peak),
            graphs_per_second=self.graphs_per_second or self.earlier.graphs_per_second,
            ms_per_graph=self.ms_per_graph,
            ranks=self.ranks.size,
            nodes=self.ranks.nodes,
        )


class RunCallback:
    """Callback of a run in a folder; only the first rank writes."""

    def __init__(
        self,
        run: Assembly,
        ranks: Ranks,
        stopwatch: Stopwatch,
        signals: list[int],
        heart: Heartbeat,
        progress: Progress | None,
        callbacks: Sequence[TrainingCallback] = (),
    ) -> None:
        """Files go where the heart beats."""
        self.record = replace(run.record, attempt=heart.attempt.name)
        self.normalisations = [branch.normalisation for branch in run.data.branches]
        self.folder, self.settings = heart.attempt.folder, run.context.settings
        self.mesh, self.ranks, self.stopwatch, self.signals, self.heart = run.mesh, ranks, stopwatch, signals, heart
        self.progress = progress if ranks.first else None
        self.callbacks = [*self.settings.callbacks, *callbacks]
        self.failed: set[int] = set()
        self.data = run.data
        self.exported, self.saved_at, self.written_at = -1, time.monotonic(), 0.0

    def add_note(self, sentence: str) -> None:
        """Put a sentence into the record."""
        if sentence not in self.record.notes:
            self.record = replace(self.record, notes=[*self.record.notes, sentence])

    def begin(self, state: TrainState, steps: int) -> None:
        """Write configuration, model and record before the next step."""
        if self.ranks.first:
            annotate("start", "--text", f"hydragnn train {self.folder}")
            write_json(self.folder / "config.json", self.record.config, self.heart.attempt.check)
        self.export(state)
        self.write(state)
        if self.progress:
            self.progress.begin(state.epoch + state.step / max(1, steps), self.settings.epochs)
        self.stopwatch.begin_steps()

    @property
    def interrupted(self) -> bool:
        """Return True once a signal asked this process to stop."""
        return bool(self.signals)

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

    def on_validated(self, state: TrainState, values: Values) -> Values:
        """Return the callbacks' numbers; where one fails, save and raise."""
        self.stopwatch.count_validation(self.record.parts.get("valid", 0))
        self.stopwatch.share_usage()
        try:
            return self.call("epoch", state, values)
        except InputError:
            self.save(state)
            raise

    def call(self, moment: str, state: TrainState, values: Values) -> Values:
        """Call a method of all callbacks; return their numbers on all ranks.

        InputError that names the callback where one fails. Loggers come last, and are left out after a failure.
        """
        if not self.callbacks:
            return {}

        def numbers() -> Values:
            added: Values = {}
            for one in sorted(self.callbacks, key=lambda one: one.optional):
                if id(one) in self.failed:
                    continue
                try:
                    returned = getattr(one, moment)(self.view(state, {**values, **added}, moment))
                    added |= checked_values(returned, {**values, **added})
                except (Fenced, Interrupted):
                    raise
                except KeyboardInterrupt:
                    self.signals.append(signal.SIGINT)
                except (Exception, SystemExit) as error:  # whatever the user's code raises
                    if isinstance(error, StopTraining) and moment == "epoch":
                        added[STOPPED] = 1.0
                        self.add_note(f"callback {one.kind} stopped the run in epoch {state.epoch + 1}: {error}")
                    elif one.optional and moment != "begin":
                        self.failed.add(id(one))
                        self.add_note(f"callback {one.kind}: {words_of(error)}")
                    elif isinstance(error, InputError):
                        raise InputError(f"callback {one.kind}: {error}") from error
                    else:
                        raise InputError(
                            f"callback {one.kind} failed {PLACES[moment].format(state.epoch + 1)}: {words_of(error)}; repair it and resume"
                        ) from error
            return added

        with state.parameters.swap_in_eval_parameters(), keep_beating(self.heartbeat), usual_modes():
            return first_ranks_value(numbers, self.ranks)

    def view(self, state: TrainState, values: Values, moment: str) -> RunView:
        """Return copies of what a callback may see."""
        curves = {name: [*curve] for name, curve in state.curves.items()}
        for name in {**curves, **values} if moment == "epoch" else ():
            curves[name] = [*curves.get(name, [None] * state.epoch), values.get(name)]
        config, predictor = copy.deepcopy(self.record.config), partial(predicted, state, self.data, self.mesh)
        epochs, check = self.settings.epochs, self.heart.attempt.check
        return RunView(
            folder=self.folder, config=config, epochs=epochs, curves=curves, predictor=predictor, check=check
        )

    def on_epoch_end(self, state: TrainState) -> None:
        """Write a due checkpoint, but not the last, and show the epoch."""
        if state.epoch < self.settings.epochs and self.due(state):
            self.save(state)
        if time.monotonic() - self.written_at > self.heart.every:
            self.write(state)
        values = {name: curve[-1] for name, curve in state.curves.items()}
        if self.progress:
            self.progress.epoch(state.epoch, values)
        self.stopwatch.begin_steps()

    def due(self, state: TrainState) -> bool:
        """Return True where a checkpoint is due; the first rank's clock decides."""
        if state.epoch % self.settings.checkpoint_epochs:
            return False
        least = self.heart.every if self.heart.every > SECONDS_BETWEEN_BEATS else 0.0
        late = self.ranks.first and time.monotonic() - self.saved_at >= max(self.settings.checkpoint_seconds, least)
        return self.ranks.any(late)

    @phase("saving")
    def save(self, state: TrainState, *, over: bool = False) -> None:
        """Write a checkpoint and the best epoch's model.

        Once training is ``over``, the model alone has to be written.
        """
        try:
            save_checkpoint(self.folder / "checkpoints", state, self.mesh, identity(self.record), self.heart.attempt)
        except InputError as note:
            if not over:
                raise
            self.add_note(f"the training is complete, and its last checkpoint is missing: {note}")
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
        assert isinstance(state.model, GraphModel | BranchedModel)
        check = self.heart.attempt.check
        save_model(self.folder / "model", state.model, *self.normalisations, weights=weights, check=check)

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
            usage=self.stopwatch.usage(Clock.running.phases()),
            **changes,
        )
        if self.ranks.first:
            with phase("saving"):
                write_record(self.record, self.folder, self.heart.attempt.check)
            self.written_at = time.monotonic()
        return self.record

    def close(self, sentence: str) -> None:
        """Say how the run ended and close what is open."""
        if self.ranks.first:
            annotate("stop")
        for one in self.callbacks if self.ranks.first else ():
            with as_note(f"callback {one.kind}"):
                one.close()
        with as_note("progress"):
            if self.progress:
                self.progress.end(sentence)


PLACES = {"begin": "before epoch {}", "epoch": "after epoch {}"}
PLACES |= {"rung": "after a segment", "end": "after the last epoch"}
"""Moments of callbacks as errors name them."""


def predicted(
    state: TrainState, data: RunData, mesh: Mesh, graphs: Any, branch: str
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return predictions and labels of ``RunView.predict``: ``[items, *shape]`` by field."""
    if mesh.shares_model or mesh.size("graph") > 1:
        raise InputError("callbacks cannot predict where ranks share weights or graphs; let all ranks be copies")
    names = [one.name for one in data.branches]
    if branch not in names:
        raise InputError(f"the run has no branch {branch!r}; {nearest(branch, names)}")
    number = names.index(branch)
    own = data.branches[number]
    if isinstance(graphs, str) and graphs == "valid":
        store, rows = own.store, own.split.valid
    else:
        store = graphs if is_graph_store(graphs) else open_store(graphs)
        if store.attributes and (problem := other_rule(own.store.attributes, store.attributes)):
            raise InputError(f"callbacks predict graphs made as those of the run: {problem}; build the store alike")
        rows = np.arange(len(store))
    model = state.of_branch(number)
    trained = TrainedModel(model=model, normalisation=own.normalisation, executor=Eager(model=model))
    fields = {target.name: target.field for target in own.targets}
    found: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in fields}
    model.eval()
    try:
        with torch.no_grad():
            for _, batch in Loader(store, rows, Budget(max_graphs=32), shuffle=False).epoch(0):
                for name, one in trained.predict(batch).items():
                    found[name].append(with_labels(one, batch, fields[name]))
    finally:
        model.train()
    return {name: (torch.cat([a for a, _ in pairs]), torch.cat([b for _, b in pairs])) for name, pairs in found.items()}


def with_labels(prediction: Distribution, batch: GraphBatch, field: Field) -> tuple[Tensor, Tensor]:
    """Return means or probabilities, and labels: NaN or class -1 where absent."""
    name = field.name
    if not isinstance(prediction, Number | Categorical):
        raise InputError(f"callbacks cannot predict {name}, whose distribution has no mean; see the numbers of the run")
    mean = (prediction.mean if isinstance(prediction, Number) else prediction.probabilities).cpu()
    nothing = math.nan if isinstance(prediction, Number) else -1
    if name not in batch.fields:
        like = mean if isinstance(prediction, Number) else mean[..., 0].long()
        return mean, torch.full_like(like, nothing)
    check_meaning(batch, field)
    return mean, batch[name].cpu().masked_fill(~batch.labelled(name).cpu(), nothing)


def best_weights(state: TrainState, mesh: Mesh) -> dict[str, Tensor]:
    """Return the model's best weights, on the first rank alone; collective."""
    if state.parameters.is_whole and mesh.size("pipeline") == 1:
        with state.parameters.best():
            return _copies(state.model.state_dict()) if mesh.ranks.first else {}
    best = state.tensors()["best"]
    spans = [span for span in state.parameters.spans if span.counted and state.parameters.is_written]
    shapes: dict[str, list[int]] = {}
    for text in texts_of_all(json.dumps(state.parameters.shapes), mesh.ranks):
        shapes.update(json.loads(text))
    weights: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        part = best.new_zeros(shape)
        for span in (one for one in spans if one.name == name):
            local = best.new_zeros(prod(span.piece.local_shape))
            local[span.first : span.last] = best[span.at : span.at + span.last - span.first]
            span.piece.put(local, part)
        whole = mesh.ranks.sum_in_place(part)
        if mesh.ranks.first:
            weights[name] = whole.cpu()
    others = {name: one for name, one in state.model.state_dict().items() if name not in weights}
    return _copies(others) | weights if mesh.ranks.first else {}


def _copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in tensors.items()}
