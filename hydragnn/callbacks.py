"""Callbacks of runs: loggers, and metrics and rules of your own.

The first rank calls them after every validation. They see values and copies only, so that no callback changes a bit of what is trained.
"""

import csv
import io
import math
import re
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, PrivateAttr, SerializeAsAny, WrapValidator
from torch import Tensor

from hydragnn.base.errors import InputError, as_missing
from hydragnn.base.files import Check, digest, write_atomically
from hydragnn.base.imports import class_of_kind
from hydragnn.base.settings import Settings

GROUP = "hydragnn.callbacks"
"""Entry-point group of callbacks; the name of an entry is its kind."""
Values = Mapping[str, float | None]
"""Numbers of an epoch by name."""


RESERVED = ("stopped", "epoch")
"""Names of numbers that records and curves use for something else."""


class StopTraining(Exception):
    """Ends a run after this epoch; raised by callbacks, with the reason."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RunView:
    """A run after the validation of an epoch, as callbacks see it."""

    folder: Path
    config: Mapping[str, Any]
    """The whole configuration as JSON."""
    epochs: int
    """Full budget; the run ends there if nothing stops it."""
    curves: Mapping[str, Sequence[float | None]]
    """One value per finished epoch by name, such as ``valid/energy/mae``; copies."""
    predictor: Callable[[Any, str], dict[str, tuple[Tensor, Tensor]]]
    check: Check
    """Refuses to write where a later attempt owns the run; for ``write_atomically``."""

    @property
    def epoch(self) -> int:
        """Return the number of finished epochs."""
        return max((len(curve) for curve in self.curves.values()), default=0)

    @property
    def values(self) -> dict[str, float | None]:
        """Return the newest value of every curve."""
        return {name: curve[-1] for name, curve in self.curves.items() if curve}

    def predict(self, graphs: Any = "valid", branch: str = "") -> dict[str, tuple[Tensor, Tensor]]:
        """Return predictions and labels by field, in its unit ``[items, *shape]``.

        ``graphs`` is "valid" for the validation part, a store, or the path of one. Labels that are absent are NaN, or class -1; classes
        are predicted as probabilities. The weights are those that validation uses. InputError where ranks share the weights.
        """
        return self.predictor(graphs, branch)


class TrainingCallback(Settings, ABC):
    """Base of callbacks: settings, and methods for the moments of a run.

    It is registered by an entry point of the group ``hydragnn.callbacks``, or named ``package.module:Name``. An instance sees one segment of
    a run: what must outlive it is read from ``run.curves``. An error in ``begin`` or ``epoch`` ends the run in a sentence; a later one is a note.
    """

    kind: str

    curves: ClassVar[tuple[str, ...]] = ()
    """Names of numbers that ``epoch`` returns, for objectives of searches."""
    optional: ClassVar[bool] = False
    """True where an error after ``begin`` is a note, as of loggers."""

    def begin(self, run: RunView) -> None:
        """Begin or go on; called before the first step of a segment."""

    def epoch(self, run: RunView) -> Values | None:
        """See an epoch; numbers become curves, and StopTraining ends the run."""
        return None

    def rung(self, run: RunView) -> None:
        """See the end of a segment, such as a rung."""

    def end(self, run: RunView) -> None:
        """See the end of the run."""

    def close(self) -> None:
        """Close what is open, however the run ended, even without ``begin``."""


class CsvLogger(TrainingCallback):
    """Writes ``curves.csv`` into the run folder: a row per epoch."""

    kind: str = "csv"
    optional: ClassVar[bool] = True

    def epoch(self, run: RunView) -> None:
        """Write all epochs anew, which holds after any resume."""
        table = io.StringIO()
        writer = csv.writer(table)
        writer.writerow(["epoch", *run.curves])
        writer.writerows(zip(range(1, run.epoch + 1), *run.curves.values()))
        write_atomically(run.folder / "curves.csv", table.getvalue(), run.check)


class TensorBoardLogger(TrainingCallback):
    """Writes TensorBoard's files into the run folder."""

    kind: str = "tensorboard"
    optional: ClassVar[bool] = True
    _writer: Any = PrivateAttr(None)

    def begin(self, run: RunView) -> None:
        """Open the writer, which drops values of epochs to come."""
        with as_missing("tensorboard", "tensorboard", 'callbacks of kind "tensorboard"'):
            from torch.utils.tensorboard import SummaryWriter
        self._writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.epoch + 1)

    def epoch(self, run: RunView) -> None:
        """Add the values of the epoch."""
        for name, value in run.values.items():
            if value is not None:
                self._writer.add_scalar(name, value, run.epoch)

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


class MlflowLogger(TrainingCallback):
    """Logs values and settings to MLflow; offline where no ``uri`` is given."""

    kind: str = "mlflow"
    optional: ClassVar[bool] = True

    uri: str | None = None
    """Tracking server; absent: the file ``mlflow.db`` in the run folder."""
    experiment: str = "hydragnn"
    """Name of the experiment, which is made where it is missing."""

    _log: tuple[Any, str] = PrivateAttr()

    def begin(self, run: RunView) -> None:
        """Begin or go on with the folder's run of MLflow."""
        with as_missing("mlflow", "mlflow", 'callbacks of kind "mlflow"'):
            from mlflow import MlflowClient
        client = MlflowClient(self.uri or f"sqlite:///{(run.folder / 'mlflow.db').resolve()}")
        known = client.get_experiment_by_name(self.experiment)
        home = known.experiment_id if known else client.create_experiment(self.experiment)
        tag = str(run.folder.resolve())
        found = client.search_runs([home], f"tags.folder = '{tag}'")
        one = found[0] if found else client.create_run(home, tags={"folder": tag}, run_name=run.folder.name)
        if not found:
            for section, table in run.config.items():
                client.log_param(one.info.run_id, section, str(table)[:6000])
        self._log = client, one.info.run_id

    def epoch(self, run: RunView) -> None:
        """Log the values of the epoch."""
        client, identity = self._log
        for name, value in run.values.items():
            if value is not None:
                client.log_metric(
                    identity, re.sub(r"[^\w. :/-]", "_", name.replace("@", " at ")), value, step=run.epoch
                )

    def end(self, run: RunView) -> None:
        """Say that the run is over."""
        self._log[0].set_terminated(self._log[1])


class WandbLogger(TrainingCallback):
    """Logs values and settings to Weights & Biases; offline by default."""

    kind: str = "wandb"
    optional: ClassVar[bool] = True

    project: str = "hydragnn"
    """Name of the project."""
    mode: str = "offline"
    """offline: files in the run folder; online: a server, with your login."""

    _run: Any = PrivateAttr(None)

    def begin(self, run: RunView) -> None:
        """Begin or go on."""
        with as_missing("wandb", "wandb", 'callbacks of kind "wandb"'):
            import wandb
        folder, how = run.folder.resolve(), {"project": self.project, "mode": self.mode, "resume": "allow"}
        of_run = {"name": folder.name, "id": digest(str(folder)), "config": dict(run.config)}
        self._run = wandb.init(dir=run.folder, **how, **of_run)

    def epoch(self, run: RunView) -> None:
        """Log the values of the epoch."""
        self._run.log({name: value for name, value in run.values.items() if value is not None}, step=run.epoch)

    def close(self) -> None:
        """Close the files."""
        if self._run is not None:
            self._run.finish()


OWN = {one.model_fields["kind"].default: one for one in (CsvLogger, TensorBoardLogger, MlflowLogger, WandbLogger)}


class AbsentCallback(TrainingCallback):
    """A callback whose class is not here, or not allowed."""

    model_config = ConfigDict(extra="allow")
    _reason: str = PrivateAttr("")


class FunctionCallback(TrainingCallback):
    """A function of a run, called after every epoch."""

    kind: str = "function"
    _function: Callable[[RunView], Values | None] = PrivateAttr()

    def epoch(self, run: RunView) -> Any:
        """Return the function's numbers."""
        return self._function(run)


def as_callback(value: Any) -> TrainingCallback:
    """Return a callback as it is, or one that calls a function."""
    if isinstance(value, TrainingCallback):
        return value
    if not callable(value) or isinstance(value, type):
        raise InputError(f"{value!r:.80} is no callback; give a TrainingCallback, or a function of the run")
    callback = FunctionCallback(kind=getattr(value, "__name__", type(value).__name__))
    callback._function = value
    return callback


def checked_values(values: Any, known: Mapping[str, Any]) -> dict[str, float | None]:
    """Return a callback's numbers; InputError for anything else."""
    if values is None:
        return {}
    try:
        numbers = {str(key): None if value is None else float(value) for key, value in dict(values).items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"returned {values!r:.80}; return a dict of numbers, or nothing") from error
    if double := sorted(numbers.keys() & {*known, *RESERVED}):
        raise InputError(f"returned {double[0]}, which is the name of something else; give it another")
    return {key: value if value is not None and math.isfinite(value) else None for key, value in numbers.items()}


def _parse(value: Any, handler: Callable[[Any], Any], info: Any) -> TrainingCallback:
    """Parse a table with the class of its kind."""
    table = {"kind": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping):
        return handler(value)
    kind = table.get("kind")
    if not isinstance(kind, str):
        raise ValueError(f"a callback has no kind; add one of {', '.join(OWN)}, or package.module:Name")
    parent = "hydragnn.callbacks.TrainingCallback"
    try:
        cls = class_of_kind(
            kind, OWN, TrainingCallback, group=GROUP, where="callbacks.kind", noun="callback", parent=parent
        )
    except InputError as error:
        absent = AbsentCallback.model_validate(dict(table))
        absent._reason = str(error)
        return absent
    return cls.model_validate(dict(table), context=info.context)


def check_callbacks(callbacks: Sequence[TrainingCallback]) -> None:
    """Raise InputError for a callback whose class is not here."""
    for one in callbacks:
        if isinstance(one, AbsentCallback):
            raise InputError(f"train.callbacks: {one._reason}")


AnyCallback = Annotated[SerializeAsAny[TrainingCallback], WrapValidator(_parse)]
"""An entry of ``[[train.callbacks]]``: the settings of whichever callback its ``kind`` names."""
