"""Raw files of recipes; other files are refused with a sentence."""

import gzip
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.datasets.sources.table_files import Table, table_column


@contextmanager
def raw_arrays(path: Path, *names: str) -> Iterator[NpzFile]:
    """Return the npz file at ``path`` with the arrays ``names``.

    InputError where it is absent, broken or another.
    """
    with ExitStack() as stack:
        file: Any
        try:
            file = np.load(stack.enter_context(path.open("rb")), allow_pickle=False)
        except FileNotFoundError:
            raise InputError(f"the raw data are not at {path}; give the folder that holds them with --data") from None
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise InputError(f"{path} cannot be read as npz ({error}); fetch it again") from error
        if not isinstance(file, NpzFile):
            raise InputError(f"{path} holds one array, not a table of arrays; fetch the published file again")
        stack.enter_context(file)
        missing = [name for name in names if name not in file.files]
        if missing:
            raise InputError(f"{path} has no array {missing[0]}; fetch the published file again")
        yield file


def raw_text(path: Path) -> str:
    """The text of the gzip file at ``path``; InputError where it is absent or broken."""
    try:
        return gzip.decompress(path.read_bytes()).decode()
    except FileNotFoundError:
        raise InputError(f"the raw data are not at {path}; give the folder that holds them with --data") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as compressed text ({error}); fetch it again") from error


def array_like(table: Table, name: str, shape: tuple[int | str, ...], path: Path, kinds: str = "iuf") -> NDArray[Any]:
    """The array of that name with a shape such as ``("cells", 32)``, where a word is any length.

    InputError where it is absent or has another shape, or where its numbers are of none of numpy's ``kinds``.
    """
    array = table_column(table, name, path)
    fits = len(array.shape) == len(shape) and all(
        isinstance(one, str) or one == size for one, size in zip(shape, array.shape)
    )
    if not fits:
        expected = ", ".join(map(str, shape))
        raise InputError(f"{path}: {name} has shape {list(array.shape)}, not [{expected}]; give such an array")
    if array.dtype.kind not in kinds:
        wanted = {"b": "True and False", "iu": "whole numbers"}.get(kinds, "numbers")
        raise InputError(f"{path}: {name} holds {array.dtype} values; give {wanted}")
    return array


def pieces(
    table: Table, name: str, shape: tuple[int | str, ...], counts: str, path: Path, kinds: str = "iuf"
) -> list[NDArray[Any]]:
    """Return the pieces of an array that lie end to end.

    InputError where there are more or fewer rows than counted.
    """
    rows, numbers = array_like(table, name, shape, path, kinds), array_like(table, counts, ("graphs",), path, "iu")
    if (numbers < 0).any() or numbers.sum() != len(rows):
        raise InputError(
            f"{path}: {counts} counts {numbers.sum()} rows of {name}, which has {len(rows)}; make them agree"
        )
    return np.split(rows, np.cumsum(numbers)[:-1])
