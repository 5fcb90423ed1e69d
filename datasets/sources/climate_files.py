"""Variables of netCDF and zarr, by xarray and the conventions of CF."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn.base.errors import InputError, MissingPackageError, words_of

Array = NDArray[Any]
AXES = {"latitude": "north", "longitude": "east"}
"""Axes by standard name, with the end of their unit."""

MOST = 2**27
"""Numbers that are read at once: of an axis, or of a piece of a variable."""

CODECS = "blosc zlib gzip zstd lz4 bz2 lzma shuffle delta fixedscaleoffset quantize bitround crc32c fletcher32 "
KNOWN = {*(CODECS + "bytes transpose sharding_indexed vlen-utf8").split()}
"""Codecs of zarr that make numbers and texts; others, such as pickle, may run code."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Variable:
    """Variable as ``[time,] latitude, longitude``, read frame by frame."""

    data: Any
    where: str
    grid: tuple[Array, Array, Array | None, Array | None]
    """Latitudes and longitudes in degrees, and their bounds."""
    times: Array | None
    """Hours since 1970 in the file's calendar; None for what does not change."""
    calendar: str

    def cells(self, frame: int) -> Array:
        """Return the values ``[cells]`` of a frame; InputError for damage."""
        try:
            values = (self.data if self.times is None else self.data[frame]).values
        except Exception as error:  # of several readers
            raise InputError(f"{self.where}, frame {frame}, is damaged ({words_of(error)}); copy it again") from error
        return np.asarray(values, np.float64).reshape(-1)


def open_data(path: Path) -> Any:
    """Return the data set of a file; only axes are read."""
    try:
        import xarray
    except ImportError as error:
        raise MissingPackageError("xarray", "climate", str(path)) from error
    more: Any = {"engine": "zarr", "consolidated": False}  # so that what was checked is read
    if path.is_dir():
        _check_zarr(path)
    else:
        with path.open("rb") as file:
            begin = file.read(4)
        if begin == b"GRIB":
            raise InputError(f"{path} is GRIB, which is not read; convert it to netCDF, as by `cdo -f nc4 copy`")
        more = {"engine": "scipy" if begin[:3] == b"CDF" else "h5netcdf"}
    try:
        return xarray.open_dataset(path, cache=False, decode_timedelta=False, **more)
    except Exception as error:  # of several readers
        raise InputError(f"{path} is no netCDF or zarr ({words_of(error):.300}); check it") from error


def variable_of(data: Any, key: str, level: float | None, path: Path) -> Variable:
    """Return a variable of a file; InputError with the next move."""
    where, one = f"{path}: {key}", data[key]
    axes = [_axis(one, name, where) for name in AXES]
    marks = {dim: {dim, data[dim].attrs.get("standard_name"), data[dim].attrs.get("axis")} for dim in one.dims}
    time = [dim for dim in one.dims if marks[dim] & {"time", "T"} or data[dim].dtype.kind in "MO"]
    others = [dim for dim in one.dims if dim not in (*axes, *time)]
    lone = [dim for dim in others if one.sizes[dim] == 1 and (level is None or dim not in data.coords)]
    one, others = one.squeeze(lone), [dim for dim in others if dim not in lone]
    if others and (len(others) > 1 or level is None or others[0] not in data.coords):
        raise InputError(f"{where} lies on {', '.join(others)}, too; choose one with level, or write one to a file")
    if others:
        levels = data[others[0]].values
        if level not in levels:
            raise InputError(f"{where} has no level {level:g}; {others[0]} has {', '.join(f'{n:g}' for n in levels)}")
        one = one.isel({others[0]: levels.tolist().index(level)})
    chunks = data[key].encoding.get("preferred_chunks", {})
    largest = prod(data.sizes[dim] if dim in axes else chunks.get(dim, 1) for dim in data[key].dims)
    if one.dtype.kind not in "iuf" or largest > MOST:
        raise InputError(f"{where} is {one.dtype}, {largest:,} at once; write numbers, in chunks of few frames")
    one = one.transpose(*time, *axes)
    places, bounds = [np.asarray(one[dim].values, np.float64) for dim in axes], [_bounds(data, dim) for dim in axes]
    if len(places[1]) > 2 and abs(abs(places[1][-1] - places[1][0]) - 360) < 1e-6:  # the first column again
        one, places[1], bounds[1] = one[..., :-1], places[1][:-1], None if bounds[1] is None else bounds[1][:-1]
    times, calendar = _hours(data[time[0]], where) if time else (None, "")
    return Variable(data=one, where=where, grid=(*places, *bounds), times=times, calendar=calendar)  # type: ignore[arg-type]


def _axis(one: Any, name: str, where: str) -> str:
    """Return the dimension with latitudes or longitudes."""
    units = [f"{word}_{end}" for end in (AXES[name], AXES[name][0]) for word in ("degrees", "degree")]
    for key, coordinate in one.coords.items():
        unit = str(coordinate.attrs.get("units", "")).lower()
        if coordinate.attrs.get("standard_name") == name or unit in units or str(key).lower() in (name[:3], name):
            if unit not in (*units, "", "degrees"):
                raise InputError(f"{where}: {key} is in {unit}; write it in {units[0]}")
            if coordinate.dims != (key,):
                grid = f"lies on {len(coordinate.dims)} axes, as of curvilinear grids"
                raise InputError(f"{where}: {key} {grid}; bring it to latitudes and longitudes by `cdo remapbil`")
            return str(key)
    raise InputError(f"{where}: no {name} among {', '.join(map(str, one.dims))}; give the axis the units {units[0]}")


def _hours(time: Any, where: str) -> tuple[Array, str]:
    """Return hours since 1970 and the calendar."""
    values, calendar = time.values, str(time.encoding.get("calendar", "standard"))
    if values.dtype.kind == "M":
        hours = (values - np.datetime64("1970-01-01")) / np.timedelta64(1, "h")
    elif values.dtype.kind == "O":
        import cftime

        hours = np.asarray(cftime.date2num(values, "hours since 1970-01-01", calendar), np.float64)
    else:
        raise InputError(f"{where}: {time.name} has no units with a date; give it some, such as hours since 2000-01-01")
    if not (np.diff(hours) > 0).all():
        place = int((np.diff(hours) > 0).argmin())
        raise InputError(f"{where}: frame {place + 1} is not after frame {place}; write every time once, in order")
    return hours, calendar


def _bounds(data: Any, axis: str) -> Array | None:
    """Return the bounds that an axis names."""
    name = data[axis].attrs.get("bounds", data[axis].encoding.get("bounds"))
    has = name in data.variables and data[name].shape[1:] == (2,)
    return np.asarray(data[name].values, np.float64) if has else None


def _check_zarr(path: Path) -> None:
    """Raise InputError for objects, unknown codecs and large claims."""
    for file in [file for name in (".zarray", "zarr.json") for file in path.rglob(name)]:
        try:
            tables = [*_tables(json.loads(file.read_text()))]
        except (ValueError, RecursionError) as error:
            raise InputError(f"{file} is damaged ({words_of(error)}); copy it again") from error
        for table in tables:
            coded = [table.get(key) or [] for key in ("filters", "compressor", "codecs", "index_codecs")]
            codecs = [code for one in coded for code in (one if isinstance(one, list) else [one])]
            names = [str(one.get("id", one.get("name")) if isinstance(one, dict) else one) for one in codecs]
            objects = ["objects"] if "O" in str(table.get("dtype")) and "vlen-utf8" not in names else []
            if wrong := [name for name in names if name.removeprefix("numcodecs.") not in KNOWN] + objects:
                raise InputError(f"{file} holds {wrong[0]:.40}, which might run code; write numbers by zstd or blosc")
            for key in [key for key in ("chunks", "chunk_shape", "shape") if isinstance(table.get(key), list)]:
                if prod(table[key]) > MOST and (key != "shape" or len(table[key]) == 1):  # axes are read as a whole
                    raise InputError(f"{file} claims {key} {table[key]}; check it, or write smaller ones")


def _tables(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all tables in a value of JSON."""
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _tables(one)
