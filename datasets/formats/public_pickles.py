"""Pickled samples of the public HydraGNN, read without running their code."""

import io
import math
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn.base.errors import InputError, words_of
from hydragnn.datasets.arrays import Array

META = "-meta.pkl"
"""End of the file that counts the samples of a label."""


class Sample:
    """Attributes of a ``Data``, or of a storage in it."""

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise TypeError("attributes that are no table")
        self.__dict__.update(state)


def _storage(content: bytes) -> Any:
    """Return the numbers of a storage, which torch reads as weights alone."""
    import torch

    storage = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    return torch.tensor([], dtype=storage.dtype).set_(storage)


def _tensor(storage: Any, offset: int, shape: Sequence[int], strides: Sequence[int], *_: Any) -> Array:
    """Return a tensor; ValueError where it is larger than its storage."""
    if math.prod(shape) > max(1, storage.numel()):
        raise ValueError("a tensor beyond its storage")
    tensor: Array = storage.as_strided(tuple(shape), tuple(strides), offset).numpy().copy()
    return tensor


def _scalar(dtype: Any, content: bytes) -> Any:
    return np.frombuffer(content, dtype=np.dtype(dtype), count=1)[0]


def _same(value: Any, *_: Any) -> Any:
    return value


NUMPY = {"_reconstruct": lambda *_: np.ndarray((0,), "b"), "scalar": _scalar}
ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("numpy", "dtype"): np.dtype,
    ("numpy", "ndarray"): _same,
    ("torch", "Size"): tuple,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _same,
    ("torch.storage", "_load_from_bytes"): _storage,
    **{(f"numpy.{core}.multiarray", name): one for core in ("core", "_core") for name, one in NUMPY.items()},
}
"""Stand-ins for functions and classes in files; others are refused."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return a stand-in; UnpicklingError for another name."""
        if module.startswith("torch_geometric.data.") and re.fullmatch(
            "Data|Data(Edge|Tensor)Attr|[A-Za-z]*Storage", name
        ):
            return Sample
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return ALLOWED[module, name]


def objects_in(path: Path) -> list[Any]:
    """Return the objects of a file; InputError for other kinds."""
    objects, content = [], io.BytesIO(path.read_bytes())
    try:
        while content.tell() < len(content.getbuffer()):
            objects.append(_Unpickler(content).load())
    except Exception as error:  # whatever a damaged pickle raises
        raise InputError(
            f"{path} is damaged, or holds more than tensors, arrays and Data of torch_geometric, and code from files is not run: "
            f"{words_of(error)[:200]}"
        ) from error
    return objects


def samples_in(folder: Path) -> tuple[dict[str, list[Mapping[str, Any]]], dict[str, Any]]:
    """Return samples by label, and notes about all of them."""
    samples: dict[str, list[Mapping[str, Any]]] = {}
    notes: dict[str, Any] = {}
    for meta in sorted(folder.glob(f"*{META}")):
        label, head = meta.name.removesuffix(META), objects_in(meta)
        number = re.compile(rf"{re.escape(label)}-(\d+)\.pkl")
        files = sorted(
            (int(match[1]), file) for file in folder.rglob("*.pkl") if (match := number.fullmatch(file.name))
        )
        count = next((one for one in head if type(one) is int), None)
        if count != len(files) or any(number != place for place, (number, _) in enumerate(files)):
            raise InputError(f"{meta} counts {count} samples, and {len(files)} are beside it; copy the folder again")
        samples[label] = [_values(file) for _, file in files]
        notes |= {key: value for one in head if isinstance(one, dict) for key, value in one.items()}
        notes |= dict(zip(("minmax_node_feature", "minmax_graph_feature"), head))
    if not samples:
        raise InputError(f"{folder} has no file that ends with {META}; name a folder of such files")
    lists = {str(key): one.tolist() if isinstance(one, np.ndarray) else one for key, one in notes.items()}
    return samples, {key: one for key, one in lists.items() if isinstance(one, int | float | str | list)}


def _values(path: Path) -> dict[str, Any]:
    """Return the attributes by name, in each version's place."""
    table: Any = None
    objects = objects_in(path)
    if len(objects) == 1 and isinstance(objects[0], Sample):
        table = vars(objects[0])
        table = vars(table["_store"]).get("_mapping") if isinstance(table.get("_store"), Sample) else table
    if not isinstance(table, dict) or not all(isinstance(key, str) for key in table):
        raise InputError(f"{path} holds no Data of torch_geometric; name a folder of samples, one a file")
    return {key: value for key, value in table.items() if value is not None}
