"""Tables of labels beside files, joined by file or by name."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hydragnn.base.errors import InputError
from hydragnn.base.places import distinct_names
from hydragnn.datasets.sources.base import BuildSettings
from hydragnn.datasets.sources.fields import FieldSettings
from hydragnn.datasets.sources.table_files import Table, find_files, read_table, stack_rows
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.texts import FILE, NAME, NAME_KEYS, Texts, as_text, text_of
from hydragnn.graphs.validate import field_values

COLUMNS = (FILE, *NAME_KEYS)  # columns that may name graphs; the first one of a table does
COMPRESSED = (".gz", ".xz", ".bz2", ".zst", ".Z")


def aliases(path: Path, depth: int = 1, alone: bool = False) -> set[str]:
    """Return the names that a row may give a file.

    They have up to ``depth`` parts. A file that is ``alone`` in its folder has the folder's names, too.

    >>> sorted(aliases(Path("runs/x.cif.gz")))
    ['x', 'x.cif', 'x.cif.gz']
    """
    plain = path.with_suffix("") if path.suffix in COMPRESSED else path
    places = [path, plain, plain.with_suffix(""), *([path.parent] if alone else [])]
    return {"/".join(place.parts[-length:]) for place in places for length in range(1, depth + 1)}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Labels:
    """Fields and texts of graphs that a table has."""

    path: str
    column: str
    """Column that names the graphs."""
    rows: Mapping[str, int]
    table: Table
    fields: Sequence[FieldSettings]
    texts: Mapping[str, str]
    """Columns by the texts that they become."""
    names: Mapping[str, set[str]]
    """Rows that may name a file, by its name in those of graphs."""
    first: str = "0"
    """Number in the name of a file's first graph."""

    def row_of(self, name: str, file: str) -> int | None:
        """Return the row of a graph; InputError where it has several."""
        own = bool(file) and name != file and not name.startswith(f"{file}#")  # a name of its own, not that of its file
        place = file or name.rpartition("#")[0] or name
        keys = {name} if own and self.column != FILE else {name, *self.names.get(place, aliases(Path(place)))}
        rows = sorted(keys & self.rows.keys())
        if len(rows) > 1:
            raise InputError(f"{self.path}: {name} has several rows, {' and '.join(rows)}; keep one")
        return self.rows[rows[0]] if rows else None

    def added_to(self, graph: GraphBatch) -> GraphBatch:
        """Return one graph with its row; InputError where it needs one."""
        name, file = (graph.texts[key][0] if key in graph.texts else "" for key in (NAME, FILE))
        row = self.row_of(name, file)
        stem, _, number = name.rpartition("#")
        number = number if stem and file in ("", stem) else self.first
        file = file if file and self.column == FILE else stem or name
        if row is None and not all(field.optional for field in self.fields):
            problem = f"{self.path}: no row whose column {self.column} is {file}"
            raise InputError(f"{problem}; add one, or set optional = true for its fields")
        if row is None:
            return graph
        if name not in self.rows and number != self.first and any(field.role == "target" for field in self.fields):
            problem = f"{self.path}: {file} has several graphs, and its row would label all of them"
            raise InputError(f"{problem}; name rows {file}#{self.first}, {name} and so on")
        values, declared = {}, []
        for field in self.fields:
            raw = np.asarray(stack_rows([self.table[key][row] for key in field.keys], field))
            if not (field.optional and raw.dtype.kind == "f" and np.isnan(raw).all()):
                values[field.name] = field_values(raw, field.field, 1, f"{self.path}, {file}", field.optional)
                declared.append(field.field)
        texts = {key: [text_of(self.table[column][row], column, self.path)] for key, column in self.texts.items()}
        some = {
            field.name: torch.ones(1, dtype=torch.bool)
            for field in self.fields
            if field.missing and field.name in values
        }
        return graph.with_fields(values, fields=declared, masks=some).with_texts(texts)

    def shared_row(self, texts: Mapping[str, Texts], parts: int) -> str:
        """Return the fault of a row with several graphs; else empty."""
        if NAME in self.texts or NAME not in texts or not any(field.role == "target" for field in self.fields):
            return ""
        names, graph_of = texts[NAME][::parts], dict[int | None, tuple[int, str]]()
        for number, (name, file) in enumerate(zip(names, texts.get(FILE, Texts([""] * parts * len(names)))[::parts])):
            first, other = graph_of.setdefault(row := self.row_of(name, file), (number, name))
            if row is not None and first != number:
                return f"{self.path}: one row labels both {other} (graph {first}) and {name} (graph {number}); give each graph a row and a name of its own"
        return ""


def parted_settings(settings: BuildSettings) -> tuple[BuildSettings, Labels | None]:
    """Return the settings without fields of their table, and its labels.

    InputError where the table has no column that names graphs, two rows for one, or none of the fields.
    """
    if settings.labels is None:
        return settings, None
    of_graphs = [field for field in settings.fields if field.on == "graph"]
    optional = [key for field in of_graphs if field.optional for key in field.keys]
    numbers = [key for field in of_graphs for key in field.keys]
    named = {*COLUMNS, *settings.texts, settings.name_key or ""}
    table = read_table(Path(settings.labels), numbers, optional, named)
    column = next((name for name in COLUMNS if name in table), None)
    if column is None:
        raise InputError(
            f"{settings.labels} has no column that names graphs; call it file (the name of the file) or id"
        )
    names = [as_text(value) for value in table[column].tolist()]
    short = [Path(name).name for name in names]
    names = short if column == FILE and len({*short}) == len({*names}) else names
    rows = {name: row for row, name in enumerate(names)}
    if len(rows) < len(names):
        twice = next(name for row, name in enumerate(names) if rows[name] != row)
        what = f"is {twice}; keep one" if twice else "holds no text or whole number; name every graph"
        raise InputError(f"{settings.labels} has several rows whose column {column} {what}")
    fields = [field for field in of_graphs if all(key in table for key in field.keys)]
    texts = {key: key for key in settings.texts if key in table}
    if settings.name_key and settings.name_key in table and settings.name_key != column:
        texts[NAME] = settings.name_key
    if of_graphs and not fields and not texts:
        keys = ", ".join(key for field in of_graphs for key in field.keys)
        problem = f"{settings.labels} has none of {keys}; it has {', '.join(table)}"
        raise InputError(f"{problem}; name its columns in key, or leave labels out")
    rest: dict[str, Any] = {
        "fields": [field for field in settings.fields if field not in fields],
        "texts": [key for key in settings.texts if key not in texts],
        "name_key": None if NAME in texts else settings.name_key,
    }
    labels = Labels(
        path=settings.labels,
        column=column,
        rows=rows,
        table=table,
        fields=fields,
        texts=texts,
        names=_names_of_files(settings, rows, check=column == FILE or settings.name_key is None),
        first=settings.first_number,
    )
    return settings.model_copy(update=rest), labels


def _names_of_files(settings: BuildSettings, rows: Collection[str], *, check: bool) -> dict[str, set[str]]:
    """Return the rows that may name each file.

    A file that is alone in its folder has the folder's names, too. With ``check`` InputError for two files that a row could be for.
    """
    paths = [] if getattr(settings, "_objects", None) is not None else find_files(getattr(settings, "files", []))
    alone = len({path.parent for path in paths}) == len(paths)
    depth = 1 + max((row.count("/") for row in rows), default=0)
    named, file_of = {*rows, *(row.rpartition("#")[0] for row in rows)}, dict[str, str]()
    names = {file: aliases(path.absolute(), depth, alone) & named for file, path in zip(distinct_names(paths), paths)}
    for file, alias in ((file, alias) for file, own in names.items() for alias in sorted(own) if check):
        if (other := file_of.setdefault(alias, file)) != file:
            problem = f"{other} and {file} are both {alias}, so that {settings.labels} cannot tell them apart"
            raise InputError(f"{problem}; name folders, too, or rename one")
    return names
