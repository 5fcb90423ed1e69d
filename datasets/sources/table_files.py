"""Tables of users: CSV and Parquet files, npz files of columns."""

import csv
import io
import re
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hydragnn.base.errors import InputError, MissingPackageError, as_input_error, as_missing
from hydragnn.base.limits import check_readable
from hydragnn.base.places import FOLDERS, matching_files
from hydragnn.base.shown import text_in_cell
from hydragnn.datasets.sources.fields import FieldSettings
from hydragnn.graphs.field import columns_of

Table = dict[str, NDArray[Any]]


def find_files(patterns: list[str]) -> list[Path]:
    """Return matching files, also of folders, in order of patterns and names.

    InputError where there is none, or one whose reading might not end.
    """
    paths: dict[Path, None] = {}
    for pattern in patterns:
        matches = matching_files(pattern)
        folders = [path for path in matches or [Path(pattern)] if path.is_dir() and path.suffix not in FOLDERS]
        if folders:
            raise InputError(f"{folders[0]} is a folder; name the files of such folders, as in calc/*/vasprun.xml")
        if not matches:
            raise InputError(f"{pattern}: no such file; paths count from the folder of the BUILD.toml")
        paths |= dict.fromkeys(matches)
    for path in paths:
        check_readable(path)
    return list(paths)


MISSING_CELLS = ("", "nan", "na", "n/a", "#n/a", "<na>", "null", "none")
"""Content of cells without a label, in small letters."""


def read_table(
    path: Path, numbers: Collection[str] = (), optional: Collection[str] = (), texts: Collection[str] = ()
) -> Table:
    """Return columns of a CSV, Parquet or npz file, ``texts`` unchanged.

    Cells of ``optional`` columns may be missing: they become NaN. InputError where the file is missing, damaged or ragged. And
    where another cell of one of the columns ``numbers`` holds none.
    """
    check_readable(path)
    if path.suffix == ".npz":
        table = read_npz(path)
        lengths = {name: len(column) if column.ndim else 0 for name, column in table.items()}
        if len({*lengths.values()}) > 1:
            raise InputError(f"{path}: columns of different lengths {lengths}; give each one value per row")
        return table
    try:
        with _as_csv(path) as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, row) for row in reader if row or reader.line_num == 1]
    except MissingPackageError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {error}; give a CSV file in UTF-8 with a header, or Parquet") from error
    header = [name.strip() for name in lines[0][1]] if lines else []
    # pandas leaves the name of its first column, the number of the row, empty
    if not header or not all(header[1:]) or header == [""]:
        raise InputError(f"{path} has no header; name every column in the first line")
    if len(header) == 1 and (found := re.search("[;\t|]", header[0])):
        raise InputError(
            f"{path} separates columns by {found[0]!r}; separate them by commas, with points in decimal numbers"
        )
    if twice := next((name for name in header if header.count(name) > 1), None):
        raise InputError(f"{path} has several columns {twice}; rename or remove all but one")
    body = lines[1:]
    for number, row in body:
        if len(row) != len(header):
            raise InputError(f"{path}, line {number}: {len(row)} values for {len(header)} columns; repair the line")
        for place, (name, cell) in enumerate(zip(header, row)):
            if name in optional and cell.strip().lower() in MISSING_CELLS:
                row[place] = "nan"
            elif name in numbers and not _is_number(cell):
                what = f"{cell!r}, which is no number; repair it" if cell.strip() else "nothing; fill it in"
                move = "or remove the row, or let the field be optional = true if it is a target"
                raise InputError(f"{path}, line {number}: the column {name} holds {what}, {move}")
    columns = {name: [row[position] for _, row in body] for position, name in enumerate(header)}
    return {
        name: np.array([text_in_cell(cell) for cell in cells], np.str_) if name in texts else as_numbers(cells)
        for name, cells in columns.items()
    }


def _as_csv(path: Path) -> IO[str]:
    """Return a file of CSV, of Parquet with nulls as empty cells."""
    if path.suffix != ".parquet":
        return path.open(newline="", encoding="utf-8-sig")
    with as_missing("pyarrow", "parquet", str(path)):
        from pyarrow import parquet
    columns, text = parquet.ParquetFile(path).read().to_pydict(), io.StringIO()
    csv.writer(text).writerows([[*columns], *zip(*columns.values())])
    return io.StringIO(text.getvalue())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # 2024_01 is no number of users, though one of Python


def as_numbers(texts: Any) -> NDArray[Any]:
    """Return texts as whole numbers or numbers where all of them are."""
    column = np.asarray(texts, dtype=np.str_)
    for kind in (np.int64, np.float64):
        try:
            return column.astype(kind)
        except (ValueError, OverflowError):
            continue
    return column


def read_npz(path: Path, names: Collection[str] | None = None) -> Table:
    """Return the named arrays of an npz file (None: all), never objects."""
    check_readable(path)
    reading = as_input_error(f"cannot read {path} as npz", "save plain number arrays with numpy.savez")
    with reading, path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        for name in names or ():
            if name not in archive.files:
                raise InputError(f"{path} has no {name}; it has {', '.join(archive.files) or 'nothing'}")
        return {name: archive[name] for name in names or archive.files}


def table_column(table: Table, name: str, source: Path | str) -> NDArray[Any]:
    """One array of a table; InputError naming those that there are."""
    if name not in table:
        raise InputError(f"{source} has no {name}; it has {', '.join(sorted(table)) or 'nothing'}")
    if not np.ndim(table[name]):
        raise InputError(f"{source}: {name} is a single value; write one for each graph, node or edge")
    return table[name]


def stack_rows(values: list[Any], field: FieldSettings) -> Any:
    """One value, or several side by side on a new last axis."""
    arrays = [np.asarray(value) for value in values]
    arrays = [as_numbers(one) if one.dtype.kind == "U" else one for one in arrays]  # a name that is a field, too
    whole = arrays[0] if len(arrays) == 1 else np.stack(arrays, axis=-1)
    return whole if field.column is None else columns_of(whole, field.column, f"field {field.name}")


def check_sides(
    senders: NDArray[Any], receivers: NDArray[Any], undirected: bool | None, where: str, remedy: str = ""
) -> None:
    """Raise InputError where pairs contradict ``undirected``.

    Both directions are listed, or one alone and ``undirected`` is None. With a ``remedy`` of their own, as of lists of nearest neighbours,
    some pairs may lack the other one. Ends that no graph has are left to other checks.

    >>> check_sides(np.array([0, 1]), np.array([1, 0]), False, "contacts.csv")
    """
    one, other = (np.asarray(ends)[senders != receivers] for ends in (senders, receivers))
    if undirected is False or not len(one) or {one.dtype.kind, other.dtype.kind} - {*"iu"}:
        return
    if min(one.min(), other.min()) < 0 or max(one.max(), other.max()) >= 2**31:
        return
    size = int(max(one.max(), other.max())) + 1
    both = np.isin(one * size + other, other * size + one)
    if undirected and both.any():
        pair = int(both.argmax())
        raise InputError(
            f"{where}: the pair {one[pair]}, {other[pair]} is listed in both directions, and undirected = true would double it; leave "
            "undirected out"
        )
    if undirected is None and not (both.any() if remedy else both.all()):
        some = "the pair {}, {}".format(*(ends[~both][0] for ends in (one, other))) if both.any() else "every pair"
        raise InputError(
            f"{where}: {some} is listed in one direction; {remedy or 'say undirected = true'} to add the other one, or undirected = false for "
            "edges that run one way"
        )


def both_ways(senders: NDArray[Any], receivers: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
    """Return edges and then their reverses, and the row of each.

    >>> both_ways(np.array([0, 2]), np.array([1, 2]))
    (array([0, 2, 1]), array([1, 2, 0]), array([0, 1, 0]))
    """
    turned = np.flatnonzero(senders != receivers)
    ends = [np.concatenate([one, other[turned]]) for one, other in ((senders, receivers), (receivers, senders))]
    return ends[0], ends[1], np.concatenate([np.arange(len(senders)), turned])
