"""Readings of sensors at nodes of a network, as windows of time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
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
from hydragnn.datasets.sources.table_files import find_files, read_table, table_column
from hydragnn.datasets.sources.tables import TablesBuild
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field, Location
from hydragnn.graphs.texts import NAME

Array = NDArray[Any]
Key = tuple[Location, str]
SPAN = Field(name=TIME_SPAN, on="graph", shape=(2,), unit="s", role="auxiliary", dtype="float64")
SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
CLOSE, MOST, FARTHEST = 1e-3, 100, 10_000
"""Part of a step by which times may be off; steps per time with readings, and steps ahead, from which on a number is wrong."""


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
        steps = parse([*range(1, min(value, FARTHEST + 1) + 1)] if type(value) is int else value)
        if not steps or sorted({*steps}) != steps or steps[0] < 1 or steps[-1] > FARTHEST:
            raise ValueError(f"{value} is no number of steps and no rising list of them, from 1 on, up to {FARTHEST}")
        return steps

    def makers(self) -> Iterator[Make]:
        """Yield a maker for each window, in order of time."""
        table, files = read_table(Path(self.sensors), texts=[self.node_id]), ", ".join(self.files)
        nodes = [str(one) for one in table_column(table, self.node_id, self.sensors)]
        if "" in nodes:
            raise InputError(f"{self.sensors}: a row has nothing in the column {self.node_id}; fill it in")
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
        past, ahead = np.arange(1 - self.window, 1), np.array(self.ahead)
        columns: dict[Field, tuple[Array, Array]] = {}  # values of all steps, and which of them, from now
        for field in moving:
            raw, now_on = readings[field.on, field.keys[0]], field.name in self.known
            (last, observed), reach = filled(raw), np.concatenate([past, ahead]) if now_on else past
            parts = {"": (last, reach), OBSERVED: (observed, reach), LAST: (field.scale * last, 0 * ahead)}
            parts = {"": (raw, ahead)} if field.role == "target" else parts
            for suffix, column in parts.items():
                if not (suffix == LAST and now_on):
                    unit = "" if suffix == OBSERVED else field.unit
                    shape = (len(column[1]),)
                    columns[replace(field.field, name=field.name + suffix, shape=shape, unit=unit)] = column
        later = self.ahead[-1] if any(one.role == "target" or one.name in self.known for one in moving) else 0
        graph, steps = network(), len(next(iter(readings.values())))
        if steps < self.window + later:
            needed = f"{self.window + later} of a window and what is ahead"
            raise InputError(f"{files}: {steps} steps of {step:g} s, fewer than the {needed}; add readings")
        for now in range(self.window - 1, steps - later):
            span = start + step * np.array([[now - self.window + 1, now + later]])
            yield partial(_window, graph, columns, now, span, self._shown(start + step * now))

    def _readings(self, nodes: list[str], files: str) -> tuple[float, float, dict[Key, Array]]:
        """Return the first time, the step, and values ``[steps, nodes or 1]``."""
        keys: set[Key] = {(field.on, key) for field in self.fields for key in field.keys}
        place = {name: number for number, name in enumerate(nodes)}
        rows: dict[Key, list[tuple[Array, Array, Array]]] = {}
        units: dict[str, set[str]] = {}
        for path in find_files(self.files):
            read = {*nodes, *(key for _, key in keys)} - {TIME, self.node_id}
            table = read_table(path, read, read, [TIME, self.node_id, *({"unit"} - read)])
            texts, number_of = np.unique(table_column(table, TIME, path), return_inverse=True)
            seconds = np.array([self._seconds(str(text).strip(), path) for text in texts])[number_of]
            long, names = self.node_id in table, [str(one) for one in table.pop(self.node_id, ())]
            if absent := {*names} - {*place}:
                raise InputError(f"{path} has readings of {min(absent)!r}, no node of {self.sensors}; add it there")
            if long and "unit" not in read and (stated := {str(one) for one in table.pop("unit", ())}):
                self._check_one_unit([key for on, key in keys if on == "node" and key in table], stated, units, path)
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
                first, *others = [field for field in self.fields if field.on == key[0] and key[1] in field.keys]
                if odd := [field.name for field in others if field.missing_value != first.missing_value]:
                    raise InputError(
                        f"field {odd[0]} reads {key[1]}, as {first.name} does; give both one missing_value"
                    )
                column = first.without_fill(column)
                indices = [place[one] for one in names] if long else [place.get(name, 0)] * len(column)
                rows.setdefault(key, []).append((seconds, np.array(indices, np.int64), column.astype(np.float64)))
        columns = {key: [np.concatenate(part) for part in zip(*some)] for key, some in rows.items()}
        times = np.unique(np.concatenate([[], *(seconds for seconds, *_ in columns.values())]))
        if not len(times):
            raise InputError(f"{files}: no field reads a value there; name a column, or a wide file, as key")
        start, step, numbers = self._steps(times, files)
        values = {}
        for key, (seconds, where, column) in columns.items():
            width = len(nodes) if key[0] == "node" else 1
            moments, some = np.searchsorted(times, seconds), ~np.isnan(column)
            once = np.unique(moments * width + where, return_index=True)[1]
            if len(once) < len(column):
                row = np.setdiff1d(np.arange(len(column)), once)[0]
                which = f"{key[1]} of {nodes[where[row]]}" if key[0] == "node" else key[1]
                raise InputError(f"{files}: {which} has two rows of {self._shown(seconds[row])}; keep one")
            cells, size = (numbers[moments] * width + where)[some], (numbers[-1] + 1) * width
            count, total = np.bincount(cells, minlength=size), np.bincount(cells, column[some], size)
            values[key] = np.divide(total, count, out=np.full(size, np.nan), where=count > 0).reshape(-1, width)
        return start, step, values

    def _check_one_unit(self, keys: Sequence[str], stated: set[str], units: dict[str, set[str]], path: Path) -> None:
        """Note the units of a file's readings; InputError for several."""
        for key in keys:
            units[key] = units.get(key, set()) | stated
            if len(units[key]) > 1:
                raise InputError(f"{path}: {key} is in {' and '.join(sorted(units[key]))}; bring it to one unit")
            self.check_units({key: min(stated)}, str(path))

    def _steps(self, times: Array, files: str) -> tuple[float, float, Array]:
        """Return the first time, the step, and each time in steps."""
        gaps, counts = np.unique(np.round(np.diff(times), 3), return_counts=True)
        step = self.step or max(float(gaps[counts.argmax()]) if len(gaps) else 1.0, CLOSE)
        start = step * np.ceil(times[0] / step - CLOSE) if self.step else times[0]
        places = (times - start) / step
        numbers = np.ceil(places - CLOSE) if self.step else np.round(places)
        if not self.step and (wrong := np.abs(places - numbers) > CLOSE).any():
            raise InputError(
                f"{files}: {self._shown(times[wrong.argmax()])} is no whole number of steps of {step:g} s after the first time; repair it, or set "
                "step to its seconds, for means"
            )
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
            moment = moment.replace(tzinfo=moment.tzinfo or self.zone)
            if moment.tzinfo is None or moment.year < 1900:  # empty dates of some programs are in the year 1
                raise ValueError(text)
        except ValueError:
            move = "such as 2026-01-31T10:00+01:00; repair it, or set zone for times without one, time_unit for numbers"
            move = f"a number of {self.time_unit}; repair it" if self.time_unit else move
            raise InputError(f"{path}: {text!r} in the column {TIME} is no time, {move}") from None
        if moment.utcoffset() != moment.replace(fold=1).utcoffset():
            raise InputError(
                f"{path}: clocks change at {text} in {moment.tzinfo}; write times in UTC or with their offset"
            )
        return moment.timestamp()

    def _shown(self, seconds: float) -> str:
        return f"{seconds:.15g} s" if self.time_unit else datetime.fromtimestamp(float(seconds), UTC).isoformat()


def _window(
    graph: GraphBatch, columns: dict[Field, tuple[Array, Array]], now: int, span: Array, name: str
) -> GraphBatch:
    arrays = {SPAN: span} | {field: array[now + steps].T for field, (array, steps) in columns.items()}
    tensors = {field.name: torch.tensor(array, dtype=field.torch_dtype) for field, array in arrays.items()}
    masks = {field.name: torch.ones(1, dtype=torch.bool) for field in arrays if field.role == "target"}
    return graph.with_fields(tensors, fields=arrays, masks=masks).with_texts({NAME: [name]})


def filled(values: Array) -> tuple[Array, Array]:
    """Return values without gaps, and 1 where they were observed.

    A gap has the last value of its column, before the first one the mean of the other columns at that time, else 0.
    """
    observed = ~np.isnan(values)
    rows = np.maximum.accumulate(np.where(observed, np.arange(len(values))[:, None], 0))
    last = np.take_along_axis(values, rows, axis=0)
    count = np.maximum((~np.isnan(last)).sum(1, keepdims=True), 1)
    return np.where(np.isnan(last), np.nansum(last, axis=1, keepdims=True) / count, last), observed.astype(np.float64)
