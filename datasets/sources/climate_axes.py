"""Variables on latitudes, longitudes and times, by conventions of CF."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn.base.errors import InputError, as_input_error
from hydragnn.graphs.problems import NOISE

Array = NDArray[Any]
AXES = {"latitude": "north", "longitude": "east"}  # by standard name, with the end of their unit
MOST = 2**27  # numbers that are read at once: of an axis, or of a piece of a variable
UNWRITTEN = 9.9e36  # size from which numbers are those that netCDF has where nothing was written


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Variable:
    """Variable as ``[time,] latitude, longitude``, read frame by frame."""

    data: Any
    where: str
    grid: tuple[Array, Array]  # latitudes and longitudes in degrees
    times: Array | None  # hours since 1970 in the file's calendar; None for what does not change
    calendar: str
    on_levels: bool
    valid: Array  # ends of valid values, by CF's attributes

    @property
    def unit(self) -> str:
        """Unit, where CF's exponents (``m s-1``) are written out."""
        return re.sub(r"(?<=[A-Za-z])(-?\d+)", r"**\1", str(self.data.attrs.get("units", "")))

    def cells(self, frame: int) -> Array:
        """Return the values ``[cells]`` of a frame; InputError for damage."""
        with as_input_error(f"{self.where}, frame {frame}, is damaged", "copy it again"):
            values = (self.data if self.times is None else self.data[frame]).values.astype(np.float64).ravel()
        return np.where((values > self.valid[0]) & (values < self.valid[1]), values, np.nan)


def variable_of(data: Any, key: str, level: float | None, file: str) -> Variable:
    """Return a variable of a file; InputError with the next move."""
    where, one, valid = f"{file}: {key}", data[key], _valid(data[key], f"{file}: {key}")
    axes = [_axis(one, name, where) for name in AXES]
    marks = {dim: {dim, one[dim].attrs.get("standard_name"), one[dim].attrs.get("axis")} for dim in one.dims}
    time = [dim for dim in one.dims if marks[dim] & {"time", "T"} or one[dim].dtype.kind in "MO"][:1]
    others = [dim for dim in one.dims if dim not in (*axes, *time)]
    if not time:  # a file of one frame
        time = [name for name in ("valid_time", "time") if name in one.coords and not one[name].dims][:1]
        one = one.expand_dims(time)
    lone = [dim for dim in others if one.sizes[dim] == 1 and (level is None or dim not in data.coords)]
    one, others = one.squeeze(lone), [dim for dim in others if dim not in lone]
    numeric = [dim for dim in others if dim in data.coords and data[dim].dtype.kind in "iuf"]
    if others and (len(others) > 1 or level is None or not numeric):
        raise InputError(f"{where} lies on {', '.join(others)}, too; choose one with level, or write one to a file")
    if others and level is not None:
        levels = data[others[0]].values
        places = np.flatnonzero(np.isclose(levels, level, rtol=1e-6, atol=0))
        if len(places) != 1:
            raise InputError(f"{where} has no level {level:g}; {others[0]} has {', '.join(f'{n:g}' for n in levels)}")
        one = one.isel({others[0]: int(places[0])})
    if one.dtype.kind not in "iuf" or one[axes[0]].size * one[axes[1]].size > MOST:
        raise InputError(f"{where} is {one.dtype} on {dict(one.sizes)}; write numbers, on smaller grids")
    one = one.transpose(*time, *axes)
    north, east = (np.asarray(one[dim].values, np.float64) for dim in axes)
    if len(east) > 2 and abs(abs(east[-1] - east[0]) - 360) < 1e-4:  # the first column again
        one, east = one[..., :-1], east[:-1]
    times, calendar = _hours(one[time[0]], where) if time else (None, "")
    return Variable(
        data=one, where=where, grid=(north, east), times=times, calendar=calendar, on_levels=bool(others), valid=valid
    )


def _valid(one: Any, where: str) -> Array:
    """Return the ends of valid values; whole numbers are packed as values are."""
    held, low, high = np.dtype(one.encoding.get("dtype", float)), -np.inf, np.inf
    if held.kind in "iu" and held.itemsize > 1 and not {"_FillValue", "missing_value"} & {*one.encoding}:
        low, high = (np.iinfo(held).min + 2, high) if held.kind == "i" else (low, np.iinfo(held).max - 1)  # unwritten
    ends = one.attrs.get("valid_range", [one.attrs.get("valid_min", low), one.attrs.get("valid_max", high)])
    kinds = {np.asarray(end).dtype.kind for end in ends if end not in (-np.inf, np.inf)}
    if len(ends) != 2 or not kinds <= {*"iuf"} or ends[0] > ends[1]:
        raise InputError(f"{where} has valid values from and to {ends}; write two numbers that rise, or none")
    packed = kinds <= {*"iu"} and held.kind in "iu"
    scale, offset = [one.encoding.get(key, k) if packed else k for k, key in ((1, "scale_factor"), (0, "add_offset"))]
    limits = np.sort(np.asarray(ends, np.float64) * scale + offset)
    slack = np.maximum(NOISE * np.abs(limits), packed * abs(scale) / 2)
    return np.asarray((limits + [-1, 1] * slack).clip(-UNWRITTEN, UNWRITTEN))


def _axis(one: Any, name: str, where: str) -> str:
    """Return the dimension with latitudes or longitudes."""
    units = [f"{word}{end}" for end in (AXES[name], AXES[name][0]) for word in ("degrees", "degree")]
    for key, coordinate in one.coords.items():
        unit = str(coordinate.attrs.get("units", "")).lower()
        known = unit.replace("_", "") in units  # CF also writes degreesN
        if coordinate.attrs.get("standard_name") == name or known or str(key).lower() in (name[:3], name):
            radians = unit == "" and np.abs(coordinate.values).max(initial=0) <= 2 * np.pi
            if not (known or unit in ("", "degrees")) or radians or coordinate.dims != (key,):
                own = f"{unit or 'no unit'} on ({', '.join(map(str, coordinate.dims))})"
                raise InputError(
                    f"{where}: {key} is in {own}; bring it to one axis in degrees_{AXES[name]} (`cdo remapbil`)"
                )
            return str(key)
    raise InputError(
        f"{where}: no {name} among {', '.join(map(str, one.dims))}; give the axis the units degrees_{AXES[name]}"
    )


def _hours(time: Any, where: str) -> tuple[Array, str]:
    """Return hours since 1970 and the calendar."""
    from xarray.coding.times import encode_cf_datetime

    since = "hours since 1970-01-01"
    try:
        numbers, _, calendar = encode_cf_datetime(time.values, since, time.dt.calendar, np.dtype(float))
    except (AttributeError, TypeError) as error:  # no dates
        raise InputError(f"{where}: {time.name} has no units with a date; give it some, such as {since}") from error
    hours = np.asarray(numbers, np.float64)
    rising = np.diff(hours) > 0
    if not (rising.all() and np.isfinite(hours).all()):
        place = int(rising.argmin()) if len(rising) else 0
        raise InputError(f"{where}: frame {place + 1} is not after frame {place}; write every time once, in order")
    return hours.round(6), calendar
