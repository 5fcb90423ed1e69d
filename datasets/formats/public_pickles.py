"""Pickled samples of the public HydraGNN, read without running their code."""

import io
import math
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hydragnn.base.errors import InputError, words_of
from hydragnn.base.places import INDEX

LARGEST = 2**28  # bytes of a sample, which is in memory up to four times as it is read
MOST = 2**20  # objects of a file, of which each takes some 60 bytes
META = "-meta.pkl"  # end of the file that counts the samples of a label


class Sample:
    """Attributes of a ``Data``, or of a storage in it."""

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)


def _dtype(name: Any, *_: Any) -> np.dtype[Any]:
    """Return a dtype of numbers, which no state changes."""
    dtype = np.dtype(name)
    if dtype.kind not in "fiub":
        raise TypeError(f"numbers of dtype {dtype}")
    return dtype


def _storage(content: bytes) -> Any:
    """Return the numbers of a storage, which torch reads as weights alone."""
    import torch

    if content[:2] == b"PK":  # which might unpack to anything
        raise ValueError("a storage in an archive")
    storage = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    return torch.tensor([], dtype=storage.dtype).set_(storage)


def _tensor(storage: Any, offset: int, shape: Sequence[int], strides: Sequence[int], *_: Any) -> Any:
    """Return a tensor; ValueError where it is larger than its storage."""
    if any(type(size) is not int for size in shape) or math.prod(shape) > max(1, storage.numel()):
        raise ValueError("a tensor beyond its storage")
    return storage.as_strided(tuple(shape), tuple(strides), offset).numpy().copy()


def _same(value: Any, *_: Any) -> Any:
    return value


DATA = re.compile(r"torch_geometric\.data\.\w+\.(Data|Data(Edge|Tensor)Attr|[A-Za-z]*Storage)")
NUMPY: dict[str, Callable[..., Any]] = {
    "_reconstruct": lambda *_: np.ndarray((0,), "b"),
    "scalar": lambda dtype, content: np.frombuffer(content, dtype, count=1)[0],
}
STAND_INS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": OrderedDict,
    "numpy.dtype": _dtype,
    "numpy.ndarray": _same,
    "torch.Size": tuple,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _same,
    "torch.storage._load_from_bytes": _storage,
    **{f"numpy.{core}.multiarray.{name}": one for core in ("core", "_core") for name, one in NUMPY.items()},
}
"""Functions and classes in place of those that files name; others are refused."""


def _with_plain_keys(code: bytes) -> Callable[[Any], None]:
    """Return a reader's step without keys that take for ever to hash."""

    def step(reader: Any) -> None:
        keys = reader.stack[-2:-1] if code == pickle.SETITEM else reader.stack[::2]
        if any(isinstance(key, tuple) for key in keys):
            raise TypeError("a tuple as a key")
        pickle._Unpickler.dispatch[code[0]](reader)

    return step


class _Steps(dict[int, Any]):
    """Steps of a reader by their codes, which count themselves."""

    left = MOST

    def __getitem__(self, code: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"more than {MOST:,} objects")
        return super().__getitem__(code)


class PlainUnpickler(pickle._Unpickler):
    """Reader in Python, as slow and large as a file."""

    dispatch: ClassVar[dict[int, Any]] = {**pickle._Unpickler.dispatch}
    for code in (pickle.BYTEARRAY8, pickle.ADDITEMS, pickle.FROZENSET):
        del dispatch[code[0]]  # the first allocates what it claims; others hash
    for code in (pickle.SETITEM, pickle.SETITEMS, pickle.DICT):
        dispatch[code[0]] = _with_plain_keys(code)

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        vars(self)["dispatch"] = _Steps(self.dispatch)


class _Unpickler(PlainUnpickler):
    dispatch: ClassVar[dict[int, Any]] = {**PlainUnpickler.dispatch}
    stack: list[Any]

    def find_class(self, module: str, name: str) -> Any:
        """Return a stand-in; UnpicklingError for another name."""
        full = f"{module}.{name}"
        if not DATA.fullmatch(full) and full not in STAND_INS:
            raise pickle.UnpicklingError(f"it names {full}")
        return STAND_INS.get(full, Sample)

    def set_state(self) -> None:
        """Give an object its state; AttributeError for functions and classes."""
        state = self.stack.pop()
        if not isinstance(self.stack[-1], np.dtype):
            self.stack[-1].__setstate__(state)
        elif state[1] == ">":
            raise TypeError("numbers in another order of bytes")

    dispatch[pickle.BUILD[0]] = set_state


def objects_in(path: Path) -> list[Any]:
    """Return the objects of a file; InputError for other kinds."""
    objects = []
    if (size := path.stat().st_size) > LARGEST:
        raise InputError(
            f"{path} has {size / 1e9:.3g} GB, and a sample at most {LARGEST / 1e9:.2g}; convert it with its own package"
        )
    try:
        with path.open("rb") as file:
            while file.peek(1):
                objects.append(_Unpickler(file).load())
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
        found = ((number.fullmatch(file.name), file) for file in folder.rglob("*.pkl"))
        files = sorted((int(match[1]), file) for match, file in found if match)
        count = next((one for one in head if type(one) is int), None)
        if count != len(files) or any(number != place for place, (number, _) in enumerate(files)):
            raise InputError(f"{meta} counts {count} samples, and {len(files)} are beside it; copy the folder again")
        samples[label] = [_values(file) for _, file in files]
        notes |= dict(zip(("minmax_node_feature", "minmax_graph_feature"), head))
        notes |= {str(key): value for one in head if isinstance(one, dict) for key, value in one.items()}
    if not samples:
        raise InputError(f"{folder} has neither {INDEX} of ADIOS2 nor a {META} of pickled samples; copy it again")
    return samples, {key: one for key, one in notes.items() if isinstance(one, int | float | str | np.ndarray)}


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
