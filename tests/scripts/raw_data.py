"""Small cuts of the published raw files of recipes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn.datasets import open_store

Arrays = dict[str, Any]


def cut_file(published: Path, folder: Path, change: Callable[[Arrays], object]) -> Path:
    """Write the arrays of a file, changed in place or made anew by a function, under the same name into a folder."""
    with np.load(published, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    folder.mkdir(exist_ok=True)
    result = change(arrays)
    np.savez(folder / published.name, **(result if isinstance(result, dict) else arrays))
    return folder / published.name


def rows_of(arrays: Arrays, subset: NDArray[np.bool_]) -> Arrays:
    """Return some rows of all arrays that are as long as the subset."""
    return {name: array[subset] if len(array) == len(subset) else array for name, array in arrays.items()}


def microstructures(arrays: Arrays, subset: NDArray[np.bool_]) -> Arrays:
    """Return some microstructures of the file of terfenol."""
    points = subset[arrays["graph_index"]]
    measured = {name: arrays[name][points] for name in ("field_kA_per_m", "magnetostriction")}
    return {
        "n_grains": arrays["n_grains"][subset],
        "n_edges": arrays["n_edges"][subset],
        "euler_size_nnb": arrays["euler_size_nnb"][np.repeat(subset, arrays["n_grains"])],
        "edge": arrays["edge"][np.repeat(subset, arrays["n_edges"])],
        "graph_index": (np.cumsum(subset) - 1)[arrays["graph_index"][points]],
        **measured,
    }


def values(store: Path, name: str) -> np.ndarray:
    """Return a field of all graphs of a store."""
    return open_store(store).column(name).values
