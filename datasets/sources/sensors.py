"""Readings of sensors at the nodes of a network, as windows of time."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal
from zoneinfo import ZoneInfo

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field as Setting
from pydantic import field_validator

from hydragnn.base.errors import InputError
from hydragnn.datasets.settings import LAST, OBSERVED, TIME_SPAN
from hydragnn.datasets.sources.base import TIME, Make
from hydragnn.datasets.sources.fields import FieldSettings
from hydragnn.datasets.sources.table_files import find_files, read_table, table_column
from hydragnn.datasets.sources.tables import TablesBuild
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field, Location
from hydragnn.graphs.texts import NAME

Array = NDArray[Any]
Key = tuple[Location, str]
SPAN = Field(name=TIME_SPAN, on="graph", shape=(2,), unit="s", role="auxiliary", dtype="float64")
SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
CLOSE, MOST = 1e-3, 100
"""Part of a step by which times may be off; steps per time with readings, from which on a time is wrong."""


class SensorsBuild(TablesBuild):
    """Windows of readings at the nodes of one network.

    ``files`` are tables with a column ``time``. With the column ``node_id``, a row has readings of one node. Without it, columns with names of nodes
    are their readings of the quantity that the file is named for; other columns are quantities of the whole network.
    """

    beside: ClassVar[tuple[str, ...]] = ("sensors", *TablesBuild.beside)

    kind: Literal["sensors"] = "sensors"

    sensors: str
    """Table with a row per node of the network, and its constant fields."""

    node_id: str = "sensor"
    """Column with names of nodes, in ``sensors`` and in readings; edges use them, too."""

    window: int = Setting(ge=1)
    """Steps up to now whose values are inputs."""

    ahead: list[int] = Setting(default=[1])
    """Steps after now whose values are targets, such as ``[1, 6, 12]``; a number stands for all up to it."""

    known: list[str] = Setting(default_factory=list)
    """Inputs that have values at the steps ahead, too, such as forecasts of weather and schedules."""

    zone: ZoneInfo | None = None
    """Zone of times that name none, such as ``"UTC"`` or ``"Europe/Berlin"``."""

    time_unit: Literal["ms", "s", "min", "h", "d"] | None = None
    """Unit of times that are numbers."""

    step: float | None = Setting(default=None, gt=0)
    """Seconds of a step, whose value is the mean of readings since the step before. Absent: times are taken as they are."""

    @field_validator("ahead", mode="wrap")
    @classmethod
    def _up_to(cls, value: Any, parse: Callable[[Any], list[int]]) -> list[int]:
        steps = parse([*range(1, value + 1)] if type(value) is int else value)
        if not steps or sorted({*steps}) != steps or steps[0] < 1:
            raise ValueError(f"{value} is no number of steps and no rising list of them, from 1 on")
        return steps

    def makers(self) -> Iterator[Make]:
        """Yield a maker for each window, in order of time."""
        table, files = read_table(Path(self.sensors), texts=[self.node_id]), ", ".join(self.files)
        nodes = [str(one) for one in table_column(table, self.node_id, self.sensors)]
        start, step, readings = self._readings(nodes, files)
        moving = [field for field in self.fields if (field.on, field.keys[0]) in readings]
        inputs = [field.name for field in moving if field.role == "input"]
        derived = {TIME_SPAN, *(name + suffix for name in inputs for suffix in (OBSERVED, LAST))}
        for field in self.fields:
            if field.name in derived or (field in moving and field.keys[0] in table):
                raise InputError(
                    f"field {field.name}: {self.sensors} has {field.keys[0]}, too, or the name is that of a field made from readings; rename one"
                )
            if field in moving and (field.classes or field.shape or field.parity != "scalar" or len(field.keys) > 1):
                raise InputError(f"field {field.name}: window and ahead are its shape; leave out shape, classes, keys")
        if wrong := {*self.known} - {*inputs}:
            raise InputError(f"known: {files} have no readings for an input {min(wrong)}; add them, or its field")
        constant = [field for field in self.fields if field not in moving]
        network, *more = TablesBuild.makers(self.model_copy(update={"files": [self.sensors], "fields": constant}))
        if more:
            raise InputError(f"{self.sensors} has several graphs; build a store of each, and merge them")
        graph, values = network(), {key: (one, *filled(one)) for key, one in readings.items()}
        later = self.ahead[-1] if any(one.role == "target" or one.name in self.known for one in moving) else 0
        steps = len(next(iter(readings.values())))
        if steps < self.window + later:
            needed = f"{self.window + later} of a window and what is ahead"
            raise InputError(f"{files}: {steps} steps of {step:g} s, fewer than the {needed}; add readings")
        for now in range(self.window - 1, steps - later):
            span = start + step * np.array([[now - self.window + 1, now + later]])
            yield partial(self._window, graph, moving, values, now, span, self._shown(start + step * now))

    def _window(
        self,
        graph: GraphBatch,
        fields: list[FieldSettings],
        values: Mapping[Key, Any],
        now: int,
        span: Array,
        name: str,
    ) -> GraphBatch:
        past, ahead = now - np.arange(self.window)[::-1], now + np.array(self.ahead)
        arrays: dict[Field, Array] = {SPAN: span}
        for field in fields:
            raw, last, observed = values[field.on, field.keys[0]]
            steps = np.concatenate([past, ahead]) if field.name in self.known else past
            parts = {"": raw[ahead]} if field.role == "target" else {"": last[steps], OBSERVED: observed[steps]}
            if field.role != "target" and field.name not in self.known:
                parts[LAST] = field.scale * last[np.full_like(ahead, now)]
            for suffix, array in parts.items():
                unit = "" if suffix == OBSERVED else field.unit
                arrays[replace(field.field, name=field.name + suffix, shape=(len(array),), unit=unit)] = array.T
        tensors = {field.name: torch.tensor(array, dtype=field.torch_dtype) for field, array in arrays.items()}
        masks = {field.name: torch.ones(1, dtype=torch.bool) for field in arrays if field.role == "target"}
        return graph.with_fields(tensors, fields=arrays, masks=masks).with_texts({NAME: [name]})

    def _readings(self, nodes: list[str], files: str) -> tuple[float, float, dict[Key, Array]]:
        """Return the first time, the step, and values ``[steps, nodes or 1]``."""
        keys: set[Key] = {(field.on, key) for field in self.fields for key in field.keys}
        place = {name: number for number, name in enumerate(nodes)}
        rows: dict[Key, list[tuple[Array, Array, Array]]] = {}
        for path in find_files(self.files):
            read = {*nodes, *(key for _, key in keys)} - {TIME, self.node_id}
            table = read_table(path, read, read, [TIME, self.node_id])
            texts, number_of = np.unique(table_column(table, TIME, path).astype(np.str_), return_inverse=True)
            seconds = np.array([self._seconds(text.strip(), path) for text in texts])[number_of]
            long, names = self.node_id in table, [str(one) for one in table.pop(self.node_id, ())]
            if absent := next((one for one in names if one not in place), None):
                raise InputError(f"{path} has readings of {absent!r}, no node of {self.sensors}; add it there")
            for name, column in table.items():
                key: Key = ("node", name) if long else ("node", path.stem) if name in place else ("graph", name)
                if name == TIME or (long and key not in keys):
                    continue
                if key not in keys:
                    what = f"no node field reads {path.stem}" if name in place else f"{self.sensors} has no such node"
                    raise InputError(
                        f"{path}, column {name}: {what}; add that or a graph field, or leave the column out"
                    )
                if column.dtype.kind not in "iuf" or np.isinf(column).any():
                    raise InputError(f"{path}, column {name}: it holds texts or infinities; write finite numbers")
                indices = [place[one] for one in names] if long else [place.get(name, 0)] * len(column)
                rows.setdefault(key, []).append((seconds, np.array(indices, np.int64), column.astype(np.float64)))
        columns = {key: [np.concatenate(part) for part in zip(*some)] for key, some in rows.items()}
        times = np.unique(np.concatenate([[], *(seconds for seconds, *_ in columns.values())]))
        if not len(times):
            raise InputError(f"{files}: no field reads a value there; name a column, or a wide file, as key")
        start, step, numbers = self._steps(times, files)
        values = {}
        for key, (seconds, where, column) in columns.items():
            order = np.lexsort((where, seconds))
            same = (np.diff(seconds[order]) == 0) & (np.diff(where[order]) == 0)
            if same.any():
                row = order[same.argmax()]
                which = f"{key[1]} of {nodes[where[row]]}" if key[0] == "node" else key[1]
                raise InputError(f"{files}: {which} has two rows of {self._shown(seconds[row])}; keep one")
            width, some = len(nodes) if key[0] == "node" else 1, ~np.isnan(column)
            cells, size = (numbers[np.searchsorted(times, seconds)] * width + where)[some], (numbers[-1] + 1) * width
            count = np.bincount(cells, minlength=size)
            mean = np.bincount(cells, column[some], size) / np.maximum(count, 1)
            values[key] = np.where(count, mean, np.nan).reshape(-1, width)
        return start, step, values

    def _steps(self, times: Array, files: str) -> tuple[float, float, Array]:
        """Return the first time, the step, and each time in steps."""
        gaps, counts = np.unique(np.round(np.diff(times), 3), return_counts=True)
        step = self.step or max(float(gaps[counts.argmax()]) if len(gaps) else 1.0, CLOSE)
        start = step * np.ceil(times[0] / step - CLOSE) if self.step else times[0]
        places = (times - start) / step
        numbers = np.ceil(places - CLOSE) if self.step else np.round(places)
        if not self.step and (wrong := np.abs(places - numbers) > CLOSE).any():
            time = (
                f"{self._shown(times[wrong.argmax()])} is no whole number of steps of {step:g} s after the first time"
            )
            raise InputError(f"{files}: {time}; repair it, or set step to its seconds, for means")
        if numbers[-1] > MOST * len(times):
            ends = f"{self._shown(times[0])} to {self._shown(times[-1])}"
            raise InputError(f"{files}: {len(times)} times from {ends} are too few for steps of {step:g} s; repair one")
        return float(start), step, numbers.astype(np.int64)

    def _seconds(self, text: str, path: Path) -> float:
        """Return a time in seconds, since 1970 where it is a date."""
        try:
            if self.time_unit and np.isfinite(float(text)):
                return float(text) * SECONDS[self.time_unit]
            moment = datetime.fromisoformat(text)
            zone = moment.tzinfo or self.zone
            if zone is None or moment.year < 1900:  # empty dates of some programs are in the year 1
                raise ValueError(text)
        except ValueError:
            form = f"a number of {self.time_unit}" if self.time_unit else "such as 2026-01-31T10:00+01:00"
            move = (
                "repair it" if self.time_unit else "repair it, or set zone for times without one, time_unit for numbers"
            )
            raise InputError(f"{path}: {text!r} in the column {TIME} is no time, {form}; {move}") from None
        moment = moment.replace(tzinfo=zone)
        if moment.utcoffset() != moment.replace(fold=1).utcoffset():
            raise InputError(f"{path}: clocks change at {text} in {zone}; write times in UTC or with their offset")
        return moment.timestamp()

    def _shown(self, seconds: float) -> str:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=0 if self.time_unit else float(seconds))
        return f"{seconds:.15g} s" if self.time_unit else moment.isoformat()


def filled(values: Array) -> tuple[Array, Array]:
    """Return values without gaps, and 1 where they were observed.

    A gap has the last value of its column, before the first one the mean of the other columns at that time, else 0.
    """
    observed = ~np.isnan(values)
    rows = np.maximum.accumulate(np.where(observed, np.arange(len(values))[:, None], -1))
    last = np.where(rows >= 0, np.take_along_axis(values, np.maximum(rows, 0), axis=0), 0.0)
    mean = last.sum(1, keepdims=True) / np.maximum((rows >= 0).sum(1, keepdims=True), 1)
    return np.where(rows >= 0, last, mean), observed.astype(np.float64)
