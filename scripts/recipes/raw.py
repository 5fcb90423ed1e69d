"""Raw files of recipes, opened with a sentence for whoever has another file."""

import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile

from hydragnn.errors import InputError


@contextmanager
def raw_arrays(path: Path, *names: str) -> Iterator[NpzFile]:
    """The npz file at ``path``, which must hold the arrays ``names``; InputError where it is absent, broken or another."""
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
