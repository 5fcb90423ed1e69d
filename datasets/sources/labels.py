"""Tables of labels beside files, joined by file or by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hydragnn.base.errors import InputError
from hydragnn.datasets.sources.base import BuildSettings
from hydragnn.datasets.sources.fields import FieldSettings
from hydragnn.datasets.sources.table_files import Table, find_files, read_table, stack_rows
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.texts import NAME, NAME_KEYS, as_text
from hydragnn.graphs.validate import field_values

COLUMNS = ("file", *NAME_KEYS)
"""Columns that may name graphs; the first one of a table does."""


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
    first: str = "0"
    """Number in the name of a file's first graph."""

    def added_to(self, graph: GraphBatch) -> GraphBatch:
        """Return one graph with its row; InputError where it needs one."""
        name = "" if graph.names is None else graph.names[0]
        file, _, number = name.rpartition("#") if "#" in name else (name, "", self.first)
        row = next((self.rows[key] for key in (name, file, Path(file).stem) if key in self.rows), None)
        if row is None and not all(field.optional for field in self.fields):
            raise InputError(
                f"{self.path}: no row whose column {self.column} is {file}; add one, or set optional = true for its fields"
            )
        if row is None:
            return graph
        if name not in self.rows and number != self.first and any(field.role == "target" for field in self.fields):
            raise InputError(
                f"{self.path}: {file} has several graphs, and its row would label all of them; name rows {file}#{self.first}, {name} and so on"
            )
        values, declared = {}, []
        for field in self.fields:
            raw = np.asarray(stack_rows([self.table[key][row] for key in field.keys], field))
            if not (field.optional and raw.dtype.kind == "f" and np.isnan(raw).all()):
                values[field.name] = field_values(raw, field.field, 1, f"{self.path}, {file}", field.optional)
                declared.append(field.field)
        texts = {key: [as_text(self.table[column][row])] for key, column in self.texts.items()}
        some = {
            field.name: torch.ones(1, dtype=torch.bool)
            for field in self.fields
            if field.missing and field.name in values
        }
        return graph.with_fields(values, fields=declared, masks=some).with_texts(texts)


def parted_settings(settings: BuildSettings) -> tuple[BuildSettings, Labels | None]:
    """Return the settings without fields of their table, and its labels.

    InputError where the table has no column that names graphs, two rows for one, or none of the fields.
    """
    if settings.labels is None:
        return settings, None
    of_graphs = [field for field in settings.fields if field.on == "graph"]
    optional = [key for field in of_graphs if field.optional for key in field.keys]
    numbers = [key for field in of_graphs for key in field.keys]
    named = {*COLUMNS, *settings.texts, settings.name_key or ""} - set(numbers)
    table = read_table(Path(settings.labels), numbers, optional, named)
    column = next((name for name in COLUMNS if name in table), None)
    if column is None:
        raise InputError(
            f"{settings.labels} has no column that names graphs; call it file (the name of the file) or id"
        )
    names = [str(text).strip() for text in table[column].tolist()]
    names = [Path(name).name for name in names] if column == "file" else names
    rows = {name: row for row, name in enumerate(names)}
    if len(rows) < len(names):
        twice = next(name for row, name in enumerate(names) if rows[name] != row)
        raise InputError(f"{settings.labels} has several rows whose column {column} is {twice}; keep one")
    if column == "file" or settings.name_key is None:
        _check_files(settings)
    fields = [field for field in of_graphs if all(key in table for key in field.keys)]
    texts = {key: key for key in settings.texts if key in table}
    if settings.name_key and settings.name_key in table and settings.name_key != column:
        texts[NAME] = settings.name_key
    if of_graphs and not fields and not texts:
        keys = ", ".join(key for field in of_graphs for key in field.keys)
        raise InputError(
            f"{settings.labels} has none of {keys}; it has {', '.join(table)}; name its columns in key, or leave labels out"
        )
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
        first=settings.first_number,
    )
    return settings.model_copy(update=rest), labels


def _check_files(settings: BuildSettings) -> None:
    """Raise InputError for two files of one name, which would share a row."""
    seen: dict[str, Path] = {}
    for path in [] if getattr(settings, "_objects", None) is not None else find_files(getattr(settings, "files", [])):
        if (other := seen.setdefault(path.name, path)) != path:
            raise InputError(
                f"{other} and {path} have the same name, so that {settings.labels} cannot tell them apart; rename one"
            )
