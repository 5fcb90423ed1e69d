"""Files of netCDF and zarr, opened by xarray."""

import json
import re
from math import prod
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError, as_missing, words_of
from hydragnn.datasets.sources.climate_axes import MOST


def open_data(path: Path) -> Any:
    """Return the data set of a file; only axes are read."""
    with as_missing("xarray", "climate", str(path)):
        import xarray
    more: Any = {"engine": "zarr", "consolidated": False} if path.is_dir() else {}  # so that what was checked is read
    try:
        for file in [file for name in (".zarray", "zarr.json") for file in path.rglob(name)]:
            header = json.loads(file.read_text())
            if re.search(r"'(numcodecs\.)?pickle'", str(header)):
                raise InputError(f"{file} holds pickle, which might run code; write numbers by zstd or blosc")
            if len(shape := header.get("shape", ())) == 1 and shape[0] > MOST:  # axes are read as a whole
                raise InputError(f"{file} claims shape {shape}; check it, or write a smaller one")
        data = xarray.open_dataset(path, cache=False, decode_timedelta=False, **more)
    except InputError:
        raise
    except Exception as error:  # of several readers
        move = "check it, or convert it (GRIB by `cdo -f nc4 copy`)"
        if "decode time units" in str(error):
            move = "write times in hours since a date, as by `cdo settunits,hours`, and name a calendar of CF"
        raise InputError(f"{path} is no readable netCDF or zarr ({words_of(error):.300}); {move}") from error
    for name, one in data.variables.items():
        if prod(chunks := one.encoding.get("preferred_chunks", {}).values()) > MOST:
            raise InputError(f"{path}: {name} claims chunks {[*chunks]}; check it, or write smaller ones")
    return data


def decoded(data: Any, name: str) -> Any:
    """Return a data set in memory, whose numbers and times are decoded."""
    if not hasattr(data, "data_vars"):
        raise InputError(f"{name} is a {type(data).__name__}; give data sets of xarray")
    import xarray

    return xarray.decode_cf(data, decode_timedelta=False)
