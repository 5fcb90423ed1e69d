"""Checkpoints of torch as numbers: no code in them runs."""

import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.base.limits import check_readable
from hydragnn.datasets.formats.public_pickles import PlainUnpickler
from hydragnn.frozen.settings import FAILURE

LARGEST, TABLE = 768 * 2**20, 6 * 2**20
"""Bytes of all weights of a checkpoint, and of the table that names them, each of which may become an object."""

DTYPES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}

SHARDED = ("torch.distributed", "deepspeed")
"""Packages whose objects describe pieces of tensors; other ranks held the others."""


class Storage(NamedTuple):  # as Place: without attributes that a table could put in the place of these
    """Numbers of a file, not read yet."""

    dtype: torch.dtype
    key: str
    numel: int


class Place(NamedTuple):
    """Tensor as a view of a storage."""

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


def _place(storage: Any, offset: Any, size: Any, stride: Any, *more: Any) -> Place:
    numbers = [offset, *size, *stride]
    if not isinstance(storage, Storage) or any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("a tensor without a storage")
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if prod(size) > storage.numel or (prod(size) and last >= storage.numel):
        raise ValueError(f"a tensor of size {[*size]} in {storage.numel} numbers")
    return Place(storage, offset, tuple(size), tuple(stride))


class Piece:
    """Object that describes pieces, or a tensor of several ranks."""

    sizes = ""

    def __init__(self, *arguments: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...


def _of_ranks(function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """Return the tensor where one rank has the whole."""
    if function is _place:  # with attributes, as FSDP gives it
        return _place(*arguments)
    states = state if isinstance(state, tuple) else [state]
    own, piece = next((one["_local_tensor"] for one in states if isinstance(one, dict)), None), Piece()
    if isinstance(own, Place):
        if own.size == (size := tuple(arguments[2])):
            return own
        piece.sizes = f" with {[*own.size]} of {[*size]}"
    return piece


KNOWN: Mapping[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _place,
    ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
    ("torch._tensor", "_rebuild_from_type_v2"): _of_ranks,
    ("torch", "Size"): tuple,
    **dict.fromkeys([("torch._utils", "_rebuild_wrapper_subclass"), ("torch.serialization", "_get_layout")], Piece),
    **dict.fromkeys([("torch", "device"), ("torch", "Tensor")], Piece),
    ("__builtin__", "getattr"): lambda *_: Piece,  # a class in a class of shards
    **{("torch", name): dtype for name, dtype in DTYPES.items()},
    **{("torch", str(dtype).removeprefix("torch.")): dtype for dtype in DTYPES.values()},
}


class _Table(PlainUnpickler):
    """Reader of the table of a checkpoint, which knows tensors alone."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the few known names; InputError for code."""
        if (module, name) in KNOWN:
            return KNOWN[module, name]
        if module.startswith(SHARDED):
            return Piece
        raise InputError(f"names {module}.{name}, which would run code; save model.state_dict() alone, and import that")

    def persistent_load(self, pid: Any) -> Storage:
        """Return the storage that a table names."""
        kind, dtype, key, _, numel = pid
        if kind != "storage" or not isinstance(dtype, torch.dtype) or type(numel) is not int or numel < 0:
            raise ValueError("an entry that is no storage")
        return Storage(dtype, str(key), numel)


class Checkpoint(NamedTuple):
    """Numbers of a file."""

    weights: dict[str, Tensor]
    optimized: int | None
    """Parameters that the optimizer knows; None without one."""
    steps: int
    """Steps that the optimizer took; 0 where it does not say."""


def read_checkpoint(path: Path) -> Checkpoint:
    """Return tensors by name, and what the optimizer says.

    InputError, with nothing allocated before, for files that are damaged, larger than ``LARGEST`` or name code.
    """
    check_readable(path)
    try:
        with zipfile.ZipFile(path) as file:
            records = _records(file, path)
            root = next((name[: -len("data.pkl")] for name in records if name.endswith("/data.pkl")), None)
            if root is None:
                raise ValueError("it has no table")
            if records[f"{root}data.pkl"] > TABLE:
                raise ValueError("its table has more bytes than names of tensors take")
            table = _Table(BytesIO(file.read(f"{root}data.pkl"))).load()
            states = table.get("model_state_dict", table.get("module", table)) if isinstance(table, dict) else None
            weights, (optimized, step) = _tensors(states, file, records, root), _optimizer(table)
            if isinstance(step, Place):
                step = int(_tensors({"step": step}, file, records, root)["step"].sum())
            return Checkpoint(weights, optimized, step if isinstance(step, int) else 0)
    except InputError as error:
        raise InputError(f"{path} {error}") from error
    except MemoryError:
        raise
    except Exception as error:  # whatever a damaged table makes its reader raise
        old = "" if zipfile.is_zipfile(path) else " (files of torch before 1.6 are saved again with a newer one)"
        raise InputError(
            f"{path} is no checkpoint, or damaged: {str(error) or type(error).__name__}{old}; copy it again"
        ) from error


def _optimizer(table: Any) -> tuple[int | None, Any]:
    """Return its number of parameters and its steps."""
    state = table.get("optimizer_state_dict") if isinstance(table, dict) else None
    state = state if isinstance(state, dict) else {}
    groups, states = state.get("param_groups"), state.get("state")
    count = sum(len(group["params"]) for group in groups) if isinstance(groups, list) else None
    first = next(iter(states.values()), None) if isinstance(states, dict) else None
    return count, first.get("step") if isinstance(first, dict) else None


def _records(file: zipfile.ZipFile, path: Path) -> dict[str, int]:
    """Return sizes of records; ValueError for a size that the file lacks."""
    size = path.stat().st_size
    entries = file.infolist()
    if any(one.compress_type != zipfile.ZIP_STORED or one.flag_bits & 1 for one in entries):
        raise ValueError("its records are compressed or encrypted, which torch does not write")
    if any(one.header_offset + one.file_size > size or one.compress_size != one.file_size for one in entries):
        raise ValueError("it claims more bytes than it has")
    return {one.filename: one.file_size for one in entries}


def _tensors(states: Any, file: zipfile.ZipFile, records: Mapping[str, int], root: str) -> dict[str, Tensor]:
    if pieces := [name for name, value in (states or {}).items() if isinstance(value, Piece)]:
        raise InputError(
            f"holds what one rank kept of {len(pieces)} of {len(states)} tensors, as {pieces[0]}{states[pieces[0]].sizes}: {FAILURE} 4; "
            "save the full state dictionary of all ranks"
        )
    tensors = {name: value for name, value in states.items() if isinstance(value, Place)} if states else {}
    weights = [one.size for name, one in tensors.items() if str(name).endswith("weight")]
    if weights and not any(map(prod, weights)):
        raise InputError(
            "holds tensors without numbers, as DeepSpeed leaves them in stage 3: join all ranks' files by zero_to_fp32.py in "
            "the folder of the run, and import the file that it writes"
        )
    if not tensors or any(not isinstance(name, str) for name in tensors):
        raise ValueError("it holds no state dictionary of tensors")
    storages = {place.storage.key: place.storage for place in tensors.values()}
    for place in tensors.values():
        one, record = place.storage, f"{root}data/{place.storage.key}"
        if one.numel * one.dtype.itemsize != records.get(record) or storages[one.key] != one:
            raise ValueError(f"a tensor names {one.numel} numbers, and its record has {records.get(record, 0)} bytes")
    total = sum(one.numel * one.dtype.itemsize for one in storages.values())
    if total > LARGEST:
        raise InputError(f"has {total / 1e9:.3g} GB of weights, and at most {LARGEST / 1e9:.2g} are imported")
    numbers = {
        key: torch.frombuffer(bytearray(file.read(f"{root}data/{key}") or one.dtype.itemsize), dtype=one.dtype)
        for key, one in storages.items()
    }
    return {
        name: numbers[place.storage.key].as_strided(place.size, place.stride, place.offset)
        for name, place in tensors.items()
    }
