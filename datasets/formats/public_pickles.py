"""Pickled samples of the public HydraGNN, read without running their code."""

import io
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
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

    def values(self) -> dict[str, Any]:
        """Return the attributes by name, in each version's place."""
        store = self.__dict__.get("_store")
        table = store.__dict__.get("_mapping", {}) if isinstance(store, Sample) else self.__dict__
        if not isinstance(table, dict) or not all(isinstance(key, str) for key in table):
            raise TypeError("attributes without names")
        return {key: value for key, value in table.items() if value is not None}


def _storage(content: bytes) -> Array:
    """Return the numbers of a storage, which torch reads as weights alone."""
    import torch

    storage = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    return torch.tensor([], dtype=storage.dtype).set_(storage).numpy()


def _tensor(storage: Array, offset: int, shape: Sequence[int], strides: Sequence[int], *_: Any) -> Array:
    """Return a tensor; ValueError where it is larger than its storage."""
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    least = min([offset, *strides, *shape])
    if least < 0 or np.prod(shape, dtype=object) > max(1, storage.size) or (0 not in shape and last >= storage.size):
        raise ValueError("a tensor beyond its storage")
    steps = tuple(stride * storage.itemsize for stride in strides)
    view = np.lib.stride_tricks.as_strided(storage[offset:], shape=tuple(shape), strides=steps)
    return np.array(view) if 0 not in shape else np.zeros(tuple(shape), dtype=storage.dtype)


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
        by_number = {
            int(file.stem.rpartition("-")[2]): file
            for file in meta.parent.rglob(f"{label}-*.pkl")
            if file.stem[-1].isdigit()
        }
        count = next((one for one in head if isinstance(one, int) and not isinstance(one, bool)), None)
        if count != len(by_number) or {*by_number} != {*range(len(by_number))}:
            raise InputError(
                f"{meta} counts {count} samples, and {len(by_number)} are beside it; copy the folder again"
            )
        samples[label] = [_values(objects_in(by_number[number]), by_number[number]) for number in range(len(by_number))]
        notes |= {key: value for one in head if isinstance(one, dict) for key, value in one.items()}
        notes |= dict(zip(("minmax_node_feature", "minmax_graph_feature"), head[:2]))
    if not samples:
        raise InputError(f"{folder} has no file that ends with {META}; name a folder of such files")
    return samples, {key: np.asarray(value).tolist() for key, value in _plain(notes)}


def _plain(notes: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((str(k), v) for k, v in notes.items() if isinstance(v, np.ndarray | int | float | str | list))


def _values(objects: list[Any], path: Path) -> dict[str, Any]:
    if len(objects) != 1 or not isinstance(objects[0], Sample):
        raise InputError(f"{path} holds no Data of torch_geometric; name a folder of samples, one a file")
    try:
        return objects[0].values()
    except TypeError as error:
        raise InputError(f"{path} holds {error}; copy it again") from error
