"""Checkpoints of torch as numbers: no code in them runs."""

import re
import zipfile
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from io import BytesIO
from math import prod
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from pickle import BUILD
from typing import Any, ClassVar, NamedTuple
from zlib import crc32

import torch
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.base.limits import check_readable
from hydragnn.datasets.formats.public_pickles import PlainUnpickler
from hydragnn.frozen.settings import FAILURE

LARGEST, TABLE = 768 * 2**20, 6 * 2**20
"""Bytes of all weights of a checkpoint, and of the table that names them, each of which may become an object."""
STATES = ("model_state_dict", "module", "state_dict", "model")
"""Keys of state dictionaries; the second is DeepSpeed's."""
WRAPPED = re.compile(r"\b(_orig_mod|_fsdp_wrapped_module)\.")
"""Parts of names that wrappers add."""
SHARDED = ("torch.distributed", "deepspeed")
"""Packages whose objects describe pieces of tensors; other ranks held the others."""
REALS = {"Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16}
WHOLES = {"Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8}
DTYPES = {f"{name}Storage": dtype for name, dtype in {**REALS, **WHOLES, "Bool": torch.bool}.items()}


def _tensor(storage: Any, offset: int, size: Any, stride: Any, *_: Any) -> Tensor:
    if any(type(length) is not int for length in size) or prod(size) > len(storage):
        raise ValueError(f"a tensor of size {[*size]} in {len(storage)} numbers")
    view: Tensor = storage.as_strided(tuple(size), tuple(stride), offset)
    return view


class Piece:
    """Object that describes pieces, or a tensor of several ranks."""

    sizes = ""

    def __init__(self, *arguments: Any) -> None: ...


def _of_ranks(function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """Return the tensor where one rank has the whole."""
    if function is _tensor:  # with attributes, as FSDP gives it
        return _tensor(*arguments)
    states = state if isinstance(state, tuple) else [state]
    own, piece = next((one["_local_tensor"] for one in states if isinstance(one, dict)), None), Piece()
    if isinstance(own, Tensor):
        if own.shape == (size := tuple(arguments[2])):
            return own
        piece.sizes = f" with {[*own.shape]} of {[*size]}"
    return piece


KNOWN: Mapping[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
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
    """Reader of a checkpoint's table, which knows tensors alone."""

    dispatch: ClassVar[dict[int, Any]] = {**PlainUnpickler.dispatch, BUILD[0]: lambda reader: reader.stack.pop()}

    def __init__(self, path: Path) -> None:
        with zipfile.ZipFile(path) as file, path.open("rb") as content:
            self.records = {one.filename: one for one in file.infolist()}
            packed = any(one.compress_type != zipfile.ZIP_STORED or one.flag_bits & 1 for one in file.filelist)
            if packed or len(self.records) < len(file.filelist):
                raise ValueError("records are compressed, encrypted or of one name, as torch does not write them")
            self.root = next((name[:-8] for name in self.records if name.endswith("/data.pkl")), None)
            if self.root is None:
                raise ValueError("it has no table")
            if self.records[f"{self.root}data.pkl"].file_size > TABLE:
                raise ValueError("its table has more bytes than names of tensors take")
            self.bytes = mmap(content.fileno(), 0, access=ACCESS_COPY)
            super().__init__(BytesIO(file.read(f"{self.root}data.pkl")))

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the few known names; InputError for code."""
        if (module, name) in KNOWN:
            return KNOWN[module, name]
        if module.startswith(SHARDED):
            return Piece
        if not name:
            raise ValueError("its table is cut off")
        raise InputError(f"names {module}.{name}, which would run code; save model.state_dict() alone, and import that")

    def persistent_load(self, pid: Any) -> Tensor:
        """Return the numbers of a storage that a table names."""
        kind, dtype, key, _, numel = pid
        if kind != "storage" or not isinstance(dtype, torch.dtype) or type(numel) is not int or numel < 0:
            raise ValueError("an entry that is no storage")
        record = self.records.get(f"{self.root}data/{key}")
        size = 0 if record is None else record.file_size
        if record is None or numel * dtype.itemsize != size or record.header_offset + size > len(self.bytes):
            raise ValueError(f"a tensor names {numel} numbers, and its record has {size} bytes")
        begin = record.header_offset + 26  # of the lengths of a name and of more, which lie before the numbers
        begin += 4 + sum(int.from_bytes(self.bytes[begin + at : begin + at + 2], "little") for at in (0, 2))
        if crc32(memoryview(self.bytes)[begin : begin + size]) != record.CRC:
            raise ValueError(f"the numbers of record {key} differ from their checksum")
        if not numel:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self.bytes, dtype=dtype, count=numel, offset=begin)


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
        table = _Table(path).load()
        states = next((table[key] for key in STATES if key in table), table) if isinstance(table, dict) else {}
        if path.name.startswith("zero_pp_rank_"):
            states = _of_stage_3(path, table, states)
        optimized, step = _optimizer(table)
        step = int(step.sum()) if isinstance(step, Tensor) else step
        return Checkpoint(_weights(states), optimized, step if isinstance(step, int) else 0)
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


def _weights(states: Any) -> dict[str, Tensor]:
    """Return copies of tensors; InputError for parts of them."""
    if pieces := [name for name, value in (states or {}).items() if isinstance(value, Piece)]:
        raise InputError(
            f"holds what one rank kept of {len(pieces)} of {len(states)} tensors, as {pieces[0]}{states[pieces[0]].sizes}: {FAILURE} 4; "
            "the other ranks wrote no file: train on with HYDRAGNN_FSDP_VERSION=1, which saves all, and import that"
        )
    tensors = {name: value for name, value in states.items() if isinstance(value, Tensor)} if states else {}
    if not tensors or any(not isinstance(name, str) for name in tensors):
        raise ValueError("it holds no state dictionary of tensors")
    weights = [one for name, one in tensors.items() if name.endswith("weight")]
    if weights and not any(one.numel() for one in weights):
        raise InputError(
            "holds tensors without numbers, as DeepSpeed leaves them in stage 3: give the folder of the run, with the files "
            "of all ranks under the names that DeepSpeed gave them"
        )
    _check_size(tensors.values())
    if len({re.sub(r"\b(module|model)\.", "", WRAPPED.sub("", name)) for name in tensors}) < len(tensors):
        raise InputError("holds two tensors whose names differ in a prefix alone; save model.state_dict() of one model")
    return {WRAPPED.sub("", name): one.clone() for name, one in tensors.items()}


def _check_size(tensors: Iterable[Tensor]) -> None:
    if (total := sum(one.nbytes for one in tensors)) > LARGEST:
        raise InputError(f"has {total / 1e9:.3g} GB of weights, and at most {LARGEST / 1e9:.2g} are imported")


def _of_stage_3(path: Path, table: Any, states: Any) -> Any:
    """Return tensors of DeepSpeed's stage 3, sliced over ranks."""
    ranks, stored, slices = table["dp_world_size"], list[Tensor](), list[Mapping[str, Tensor]]()
    shapes = {name: size for group in table["param_shapes"] for name, size in group.items()}
    numels = [-(-prod(size) // ranks) for size in shapes.values()]
    for rank in range(ranks):
        names = [path.name.replace("_0_", f"_{rank}_", 1)]
        names.append(f"*{names[0].replace('model_states', 'optim_states')}")
        files = [next(path.parent.glob(name), None) for name in names]
        if None in files:
            raise InputError(f"is one of {ranks} ranks, and {names[files.index(None)]} is not beside it; copy it there")
        own, optimizer = (_Table(file).load() for file in files if file is not None)
        groups, frozen = optimizer["optimizer_state_dict"]["fp32_flat_groups"], own.get("frozen_param_fragments") or {}
        stored += [*groups, *frozen.values()]
        _check_size(stored)
        slices.append({**dict(zip(shapes, torch.cat(groups)[: sum(numels)].split(numels))), **frozen})
    whole = {
        name: torch.cat([one[name] for one in slices])[: prod(size)].view(size).to(states[name].dtype)
        for name, size in {**shapes, **(table.get("frozen_param_shapes") or {})}.items()
    }
    return {**states, **whole, **{name: whole[of] for name, of in dict(table.get("shared_params") or {}).items()}}
